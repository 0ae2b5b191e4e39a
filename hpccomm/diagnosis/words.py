"""What went wrong, in sentences."""

import re
import textwrap
import time
from collections.abc import Iterator, Sequence

from hpccomm.contracts.side import ANSWERED, STOPPED, Answer
from hpccomm.diagnosis.dumps import RecordedCall
from hpccomm.diagnosis.faults import SIGNALS, Fault, sides
from hpccomm.diagnosis.history import Job, Waiting, answered
from hpccomm.runtime.verdict import refusals, whereabouts
from hpccomm.units import ranks_named

_PLACE = re.compile(r"(?P<file>.+?)(?: line |:)(?P<line>\d+)(?:,? in (?P<name>\S+))?$")


def verdict(job: Job, faults: list[Fault]) -> Iterator[str]:
    """Yield a line for each fault, the cause first; one that says that there is none."""
    if not faults:
        calls = sum(len(each.numbers) for each in job.histories.values())
        yield (
            f"Nothing wrong is found: the ranks agree in all {calls} collectives that are recorded, "
            "and nobody waits for anybody."
        )
        said = {dump.ended for dump in job.dumps.values() if dump.ended}
        yield from (_sentence(each.rstrip(".")) for each in sorted(said)[:2])
    for fault in faults:
        yield sentence(job, fault)


def sentence(job: Job, fault: Fault) -> str:
    """Return what is wrong, and who is to be looked at."""
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


def rank_on_node(job: Job, rank: int) -> str:
    """Return a rank and its node: ``rank 3 on node n2``."""
    host = _host(job, rank)
    return f"rank {rank} on node {host}" if host else f"rank {rank}"


def _host(job: Job, rank: int) -> str:
    if rank in job.dumps:
        return job.dumps[rank].host
    seen = (job.seen(rank, uid) for uid in job.histories)
    return next((each.host for each in seen if each is not None), "")


def heard(job: Job, rank: int, uid: str) -> Answer | None:
    """Return what is known of a rank that has not come to a call, as it would have answered itself.

    None where nothing is known: it left no dump, and gave no answer.
    """
    seen = job.seen(rank, uid)
    host = _host(job, rank)
    facts: dict[str, object] = {"host": host} if host else {}
    if rank not in job.dumps:
        if seen is None:
            return None
        facts |= {"doing": place(seen.doing), "failed": seen.failed, "collective": seen.begun or 0}
        if seen.operation:
            facts["now"] = {"operation": seen.operation, "collective": 0, "site": place(seen.site)}
        return Answer(seen.state, facts)
    call, waiting = _under_way(job, rank)
    if call is not None:
        name = call_name(job, call.uid, call.number, call.operation)
        site = place(call.site) + (f" ({waiting})" if waiting else "")
        facts["now"] = {"operation": name, "collective": 0, "site": site}
        return Answer(ANSWERED, facts)
    if seen is not None and seen.left:
        return Answer(ANSWERED, {**facts, "leaving": True})
    raised = job.raised.get(rank)
    if raised is not None:
        facts["failed"] = f"raised {raised.text.partition(':')[0]}{_at(raised.site)}"
        return Answer(ANSWERED, facts)
    failed = [
        each
        for each in job.dumps[rank].calls
        if each.state == "failed" and each.uid == uid and not job.gone_on(rank, each)
    ]
    ended = job.dumps[rank].ended.removeprefix(f"rank {rank} ")
    if any(each in ended for each in SIGNALS) and seen is not None and seen.doing:
        ended = ""  # that is how the job ended, and where the rank was says more
    ended = ended or _ending(job.dumps[rank].reason)
    facts["failed"] = ended or (failed[-1].error if failed else "") or (seen and seen.failed)
    facts["doing"] = "" if seen is None else place(seen.doing)
    return Answer(ANSWERED, facts)


def _under_way(job: Job, rank: int) -> tuple[RecordedCall | None, str]:
    """Return the call that a rank is in, and for whom it waits there, in words."""
    waits = list(job.waiting(rank))
    if waits:
        last = waits[-1]
        return last.call, f"waiting for {ranks_named(last.awaited)} for {last.seconds:.1f} s"
    under_way = [call for call in job.dumps[rank].calls if call.state == "started"]
    return (under_way[-1], "") if under_way else (None, "")


def short(job: Job, rank: int, uid: str) -> str:
    """Return what a rank does that has not come to a call, in a few words."""
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


def _ending(reason: str) -> str:
    """Return why a rank ended, if that is why it has written its dump."""
    ended = any(word in reason.lower() for word in ("exception", "exit", "sigterm"))
    return _first_line(reason) if ended else ""


def _first_line(text: str) -> str:
    return text.strip().split("\n", maxsplit=1)[0].rstrip(".")


def _at(site: str) -> str:
    return f" ({place(site)})" if site else ""


def _waits(job: Job, wait: Waiting) -> str:
    call = wait.call
    return (
        f"has waited for {wait.seconds:.1f} s in "
        f"{call_name(job, call.uid, call.number, call.operation)}{_at(call.site)} "
        f"for {ranks_named(wait.awaited)}"
    )


def _raised(job: Job, fault: Fault) -> str:
    first = max(fault.ranks, key=lambda rank: job.raised[rank].ago)
    error = job.raised[first]
    who = rank_on_node(job, first) if len(fault.ranks) == 1 else ranks_named(fault.ranks)
    text = f"{who} raised, and nobody caught{_at(error.site)}: {error.line}"
    followed = ranks_named(fault.waiting) if fault.waiting else ""
    return _sentence(text.rstrip(".")) + (
        f" {followed.capitalize()} ended with it." if followed else ""
    )


def _ended(job: Job, fault: Fault) -> str:
    first, more = fault.ranks[0], len(fault.ranks) - 1
    others = f"; {more} more ended by themselves" if more else ""
    return _sentence(f"{job.dumps[first].ended.rstrip('.')}{others}")


def _refusals(job: Job, ranks: Sequence[int]) -> str:
    """Return which calls of ranks were refused before: who catches that goes on without them."""
    found = {rank: job.dumps[rank].refused for rank in ranks if rank in job.dumps}
    facts = {
        rank: {"refused": {"error": each.line, "site": place(each.site), "ago": each.ago}}
        for rank, each in found.items()
        if each is not None
    }
    return _sentence(refusals(facts).removeprefix("; ").rstrip(".")) if facts else ""


def _missing(job: Job, fault: Fault) -> str:
    what = call_name(job, fault.uid, fault.number, fault.operation)
    answers = {rank: heard(job, rank, fault.uid) for rank in fault.ranks}
    known = {rank: answer for rank, answer in answers.items() if answer is not None}
    unheard = tuple(rank for rank in answers if rank not in known)
    done = f"called {what}" if fault.number else f"taken part in {what}"
    told = whereabouts(known, fault.number, done)
    if unheard:
        they = "it was killed or crashed" if len(unheard) == 1 else "they were killed or crashed"
        told.append(f"{ranks_named(unheard)} left no dump and gave no answer, so probably {they}")
    text = "; ".join(told)
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
        f"{text}{_at(calls[fault.waiting[0]].site)} for {fault.seconds:.1f} s, "
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
        who = rank_on_node(job, ranks[0]) if len(ranks) == 1 else ranks_named(ranks)
        told.append(
            f"{who} called {operation}"
            + (f" with {listed}" if listed else "")
            + _at(calls[ranks[0]].site)
        )
    text = f"The ranks called different things as collective {what}: {'; '.join(told)}"
    if fault.shift:
        odd, usual = ranks_named(fault.ranks), ranks_named(parts[0])
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
    told = [f"{rank_on_node(job, wait.rank)} {_waits(job, wait)}" for wait in fault.waits]
    remedy = (
        "Let all ranks make the calls of several communicators in one order"
        if any(wait.call.number for wait in fault.waits)
        else "Let one side send while the other receives, or use send_recv"
    )
    return _sentence(f"{ranks_named(fault.ranks)} wait for each other: {'; '.join(told)}. {remedy}")


def _late(job: Job, fault: Fault) -> str:
    (rank,) = fault.ranks
    what = call_name(job, fault.uid, fault.number, fault.operation)
    call = job.histories[fault.uid].at(fault.number)[rank]
    often, of = fault.times
    text = (
        f"{rank_on_node(job, rank)} came {fault.seconds:.2f} s after the others to {what}"
        f"{_at(call.site)}; it was the last by so much in {often} of {of} collectives"
    )
    history = job.histories[fault.uid]
    answers = (answered(dump, history.group, rank) for dump in job.dumps.values())
    if any(each is not None and each.state == STOPPED for each in answers):
        text += f". Rank {rank} was stopped meanwhile, by SIGSTOP or a debugger"
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
        f"All ranks have called {what}, and alike as far as is recorded, but {ranks_named(fault.waiting)} "
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
    rows = [["", *(ranks_named(ranks) for ranks in parts)]]
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
