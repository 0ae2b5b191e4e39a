"""Add other programs' measurements to a results file.

It reads the tables and JSON of nccl-tests (-J, versions 2 and 3) and rccl-tests (-Z), and the output
of the OSU micro-benchmarks. A log may have several tables, prefixes of launchers and loggers, and
other lines; it may be packed by gzip. What a log does not say is asked for: --collective, --ranks.
A table whose bus bandwidth does not follow from its sizes, times and ranks is left out. Each table
gets a line that says whether it was added.

Examples
--------
  hpccomm import all_reduce.log --output runs.h5
  hpccomm import *.json --output runs.h5
  hpccomm import nightly.log.gz --dry-run           what it would add, and leave out
  hpccomm import osu_allreduce.txt --ranks 64 --output runs.h5
  hpccomm import old.log --collective all_reduce --output runs.h5
  all_reduce_perf -b 8 -e 1G -f 2 -g 8 | hpccomm import - --output runs.h5

The time of a run is the log's, or else the file's. A measurement that the results file already has
is not added again. Exit status 2 if a table is left out that more knowledge might mend.
"""

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results.facts import identity
from hpccomm.tools import flags, output
from hpccomm.tools.flag import Flag
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.progress import watched
from hpccomm.tools.runs.logs.imported import ImportedRun, LeftOutTable, LogDefaults, collective_of


def _collective(text: str) -> str:
    return flags.one_of(sorted(COLLECTIVES), "collective")(collective_of(text))


FLAGS = (
    Flag("LOG", flags.file, "a log; - is standard input", "logs", values="+"),
    Flag("--output FILE.h5", flags.file, "the results file"),
    Flag("--dry-run", bool, "store nothing, and say what would become of each table"),
    Flag("--collective NAME", _collective, "what was measured, where the log does not say it"),
    Flag(
        "--ranks N",
        flags.integer(1),
        "how many ranks there were, where the log does not say it, as OSU's",
    ),
)


def run(args: argparse.Namespace) -> int:
    """Read and store; return the exit status."""
    from hpccomm.tools.runs.logs import reading

    if args.output is None and not args.dry_run:
        raise UsageError("--output is missing; name the results file, or give --dry-run")
    # All logs are read before the first is stored.
    logs, unreadable = [], []
    with watched("reading logs", len(args.logs)) as progress:
        for log in args.logs:
            try:
                logs.append((log, reading.parse(*_read(log, args))))
            except ResultsError as error:
                unreadable.append(str(error))
            progress.advance()
    refused = ResultsError("; ".join(unreadable))
    if unreadable and not args.dry_run:
        raise refused
    known = reading.known_runs(args.output)
    new: dict[Any, tuple[Path, ImportedRun]] = {}
    for log, content in logs:
        for found in content.runs:
            if (key := identity(found.info, found.rows)) not in known:
                new.setdefault(key, (log, found))
    if not args.dry_run:
        # A run is named only when it is in the file.
        names = reading.store(args.output, [each for _, each in new.values()])
        places = [f"{name} of {args.output}" for name in names]
    else:
        places = [f"that of {log}" for log, _ in new.values()]
    known |= dict(zip(new, places, strict=True))
    mendable = False
    for log, content in logs:
        name = f"{log} ({content.packed})" if content.packed else str(log)
        for each in content.tables:
            if isinstance(each, LeftOutTable):
                output.write(f"{name}: line {each.line}: {each.what} left out: {each.why}\n")
                mendable |= not each.unlike
                continue
            what = f"{each.rows[0].collective}, {len(each.rows)} rows, {len(each.info.ranks)} ranks"
            key = identity(each.info, each.rows)
            if key not in new or new[key][1] is not each:
                output.write(f"{name}: {what} left out: the same measurement as {known[key]}\n")
                continue
            place = "would be stored" if args.dry_run else known[key]
            output.write(f"{name}: {what}: {place}, {each.status}\n")
            for note in each.notes:
                output.write(f"{name}:   {note}\n")
    if unreadable:
        raise refused
    return 2 if mendable else 0


def _read(log: Path, args: argparse.Namespace) -> tuple[bytes, LogDefaults]:
    """Return a log's bytes, and what else is known of it."""
    from hpccomm.results import facts
    from hpccomm.results.files import os_errors_as

    asked = {"collective": args.collective, "ranks": args.ranks}
    if str(log) == "-":
        data, now = sys.stdin.buffer.read(), datetime.now().astimezone()
        return data, LogDefaults("standard input", now, facts.user(), **asked)
    with os_errors_as(log, "read"):
        data, stat = log.read_bytes(), log.stat()
    try:
        owner = log.owner()
    except KeyError:  # a user id without a name
        owner = str(stat.st_uid)
    changed = datetime.fromtimestamp(stat.st_mtime).astimezone()
    return data, LogDefaults(str(log), changed, owner, **asked)
