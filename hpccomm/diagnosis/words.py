"""What went wrong, in sentences."""

import re
import textwrap
import time
from collections.abc import Iterator

from hpccomm.diagnosis.faults import Fault, sides
from hpccomm.diagnosis.history import Job, Waiting
from hpccomm.schedules.draw.text import spans

_PLACE = re.compile(r"(?P<file>.+?)(?: line |:)(?P<line>\d+)(?:,? in (?P<name>\S+))?$")


def verdict(job: Job, faults: list[Fault]) -> Iterator[str]:
    """Yield a line for each fault, the cause first; one that says that there is none."""
    if not faults:
        calls = sum(len(each.numbers) for each in job.histories.values())
        yield (
            f"Nothing wrong is found: the ranks agree in all {calls} collectives that are recorded, "
            "and nobody waits for anybody."
        )
    for fault in faults:
        yield sentence(job, fault)


def sentence(job: Job, fault: Fault) -> str:
    """Return what is wrong, and who is to be looked at."""
    say = {
        "differing": _differing,
        "cycle": _cycle,
        "missing": _missing,
        "late": _late,
        "stuck": _stuck,
    }
    return say[fault.sort](job, fault)


def named(ranks: tuple[int, ...]) -> str:
    """Return ranks in words: ``rank 3``, ``ranks 0-2,5``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"


def call_name(job: Job, uid: str, number: int, operation: str) -> str:
    """Return a call in words: ``all_reduce #7 of communicator 'world'``."""
    which = f"{operation} #{number}" if number else operation
    return f"{which} of communicator {job.histories[uid].group.name!r}"


def place(text: str) -> str:
    """Return a place in the program in words: ``step(), train.py line 41``."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return text
    where = f"{found['file']} line {found['line']}"
    return where if found["name"] in (None, "<module>") else f"{found['name']}(), {where}"


def rank_name(job: Job, rank: int) -> str:
    """Return a rank and its host: ``rank 3 on node n2``."""
    host = job.dumps[rank].host if rank in job.dumps else _host(job, rank)
    return f"rank {rank} on node {host}" if host else f"rank {rank}"


def _host(job: Job, rank: int) -> str:
    for uid in job.histories:
        seen = job.seen(rank, uid)
        if seen is not None and seen.host:
            return seen.host
    return ""


def where(job: Job, rank: int, uid: str) -> str:
    """Return what a rank does that has not come to a call, as the rest of ``rank 3 ...``."""
    seen = job.seen(rank, uid)
    if rank not in job.dumps:
        if seen is None:
            return "left no dump and gave no answer (look whether its process was killed)"
        if seen.state != "answered":
            ways = {
                "gone": "is gone (its process has ended)",
                "stopped": "is stopped (SIGSTOP, or a debugger)",
                "silent": "does not answer (its process or its host hangs, or the network is cut)",
            }
            return ways.get(seen.state, seen.state)
        return _doing(seen.doing, seen.failed)
    dump = job.dumps[rank]
    waits = list(job.waiting(rank))
    if waits:
        return _waits(job, waits[-1])
    under_way = [call for call in dump.calls if call.state == "started"]
    if under_way:
        call = under_way[-1]
        return f"is in {call_name(job, call.uid, call.number, call.operation)}{_at(call.site)}"
    failed = [call for call in dump.calls if call.state == "failed"]
    if failed and failed[-1].uid == uid:
        return f"has given up: {_first_line(failed[-1].error)}"
    return _doing(
        "" if seen is None else seen.doing,
        "" if seen is None else seen.failed,
        _ending(dump.reason),
    )


def _ending(reason: str) -> str:
    """Return why a rank ended, if that is why it has written its dump."""
    ended = any(word in reason.lower() for word in ("exception", "exit", "signal", "sigterm"))
    return _first_line(reason) if ended and "sigusr1" not in reason.lower() else ""


def _doing(doing: str, failed: str, ending: str = "") -> str:
    text = f"is in {place(doing)}" if doing else "is in no call"
    if ending:
        return f"ended ({ending})" if not doing else f"ended in {place(doing)} ({ending})"
    return f"{text} and takes part no more ({_first_line(failed)})" if failed else text


def _first_line(text: str) -> str:
    return text.strip().split("\n", maxsplit=1)[0].rstrip(".")


def _at(site: str) -> str:
    return f" ({place(site)})" if site else ""


def _waits(job: Job, wait: Waiting) -> str:
    call = wait.call
    return (
        f"has waited for {wait.seconds:.1f} s in "
        f"{call_name(job, call.uid, call.number, call.operation)}{_at(call.site)} "
        f"for {named(wait.awaited)}"
    )


def _missing(job: Job, fault: Fault) -> str:
    what = call_name(job, fault.uid, fault.number, fault.operation)
    them = {rank: where(job, rank, fault.uid) for rank in fault.ranks[:4]}
    told = "; ".join(f"{rank_name(job, rank)} {text}" for rank, text in them.items())
    more = len(fault.ranks) - len(them)
    told += f"; {more} others" if more else ""
    if not fault.number:
        text = f"{told}. {named(fault.waiting)} has waited for {named(fault.ranks)} in {what}"
        return _sentence(f"{text} for {fault.seconds:.1f} s")
    has = "has" if len(fault.ranks) == 1 else "have"
    joint = ", and" if len(fault.ranks) == 1 else "; they"
    text = f"{told}{joint} {has} not called {what}. {_waited(job, fault)}"
    if fault.unknown:
        text += f". Of {named(fault.unknown)} nothing is known"
    return _sentence(text)


def _waited(job: Job, fault: Fault) -> str:
    """Return ``Ranks 0-2 have waited in it (step(), train.py line 39) for 5.0 s, since ...``."""
    calls = job.histories[fault.uid].at(fault.number)
    began = min(job.moment(rank, calls[rank].began) for rank in fault.waiting)
    site = _at(calls[fault.waiting[0]].site)
    have = "has" if len(fault.waiting) == 1 else "have"
    return (
        f"{named(fault.waiting).capitalize()} {have} waited in it{site} for {fault.seconds:.1f} s, "
        f"since {time.strftime('%H:%M:%S', time.gmtime(began))} UTC"
    )


def _differing(job: Job, fault: Fault) -> str:
    parts = sides(fault.differences)
    what = f"#{fault.number} of communicator {job.histories[fault.uid].group.name!r}"
    calls = job.histories[fault.uid].at(fault.number)
    told = []
    for ranks in (*parts[1:4], parts[0]):
        values = {name: each[ranks[0]] for name, each in fault.differences.items()}
        operation = values.pop("operation", fault.operation)
        listed = ", ".join(f"{name} {value}" for name, value in values.items())
        who = rank_name(job, ranks[0]) if len(ranks) == 1 else named(ranks)
        told.append(
            f"{who} called {operation}"
            + (f" with {listed}" if listed else "")
            + _at(calls[ranks[0]].site)
        )
    text = f"The ranks called different things as collective {what}: {'; '.join(told)}"
    if fault.shift:
        odd, usual = named(fault.ranks), named(parts[0])
        history = job.histories[fault.uid]
        kept = history.calls[parts[0][0] if fault.shift == 1 else fault.ranks[0]][fault.number]
        call = f"{kept.operation} #{fault.number}{_at(kept.site)}"
        text += ". The calls before or after it fit if "
        text += (
            f"{odd} left out {call}, or {usual} made it once too often"
            if fault.shift == 1
            else f"{odd} made {call} once too often, or {usual} left it out"
        )
    return _sentence(text)


def _cycle(job: Job, fault: Fault) -> str:
    told = [f"{rank_name(job, wait.rank)} {_waits(job, wait)}" for wait in fault.waits]
    return _sentence(
        f"{named(fault.ranks)} wait for each other: {'; '.join(told)}. Let all ranks make the calls "
        "of several communicators in one order"
    )


def _late(job: Job, fault: Fault) -> str:
    (rank,) = fault.ranks
    what = call_name(job, fault.uid, fault.number, fault.operation)
    call = job.histories[fault.uid].at(fault.number)[rank]
    often, of = fault.times
    text = (
        f"{rank_name(job, rank)} came {fault.seconds:.2f} s after the others to {what}"
        f"{_at(call.site)}; it was the last by so much in {often} of {of} collectives"
    )
    return _sentence(f"{text}. {clock_caveat(job)}" if job.hosts > 1 else text)


def clock_caveat(job: Job) -> str:
    """Return how far times of several hosts can be compared."""
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
        f"All ranks have called {what}, and alike as far as is recorded, but {named(fault.waiting)} "
        f"did not complete it within {fault.seconds:.1f} s: no rank is missing. Look at the network "
        "and at the stacks of the threads in the dumps"
    )


def wrapped(text: str) -> list[str]:
    """Return a sentence as lines of at most 100 characters."""
    return textwrap.wrap(text, 100, break_on_hyphens=False)


def clock(job: Job) -> str:
    """Return when the last dump was written."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(job.end))} UTC"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def table(job: Job, fault: Fault) -> list[str]:
    """Return the values of ranks that differ, side by side, as lines of at most 100 characters."""
    parts = sides(fault.differences)[:5]
    calls = job.histories[fault.uid].at(fault.number)
    rows = [["", *(named(ranks) for ranks in parts)]]
    rows += [
        [name, *(values[ranks[0]] for ranks in parts)] for name, values in fault.differences.items()
    ]
    sites = [place(calls[ranks[0]].site) for ranks in parts]
    if any(sites):
        rows.append(["called in", *sites])
    room = max(8, (94 - max(len(row[0]) for row in rows)) // len(parts) - 2)
    cut = [[cell if len(cell) <= room else f"{cell[: room - 1]}…" for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in range(len(cut[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cut
    ]
