"""``hpccomm import``: logs of other benchmarks into a results file."""

import argparse
import sys
from datetime import datetime
from pathlib import Path

from hpccomm.bench.logs.imported import Told, collective_of
from hpccomm.bench.perf import readers
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.bench.progress import watched
from hpccomm.cli import output
from hpccomm.cli.show import path
from hpccomm.errors import ResultsError

DESCRIPTION = """\
Add what other benchmarks measured to a results file: the table or JSON (-J, versions 2 and 3) of nccl-tests, and
what the OSU micro-benchmarks print. A log may have several runs, and tags of mpirun or srun before its lines.
"""

EXAMPLES = """\
examples:
  hpccomm import all_reduce.log --output runs.h5
  hpccomm import *.json --output runs.h5
  hpccomm import osu_allreduce.txt --ranks 64 --output runs.h5
  all_reduce_perf -b 8 -e 1G -f 2 -g 8 | hpccomm import - --output runs.h5

The time of a run is that of its log, where the log does not say it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "logs", nargs="+", type=path, metavar="LOG", help="a log; - is standard input"
    )
    parser.add_argument(
        "--output", type=path, required=True, metavar="FILE.h5", help="the results file"
    )
    parser.add_argument(
        "--collective",
        metavar="NAME",
        type=_collective,
        help="what was measured, where the log does not say it",
    )
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=readers.integer(1),
        help="how many ranks there were, where the log does not say it, as OSU's",
    )


def _collective(text: str) -> str:
    return readers.one_of(sorted(COLLECTIVES), "collective")(collective_of(text))


def run(args: argparse.Namespace) -> int:
    """Read and store; return the exit status."""
    from hpccomm.bench.logs import reading

    # All logs are read before the first is stored.
    runs = []
    with watched("reading logs", len(args.logs)) as progress:
        for log in args.logs:
            runs.append((log, reading.parse(*_read(log, args))))
            progress.advance()
    for log, found in runs:
        for each, name in zip(found, reading.store(args.output, found), strict=True):
            output.write(
                f"{log}: {each.rows[0].collective if each.rows else 'nothing'}, {len(each.rows)} rows, "
                f"{len(each.info.ranks)} ranks: {name} of {args.output}, {each.status}\n"
            )
    return 0


def _read(log: Path, args: argparse.Namespace) -> tuple[str, Told]:
    """Return a log's text, and what is known beside it."""
    from hpccomm.results import origin
    from hpccomm.results.refusals import reported

    asked = {"collective": args.collective, "ranks": args.ranks}
    try:
        if str(log) == "-":
            told = Told("standard input", datetime.now().astimezone(), origin.user(), **asked)
            return sys.stdin.read(), told
        with reported(log, "read"):
            # Windows puts a mark of the encoding before the first line.
            text, stat = log.read_text(encoding="utf-8-sig"), log.stat()
    except UnicodeDecodeError as error:
        raise ResultsError(f"{log} is not text: {error.reason}; give a log") from error
    try:
        owner = log.owner()
    except KeyError:  # a user id without a name
        owner = str(stat.st_uid)
    return text, Told(str(log), datetime.fromtimestamp(stat.st_mtime).astimezone(), owner, **asked)
