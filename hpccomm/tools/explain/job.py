"""A job, as the dumps of its ranks show it: the calls of each rank in each communicator, and what each rank did last.

`join` makes a `Job` of the dumps, which `hpccomm.tools.explain.faults` searches for causes. It also tells by how much
the clocks of the hosts differ.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpccomm.contracts.backend import ANSWERED, Answer, Facts
from hpccomm.runtime.verdict import numbered
from hpccomm.tools.explain.dumps import AWAITED, Dump, DumpedError, Membership, RecordedCall
from hpccomm.tools.explain.messages import Messages, receives
from hpccomm.units import grouped, ranks_named

PATIENCE = 0.3
"""Seconds by which a rank must wait, or come late, to count as a fault."""


def _plain(name: str) -> str:
    """Return the name of a collective of hpccomm or of mpi4py, in one spelling."""
    return name.lower().replace("_", "")


MEETINGS = frozenset(
    _plain(f"{name}{uneven}")
    for name in ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for uneven in ("", "_v")
)
"""Collectives that no rank can leave before all have come."""

SIGNALS = ("was sent SIGTERM", "was interrupted")
"""Parts of `Dump.ended` of ranks that were ended from outside, or because of another rank."""

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
    messages : Messages
        The messages, as mpi4py's calls tell.
    """

    group: Membership
    calls: Mapping[int, Mapping[int, RecordedCall]]
    begun: Mapping[int, int]
    messages: Messages

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
    def hosts(self) -> set[str]:
        """The hosts that are known."""
        return {dump.host for dump in self.dumps.values()}

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

    def name(self, call: RecordedCall) -> str:
        """Return a call in words: ``all_reduce #7 of communicator 'world'``."""
        group = self.histories[call.uid].group
        what = "on" if call.of_mpi4py else "of communicator"  # it may be a window or a file
        return f"{numbered(call.title, call.number)} {what} {group.name!r}"

    def host(self, rank: int) -> str:
        """Return the host of a rank; empty if it is not known."""
        if rank in self.dumps:
            return self.dumps[rank].host
        seen = self._seen(rank, "")
        return str(seen.facts["host"]) if seen else ""

    def _seen(self, rank: int, uid: str) -> Answer | None:
        """Return a rank's answer at the time of its dump; without a dump, the last that another rank has recorded."""
        told = [
            (where == uid, dump.time, answers[rank])
            for dump in witnesses(self.dumps, rank)
            for where, answers in dump.answers.items()
            if rank in answers
        ]
        return max(told, key=lambda each: each[:2])[2] if told else None

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
        waits = list(self._waiting(rank))
        receiving = any(each.call.mode == AWAITED and receives(each.call) for each in waits)
        for each in waits:
            # A send that is awaited beside a receive may be done.
            if not (receiving and each.call.mode == AWAITED and not receives(each.call)):
                yield each

    def _waiting(self, rank: int) -> Iterator[Waiting]:
        dump = self.dumps[rank]
        first: set[str] = set()
        for call in dump.calls:
            seconds = call.waited(dump.time)
            if not call.open or (seconds < PATIENCE and call.state != "failed"):
                continue
            history = self.histories.get(call.uid)
            if history is None or not call.waits or (call.number and call.uid in first):
                continue
            if self.gone_on(rank, call):
                continue
            if call.number:
                first.add(call.uid)
                awaited = history.absent(call.number)
            elif call.of_mpi4py:
                awaited = history.messages.awaited(rank, call)
            else:
                awaited = _peers(call, history.group, rank)
            if awaited:
                yield Waiting(rank, call, seconds, awaited)

    def heard(self, rank: int, uid: str, number: int = 0) -> Answer | None:
        """Return a rank's answer about the collective of that number, or about a message (0).

        None if the rank left no dump and gave no answer.
        """
        seen, history, dump = self._seen(rank, uid), self.histories[uid], self.dumps.get(rank)
        if dump is None and seen is None:
            return None
        state = seen.state if seen else ANSWERED
        known: Facts = seen.facts if seen else {}
        begun = history.begun.get(rank, 0)
        facts: dict[str, object] = {"host": self.host(rank)}
        if 0 < number <= begun:
            facts |= {name: known.get(name, 0) for name in ("done", "leaving")}
            facts["collective"] = begun
            if call := history.calls.get(rank, {}).get(number):
                facts |= {"record": call.record, "site": call.site}
                facts["done"] = facts["done"] if call.open else number
            return Answer(state, facts)
        if dump is None:
            return Answer(state, {**known, **facts, "collective": begun})
        waits = list(self.waiting(rank))
        under_way = [call for call in dump.calls if call.state == "started" and call.waits]
        if waits or under_way:
            call = waits[-1].call if waits else under_way[-1]
            site = call.site
            if waits:
                site += (
                    f" (waiting for {ranks_named(waits[-1].awaited)} for {waits[-1].seconds:.1f} s)"
                )
            facts["now"] = {"operation": self.name(call), "collective": 0, "site": site}
        elif known.get("leaving"):
            facts["leaving"] = True
        elif dump.raised is not None:
            name = dump.raised.error.partition(":")[0]
            facts["failed"] = f"raised {name}{at_place(dump.raised.site)}"
        else:
            facts["doing"] = known.get("doing")
            facts["failed"] = self._given_up(dump, uid, facts["doing"]) or known.get("failed")
        return Answer(ANSWERED, facts)

    def _given_up(self, dump: Dump, uid: str, doing: object) -> str:
        """Return why a rank takes no further part: its last words, or the error of its last failed call.

        Words that it was ended from outside say less than `doing`, its place. Empty if neither is known.
        """
        ended = dump.ended.removeprefix(f"rank {dump.rank} ")
        if ended and not (doing and any(each in ended for each in SIGNALS)):
            return ended
        if any(word in dump.reason.lower() for word in ("exception", "exit", "sigterm")):
            return dump.reason.strip().split("\n", maxsplit=1)[0].rstrip(".")
        failed = [call for call in dump.calls if call.state == "failed" and call.uid == uid]
        errors = [call.error for call in failed if not self.gone_on(dump.rank, call)]
        return errors[-1] if errors else ""

    def clock_caveat(self) -> str:
        """Return a sentence on how well times of several hosts can be compared."""
        unknown = sorted(self.hosts - set(self.clocks))
        if unknown:
            return f"The clocks of hosts differ, and nothing tells by how much for {', '.join(unknown[:4])}"
        worst = max(abs(each) for each in self.clocks.values())
        by = f"up to {worst * 1e3:.0f} ms" if worst >= 0.001 else "less than a millisecond"
        return f"The clocks of the hosts differ by {by}, as the ends of collectives tell; times allow for it"


def at_place(site: str) -> str:
    """Return a place of the program in brackets; empty if it is not known."""
    return f" ({site})" if site else ""


def witnesses(dumps: Mapping[int, Dump], rank: int) -> Iterable[Dump]:
    """Return the dumps that tell of a rank: its own one, or without it all others."""
    return [dumps[rank]] if rank in dumps else dumps.values()


def _peers(call: RecordedCall, group: Membership, rank: int) -> tuple[int, ...]:
    """Return the other ranks of the job to which a message goes or from which it comes."""
    members = group.members
    named = (call.terms.get(name) for name in ("src", "dst"))
    return tuple(
        members[each]
        for each in named
        if type(each) is int and 0 <= each < len(members) and members[each] != rank
    )


def join(dumps: Sequence[Dump]) -> Job:
    """Join the dumps of one job."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups: dict[str, Membership] = {}
    for dump in dumps:
        for uid, group in dump.groups.items():
            # Dumps of one job agree, unless one is damaged: take the longest list of ranks.
            groups[uid] = max(groups.get(uid, group), group, key=lambda each: len(each.members))
    made = grouped(
        ((call.uid, dump.rank), call) for dump in dumps for call in dump.calls if call.number
    )
    histories = {}
    for uid, group in groups.items():
        calls: dict[int, dict[int, RecordedCall]] = {}
        begun: dict[int, int] = {}
        for rank in sorted(group.members):
            if (uid, rank) in made:
                calls[rank] = {call.number: call for call in made[uid, rank]}
            told = (each.answers.get(uid, {}).get(rank) for each in witnesses(by_rank, rank))
            known = [
                each.facts["collective"] for each in told if each and "collective" in each.facts
            ]
            known += [*calls.get(rank, ()), *([0] if rank in by_rank else [])]
            if known:
                begun[rank] = max(known)
        histories[uid] = History(group, calls, begun, Messages(by_rank, group))
    return Job(by_rank, histories, _clocks(by_rank, histories))


def _clocks(dumps: Mapping[int, Dump], histories: Mapping[str, History]) -> dict[str, float]:
    """Return the seconds by which each host's clock is ahead of the first host's.

    All ranks leave a barrier, an all-reduce and the like at about the same moment. The difference of
    clocks is the median difference of these moments.
    """
    ahead = {dumps[min(dumps)].host: 0.0}
    for history in sorted(histories.values(), key=lambda each: -len(each.group.members)):
        differences: list[tuple[str, float]] = []
        for number in history.numbers[-_LAST:]:
            ends: dict[str, float] = {}
            for rank, call in history.at(number).items():
                if (
                    _plain(call.operation) in MEETINGS
                    and call.seconds is not None
                    and not call.open
                ):
                    ends.setdefault(dumps[rank].host, call.began + call.seconds)
            known = next((host for host in ends if host in ahead), None)
            if known is not None:
                by = ahead[known] - ends[known]
                differences += [(host, end + by) for host, end in ends.items()]
        medians = {host: statistics.median(each) for host, each in grouped(differences).items()}
        ahead = medians | ahead
    return ahead
