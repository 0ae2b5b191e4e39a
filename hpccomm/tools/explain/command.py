"""Say what went wrong in a job, from its log or its flight dumps, or what a message means.

A log is a file, packed or not, or standard input. Of a log it prints the first cause, its line,
what to do, the consequences, and harmless messages. Of the flight dumps that the ranks wrote
(HPCCOMM_DUMP_DIR) it prints which ranks are missing or differ, since which collective, and where in
the program; then it draws the last collectives. It knows messages of hpccomm, NCCL, CUDA, MPI
libraries, Slurm and the kernel.

Examples
--------
  hpccomm explain slurm-1234.out
  mpiexec -n 4 python train.py 2>&1 | tee job.log | hpccomm explain -
  hpccomm explain hpccomm-dumps
  hpccomm explain hpccomm-dumps --last 80
  hpccomm explain hpccomm-dumps --json
  hpccomm explain CollectiveTimeout
  hpccomm explain "hpccomm.errors.RankMismatch: all_reduce #7 ..."
  hpccomm explain "status 3"
  hpccomm explain "NVRM: Xid (PCI:0000:3b:00): 79"

Ranks are those of the whole job. Exit status: 0 if nothing wrong is found (and after the meaning of a
message), 1 if something is, 2 if nothing can be read.
"""

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.results.files import open_regular
from hpccomm.tools import flags, output
from hpccomm.tools.flag import Flag
from hpccomm.tools.flags import JSON
from hpccomm.tools.progress import watched
from hpccomm.units import ranks_named

if TYPE_CHECKING:
    from hpccomm.tools.explain.dumps import DumpFolder
    from hpccomm.tools.explain.faults import Fault
    from hpccomm.tools.explain.history import Job

_OF_FAULTS = ("sort", "uid", "operation", "ranks", "waiting", "seconds", "differences")


FLAGS = (
    Flag(
        "LOG|DIR|MESSAGE",
        str,
        "a log, - for standard input (also without any, if something is piped in), a directory of dumps, or a text "
        "that names or quotes a message",
        "subject",
        values="?",
    ),
    Flag(
        "--last N 40", flags.integer(1), "collectives to show in the timeline, as far as they fit"
    ),
    JSON,
)


def run(args: argparse.Namespace) -> int:
    """Explain it; return the exit status."""
    if args.subject == "-" or (args.subject is None and not sys.stdin.isatty()):
        piped: Any = sys.stdin.buffer
        return _explain_log(piped, "standard input", args)
    if args.subject is None:
        raise UsageError("say what to explain: a log, a directory of dumps, or a message in quotes")
    # Path.exists raises for what no path can be, such as a long message.
    if not os.path.exists(args.subject):  # noqa: PTH110
        return _explain_message(args)
    place = Path(args.subject)
    if place.is_dir():
        return _explain_dumps(place, args)
    with open_regular(place) as file, io.BufferedReader(file) as log:
        return _explain_log(log, str(place), args)


def _explain_log(log: "io.BufferedReader[Any]", name: str, args: argparse.Namespace) -> int:
    from hpccomm.tools.explain.log import reading, words

    with watched(f"reading {name}"):
        report = reading.read(log, name)
    output.write_found(words.document(report), words.lines(report), as_json=args.json)
    return report.status


def _explain_message(args: argparse.Namespace) -> int:
    from hpccomm.tools.explain import meanings

    explanations = meanings.matching(args.subject)
    if not explanations:
        known = [each.name for each in meanings.TABLE]
        own = [each.name for each in meanings.TABLE if each.component == "hpccomm"]
        advice = did_you_mean(
            args.subject, known, f"known are {', '.join(own)} and many of libraries"
        )
        raise UsageError(
            f"{args.subject!r:.80} is not a log, not a directory of dumps, and does not name or quote a "
            f"message that is known; {advice}"
        )
    fields = ("name", "component", "kind", "meaning", "causes", "remedies", "check", "source")
    explained = [{name: getattr(each, name) for name in fields} for each in explanations]
    output.write_found(explained, meanings.lines(explanations), as_json=args.json)
    return 0


def _explain_dumps(folder: Path, args: argparse.Namespace) -> int:
    from hpccomm.tools.explain import history
    from hpccomm.tools.explain.dumps import read_folder
    from hpccomm.tools.explain.faults import find

    with watched(f"reading {folder.name}"):
        read = read_folder(folder)
        job = history.join(read.dumps)
        faults = find(job)
    status = 1 if faults else 0
    document, lines = _document(read, job, faults, status), _lines(read, job, faults, args)
    output.write_found(document, lines, as_json=args.json)
    return status


def _lines(
    read: "DumpFolder", job: "Job", faults: list["Fault"], args: argparse.Namespace
) -> list[str]:
    """Return the lines that are printed: verdict, timeline, files left out."""
    from hpccomm.tools.explain import words

    lines = []
    for sentence in words.verdict(job, faults):
        lines += [*words.wrapped(sentence), ""]
    lines += [*words.lines(job, faults, args.last), ""]
    without = [rank for rank in range(job.size) if rank not in job.dumps]
    lines += words.wrapped(
        f"{read.path}: {len(read.dumps)} dumps of {job.size} ranks, the last of {words.clock(job)}"
    )
    if without:
        lines += words.wrapped(f"no dump of {ranks_named(tuple(without))}")
    if job.hosts > 1 and not any(fault.sort == "late" for fault in faults):
        lines += words.wrapped(words.clock_caveat(job))
    return lines + list(read.passed_over)


def _document(read: "DumpFolder", job: "Job", faults: list["Fault"], status: int) -> dict[str, Any]:
    from hpccomm.tools.explain import words

    return {
        "status": status,
        "verdict": list(words.verdict(job, faults)),
        "faults": [
            {name: getattr(fault, name) for name in _OF_FAULTS}
            | {
                "communicator": job.histories[fault.uid].group.name if fault.uid else None,
                "collective": fault.number or None,
                "sentence": words.sentence(job, fault),
            }
            for fault in faults
        ],
        "world_size": job.size,
        "ranks": {
            rank: {
                **{name: getattr(dump, name) for name in ("host", "pid", "reason", "time")},
                "raised": dump.raised and dump.raised.error,
                "refused": dump.refused and dump.refused.error,
            }
            for rank, dump in job.dumps.items()
        },
        "passed_over": read.passed_over,
    }
