"""The last collectives as text: a row a rank, a mark a call. For `hpccomm explain`."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from hpccomm.diagnosis.faults import Fault
from hpccomm.diagnosis.history import History, Job
from hpccomm.diagnosis.words import short
from hpccomm.units import ranks_named

MARKS = {
    "=": "completed",
    "W": "waits or failed",
    "-": "not called",
    "X": "differs",
    "L": "came late",
    "?": "not known",
}
"""Marks, and their meanings."""

WIDTH = 100
LONGEST_HEAD = 40
MOST_PARTS = 8
ROWS = 48
"""Most ranks with a row each; beyond, equal neighbors share one."""


def lines(job: Job, faults: Sequence[Fault], last: int) -> Iterator[str]:
    """Yield the timeline: a part for each communicator with a fault, or for all.

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
    """Return whose row it is, with the host of a single rank."""
    dump = job.dumps.get(ranks[0]) if len(ranks) == 1 else None
    return f"{ranks_named(ranks)} {dump.host if dump else ''}".rstrip()[:LONGEST_HEAD]


def _beside(job: Job, history: History, rank: int) -> str:
    """Return the text beside a row: the call in which a rank waits, or its other activity."""
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
