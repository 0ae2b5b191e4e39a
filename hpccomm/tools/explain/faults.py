"""The faults of a job: ranks that are missing, differ, wait for each other, or were late; each with its sentence.

`find` looks for causes. In each communicator, the first collective that failed matters: some ranks did not complete it,
or the ranks disagreed about it. Later failures follow from it.

`hpccomm.runtime.verdict.judge` draws the conclusions, as it does while a job runs, from the answers of ranks about a
call. Here a rank's answer comes from its own dump, or from the answers that other ranks recorded.
"""

import re
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpccomm.contracts.backend import STOPPED, Answer
from hpccomm.errors import RankMismatch
from hpccomm.runtime.verdict import Verdict, judge, refusals, unlike, whereabouts
from hpccomm.tools.explain.dumps import RecordedCall
from hpccomm.tools.explain.job import PATIENCE, SIGNALS, History, Job, Waiting, at_place
from hpccomm.tools.explain.messages import ends
from hpccomm.units import grouped, ranks_named

ONE_SIZE = ("Bcast", "Allreduce", "Reduce", "Allgather", "Alltoall", "Scan", "Exscan")
"""Collectives of mpi4py for which all ranks give arrays of one size."""

Sort = Literal["raised", "differing", "cycle", "missing", "late", "stuck", "ended"]
"""Sort of a fault. ``"raised"``: ranks raised an uncaught exception. ``"differing"``: ranks made different calls.
``"cycle"``: ranks wait for each other. ``"missing"``: ranks have not come to a call. ``"late"``: a rank came late.
``"stuck"``: all ranks have come to a call, and it does not end. ``"ended"``: ranks have ended by themselves for an
unknown reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong.

    Attributes
    ----------
    sort : str
        The sort of the fault; see `Sort`.
    sentence : str
        The fault in a sentence, with the ranks to look at.
    ranks : tuple of int
        The ranks to look at, as ranks of the job.
    waiting : tuple of int
        The ranks that wait for these.
    uid : str
        Uid of the communicator; empty for an exception.
    number : int
        Number of the collective; 0 for a message and for an exception.
    operation : str
        Name of the call that most ranks made; for an exception, its class.
    seconds : float
        Seconds that `waiting` has waited; for a late rank, the seconds by which it was late.
    differences : mapping of str to mapping of int to str
        For the fields that differ, the values by field and rank.
    waits : tuple of Waiting
        For a cycle: each rank waits for the next one, the last for the first.
    """

    sort: Sort
    sentence: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    uid: str = ""
    number: int = 0
    operation: str = ""
    seconds: float = 0.0
    differences: Mapping[str, Mapping[int, str]] = field(default_factory=dict, hash=False)
    waits: tuple[Waiting, ...] = ()


def _fault(
    job: Job,
    sort: Sort,
    text: str,
    ranks: Iterable[int],
    waiting: Iterable[int],
    call: RecordedCall,
    seconds: float,
    **more: Any,
) -> Fault:
    """Return a fault in a call. Its sentence is followed by one on earlier refused calls of the ranks.

    A program may catch the error of such a call and go on without it.
    """
    named = tuple(sorted(ranks))
    facts = {
        rank: {"refused": {"error": each.line, "site": each.site, "ago": each.ago}}
        for rank in named
        if rank in job.dumps and (each := job.dumps[rank].refused)
    }
    said = _sentence(text)
    if facts:
        said += f" {_sentence(refusals(facts).removeprefix('; ').rstrip('.'))}"
    for rank in named if call.of_mpi4py else ():
        error = job.dumps[rank].handled if rank in job.dumps else None
        if error is not None:
            said += f" Rank {rank} is in the handler of an exception{at_place(error.site)}: {_sentence(error.line.rstrip('.'))}"
    where = call.uid, call.number, call.operation
    return Fault(sort, said, named, tuple(sorted(waiting)), *where, seconds, **more)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def find(job: Job) -> list[Fault]:
    """Return the faults, causes before consequences."""
    waiting = {rank: list(job.waiting(rank)) for rank in job.dumps}
    faults = [each for known in job.histories.values() for each in _of_collectives(job, known)]
    faults += _of_messages(job, waiting, faults)
    held = {rank for rank, waits in waiting.items() if waits}
    if ring := _cycle(waiting):
        fault = _waiting_for_each_other(job, ring)
        # Ranks that wait in the same calls for ranks of the cycle follow from it: leave them out.
        uids = {each.call.uid for each in ring}
        faults = [
            each
            for each in faults
            if each.sort != "missing"
            or not (held if each.uid in uids else {*fault.ranks}).issuperset(each.ranks)
        ]
        faults.append(fault)
    faults.sort(key=lambda fault: _importance(fault, held))
    return list(_with_raised(job, faults))


def _importance(fault: Fault, held: set[int]) -> tuple[int, int, float]:
    """Return the key that sorts faults. Missing ranks that are themselves held up are not the cause, and come last."""
    order = ["differing", "cycle", "missing", "late", "stuck"].index(fault.sort)
    follows = len(held.intersection(fault.ranks)) if fault.sort == "missing" else 0
    if follows == len(fault.ranks):
        order = 5
    return order, follows, -fault.seconds


# Ranks that ended.


def _with_raised(job: Job, inferred: Sequence[Fault]) -> Iterator[Fault]:
    """Yield the exceptions of ranks, and then inferred faults.

    If an exception only says that a wait has ended, the inferred fault is the cause. Consequences of an
    exception are left out.
    """
    # A mismatch that ranks raised says the same as such a fault.
    shown = any(fault.sort in ("differing", "cycle") for fault in inferred)
    causes = [
        rank
        for rank, error in job.raised.items()
        if not error.follows and not (shown and error.error.startswith(RankMismatch.__name__))
    ]
    if not causes:
        yield from inferred or _raised(job, list(job.raised)) or _ended(job)
        return
    yield from _raised(job, causes)
    for fault in inferred:
        looked_at = fault.waiting if fault.sort == "missing" and not fault.number else fault.ranks
        if fault.sort in ("differing", "cycle") or (
            fault.sort == "missing" and not set(causes).intersection(fault.ranks, looked_at)
        ):
            yield fault


def _ended(job: Job) -> list[Fault]:
    """Return the ranks that have ended by themselves, as one fault. Being ended by a signal is not a fault."""
    words = {rank: dump.ended for rank, dump in sorted(job.dumps.items()) if dump.ended}
    ended = [rank for rank, said in words.items() if not any(each in said for each in SIGNALS)]
    if not ended:
        return []
    others = f"; {len(ended) - 1} more ended by themselves" if len(ended) > 1 else ""
    return [Fault("ended", _sentence(f"{words[ended[0]].rstrip('.')}{others}"), tuple(ended))]


def _raised(job: Job, ranks: Sequence[int]) -> list[Fault]:
    """Return the errors of ranks, the earliest first; ranks with equal errors share a fault."""
    in_order = sorted(ranks, key=lambda each: -job.raised[each].ago)
    alike = grouped((re.sub(r"\d+", "#", job.raised[rank].error), rank) for rank in in_order)
    others = tuple(rank for rank in sorted(job.dumps) if rank not in job.raised)
    after = f" {ranks_named(others).capitalize()} ended with it." if others else ""
    faults = []
    for first, *more in alike.values():
        error = job.raised[first]
        who = ranks_named([first, *more]) if more else _on_node(job, first)
        said = f"{who} raised an uncaught error{at_place(error.site)}: {error.line.rstrip('.')}"
        name = error.error.partition(":")[0]
        same = tuple(sorted([first, *more]))
        faults.append(Fault("raised", _sentence(said) + after, same, others, operation=name))
    return faults


def _on_node(job: Job, rank: int) -> str:
    """Return a rank and its node: ``rank 3 on node n2``."""
    host = job.host(rank)
    return f"rank {rank} on node {host}" if host else f"rank {rank}"


# Calls that wait.


def _judged(
    job: Job, call: RecordedCall, rank: int, others: Iterable[int]
) -> tuple[Verdict, dict[int, Answer]]:
    """Return why a rank's call waits, and the answers on which the verdict rests.

    Parameters
    ----------
    job : Job
        The job.
    call : RecordedCall
        The call that waits.
    rank : int
        The rank that waits.
    others : iterable of int
        The ranks for which it may wait.
    """
    number = call.number
    heard = {each: job.heard(each, call.uid, number) for each in others if each != rank}
    answers = {each: answer for each, answer in heard.items() if answer is not None}
    since = call.waited(job.dumps[rank].time)
    now = {"operation": call.operation, "collective": number, "since": since}
    own = {"rank": rank, "now": now, "record": call.record if number else None, "site": call.site}
    return judge(own, answers), answers


def _of_collectives(job: Job, history: History) -> Iterator[Fault]:
    """Yield the first fault of one communicator."""
    members = sorted(history.group.members)
    halted = _halted(job, history)
    number = min(halted.values(), default=None)
    for each in history.numbers:
        if number is not None and each > number:
            break
        calls = history.at(each)
        first, call = next(iter(calls.items()))
        if any(other.record != call.record for other in calls.values()):
            verdict, _ = _judged(job, call, first, members)
            if verdict.differing:
                yield _differing(job, history, each, verdict)
                return
    if number is None:
        yield from _late(job, history)
        return
    calls = {rank: history.calls[rank][number] for rank, at in halted.items() if at == number}
    yield from (
        _missing(job, calls, members)
        or _late(job, history, number)
        or [_stuck(job, calls, members)]
    )


def _halted(job: Job, history: History) -> dict[int, int]:
    """Return the first collective in which each rank has waited for at least `PATIENCE`, or has failed.

    If ranks have died without a dump, any wait counts, since the other ranks were ended soon after. Dumps on request
    may be those of a few ranks.
    """
    asked = ("on demand", "SIGUSR1")
    broken = not all(any(word in dump.reason for word in asked) for dump in job.dumps.values())
    died = broken and any(rank not in job.dumps for rank in history.group.members)
    halted = {}
    for rank, calls in history.calls.items():
        until = job.dumps[rank].time
        for number in sorted(calls):
            call = calls[number]
            if job.gone_on(rank, call) or not (call.open and call.waits):
                continue
            if died or call.state == "failed" or call.waited(until) >= PATIENCE:
                halted[rank] = number
                break
    return halted


def _of_messages(
    job: Job, waiting: Mapping[int, Sequence[Waiting]], faults: Sequence[Fault]
) -> Iterator[Fault]:
    """Yield the messages for which ranks wait, unless another fault names these ranks or their peers."""
    named = {rank for fault in faults for rank in fault.ranks}
    for rank, waits in waiting.items():
        for each in waits:
            if not each.call.number and not named.intersection((rank, *each.awaited)):
                yield from _missing(job, {rank: each.call}, each.awaited)


def _waited(job: Job, calls: Mapping[int, RecordedCall]) -> float:
    """Return the longest time in seconds that ranks have waited in their calls."""
    return max(call.waited(job.dumps[rank].time) for rank, call in calls.items())


def _missing(job: Job, calls: Mapping[int, RecordedCall], others: Sequence[int]) -> list[Fault]:
    """Return the fault that some of the `others` have not come to a call; none if all have.

    Parameters
    ----------
    job : Job
        The job.
    calls : mapping of int to RecordedCall
        The call of each rank that waits.
    others : sequence of int
        The ranks for which they may wait.
    """
    (rank, call), *_ = calls.items()
    verdict, answers = _judged(job, call, rank, others)
    absent = {*verdict.absent, *verdict.held_up}
    unheard = {each for each in others if each != rank and each not in answers}
    if not absent and not unheard:
        return []
    what, seconds = job.name(call), _waited(job, calls)
    done = f"called {what}" if call.number else f"taken part in {what}"
    text = "; ".join(
        whereabouts({each: answers[each] for each in sorted(absent)}, call.number, done)
    )
    if not absent:
        they = "it was" if len(unheard) == 1 else "they were"
        text = f"{ranks_named(unheard)} left no dump and gave no answer, so probably {they} killed or crashed"
        if call.of_mpi4py:  # it was asked to write one
            text += ", or in native code that holds the interpreter"
    have = "has" if len(calls) == 1 else "have"
    began = min(job.moment(each, made.began) for each, made in calls.items())
    text += (
        f". {ranks_named(calls).capitalize()} {have} waited in {'it' if what in text else what}"
        f"{at_place(call.site)} for {seconds:.1f} s, since {time.strftime('%H:%M:%S', time.gmtime(began))} UTC"
    )
    text += _unreceived(job, rank, call)
    if absent and unheard:
        text += f". Of {ranks_named(unheard)} nothing is known"
    return [_fault(job, "missing", text, absent or unheard, calls, call, seconds)]


def _unreceived(job: Job, rank: int, call: RecordedCall) -> str:
    """Return as sentences what was sent to a rank that waits in a message of mpi4py for something else."""
    if call.number or not call.of_mpi4py:
        return ""
    found = job.histories[call.uid].messages.unreceived(rank, call)
    return "".join(f". {each[:1].upper()}{each[1:]}" for each in found)


def _stuck(job: Job, calls: Mapping[int, RecordedCall], members: Iterable[int]) -> Fault:
    call, seconds = next(iter(calls.values())), _waited(job, calls)
    known = [(each.nbytes, rank) for rank, each in sorted(calls.items()) if each.nbytes]
    sizes = grouped(known)
    if call.operation in ONE_SIZE and len(sizes) > 1:
        told = "; ".join(f"{ranks_named(of)}: {nbytes} bytes" for nbytes, of in sizes.items())
        text = f"the ranks give {job.name(call)}{at_place(call.site)} arrays of different sizes: {told}"
        return _fault(job, "differing", text, members, calls, call, seconds)
    text = (
        f"all ranks have called {job.name(call)}, and alike as far as is recorded, but {ranks_named(calls)} "
        f"did not complete it within {seconds:.1f} s: no rank is missing. Look at the network "
        "and at the stacks of the threads in the dumps"
    )
    return _fault(job, "stuck", text, members, calls, call, seconds)


def _late(job: Job, history: History, number: int | None = None) -> list[Fault]:
    """Return the rank that came latest, if it kept others waiting.

    Parameters
    ----------
    job : Job
        The job.
    history : History
        The communicator.
    number : int, optional
        The collective to look at; by default the one in which a rank was latest.
    """
    latest: dict[int, tuple[float, int]] = {}
    for each in history.numbers if number is None else [number]:
        arrivals = {rank: job.moment(rank, call.began) for rank, call in history.at(each).items()}
        if len(arrivals) < max(2, len(history.group.members)):
            continue
        last = max(arrivals, key=lambda rank: arrivals[rank])
        others = statistics.median_low(time for rank, time in arrivals.items() if rank != last)
        if arrivals[last] - others > PATIENCE:
            latest[each] = arrivals[last] - others, last
    if not latest:
        return []
    worst = max(latest, key=lambda each: latest[each][0])
    seconds, rank = latest[worst]
    often, call = sum(last == rank for _, last in latest.values()), history.at(worst)[rank]
    text = (
        f"{_on_node(job, rank)} came {seconds:.2f} s after the others to {job.name(call)}{at_place(call.site)}; "
        f"it was the last by so much in {often} of {len(history.numbers)} collectives"
    )
    answers = (dump.answers.get(call.uid, {}).get(rank) for dump in job.dumps.values())
    if any(each is not None and each.state == STOPPED for each in answers):
        text += f". Rank {rank} was stopped, by SIGSTOP or a debugger"
    if len(job.hosts) > 1:
        text += f". {job.clock_caveat()}"
    waiting = {*history.group.members} - {rank}
    return [_fault(job, "late", text, [rank], waiting, call, seconds)]


# Calls that differ.


def _differing(job: Job, history: History, number: int, verdict: Verdict) -> Fault:
    calls = history.at(number)
    differences = unlike({rank: call.record for rank, call in calls.items()})
    usual, *others = _sides(differences)
    text = f"in communicator {history.group.name!r} {verdict.text}"
    if len(verdict.differing) == 1:
        text += f". Look at {_on_node(job, verdict.differing[0])}"
    shift = _shift(history, number, others[0][0], usual[0]) if len(others) == 1 else 0
    if shift:
        odd, most = ranks_named(others[0]), ranks_named(usual)
        change = calls[(usual if shift == 1 else others[0])[0]]
        what = f"{change.operation} #{number}{at_place(change.site)}"
        cause = f"{odd} made {what} once too often, or {most} left it out"
        if shift == 1:
            cause = f"{odd} left out {what}, or {most} made it once too often"
        text += f". The calls before or after it fit if {cause}"
    waiting, call = calls.keys() - verdict.differing, calls[usual[0]]
    seconds = _waited(job, calls)
    ranks = verdict.differing
    return _fault(job, "differing", text, ranks, waiting, call, seconds, differences=differences)


def _sides(values: Mapping[str, Mapping[int, str]]) -> list[list[int]]:
    """Return the groups of ranks that made the same call, the largest group first."""
    ranks = sorted(next(iter(values.values())))
    alike = grouped((tuple(each[rank] for each in values.values()), rank) for rank in ranks)
    return sorted(alike.values(), key=lambda each: (-len(each), each))


def _shift(history: History, number: int, odd: int, usual: int) -> int:
    """Return by how many calls rank `odd` is ahead of rank `usual` from a collective on: 1, -1, or 0.

    1 means that it left out a call, -1 that it made one more, and 0 that neither explains the difference. The calls
    after it show that. If both ranks wait in this collective, an earlier iteration of the program may: there the call
    of `odd` followed the call of `usual`.
    """
    calls = history.calls[usual]
    here, other = history.calls[odd][number], calls[number]
    if any(
        each + 1 < number and _alike(calls[each], other) and _alike(calls[each + 1], here)
        for each in calls
        if each + 1 in calls
    ):
        return 1
    for shift in (1, -1):
        ahead, behind = (odd, usual) if shift == 1 else (usual, odd)
        following = [each for each in history.calls[ahead] if each >= number]
        pairs = [
            (history.calls[ahead][each], history.calls[behind][each + 1])
            for each in following
            if each + 1 in history.calls[behind]
        ]
        if pairs and all(_alike(*pair) for pair in pairs):
            return shift
    return 0


def _alike(one: RecordedCall, other: RecordedCall) -> bool:
    return (one.record, one.site) == (other.record, other.site)


# Ranks that wait for each other.


def _waiting_for_each_other(job: Job, ring: Sequence[Waiting]) -> Fault:
    waits = [
        f"{_on_node(job, wait.rank)} has waited for {wait.seconds:.1f} s in {job.name(wait.call)}"
        f"{at_place(wait.call.site)} for {ranks_named(wait.awaited)}"
        for wait in ring
    ]
    others = "".join(_unreceived(job, wait.rank, wait.call) for wait in ring)
    of_mpi4py, numbers = ring[0].call.of_mpi4py, [wait.call.number for wait in ring]
    remedy = "Let one side send while the other receives, or use send_recv"
    if all(numbers) or (any(numbers) and not of_mpi4py):
        remedy = (
            "Let all ranks make the calls of several communicators in one order, and leave none out"
        )
    elif "with tag" in others:
        remedy = "Give a message one tag where it is sent and where it is received"
    elif of_mpi4py and not all(ends(wait.call) for wait in ring):
        remedy = "Let each rank make the calls that the others wait for before it waits for them"
    elif of_mpi4py:
        remedy = "Let one side send while the other receives, or use Sendrecv"
    ranks, seconds = [wait.rank for wait in ring], max(wait.seconds for wait in ring)
    they = f"{ranks_named(ranks)} wait for each other"
    if len(ring) == 1:
        they = f"{ranks_named(ranks)} waits for itself"
        remedy = "Let it begin the send before it receives, with Isend, or use Sendrecv"
    text = f"{they}: {'; '.join(waits)}{others}. {remedy}"
    return _fault(job, "cycle", text, ranks, ranks, ring[0].call, seconds, waits=tuple(ring))


def _cycle(waiting: Mapping[int, Sequence[Waiting]]) -> list[Waiting]:
    """Return a shortest cycle of ranks that wait for each other; empty without one."""
    chains = [[each] for rank in sorted(waiting) for each in waiting[rank]]
    reached = set[tuple[int, int]]()
    for chain in chains:  # the list grows meanwhile: longer chains come after shorter ones
        first, awaited = chain[0].rank, chain[-1].awaited
        if first in awaited:
            return chain
        for peer in awaited:
            if peer in waiting and (first, peer) not in reached:
                reached.add((first, peer))
                chains += [[*chain, each] for each in waiting[peer]]
    return []
