"""The last collectives as text: a row a rank, a mark a call."""

from collections.abc import Iterator, Sequence

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
"""Marks, and what they mean."""

WIDTH = 100
ROWS = 48
"""Rows up to which each rank has one of its own; beyond, neighbours that look the same share one."""


def lines(job: Job, faults: Sequence[Fault], last: int) -> Iterator[str]:
    """Yield the timeline: a part for each communicator in which something is wrong, or for all.

    Parameters
    ----------
    last : int
        Collectives to show; fewer if they do not fit.
    """
    wrong = list(dict.fromkeys(fault.uid for fault in faults if fault.uid))
    for wait in (wait for fault in faults for wait in fault.waits):
        wrong += [wait.call.uid] * (wait.call.uid not in wrong)
    shown = [job.histories[uid] for uid in wrong if job.histories[uid].numbers]
    if not wrong:
        shown = [history for history in job.histories.values() if history.numbers]
    for history in shown[:8]:
        yield from _part(job, history, faults, last)
        yield ""
    if len(shown) > 8:
        yield f"({len(shown) - 8} further communicators are left out)"
        yield ""
    if shown:
        yield "  ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items())


def window(history: History, last: int) -> range:
    """Return the numbers of the last collectives."""
    top = history.numbers[-1]
    return range(max(1, top - last + 1), top + 1)


def _part(job: Job, history: History, faults: Sequence[Fault], last: int) -> Iterator[str]:
    ranks = sorted(history.group.members)
    hosts = {rank: job.dumps[rank].host if rank in job.dumps else "" for rank in ranks}
    heads = {rank: f"rank {rank} {hosts[rank]}".rstrip()[:40] for rank in ranks}
    left = max(len(head) for head in heads.values())
    numbers = window(history, max(1, min(last, WIDTH - left - 6)))
    marked = {
        (rank, fault.number): {"differing": "X", "late": "L"}[fault.sort]
        for fault in faults
        if fault.uid == history.group.uid and fault.sort in ("differing", "late")
        for rank in fault.ranks
    }
    rows = {
        rank: "".join(
            marked.get((rank, number)) or mark(history, rank, number) for number in numbers
        )
        for rank in ranks
    }
    yield (
        f"communicator {history.group.name!r}, collectives #{numbers[0]} to #{numbers[-1]}"
        f" of {ranks_named(tuple(ranks))}"
    )[:WIDTH]
    if len(ranks) <= ROWS:
        shared = [[rank] for rank in ranks]
    else:
        shared = []
        for rank in ranks:
            if shared and rows[shared[-1][-1]] == rows[rank]:
                shared[-1].append(rank)
            else:
                shared.append([rank])
        heads |= {each[0]: ranks_named(tuple(each))[:40] for each in shared if len(each) > 1}
        left = max(len(heads[each[0]]) for each in shared)
    for each in shared:
        line = f"  {heads[each[0]].ljust(left)}  {rows[each[0]]}  {_beside(job, history, each[0])}"
        yield line.rstrip() if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _beside(job: Job, history: History, rank: int) -> str:
    """Return what stands beside a row: the call that a rank waits in, or what it does instead."""
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
