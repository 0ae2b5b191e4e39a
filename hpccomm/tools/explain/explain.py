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
import textwrap
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.backend import ANSWERED, STOPPED
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.results.files import open_regular
from hpccomm.runtime.verdict import refusals, whereabouts
from hpccomm.tools import flags, output
from hpccomm.tools.explain.faults import (
    Fault,
    History,
    Job,
    at_place,
    call_name,
    find,
    heard,
    host_of,
    join,
    sides,
)
from hpccomm.tools.flags import JSON, Flag
from hpccomm.units import ranks_named

if TYPE_CHECKING:
    from hpccomm.tools.explain.dumps import DumpFolder

# The faults of a job in sentences, and its last collectives as rows of marks.


def verdict_sentences(job: Job, faults: list[Fault]) -> Iterator[str]:
    """Yield a line for each fault, the cause first; without faults, one line that says so."""
    if not faults:
        calls = sum(len(each.numbers) for each in job.histories.values())
        yield (
            f"Nothing wrong is found: the ranks agree in all {calls} collectives that are recorded, "
            "and no rank waits for another."
        )
        said = {dump.ended for dump in job.dumps.values() if dump.ended}
        yield from (_sentence(each.rstrip(".")) for each in sorted(said)[:2])
    yield from (sentence(job, fault) for fault in faults)


def sentence(job: Job, fault: Fault) -> str:
    """Return a fault in a sentence, with the ranks to look at."""
    say = {
        "raised": _raised,
        "differing": _differing,
        "cycle": _cycle,
        "missing": _missing,
        "late": _late,
        "stuck": _stuck,
        "ended": _ended,
    }
    text = say[fault.sort](job, fault)
    before = "" if fault.sort in ("raised", "ended") else _refusals(job, fault.ranks)
    return f"{text} {before}".rstrip()


def rank_on_node(job: Job, rank: int) -> str:
    """Return a rank and its node: ``rank 3 on node n2``."""
    host = host_of(job, rank)
    return f"rank {rank} on node {host}" if host else f"rank {rank}"


def short(job: Job, rank: int, uid: str) -> str:
    """Return in a few words what a rank does that has not come to a call of communicator `uid`."""
    answer = heard(job, rank, uid)
    if answer is None:
        return "no dump"
    if answer.state != ANSWERED:
        return answer.state
    if rank in job.raised and answer.facts.get("failed"):
        return str(answer.facts["failed"])
    now = answer.facts.get("now")
    text = now["operation"] if now else answer.facts.get("doing")
    return f"in {text}" if text else ""


def _raised(job: Job, fault: Fault) -> str:
    first = max(fault.ranks, key=lambda rank: job.raised[rank].ago)
    error = job.raised[first]
    who = rank_on_node(job, first) if len(fault.ranks) == 1 else ranks_named(fault.ranks)
    text = f"{who} raised an uncaught error{at_place(error.site)}: {error.line}"
    after = f" {ranks_named(fault.waiting).capitalize()} ended with it." if fault.waiting else ""
    return _sentence(text.rstrip(".")) + after


def _ended(job: Job, fault: Fault) -> str:
    first, more = fault.ranks[0], len(fault.ranks) - 1
    others = f"; {more} more ended by themselves" if more else ""
    return _sentence(f"{job.dumps[first].ended.rstrip('.')}{others}")


def _refusals(job: Job, ranks: Sequence[int]) -> str:
    """Return a sentence on earlier refused calls of the ranks. A program may catch the error and go on without them."""
    refused = {rank: dump.refused for rank, dump in job.dumps.items() if rank in ranks}
    facts = {
        rank: {"refused": {"error": each.line, "site": each.site, "ago": each.ago}}
        for rank, each in refused.items()
        if each is not None
    }
    return _sentence(refusals(facts).removeprefix("; ").rstrip(".")) if facts else ""


def _missing(job: Job, fault: Fault) -> str:
    what = call_name(job, fault.uid, fault.number, fault.operation)
    unheard = tuple(rank for rank in fault.ranks if rank not in fault.answers)
    done = f"called {what}" if fault.number else f"taken part in {what}"
    known = {rank: fault.answers[rank] for rank in fault.ranks if rank not in unheard}
    sentences = whereabouts(known, fault.number, done)
    if unheard:
        they = "it was killed or crashed" if len(unheard) == 1 else "they were killed or crashed"
        sentences.append(
            f"{ranks_named(unheard)} left no dump and gave no answer, so probably {they}"
        )
    text = "; ".join(sentences)
    text += f". {_waited(job, fault, 'it' if what in text else what)}"
    if fault.unknown:
        text += f". Of {ranks_named(fault.unknown)} nothing is known"
    return _sentence(text)


def _waited(job: Job, fault: Fault, what: str) -> str:
    """Return ``Ranks 0-2 have waited in it (step(), train.py line 39) for 5.0 s, since ...``."""
    who = ranks_named(fault.waiting).capitalize()
    have = "has" if len(fault.waiting) == 1 else "have"
    calls = job.histories[fault.uid].at(fault.number) if fault.number else {}
    text = f"{who} {have} waited in {what}"
    if not calls:
        return f"{text} for {fault.seconds:.1f} s"
    began = min(job.moment(rank, calls[rank].began) for rank in fault.waiting)
    return (
        f"{text}{at_place(calls[fault.waiting[0]].site)} for {fault.seconds:.1f} s, "
        f"since {time.strftime('%H:%M:%S', time.gmtime(began))} UTC"
    )


def _differing(job: Job, fault: Fault) -> str:
    history = job.histories[fault.uid]
    text = f"in communicator {history.group.name!r} {fault.text}"
    if len(fault.ranks) == 1:
        text += f". Look at {rank_on_node(job, fault.ranks[0])}"
    if fault.shift:
        usual, odd = sides(fault.differences)
        change = history.calls[usual[0] if fault.shift == 1 else odd[0]][fault.number]
        call = f"{change.operation} #{fault.number}{at_place(change.site)}"
        one, other = ranks_named(odd), ranks_named(usual)
        cause = f"{one} made {call} once too often, or {other} left it out"
        if fault.shift == 1:
            cause = f"{one} left out {call}, or {other} made it once too often"
        text += f". The calls before or after it fit if {cause}"
    return _sentence(text)


def _cycle(job: Job, fault: Fault) -> str:
    waits = [
        f"{rank_on_node(job, wait.rank)} has waited for {wait.seconds:.1f} s in "
        f"{call_name(job, wait.call.uid, wait.call.number, wait.call.operation)}{at_place(wait.call.site)} "
        f"for {ranks_named(wait.awaited)}"
        for wait in fault.waits
    ]
    remedy = "Let one side send while the other receives, or use send_recv"
    if any(wait.call.number for wait in fault.waits):
        remedy = "Let all ranks make the calls of several communicators in one order"
    who = ranks_named(fault.ranks)
    return _sentence(f"{who} wait for each other: {'; '.join(waits)}. {remedy}")


def _late(job: Job, fault: Fault) -> str:
    (rank,) = fault.ranks
    what = call_name(job, fault.uid, fault.number, fault.operation)
    call = job.histories[fault.uid].at(fault.number)[rank]
    often, of = fault.times
    text = (
        f"{rank_on_node(job, rank)} came {fault.seconds:.2f} s after the others to {what}"
        f"{at_place(call.site)}; it was the last by so much in {often} of {of} collectives"
    )
    answers = (dump.answers.get(fault.uid, {}).get(rank) for dump in job.dumps.values())
    if any(each is not None and each.state == STOPPED for each in answers):
        text += f". Rank {rank} was stopped, by SIGSTOP or a debugger"
    return _sentence(f"{text}. {clock_caveat(job)}" if job.hosts > 1 else text)


def clock_caveat(job: Job) -> str:
    """Return a sentence on how well times of several hosts can be compared."""
    hosts = {dump.host for dump in job.dumps.values()}
    unknown = sorted(hosts - set(job.clocks))
    if unknown:
        return f"The clocks of hosts differ, and nothing tells by how much for {', '.join(unknown[:4])}"
    worst = max(abs(each) for each in job.clocks.values())
    by = f"up to {worst * 1e3:.0f} ms" if worst >= 0.001 else "less than a millisecond"
    return f"The clocks of the hosts differ by {by}, as the ends of collectives tell; times allow for it"


def _stuck(job: Job, fault: Fault) -> str:
    what = call_name(job, fault.uid, fault.number, fault.operation)
    return _sentence(
        f"All ranks have called {what}, and alike as far as is recorded, but {ranks_named(fault.waiting)} "
        f"did not complete it within {fault.seconds:.1f} s: no rank is missing. Look at the network "
        "and at the stacks of the threads in the dumps"
    )


def wrapped(text: str) -> list[str]:
    """Return a sentence as lines of at most 100 characters."""
    return textwrap.wrap(text, 100, break_on_hyphens=False)


def clock(job: Job) -> str:
    """Return the time of the last dump as text."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(job.end))} UTC"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


MARKS = {
    "=": "completed",
    "W": "waits or failed",
    "-": "not called",
    "X": "differs",
    "L": "came late",
    "?": "not known",
}
"""Marks of the timeline, and their meanings."""

WIDTH = 100
LONGEST_HEAD = 40
MOST_PARTS = 8
ROWS = 48
"""Most ranks that have a row each; of more ranks, equal neighbors share a row."""


def timeline_lines(job: Job, faults: Sequence[Fault], last: int) -> Iterator[str]:
    """Yield the timeline: a part for each communicator with a fault; if there is none, for each communicator.

    Parameters
    ----------
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
    heads = {rank: _head(job, [rank]) for rank in ranks}
    left = LONGEST_HEAD if len(ranks) > ROWS else max(map(len, heads.values()))
    top = history.numbers[-1]
    numbers = range(max(1, top + 1 - max(1, min(last, WIDTH - left - 6))), top + 1)
    marked = {
        (rank, fault.number): {"differing": "X", "late": "L"}[fault.sort]
        for fault in faults
        if fault.uid == history.group.uid and fault.sort in ("differing", "late")
        for rank in fault.ranks
    }
    rows = {}
    for rank in ranks:
        marks = (marked.get((rank, number)) or mark(history, rank, number) for number in numbers)
        rows[rank] = "".join(marks)
    shown = f"collectives #{numbers[0]} to #{top} of {ranks_named(ranks)}"
    yield f"communicator {history.group.name!r}, {shown}"[:WIDTH]
    for row, alike in groupby(ranks, lambda rank: (rows[rank], len(ranks) <= ROWS and rank)):
        first, *more = alike
        head = _head(job, [first, *more]).ljust(left)
        line = f"  {head}  {row[0]}  {_beside(job, history, first)}"
        yield line.rstrip() if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _head(job: Job, ranks: Sequence[int]) -> str:
    """Return the head of a row: its ranks, and the host of a single rank."""
    dump = job.dumps.get(ranks[0]) if len(ranks) == 1 else None
    return f"{ranks_named(ranks)} {dump.host if dump else ''}".rstrip()[:LONGEST_HEAD]


def _beside(job: Job, history: History, rank: int) -> str:
    """Return the text beside a row: the call in which a rank waits, or what else it does."""
    calls = history.calls.get(rank, {})
    number = history.numbers[-1]
    if number in calls:
        call = calls[number]
        return f"{call.operation}, {call.waited(job.dumps[rank].time):.1f} s" if call.open else ""
    return short(job, rank, history.group.uid) if rank in history.absent(number) else ""


def mark(history: History, rank: int, number: int) -> str:
    """Return the mark of a rank at a collective."""
    call = history.calls.get(rank, {}).get(number)
    if call is None:
        begun = history.begun.get(rank)
        if begun is None:
            return "?"
        return "-" if begun < number else "="
    return "W" if call.open else "="


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
    read: "DumpFolder", job: "Job", faults: list["Fault"], args: argparse.Namespace
) -> list[str]:
    """Return the lines that are printed: verdict, timeline, and files that were not used."""
    lines = []
    for sentence in verdict_sentences(job, faults):
        lines += [*wrapped(sentence), ""]
    lines += [*timeline_lines(job, faults, args.last), ""]
    without = [rank for rank in range(job.size) if rank not in job.dumps]
    lines += wrapped(
        f"{read.path}: {len(read.dumps)} dumps of {job.size} ranks, the last of {clock(job)}"
    )
    if without:
        lines += wrapped(f"no dump of {ranks_named(tuple(without))}")
    if job.hosts > 1 and not any(fault.sort == "late" for fault in faults):
        lines += wrapped(clock_caveat(job))
    return lines + list(read.passed_over)


def _document(read: "DumpFolder", job: "Job", faults: list["Fault"], status: int) -> dict[str, Any]:
    return {
        "status": status,
        "verdict": list(verdict_sentences(job, faults)),
        "faults": [
            {name: getattr(fault, name) for name in _OF_FAULTS}
            | {
                "communicator": job.histories[fault.uid].group.name if fault.uid else None,
                "collective": fault.number or None,
                "sentence": sentence(job, fault),
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
