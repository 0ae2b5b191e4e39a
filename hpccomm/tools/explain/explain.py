"""Say what went wrong in a job, from its log or its flight dumps, or what a message means.

A log is standard input or a file, which may be compressed. For a log, the command prints the first cause
with its line, and what to do. Then it prints the consequences and the harmless messages. It knows
messages of hpccomm, NCCL, CUDA, MPI libraries, Slurm and the kernel.

Ranks write flight dumps to the folder HPCCOMM_DUMP_DIR. For these, the command prints which ranks are
missing or differ, since which collective, and where in the program. Then it draws the last collectives.

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

Ranks are numbered as in the whole job. The exit status is 0 if the command finds nothing wrong, or
explains a message. It is 1 if the command finds something wrong, and 2 if nothing can be read.
"""

import argparse
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.backend import ANSWERED
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.results.files import open_regular
from hpccomm.tools import flags, output
from hpccomm.tools.explain.faults import Fault, find
from hpccomm.tools.explain.job import History, Job, at_place, join
from hpccomm.tools.flags import JSON, Flag
from hpccomm.units import WIDTH, grouped, ranks_named, wrapped

if TYPE_CHECKING:
    from hpccomm.tools.explain.dumps import DumpFolder


def verdict(job: Job, faults: Sequence[Fault]) -> list[str]:
    """Return a sentence for each fault, the cause first. If there are no faults, the sentences say so."""
    if faults:
        return [fault.sentence for fault in faults]
    calls = sum(len(each.numbers) for each in job.histories.values())
    said = sorted({dump.ended for dump in job.dumps.values() if dump.ended})[:2]
    return [
        f"Nothing wrong is found: the ranks agree in all {calls} collectives that are recorded, "
        "and no rank waits for another.",
        *(f"{each[:1].upper()}{each[1:].rstrip('.')}." for each in said),
    ]


def places(job: Job, most: int) -> Iterator[str]:
    """Yield where the ranks are, a line for at most so many ranks, or groups of ranks in one place."""
    lines = grouped((_place(job, rank), rank) for rank in sorted(job.dumps))
    for words, ranks in list(lines.items())[:most]:
        yield f"{ranks_named(ranks)}: {words}"
    if len(lines) > most:
        yield f"and {len(lines) - most} more places"


def _place(job: Job, rank: int) -> str:
    dump = job.dumps[rank]
    under_way = [call for call in dump.calls if call.state == "started" and call.waits]
    if under_way:
        call = under_way[-1]
        return f"in {job.name(call)}{at_place(call.site)} for {call.waited(dump.time):.1f} s"
    answers = [each[rank].facts for each in dump.answers.values() if rank in each]
    if any(each.get("leaving") for each in answers):
        return "at the end of the program"
    doing = next((each["doing"] for each in answers if each.get("doing")), "")
    return f"in no call{at_place(str(doing))}"


# The last collectives, as rows of marks.

MARKS = {
    "=": "completed",
    "W": "waits or failed",
    "-": "not called",
    "X": "differs",
    "L": "came late",
    "?": "not known",
}
"""Marks of the timeline, and their meanings."""

LONGEST_HEAD = 40
MOST_PARTS = 8
ROWS = 48
"""Up to this number of ranks, each has a row. If there are more, neighbors with equal marks share a row."""


def timeline_lines(job: Job, faults: Sequence[Fault], last: int) -> Iterator[str]:
    """Yield the timeline: a part for each communicator with a fault. If there are no faults, each communicator has one.

    Parameters
    ----------
    job : Job
        The job.
    faults : sequence of Fault
        Its faults.
    last : int
        Collectives to show; fewer if they do not fit.
    """
    wrong = [fault.uid for fault in faults if fault.uid]
    wrong += [wait.call.uid for fault in faults for wait in fault.waits]
    recorded = [job.histories[uid] for uid in dict.fromkeys(wrong or job.histories)]
    shown = [history for history in recorded if history.numbers]
    for history in shown[:MOST_PARTS]:
        yield from (*_part(job, history, faults, last), "")
    if len(shown) > MOST_PARTS:
        yield from (f"({len(shown) - MOST_PARTS} further communicators are left out)", "")
    if shown:
        yield "  ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items())


def _part(job: Job, history: History, faults: Sequence[Fault], last: int) -> Iterator[str]:
    ranks = sorted(history.group.members)
    each_its_row = len(ranks) <= ROWS
    left = max(len(_head(job, [rank])) for rank in ranks) if each_its_row else LONGEST_HEAD
    top = history.numbers[-1]
    numbers = range(max(1, top + 1 - max(1, min(last, WIDTH - left - 6))), top + 1)
    marked = {
        (rank, fault.number): {"differing": "X", "late": "L"}[fault.sort]
        for fault in faults
        if fault.uid == history.group.uid and fault.sort in ("differing", "late")
        for rank in fault.ranks
    }
    shown = f"collectives #{numbers[0]} to #{top} of {ranks_named(ranks)}"
    yield f"communicator {history.group.name!r}, {shown}"[:WIDTH]
    rows = {
        rank: "".join(
            marked.get((rank, number)) or _mark(history, rank, number) for number in numbers
        )
        for rank in ranks
    }
    for (row, _), alike in groupby(ranks, lambda rank: (rows[rank], each_its_row and rank)):
        same = list(alike)
        line = f"  {_head(job, same):{left}}  {row}  {_beside(job, history, same[0], top)}"
        yield line.rstrip() if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _head(job: Job, ranks: Sequence[int]) -> str:
    """Return the head of a row: its ranks, and the host of a single rank."""
    dump = job.dumps.get(ranks[0]) if len(ranks) == 1 else None
    return f"{ranks_named(ranks)} {dump.host if dump else ''}".rstrip()[:LONGEST_HEAD]


def _beside(job: Job, history: History, rank: int, number: int) -> str:
    """Return the text beside a row: the call in which a rank waits, or what else it does.

    Ranks that share a row have the text of the first one.
    """
    if call := history.calls.get(rank, {}).get(number):
        return f"{call.operation}, {call.waited(job.dumps[rank].time):.1f} s" if call.open else ""
    if rank not in history.absent(number):
        return ""
    answer = job.heard(rank, history.group.uid)
    if answer is None or answer.state != ANSWERED:
        return answer.state if answer else "no dump"
    if rank in job.raised and answer.facts.get("failed"):
        return str(answer.facts["failed"])
    now = answer.facts.get("now")
    place = now["operation"] if now else answer.facts.get("doing")
    return f"in {place}" if place else ""


def _mark(history: History, rank: int, number: int) -> str:
    """Return the mark of a rank at a collective."""
    call = history.calls.get(rank, {}).get(number)
    if call is not None:
        return "W" if call.open else "="
    begun = history.begun.get(rank)
    return "?" if begun is None else "-" if begun < number else "="


# The command.

_OF_FAULTS = ("sort", "uid", "operation", "ranks", "waiting", "seconds", "differences", "sentence")


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
    """Explain the subject; return the exit status."""
    if args.subject == "-" or (args.subject is None and not sys.stdin.isatty()):
        piped: Any = sys.stdin.buffer
        return _explain_log(piped, "standard input", args)
    if args.subject is None:
        raise UsageError("say what to explain: a log, a directory of dumps, or a message in quotes")
    # Path.exists raises for a text that cannot be a path, such as a long message.
    if not os.path.exists(args.subject):  # noqa: PTH110
        return _explain_message(args)
    place = Path(args.subject)
    if place.is_dir():
        return _explain_dumps(place, args)
    with open_regular(place) as file, io.BufferedReader(file) as log:
        return _explain_log(log, str(place), args)


def _explain_log(stream: "io.BufferedReader[Any]", name: str, args: argparse.Namespace) -> int:
    from hpccomm.tools.explain import log, log_report

    with output.watched(f"reading {name}"):
        report = log.read(stream, name)
    output.write_found(log_report.document(report), log_report.lines(report), as_json=args.json)
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
    from hpccomm.tools.explain.dumps import read_folder

    with output.watched(f"reading {folder.name}"):
        read = read_folder(folder)
        job = join(read.dumps)
        faults = find(job)
    status = 1 if faults else 0
    document, lines = _document(read, job, faults, status), _lines(read, job, faults, args)
    output.write_found(document, lines, as_json=args.json)
    return status


def _lines(
    read: "DumpFolder", job: Job, faults: Sequence[Fault], args: argparse.Namespace
) -> list[str]:
    """Return the lines that are printed: verdict, timeline, facts about the dumps, and files that were not used."""
    lines = []
    for sentence in verdict(job, faults):
        lines += [*wrapped(sentence, 0, 0), ""]
    lines += [*timeline_lines(job, faults, args.last), ""]
    end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(job.end))
    facts = [f"{read.path}: {len(read.dumps)} dumps of {job.size} ranks, the last of {end} UTC"]
    if without := set(range(job.size)) - job.dumps.keys():
        facts.append(f"no dump of {ranks_named(without)}")
    if len(job.hosts) > 1 and not any(fault.sort == "late" for fault in faults):
        facts.append(job.clock_caveat())
    return [*lines, *(line for each in facts for line in wrapped(each, 0, 0)), *read.passed_over]


def _document(read: "DumpFolder", job: Job, faults: Sequence[Fault], status: int) -> dict[str, Any]:
    return {
        "status": status,
        "verdict": verdict(job, faults),
        "faults": [
            {name: getattr(fault, name) for name in _OF_FAULTS}
            | {
                "communicator": job.histories[fault.uid].group.name if fault.uid else None,
                "collective": fault.number or None,
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
