"""A virtual clock for every rank, moved on by the rounds of a schedule.

The rules of time are those of `hpccomm.cost.network`, and of a round those of
`hpccomm.contracts.schedule`: in a channel a rank's sends and receives of a round begin when it has
ended its last one; once it has passed on its own messages and has those of others, the local steps
follow, on the one engine that its channels share; then the barrier. A send does not wait for its
receiver.

Channels run concurrently and share links and engines. Of all channels, the one whose clocks are the
earliest on average takes its next round, all ranks at once. So a link or engine serves rounds in the
order in which they are taken, and the messages of one round in the order in which they came: where
clocks of one round lie far apart, a message may wait for one of another round that came later.
"""

from dataclasses import dataclass

import numpy as np

from hpccomm.contracts.schedule import Column, Copies, Folds, Group, Place, Round, Rounds, Schedule
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
    under_way = [_Channel(channel(), begin + network.overhead) for channel in schedule.channels]
    clocks = [channel.clock for channel in under_way]
    while under_way:
        channel = min(under_way, key=_Channel.mean)
        following = next(channel.rounds, None)
        if following is None:
            under_way.remove(channel)
            continue
        cluster.take(following, channel)
    ends = np.max([begin + network.overhead, *clocks], axis=0) - begin.min()
    return Outcome(ends, *cluster.bottleneck())


class _Channel:
    """A channel under way: when each rank has ended its rounds so far, and what the last one was."""

    def __init__(self, rounds: Rounds, clock: Times) -> None:
        self.rounds = rounds
        self.clock = clock
        self.last: _Demand | None = None
        self.repeats: Repeats | None = None

    def mean(self) -> float:
        """Return the mean of the clocks."""
        return float(self.clock.mean())


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """What a round asks of the cluster: messages, then steps, then a barrier."""

    ways: Ways
    nbytes: Column
    steps: tuple[Copies | Folds, ...]
    barrier: Group | None

    def alike(self, other: "_Demand | None") -> bool:
        """Whether the other asks for the same, and it is of what repeats: messages, own memory."""
        return (
            other is not None
            and self.ways is other.ways
            and self.barrier is None
            and len(self.steps) == len(other.steps)
            and np.array_equal(self.nbytes, other.nbytes)
            and all(map(_alike, self.steps, other.steps))
        )


class _Cluster:
    """What the channels share: links and engines."""

    def __init__(self, network: Network, itemsize: int) -> None:
        self._network = network
        self._itemsize = itemsize
        self._links = Links(network)
        self._engine = np.zeros(network.ranks)
        self._worked = np.zeros(network.ranks)

    def take(self, following: Round, channel: _Channel) -> None:
        """Take a channel's next round."""
        demand = self._demand(following)

        def work_out() -> None:
            self._work_out(demand, channel.clock)

        if not demand.alike(channel.last):
            work_out()
            channel.repeats = None
        else:
            if channel.repeats is None:
                channel.repeats = Repeats(*self._touched(demand, channel.clock))
            channel.repeats.take(work_out)
        channel.last = demand

    def _demand(self, following: Round) -> _Demand:
        sends = [table for table in following.sends if len(table.rank)]
        rank, peer, count = (
            columns[0] if len(columns) == 1 else np.concatenate([_NONE, *columns])
            for columns in (
                [table.rank for table in sends],
                [table.peer for table in sends],
                [table.count for table in sends],
            )
        )
        steps = tuple(step for step in following.local if len(step.rank))
        ways = self._links.ways(rank, peer)
        return _Demand(ways, count * self._itemsize, steps, following.barrier)

    def _touched(self, demand: _Demand, clock: Times) -> tuple[list[Part], list[Part]]:
        """Return what a round looks at and moves, and what it adds to."""
        ranks, links = np.zeros_like(clock, np.bool_), np.zeros_like(self._links.free, np.bool_)
        for step in demand.steps:
            ranks[step.rank] = True
        engines = rows(ranks)
        ranks[demand.ways.rank] = True
        ranks[demand.ways.peer] = True
        for queues in demand.ways.queues:
            links[queues.link] = True
        passed = rows(links)
        clocks = [
            Part(clock, rows(ranks)),
            Part(self._engine, engines),
            Part(self._links.free, passed),
        ]
        return clocks, [Part(self._worked, engines), Part(self._links.busy, passed)]

    def _work_out(self, demand: _Demand, clock: Times) -> None:
        """Move the clocks on by what a round asks for."""
        ways = demand.ways
        if len(ways.rank):
            passed = self._links.carry(ways, clock[ways.rank], demand.nbytes)
            np.maximum.at(clock, ways.rank, passed)
            np.maximum.at(clock, ways.peer, passed + ways.latency)
        for step in demand.steps:
            self._work(step, clock)
        if demand.barrier is not None:
            self._meet(demand.barrier, clock)

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
