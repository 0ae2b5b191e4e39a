"""The dumps of a job, joined: each rank's call in each collective of each communicator.

`faults` looks for causes in it; `words` shows it.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpccomm.contracts.backend import Answer
from hpccomm.tools.explain.dumps import Dump, DumpedError, Membership, RecordedCall

PATIENCE = 0.3
"""Seconds that a rank may wait, or come late, before it counts."""

MEETINGS = frozenset(
    f"{name}{uneven}"
    for name in ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for uneven in ("", "_v")
)
"""Collectives that no rank can leave before all have come."""

_LAST = 200
"""Number of last collectives by which clocks are compared."""


@dataclass(frozen=True, slots=True)
class History:
    """The collectives of one communicator on all its ranks.

    Attributes
    ----------
    group : Membership
        The communicator.
    calls : mapping of int to mapping of int to RecordedCall
        By rank of the job and number of the collective; as far back as the records go.
    begun : mapping of int to int
        The last collective that each rank began; ranks that left no trace are left out.
    """

    group: Membership
    calls: Mapping[int, Mapping[int, RecordedCall]]
    begun: Mapping[int, int]

    def at(self, number: int) -> dict[int, RecordedCall]:
        """Return the calls of that number that ranks have recorded."""
        return {rank: calls[number] for rank, calls in self.calls.items() if number in calls}

    def absent(self, number: int) -> tuple[int, ...]:
        """Return the ranks that are not known to have begun the collective of that number."""
        return tuple(
            rank for rank in sorted(self.group.members) if self.begun.get(rank, -1) < number
        )

    @property
    def numbers(self) -> Sequence[int]:
        """The collectives that are recorded anywhere, in order."""
        return sorted({number for calls in self.calls.values() for number in calls})


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that waits in a call for others.

    Attributes
    ----------
    rank : int
        The rank.
    call : RecordedCall
        The call.
    seconds : float
        How long.
    awaited : tuple of int
        The ranks that have not come to it.
    """

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
        By rank.
    histories : mapping of str to History
        By uid of the communicator, in the order in which they first appear.
    clocks : mapping of str to float
        Seconds by which each host's clock is ahead of the first host's; hosts that could not be
        compared are left out.
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
        """When the last dump was written, as Unix time by the first host's clock."""
        return max(self.moment(rank, dump.time) for rank, dump in self.dumps.items())

    def moment(self, rank: int, time: float) -> float:
        """Return a time of a rank's host as the clock of the first host had it."""
        return time - self.clocks.get(self.dumps[rank].host, 0.0)

    def seen(self, rank: int, uid: str) -> Answer | None:
        """Return a rank's last answer, or the answer at the time of its dump."""
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
        """Whether a call of a rank was refused and the rank went on: it now waits in a later call.

        A mismatch ends some communicators, and others can be used afterwards.
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
    """Yield the ranks of the job that a message goes to or comes from."""
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
            # Dumps of one job agree; where one is damaged, the whole list is taken.
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
    """Return by how many seconds each host's clock is ahead of the first host's.

    All ranks leave a barrier, an all-reduce and the like at about the same moment: the median
    difference of these moments is that of the clocks.
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
