"""A virtual clock for every rank, moved on by the rounds of a schedule.

The rules of time are those of `hpccomm.cost.network`, and of a round those of
`hpccomm.contracts.schedule`: in a channel a rank's sends and receives of a round begin when it has
ended its last one; once it has passed on its own messages and has those of others, the local steps
follow, on the one engine that its channels share; then the barrier. A send does not wait for its
receiver.

Channels run concurrently and share links and engines. Of what is next in each channel, a round's
messages or its steps, that is taken, for all ranks at once, which is ready first, on average over
ranks. So a link serves the messages of one channel round by round, as receivers ask for them, and those
of one round in the order in which they came. Between channels the order is that of whole rounds: where
a round's clocks lie far apart, some of its messages wait for others that came later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpccomm.contracts.schedule import Column, Copies, Folds, Group, Place, Rounds, Schedule
from hpccomm.cost.network import Network
from hpccomm.errors import UsageError
from hpccomm.simulate.links import Links, Times, Ways
from hpccomm.simulate.repeats import Part, Repeats, rows

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation found.

    Attributes
    ----------
    ends : ndarray of float64, shape (ranks,)
        Seconds from the earliest start to each rank's end.
    bottleneck : str
        The link or engine that was taken for longest; empty if none was.
    busy : float
        Seconds that it was taken for: no time can be shorter.
    """

    ends: Times
    bottleneck: str
    busy: float

    @property
    def seconds(self) -> float:
        """Time from the earliest start to the latest end."""
        return float(self.ends.max())


def simulate(
    schedule: Schedule, network: Network, itemsize: int, starts: Times | None = None
) -> Outcome:
    """Run a schedule in virtual time. Local; takes as long as there are rounds and rows.

    Parameters
    ----------
    schedule : Schedule
        Of all ranks of `network`.
    network : Network
        Where it runs.
    itemsize : int
        Bytes of an element.
    starts : ndarray of float64, shape (ranks,), optional
        When each rank enters the call, in seconds; by default all at once.

    Raises
    ------
    UsageError
        If `starts` has not one time for each rank.
    """
    begin = np.zeros(network.ranks) if starts is None else starts
    if begin.shape != (network.ranks,):
        raise UsageError(
            f"starts has shape {begin.shape}; {network.name} has {network.ranks} ranks: "
            "give one time for each"
        )
    cluster = _Cluster(network, itemsize)
    channels = [
        _Channel(cluster.acts(channel()), begin + network.overhead) for channel in schedule.channels
    ]
    clocks = [channel.clock for channel in channels]
    for channel in channels:
        channel.go_on()
    while under_way := [channel for channel in channels if channel.following is not None]:
        channel = min(under_way, key=_Channel.readiness)
        cluster.take(channel)
        channel.go_on()
    ends = np.max([begin + network.overhead, *clocks], axis=0) - begin.min()
    return Outcome(ends, *cluster.bottleneck())


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """The messages of a round."""

    ways: Ways
    nbytes: Column

    @property
    def ranks(self) -> Column:
        """Whose clocks tell when it is ready."""
        return self.ways.rank

    def alike(self, other: "_Act | None") -> bool:
        """Whether the other asks for the same."""
        return (
            isinstance(other, _Messages)
            and self.ways is other.ways
            and np.array_equal(self.nbytes, other.nbytes)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The local steps of a round, and its barrier."""

    steps: tuple[Copies | Folds, ...]
    barrier: Group | None

    @property
    def ranks(self) -> Column:
        """Whose clocks tell when it is ready."""
        if self.barrier is not None:
            return self.barrier.rank
        return self.steps[0].rank if self.steps else _NONE

    def alike(self, other: "_Act | None") -> bool:
        """Whether the other asks for the same, and that on own memory alone."""
        return (
            isinstance(other, _Steps)
            and self.barrier is other.barrier is None
            and len(self.steps) == len(other.steps)
            and all(map(_alike, self.steps, other.steps))
        )


_Act = _Messages | _Steps


class _Channel:
    """A channel under way.

    Attributes
    ----------
    clock : ndarray of float64, shape (ranks,)
        When each rank has ended what was taken so far.
    following : _Messages, _Steps or None
        What comes next; None at the end.
    """

    def __init__(self, acts: Iterator[_Act], clock: Times) -> None:
        self.clock = clock
        self.following: _Act | None = None
        self._acts = acts
        self.last: dict[type[_Act], tuple[_Act, Repeats | None]] = {}

    def go_on(self) -> None:
        """Look at what comes next."""
        self.following = next(self._acts, None)

    def readiness(self) -> float:
        """Return when what comes next is ready, on average."""
        assert self.following is not None
        ready = self.clock[self.following.ranks]
        return float(ready.mean()) if len(ready) else 0.0


class _Cluster:
    """What the channels share: links and engines."""

    def __init__(self, network: Network, itemsize: int) -> None:
        self._network = network
        self._itemsize = itemsize
        self._links = Links(network)
        self._engine = np.zeros(network.ranks)
        self._worked = np.zeros(network.ranks)

    def acts(self, rounds: Rounds) -> Iterator[_Act]:
        """Yield what rounds ask for, one after the other."""
        for each in rounds:
            sends = [table for table in each.sends if len(table.rank)]
            if sends:
                rank, peer, count = (
                    columns[0] if len(columns) == 1 else np.concatenate(columns)
                    for columns in (
                        [table.rank for table in sends],
                        [table.peer for table in sends],
                        [table.count for table in sends],
                    )
                )
                yield _Messages(self._links.ways(rank, peer), count * self._itemsize)
            steps = tuple(step for step in each.local if len(step.rank))
            if steps or each.barrier is not None:
                yield _Steps(steps, each.barrier)

    def take(self, channel: _Channel) -> None:
        """Do what comes next in a channel."""
        act, clock = channel.following, channel.clock
        assert act is not None

        def work_out() -> None:
            self._work_out(act, clock)

        last, repeats = channel.last.get(type(act), (None, None))
        if act.alike(last):
            repeats = repeats or Repeats(*self._touched(act, clock))
            repeats.take(work_out)
        else:
            repeats = None
            work_out()
        channel.last[type(act)] = act, repeats

    def _touched(self, act: _Act, clock: Times) -> tuple[list[Part], list[Part]]:
        """Return what an act looks at and moves, and what it adds to."""
        ranks = np.zeros_like(clock, np.bool_)
        if isinstance(act, _Steps):
            for step in act.steps:
                ranks[step.rank] = True
            working = rows(ranks)
            return [Part(clock, working), Part(self._engine, working)], [
                Part(self._worked, working)
            ]
        ranks[act.ways.rank] = True
        ranks[act.ways.peer] = True
        links = np.zeros_like(self._links.free, np.bool_)
        for queues in act.ways.queues:
            links[queues.link] = True
        passed = rows(links)
        return [Part(clock, rows(ranks)), Part(self._links.free, passed)], [
            Part(self._links.busy, passed)
        ]

    def _work_out(self, act: _Act, clock: Times) -> None:
        """Move the clocks on."""
        if isinstance(act, _Messages):
            ways = act.ways
            passed = self._links.carry(ways, clock[ways.rank], act.nbytes)
            np.maximum.at(clock, ways.rank, passed)
            np.maximum.at(clock, ways.peer, passed + ways.latency)
            return
        for step in act.steps:
            self._work(step, clock)
        if act.barrier is not None:
            self._meet(act.barrier, clock)

    def bottleneck(self) -> tuple[str, float]:
        """Return the name of what was taken for longest, and for how many seconds."""
        found: list[tuple[float, str]] = [(0.0, "")]
        if len(self._links.busy):
            link = int(self._links.busy.argmax())
            found.append((float(self._links.busy[link]), self._links.name(link)))
        rank = int(self._worked.argmax())
        found.append((float(self._worked[rank]), f"folds and copies of rank {rank}"))
        busy, name = max(found, key=lambda each: each[0])
        return name, busy

    def _work(self, step: Copies | Folds, clock: Times) -> None:
        """Fold or copy; a rank's rows one after the other."""
        folded = len(step.sources) - 1 if isinstance(step, Folds) else 0
        per_byte = folded / self._network.reduce if folded else 1 / self._network.copy
        seconds = step.count * (per_byte * self._itemsize)
        took = np.zeros(self._network.ranks)
        np.add.at(took, step.rank, seconds)
        working = took > 0
        begin = np.where(working, np.maximum(clock, self._engine), clock)
        end = begin + took
        for place, reads in _places(step):
            if place.peer is not None:
                self._reach(step.rank, place.peer, step.count, begin, end, reads=reads)
        np.copyto(clock, end)
        np.copyto(self._engine, end, where=working)
        self._worked += took

    def _reach(
        self,
        rank: Column,
        peer: Column,
        count: Column,
        begin: Times,
        end: Times,
        *,
        reads: bool,
    ) -> None:
        """Read or write a peer's memory from `begin` on; make `end` no earlier than that is done."""
        ways = self._links.ways(peer, rank) if reads else self._links.ways(rank, peer)
        passed = self._links.carry(ways, begin[rank], count * self._itemsize)
        np.maximum.at(end, rank, passed + ways.latency)

    def _meet(self, group: Group, clock: Times) -> None:
        """Let the ranks of each group wait for its last one: dissemination, in log2 steps."""
        if group.members is None:
            members = group.rank[np.newaxis]
            which = np.zeros(len(group.rank), np.int64)
        else:
            assert group.which is not None  # it goes with `members`
            members, which = group.members, group.which
        inside = self._links.within_node(members)
        level = self._network.inner if inside else self._network.across
        hops = (group.size - 1).bit_length()
        latency = 0.0 if level is None else level.latency
        clock[group.rank] = clock[members].max(axis=1)[which] + hops * latency


def _places(step: Copies | Folds) -> list[tuple[Place, bool]]:
    """Return the places of a step, and whether each is read."""
    sources = step.sources if isinstance(step, Folds) else (step.source,)
    return [*((source, True) for source in sources), (step.target, False)]


def _alike(step: Copies | Folds, other: Copies | Folds) -> bool:
    """Whether two steps cost the same on the same ranks, and reach no other rank's memory."""
    places, others = _places(step), _places(other)
    return (
        len(places) == len(others)
        and all(place.peer is None for place, _ in [*places, *others])
        and np.array_equal(step.rank, other.rank)
        and np.array_equal(step.count, other.count)
    )
