"""The faults of a job: ranks that are missing, differ, wait for each other, or were late. `explain` calls it.

`join` makes a `Job` from the dumps: each rank's call in each collective of each communicator. `find` looks for causes
in it. In each communicator, the first collective that failed matters: some ranks did not complete it, or the ranks
disagreed about it. Later failures follow from it.

`hpccomm.runtime.verdict.judge` draws the conclusions, as it does while a job runs, from the answers of ranks about a
call. Here a rank's answer comes from its own dump, or from the answers that other ranks recorded.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from hpccomm.contracts.backend import ANSWERED, Answer
from hpccomm.errors import RankMismatch
from hpccomm.runtime.verdict import Verdict, judge, numbered, unlike
from hpccomm.tools.explain.dumps import Dump, DumpedError, Membership, RecordedCall
from hpccomm.units import grouped, ranks_named

PATIENCE = 0.3
"""Seconds by which a rank must wait, or come late, to count as a fault."""

MEETINGS = frozenset(
    f"{name}{uneven}"
    for name in ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for uneven in ("", "_v")
)
"""Collectives that no rank can leave before all have come."""

_LAST = 200
"""Number of collectives, the last ones, by which clocks are compared."""


@dataclass(frozen=True, slots=True)
class History:
    """The collectives of one communicator on all its ranks.

    Attributes
    ----------
    group : Membership
        The communicator.
    calls : mapping of int to mapping of int to RecordedCall
        The calls by rank of the job and number of the collective, as far back as the records go.
    begun : mapping of int to int
        Number of the last collective that each rank began. Ranks that left no trace are not in it.
    """

    group: Membership
    calls: Mapping[int, Mapping[int, RecordedCall]]
    begun: Mapping[int, int]

    def at(self, number: int) -> dict[int, RecordedCall]:
        """Return the recorded calls of the collective of that number, by rank."""
        return {rank: calls[number] for rank, calls in self.calls.items() if number in calls}

    def absent(self, number: int) -> tuple[int, ...]:
        """Return the ranks that are not known to have begun the collective of that number."""
        return tuple(
            rank for rank in sorted(self.group.members) if self.begun.get(rank, -1) < number
        )

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the collectives that any rank has recorded, in order."""
        return sorted({number for calls in self.calls.values() for number in calls})


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank's wait of some seconds in a call for the `awaited` ranks, which have not come to the call."""

    rank: int
    call: RecordedCall
    seconds: float
    awaited: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """The known facts of a job.

    Attributes
    ----------
    dumps : mapping of int to Dump
        The dumps by rank.
    histories : mapping of str to History
        The histories by uid of the communicator, in the order in which they first appear.
    clocks : mapping of str to float
        Seconds by which each host's clock is ahead of the first host's. Hosts that could not be
        compared are not in it.
    """

    dumps: Mapping[int, Dump]
    histories: Mapping[str, History]
    clocks: Mapping[str, float]

    @property
    def hosts(self) -> int:
        """Number of hosts that are known."""
        return len({dump.host for dump in self.dumps.values()})

    @property
    def broken(self) -> bool:
        """Whether a dump was written because something failed, not on request."""
        asked = ("on demand", "SIGUSR1")
        return not all(any(word in dump.reason for word in asked) for dump in self.dumps.values())

    @property
    def raised(self) -> dict[int, DumpedError]:
        """The uncaught exceptions, by rank."""
        return {rank: dump.raised for rank, dump in self.dumps.items() if dump.raised is not None}

    @property
    def size(self) -> int:
        """Number of ranks."""
        return max(dump.world_size for dump in self.dumps.values())

    @property
    def end(self) -> float:
        """Unix time of the last dump, by the first host's clock."""
        return max(self.moment(rank, dump.time) for rank, dump in self.dumps.items())

    def moment(self, rank: int, time: float) -> float:
        """Return a time of a rank's host, by the clock of the first host."""
        return time - self.clocks.get(self.dumps[rank].host, 0.0)

    def seen(self, rank: int, uid: str) -> Answer | None:
        """Return a rank's answer at the time of its dump; without a dump, the last that another rank has recorded."""
        dump = self.dumps.get(rank)
        if dump is not None:
            return dump.now.get(uid) or next(iter(dump.now.values()), None)
        asked = [
            (uid == where, other.time, answers[rank])
            for other in self.dumps.values()
            for where, answers in other.answers.items()
            if rank in answers
        ]
        return max(asked, key=lambda each: each[:2])[2] if asked else None

    def gone_on(self, rank: int, call: RecordedCall) -> bool:
        """Whether a call of a rank was refused, and the rank went on to other calls.

        After a mismatch, some communicators cannot be used: then only a later call shows that the rank went on.
        """
        if not call.refused:
            return False
        later = [each.began for each in self.dumps[rank].calls if each.uid == call.uid]
        return not call.error.startswith("RankMismatch") or max(later) > call.began

    def waiting(self, rank: int) -> Iterator[Waiting]:
        """Yield the calls in which a rank has waited for others for longer than `PATIENCE`."""
        dump = self.dumps[rank]
        first: set[str] = set()
        for call in dump.calls:
            seconds = call.waited(dump.time)
            if not call.open or (seconds < PATIENCE and call.state != "failed"):
                continue
            history = self.histories.get(call.uid)
            if history is None or (call.number and call.uid in first) or self.gone_on(rank, call):
                continue
            if call.number:
                first.add(call.uid)
                awaited = history.absent(call.number)
            else:
                awaited = tuple(peer for peer in peers(call, history.group) if peer != rank)
            if awaited:
                yield Waiting(rank, call, seconds, awaited)


def peers(call: RecordedCall, group: Membership) -> Iterator[int]:
    """Yield the ranks of the job to which a message goes or from which it comes."""
    for name in ("src", "dst"):
        rank = call.terms.get(name)
        if type(rank) is int and 0 <= rank < len(group.members):
            yield group.members[rank]


def join(dumps: Sequence[Dump]) -> Job:
    """Join the dumps of one job."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups: dict[str, Membership] = {}
    for dump in dumps:
        for uid, group in dump.groups.items():
            # Dumps of one job agree, unless one is damaged: take the longest list of ranks.
            if uid not in groups or len(group.members) > len(groups[uid].members):
                groups[uid] = group
    calls: dict[str, dict[int, dict[int, RecordedCall]]] = {uid: {} for uid in groups}
    for dump in dumps:
        for call in dump.calls:
            if call.uid in calls and call.number and dump.rank in groups[call.uid].members:
                calls[call.uid].setdefault(dump.rank, {})[call.number] = call
    histories = {}
    for uid, group in groups.items():
        begun = {}
        for rank in group.members:
            known = list(calls[uid].get(rank, ()))
            if rank in by_rank:
                known.append(0)
                seen = [by_rank[rank].now.get(uid)]
            else:
                seen = [dump.answers.get(uid, {}).get(rank) for dump in dumps]
            facts = [each.facts for each in seen if each]
            known += [each["collective"] for each in facts if "collective" in each]
            if known:
                begun[rank] = max(known)
        histories[uid] = History(group, calls[uid], begun)
    return Job(by_rank, histories, clocks(by_rank, histories))


def clocks(dumps: Mapping[int, Dump], histories: Mapping[str, History]) -> dict[str, float]:
    """Return the seconds by which each host's clock is ahead of the first host's.

    All ranks leave a barrier, an all-reduce and the like at about the same moment. The difference of
    clocks is the median difference of these moments.
    """
    first = dumps[min(dumps)].host
    ahead = {first: 0.0}
    for history in sorted(histories.values(), key=lambda each: -len(each.group.members)):
        differences: dict[str, list[float]] = {}
        for number in history.numbers[-_LAST:]:
            ends: dict[str, float] = {}
            for rank, call in history.at(number).items():
                if call.operation in MEETINGS and call.seconds is not None and not call.open:
                    ends.setdefault(dumps[rank].host, call.began + call.seconds)
            known = next((host for host in ends if host in ahead), None)
            if known is not None:
                for host, end in ends.items():
                    differences.setdefault(host, []).append(end - ends[known] + ahead[known])
        for host, seconds in differences.items():
            ahead.setdefault(host, statistics.median(seconds))
    return ahead


SIGNALS = ("was sent SIGTERM", "was interrupted")
"""Parts of `Dump.ended` of ranks that were ended from outside, or because of another rank."""


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """The verdict on why a call waits, the answers by rank on which it rests, and the ranks that left no trace."""

    verdict: Verdict
    answers: Mapping[int, Answer]
    unheard: tuple[int, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that are known to be absent or held up elsewhere."""
        return tuple(sorted({*self.verdict.absent, *self.verdict.held_up}))


def judged(job: Job, call: RecordedCall, rank: int, others: Iterable[int]) -> JudgedCall:
    """Return why a rank's call waits.

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
    answers = {each: heard(job, each, call.uid, number) for each in others if each != rank}
    since = call.waited(job.dumps[rank].time)
    now = {"operation": call.operation, "collective": number, "since": since}
    own = {"rank": rank, "now": now, "record": call.record if number else None, "site": call.site}
    known = {each: answer for each, answer in answers.items() if answer is not None}
    unheard = tuple(each for each in answers if each not in known)
    return JudgedCall(judge(own, known), known, unheard)


def heard(job: Job, rank: int, uid: str, number: int = 0) -> Answer | None:
    """Return a rank's answer about the collective of that number, or about a message (0).

    None if the rank left no dump and gave no answer.
    """
    seen, history, dump = job.seen(rank, uid), job.histories[uid], job.dumps.get(rank)
    if dump is None and seen is None:
        return None
    state = ANSWERED if dump or seen is None else seen.state
    known = {} if seen is None else seen.facts
    begun = history.begun.get(rank, 0)
    facts: dict[str, object] = {"host": host_of(job, rank)}
    if 0 < number <= begun:
        call = history.calls.get(rank, {}).get(number)
        facts |= {"collective": begun, "done": known.get("done", 0)}
        facts["leaving"] = known.get("leaving", False)
        if call is not None:
            facts |= {"record": call.record, "site": call.site}
            facts["done"] = facts["done"] if call.open else number
        return Answer(state, facts)
    if dump is None:
        return Answer(state, {**known, **facts, "collective": begun})
    waits = list(job.waiting(rank))
    under_way = [call for call in dump.calls if call.state == "started"]
    if waits or under_way:
        call = waits[-1].call if waits else under_way[-1]
        name, site = call_name(job, call.uid, call.number, call.operation), call.site
        if waits:
            site += f" (waiting for {ranks_named(waits[-1].awaited)} for {waits[-1].seconds:.1f} s)"
        facts["now"] = {"operation": name, "collective": 0, "site": site}
    elif known.get("leaving"):
        facts["leaving"] = True
    elif rank in job.raised:
        raised = job.raised[rank]
        facts["failed"] = f"raised {raised.error.partition(':')[0]}{at_place(raised.site)}"
    else:
        doing = facts["doing"] = known.get("doing")
        facts["failed"] = (
            _answered_end(dump, doing) or _failed(job, dump, uid) or known.get("failed")
        )
    return Answer(ANSWERED, facts)


def _answered_end(dump: Dump, doing: object) -> str:
    """Return why a rank ended, in its own words. Empty if it did not end, or if `doing`, its place, says more."""
    ended = dump.ended.removeprefix(f"rank {dump.rank} ")
    if doing and any(each in ended for each in SIGNALS):
        ended = ""
    wrote = any(word in dump.reason.lower() for word in ("exception", "exit", "sigterm"))
    return ended or (dump.reason.strip().split("\n", maxsplit=1)[0].rstrip(".") if wrote else "")


def _failed(job: Job, dump: Dump, uid: str) -> str:
    """Return the error of the last failed call on a communicator, leaving out calls after which the rank went on."""
    failed = [call for call in dump.calls if call.state == "failed" and call.uid == uid]
    errors = [call.error for call in failed if not job.gone_on(dump.rank, call)]
    return errors[-1] if errors else ""


def call_name(job: Job, uid: str, number: int, operation: str) -> str:
    """Return a call in words: ``all_reduce #7 of communicator 'world'``."""
    return f"{numbered(operation, number)} of communicator {job.histories[uid].group.name!r}"


def host_of(job: Job, rank: int) -> str:
    """Return the host of a rank; empty if it is not known."""
    if rank in job.dumps:
        return job.dumps[rank].host
    answers = (job.seen(rank, uid) for uid in job.histories)
    return next((each.facts["host"] for each in answers if each is not None), "")


def at_place(site: str) -> str:
    """Return a place of the program in brackets; empty if it is not known."""
    return f" ({site})" if site else ""


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
    uid : str
        Uid of the communicator; empty for an exception.
    number : int
        Number of the collective; 0 for a message and for an exception.
    operation : str
        Name of the call that most ranks made; for an exception, its class.
    ranks : tuple of int
        The ranks to look at, as ranks of the job.
    waiting : tuple of int
        The ranks that wait for these.
    seconds : float
        Seconds that `waiting` has waited; for a late rank, the seconds by which it was late.
    differences : mapping of str to mapping of int to str
        For the fields that differ, the values by field and rank.
    waits : tuple of Waiting
        For a cycle: each rank waits for the next one, the last for the first.
    times : tuple of int
        For a late rank: the number of collectives in which it was late, and the number of all collectives.
    unknown : tuple of int
        Ranks that left no trace, and so may be missing too.
    shift : int
        For ranks that differ: the number of calls by which they are ahead of the others. 1 means that they
        left out a call, -1 that they made one more, and 0 that neither explains the difference.
    answers : mapping of int to Answer
        For missing ranks: the answers of all ranks that are known.
    text : str
        For calls that differ: the words of the verdict.
    """

    sort: Sort
    uid: str
    number: int
    operation: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    seconds: float = 0.0
    differences: Mapping[str, Mapping[int, str]] = field(default_factory=dict, hash=False)
    waits: tuple[Waiting, ...] = ()
    times: tuple[int, int] = (0, 0)
    unknown: tuple[int, ...] = ()
    shift: int = 0
    answers: Mapping[int, Answer] = field(default_factory=dict, hash=False)
    text: str = ""


def find(job: Job) -> list[Fault]:
    """Return the faults, causes before consequences."""
    waiting = {rank: list(job.waiting(rank)) for rank in job.dumps}
    faults = [each for known in job.histories.values() for each in _of_collectives(job, known)]
    faults += _of_messages(job, waiting, faults)
    ring, held = _cycle(waiting), {rank for rank, waits in waiting.items() if waits}
    if ring:
        first = ring[0].call
        ranks = tuple(sorted(each.rank for each in ring))
        seconds = max(each.seconds for each in ring)
        fault = Fault("cycle", first.uid, first.number, first.operation, ranks, ranks, seconds)
        faults.append(replace(fault, waits=tuple(ring)))
        # Ranks that wait in the same calls for ranks of the cycle follow from it: leave them out.
        inside = set(ranks)
        round_uids = {each.call.uid for each in ring}
        faults = [
            each
            for each in faults
            if each.sort != "missing"
            or not (held if each.uid in round_uids else inside).issuperset(each.ranks)
        ]
    faults.sort(key=lambda fault: _importance(fault, held))
    return list(_with_raised(job, faults))


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
        yield from inferred
        if not inferred:
            yield from _raised(job, list(job.raised))
        if not inferred and not job.raised:
            yield from _ended(job)
        return
    yield from _raised(job, causes)
    for fault in inferred:
        looked_at = fault.waiting if fault.sort == "missing" and not fault.number else fault.ranks
        if fault.sort in ("differing", "cycle") or (
            fault.sort == "missing" and not set(causes).intersection(fault.ranks, looked_at)
        ):
            yield fault


def _ended(job: Job) -> Iterator[Fault]:
    """Yield the ranks that have ended by themselves, as one fault. Being ended by a signal is not a fault."""
    words = {rank: dump.ended for rank, dump in sorted(job.dumps.items()) if dump.ended}
    ended = [rank for rank, said in words.items() if not any(each in said for each in SIGNALS)]
    if ended:
        yield Fault("ended", "", 0, "", tuple(ended))


def _raised(job: Job, ranks: Sequence[int]) -> Iterator[Fault]:
    """Yield the errors of ranks, the earliest first; ranks with equal errors share a fault."""
    in_order = sorted(ranks, key=lambda each: -job.raised[each].ago)
    alike = grouped((re.sub(r"\d+", "#", job.raised[rank].error), rank) for rank in in_order)
    for same in alike.values():
        others = tuple(rank for rank in sorted(job.dumps) if rank not in job.raised)
        name = job.raised[same[0]].error.partition(":")[0]
        yield Fault("raised", "", 0, name, tuple(sorted(same)), others)


def _importance(fault: Fault, held: set[int]) -> tuple[int, int, float]:
    """Return the key that sorts faults. Missing ranks that are themselves held up are not the cause, and come last."""
    order = ["differing", "cycle", "missing", "late", "stuck"].index(fault.sort)
    follows = len(held.intersection(fault.ranks)) if fault.sort == "missing" else 0
    if follows == len(fault.ranks):
        order = 5
    return order, follows, -fault.seconds


def _of_collectives(job: Job, history: History) -> Iterator[Fault]:
    """Yield the first fault of one communicator."""
    uid, members = history.group.uid, sorted(history.group.members)
    halted = _halted(job, history)
    number = min(halted.values(), default=None)
    for each in history.numbers:
        if number is not None and each > number:
            break
        calls = history.at(each)
        first, call = next(iter(calls.items()))
        asked = call.operation, call.terms
        if any((other.operation, other.terms) != asked for other in calls.values()):
            judged_call = judged(job, call, first, members)
            if judged_call.verdict.differing:
                yield _differing(job, history, each, judged_call.verdict)
                return
    if number is None:
        yield from _late(job, history)
        return
    calls = history.at(number)
    waiting = tuple(rank for rank, at in sorted(halted.items()) if at == number)
    call = calls[waiting[0]]
    seconds = max(calls[rank].waited(job.dumps[rank].time) for rank in waiting)
    judged_call = judged(job, call, waiting[0], members)
    if judged_call.absent or judged_call.unheard:
        yield _missing(call, judged_call, waiting, seconds)
        return
    late = list(_late(job, history, number))
    yield from late
    if not late:
        yield Fault("stuck", uid, number, call.operation, tuple(members), waiting, seconds)


def _missing(call: RecordedCall, judged_call: JudgedCall, *waited: Any) -> Fault:
    """Return the fault that ranks have not come to a call. `waited` holds the ranks that wait, and the seconds."""
    absent = judged_call.absent or judged_call.unheard
    unknown = judged_call.unheard if judged_call.absent else ()
    fault = Fault("missing", call.uid, call.number, call.operation, absent, *waited)
    return replace(fault, unknown=unknown, answers=judged_call.answers)


def _halted(job: Job, history: History) -> dict[int, int]:
    """Return the first collective in which each rank has waited for at least `PATIENCE`, or has failed.

    If ranks have died without a dump, any wait counts, since the other ranks were ended soon after.
    """
    halted = {}
    died = job.broken and any(rank not in job.dumps for rank in history.group.members)
    patience = 0.0 if died else PATIENCE
    for rank, calls in history.calls.items():
        until = job.dumps[rank].time
        for number in sorted(calls):
            call = calls[number]
            if job.gone_on(rank, call):
                continue
            if call.open and (call.state == "failed" or call.waited(until) >= patience):
                halted[rank] = number
                break
    return halted


def sides(values: Mapping[str, Mapping[int, str]]) -> list[tuple[int, ...]]:
    """Return the groups of ranks that made the same call, the largest group first."""
    ranks = next(iter(values.values()))
    alike = grouped((tuple(each[rank] for each in values.values()), rank) for rank in sorted(ranks))
    return [tuple(each) for each in sorted(alike.values(), key=lambda each: (-len(each), each))]


def _differing(job: Job, history: History, number: int, verdict: Verdict) -> Fault:
    calls = history.at(number)
    differing = unlike({rank: call.record for rank, call in calls.items()})
    usual, *others = sides(differing)
    return Fault(
        "differing",
        history.group.uid,
        number,
        calls[usual[0]].operation,
        verdict.differing,
        waiting=tuple(sorted(calls.keys() - verdict.differing)),
        seconds=max(call.waited(job.dumps[rank].time) for rank, call in calls.items()),
        differences=differing,
        shift=_shift(history, number, others[0][0], usual[0]) if len(others) == 1 else 0,
        text=verdict.text,
    )


def _shift(history: History, number: int, odd: int, usual: int) -> int:
    """Return by how many calls rank `odd` is ahead of rank `usual` from a collective on: 1, -1, or 0.

    The calls after it show that. If both ranks wait in this collective, an earlier iteration of the program
    may: there the call of `odd` followed the call of `usual`.
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
    return (one.operation, one.terms, one.site) == (other.operation, other.terms, other.site)


def _late(job: Job, history: History, number: int | None = None) -> Iterator[Fault]:
    """Yield the rank that came latest, if it kept others waiting.

    Parameters
    ----------
    number : int, optional
        The collective to look at; by default the one in which a rank was latest.
    """
    latest: dict[int, tuple[int, float]] = {}
    for each in history.numbers:
        came = {rank: job.moment(rank, call.began) for rank, call in history.at(each).items()}
        if len(came) < max(2, len(history.group.members)):
            continue
        last = max(came, key=lambda rank: came[rank])
        others = statistics.median_low(time for rank, time in came.items() if rank != last)
        if came[last] - others > PATIENCE:
            latest[each] = last, came[last] - others
    if number is not None:
        latest = {each: late for each, late in latest.items() if each == number}
    if not latest:
        return
    worst = number or max(latest, key=lambda each: latest[each][1])
    rank, seconds = latest[worst]
    often = sum(1 for who, _ in latest.values() if who == rank)
    waiting = tuple(other for other in sorted(history.group.members) if other != rank)
    call = history.at(worst)[rank]
    fault = Fault("late", call.uid, worst, call.operation, (rank,), waiting, seconds)
    yield replace(fault, times=(often, len(history.numbers)))


def _of_messages(
    job: Job, waiting: Mapping[int, Sequence[Waiting]], faults: Sequence[Fault]
) -> Iterator[Fault]:
    """Yield the messages for which ranks wait, unless another fault names these ranks or their peers."""
    named = {rank for fault in faults for rank in fault.ranks}
    for rank, waits in waiting.items():
        for each in waits:
            if not each.call.number and not named.intersection((rank, *each.awaited)):
                judged_call = judged(job, each.call, rank, each.awaited)
                yield _missing(each.call, judged_call, (rank,), each.seconds)


def _cycle(waiting: Mapping[int, Sequence[Waiting]]) -> list[Waiting]:
    """Return a shortest cycle of ranks that wait for each other; empty without one."""
    awaited = {rank: [*chain(*(each.awaited for each in waits))] for rank, waits in waiting.items()}
    rounds = (_shortest_round(start, awaited) for start in sorted(waiting))
    ring = min(filter(None, rounds), key=len, default=())
    return [
        next(each for each in waiting[rank] if peer in each.awaited)
        for rank, peer in zip(ring, (*ring[1:], *ring[:1]), strict=True)
    ]


def _shortest_round(start: int, awaited: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks of a shortest cycle of waits that begins with `start`; none if that rank is in no cycle.

    Parameters
    ----------
    start : int
        The rank with which the cycle begins and ends.
    awaited : mapping of int to sequence of int
        The ranks for which each rank waits.
    """
    reached: dict[int, tuple[int, ...]] = {start: (start,)}
    front = [start]
    while front:
        rank = front.pop(0)
        for peer in awaited.get(rank, ()):
            if peer == start and rank != start:
                return reached[rank]
            if peer not in reached:
                reached[peer] = (*reached[rank], peer)
                front.append(peer)
    return ()
