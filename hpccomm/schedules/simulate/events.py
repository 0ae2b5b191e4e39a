"""A virtual clock for every rank, which the rounds of a schedule advance.

`hpccomm.schedules.cost.network` has the rules of time, and `hpccomm.schedules.schedule` those of rounds.
In a channel, a rank begins the sends and receives of a round when it has ended the round before. Once its
own messages have passed their links and those of its peers have arrived, the local steps follow. They run on
one engine that the channels of a rank share. Then comes the barrier. A send does not wait for its receiver.

Channels run concurrently and share links and engines. Next in each channel are the messages of a round, or
its steps. The simulation takes those that are ready first, on average over their rows, for all ranks at
once. With them it takes the messages of other channels that are ready before the last row. So a link serves
the messages of one channel round by round, and messages that are taken together in the order in which they
arrive. Where the clocks of a round differ much, some of its messages may wait for others that arrived
later. Compared with one message at a time, that makes a few percent where channels contend. With one
channel the result is the same as with one message at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.schedules.cost.acts import ChannelClock, RoundMessages, RoundSteps
from hpccomm.schedules.cost.links import LinkRoutes, Links, Times, joined
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.schedule import Column, Copies, Folds, Group, Schedule, touched
from hpccomm.schedules.simulate.repeats import ClockSlice, Repeats, rows


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation.

    Attributes
    ----------
    ends : ndarray of float64, shape (ranks,)
        Seconds from the earliest start to each rank's end.
    bottleneck : str
        The link or engine that was busy longest; empty if none was.
    busy : float
        Seconds that it was busy, a lower bound of the time.
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
    """Run a schedule in virtual time. Local; the work is proportional to rounds and rows.

    Parameters
    ----------
    schedule : Schedule
        Of all ranks of `network`.
    network : Network
        The network on which it runs.
    itemsize : int
        Bytes of an element.
    starts : ndarray of float64, shape (ranks,), optional
        When each rank enters the call, in seconds; by default all at once.

    Raises
    ------
    UsageError
        If `starts` does not have one time for each rank.
    """
    begin = np.zeros(network.ranks) if starts is None else starts
    if begin.shape != (network.ranks,):
        raise UsageError(
            f"starts has shape {begin.shape}; {network.name} has {network.ranks} ranks: "
            "give one time for each"
        )
    cluster = _Resources(network, itemsize)
    channels = [
        ChannelClock(number, channel, itemsize, begin + network.overhead)
        for number, channel in enumerate(schedule.channels)
    ]
    while under_way := [channel for channel in channels if channel.following is not None]:
        first = min(under_way, key=lambda channel: channel.ready)
        latest = max(first.ready, first.latest)
        together = [channel for channel in under_way if channel.ready <= latest]
        # Steps first: the messages that follow them may be among those to be sent together.
        working = [channel for channel in together if isinstance(channel.following, RoundSteps)]
        if working:
            together = [min(working, key=lambda channel: channel.ready)]
            cluster.work(together[0])
        else:
            cluster.send(together)
        for channel in together:
            channel.go_on()
    clocks = [channel.clock for channel in channels]
    ends = np.max([begin + network.overhead, *clocks], axis=0) - begin.min()
    return Outcome(ends, *cluster.bottleneck())


class _Resources:
    """The links and engines that channels share."""

    def __init__(self, network: Network, itemsize: int) -> None:
        self._network = network
        self._itemsize = itemsize
        self._links = Links(network)
        self._engine = np.zeros(network.ranks)
        self._worked = np.zeros(network.ranks)
        # What ran last in the same channels: it may repeat.
        self._sent: dict[tuple[int, ...], tuple[LinkRoutes, Column, Repeats | None]] = {}
        self._done: dict[int, tuple[RoundSteps, Repeats | None]] = {}

    def send(self, channels: Sequence[ChannelClock]) -> None:
        """Send the messages that come next in some channels."""
        together = [
            (channel, channel.following)
            for channel in channels
            if isinstance(channel.following, RoundMessages)
        ]
        routes = self._links.routes(
            joined([messages.rank for _, messages in together]),
            joined([messages.peer for _, messages in together]),
        )
        nbytes = joined([messages.nbytes for _, messages in together])

        def work_out() -> None:
            ready = np.concatenate([channel.clock[each.rank] for channel, each in together])
            passed = self._links.carry(routes, ready, nbytes)
            there = passed + routes.latency
            begin = 0
            for channel, each in together:
                own = slice(begin, begin + len(each.rank))
                np.maximum.at(channel.clock, each.rank, passed[own])
                np.maximum.at(channel.clock, each.peer, there[own])
                begin = own.stop

        key = tuple(channel.number for channel, _ in together)
        last = self._sent.get(key)
        repeats = None
        if last is not None and routes is last[0] and np.array_equal(nbytes, last[1]):
            repeats = last[2] or self._repeats(together, routes)
            repeats.take(work_out)
        else:
            work_out()
        self._sent[key] = routes, nbytes, repeats

    def _repeats(
        self, together: Sequence[tuple[ChannelClock, RoundMessages]], routes: LinkRoutes
    ) -> Repeats:
        links = np.zeros_like(self._links.free, np.bool_)
        for queues in routes.queues:
            links[queues.link] = True
        passed = rows(links)
        clocks = [ClockSlice(self._links.free, passed)]
        for channel, each in together:
            ranks = np.zeros_like(channel.clock, np.bool_)
            ranks[each.rank] = True
            ranks[each.peer] = True
            clocks.append(ClockSlice(channel.clock, rows(ranks)))
        return Repeats(clocks, [ClockSlice(self._links.busy, passed)])

    def work(self, channel: ChannelClock) -> None:
        """Run the steps that come next in a channel."""
        steps, clock = channel.following, channel.clock
        assert isinstance(steps, RoundSteps)

        def work_out() -> None:
            for step in steps.steps:
                self._work(step, clock)
            if steps.barrier is not None:
                self._meet(steps.barrier, clock)

        last = self._done.get(channel.number)
        repeats = None
        if last is not None and _alike(steps, last[0]):
            repeats = last[1]
            if repeats is None:
                ranks = np.zeros_like(clock, np.bool_)
                for step in steps.steps:
                    ranks[step.rank] = True
                index = rows(ranks)
                clocks = [ClockSlice(clock, index), ClockSlice(self._engine, index)]
                repeats = Repeats(clocks, [ClockSlice(self._worked, index)])
            repeats.take(work_out)
        else:
            work_out()
        self._done[channel.number] = steps, repeats

    def bottleneck(self) -> tuple[str, float]:
        """Return the name of what was busy longest, and its seconds."""
        taken: list[tuple[float, str]] = [(0.0, "")]
        if len(self._links.busy):
            link = int(self._links.busy.argmax())
            taken.append((float(self._links.busy[link]), self._links.name(link)))
        rank = int(self._worked.argmax())
        taken.append((float(self._worked[rank]), f"folds and copies of rank {rank}"))
        busy, name = max(taken, key=lambda each: each[0])
        return name, busy

    def _work(self, step: Copies | Folds, clock: Times) -> None:
        """Fold or copy, a rank's rows one after the other; where ranks share memory, reach a peer's."""
        folded = len(step.sources) - 1 if isinstance(step, Folds) else 0
        per_byte = folded / self._network.reduce if folded else 1 / self._network.copy
        seconds = step.count * (per_byte * self._itemsize)
        took = np.zeros(self._network.ranks)
        np.add.at(took, step.rank, seconds)
        working = took > 0
        begin = np.where(working, np.maximum(clock, self._engine), clock)
        end = begin + took
        for place, reads in touched(step):
            if place.peer is not None:
                # The time of its messages, from `begin` on.
                ends = (place.peer, step.rank) if reads else (step.rank, place.peer)
                routes = self._links.routes(*ends)
                passed = self._links.carry(routes, begin[step.rank], step.count * self._itemsize)
                np.maximum.at(end, step.rank, passed + routes.latency)
        np.copyto(clock, end)
        np.copyto(self._engine, end, where=working)
        self._worked += took

    def _meet(self, group: Group, clock: Times) -> None:
        """Let the ranks of each group wait for its last one: dissemination, in log2 steps."""
        members, which = group.meetings()
        inside = self._links.within_node(members)
        level = self._network.inner if inside else self._network.across
        hops = (group.size - 1).bit_length()
        latency = 0.0 if level is None else level.latency
        clock[group.rank] = clock[members].max(axis=1)[which] + hops * latency


def _alike(steps: RoundSteps, other: RoundSteps) -> bool:
    """Whether others take equally long, and neither access the memory of peers."""
    return (
        steps.barrier is other.barrier is None
        and len(steps.steps) == len(other.steps)
        and all(map(_same, steps.steps, other.steps))
    )


def _same(step: Copies | Folds, other: Copies | Folds) -> bool:
    """Whether two steps cost the same on the same ranks, and access no other rank's memory."""
    places, others = touched(step), touched(other)
    return (
        len(places) == len(others)
        and all(place.peer is None for place, _ in [*places, *others])
        and np.array_equal(step.rank, other.rank)
        and np.array_equal(step.count, other.count)
    )
