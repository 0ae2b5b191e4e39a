"""The rounds of a schedule in virtual time: the waits of every message, fold and copy.

The rules of time are in `hpccomm.schedules.cost.network`, the rules of rounds in
`hpccomm.schedules.schedule`. Each channel has a clock for every rank, and moves it on round by round. A rank
begins the sends and receives of a round when it has ended the previous round. Once the rank's messages
have passed their links and its peers' messages have arrived, the local steps follow. They run on
one engine that the channels of a rank share. Then comes the barrier. A send does not wait for its
receiver.

Messages queue in front of links in the order in which their senders were ready; all channels share links and
ranks. With one channel a price is exact. With several channels, the channel with the earliest ranks on
average advances next, by a whole round. So messages of different channels may pass a
link in another order than if each message advanced alone.

A price is linear in the network's parameters along its critical path: it is a sum of numbers of latencies, of
bytes through ports, and of bytes folded and copied. `linear_price` carries these numbers beside
each time, so that the later of two times keeps its own numbers.

`simulate` takes, for all ranks at once, the channel that is ready first on average over its rows. It also takes the
other channels' messages that are ready before that channel's last row. So a link serves the messages
of one channel round by round, and messages that are taken together in their order of arrival. If the clocks
of a round differ much, some of its messages may wait for others that arrived later. Compared with one
message at a time, the difference is a few percent if channels contend.

`Repeats` skips the computation of rounds that repeat, such as those of a full pipeline. Assume that a round repeats,
and that all times that it reads (clocks, links, engines) are later by the same number of seconds than the last
time. Then all times that it writes are later by the same number too, and need not be computed again. This
is exact up to the rounding of the clocks.

`price` is the time of an algorithm's schedule on a network. ``hpccomm simulate`` prints it, and fits network parameters
by it; its ``--model events`` calls `simulate`. ``hpccomm advise --what-if`` simulates calls on other networks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import AnyAlgorithm, chosen
from hpccomm.schedules.cost.links import (
    LinkRoutes,
    Links,
    Times,
    joined,
    later,
    rowwise,
    seconds,
    take_latest,
)
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.schedule import (
    Channel,
    Column,
    Group,
    LocalStep,
    Rounds,
    Schedule,
    Tuning,
    touched,
    world,
)

ROUNDING = 1e-12
"""Two shifts are equal if they differ by at most this fraction of the latest clock."""


@dataclass(frozen=True, slots=True, eq=False)
class ClockSlice:
    """Some elements of an array of clocks, or of an array of busy seconds."""

    array: Times
    index: Column | slice

    def now(self) -> Times:
        """Return a copy of the elements."""
        times: Times = self.array[self.index]
        return times.copy() if isinstance(self.index, slice) else times


def clock_slice(array: Times, indices: Sequence[Column]) -> ClockSlice:
    """Return the elements of an array at `indices`; if these are all, as a slice, which is quicker."""
    mask = np.zeros_like(array, np.bool_)
    for index in indices:
        mask[index] = True
    return ClockSlice(array, slice(None) if mask.all() else np.flatnonzero(mask))


class Repeats:
    """A round that repeats, and its effect when it was last computed.

    Parameters
    ----------
    clocks : sequence of ClockSlice
        All clocks that the round reads and writes.
    totals : sequence of ClockSlice
        The totals to which the round adds.
    """

    def __init__(self, clocks: Sequence[ClockSlice], totals: Sequence[ClockSlice]) -> None:
        self._clocks = clocks
        self._totals = totals
        # The clocks before and after the round was last computed, and its additions to the totals.
        self._before: tuple[Times, ...] | None = None
        self._after: list[Times] = []
        self._added: list[Times] = []

    def take(self, work_out: Callable[[], None]) -> None:
        """Run the round once more. `work_out` computes it, unless all clocks are shifted alike since the last time."""
        now = tuple(part.now() for part in self._clocks)
        shift = None if self._before is None else _shift(self._before, now)
        if shift is None:
            sums = [part.now() for part in self._totals]
            work_out()
            self._before, self._after = now, [part.now() for part in self._clocks]
            self._added = [part.now() - old for part, old in zip(self._totals, sums, strict=True)]
            return
        for part, after in zip(self._clocks, self._after, strict=True):
            part.array[part.index] = after + shift
        for part, added in zip(self._totals, self._added, strict=True):
            part.array[part.index] += added


def _shift(before: tuple[Times, ...], now: tuple[Times, ...]) -> float | None:
    """Return the number of seconds by which all of `now` is later than `before`; None if it varies."""
    shifts = [later - sooner for later, sooner in zip(now, before, strict=True) if len(later)]
    if not shifts:
        return 0.0
    least = min(float(each.min()) for each in shifts)
    most = max(float(each.max()) for each in shifts)
    latest = max(float(each.max(initial=0.0)) for each in now)
    return least if most - least <= ROUNDING * latest else None


PARAMETERS = (
    "inner latency",
    "inner bandwidth",
    "across latency",
    "across bandwidth",
    "reduce",
    "copy",
)
"""The parameters of a price: latencies in seconds, the others in seconds per byte."""

_INNER, _ACROSS, _REDUCE, _COPY = 1, 3, 5, 6
"""Columns of times. A level has a column of latencies, and next to it a column of bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundMessages:
    """The messages of a round; each has `nbytes` bytes."""

    rank: Column
    peer: Column
    nbytes: Column


@dataclass(frozen=True, slots=True, eq=False)
class RoundSteps:
    """The local steps of a round, and its barrier."""

    steps: tuple[LocalStep, ...]
    barrier: Group | None

    @property
    def rank(self) -> Column:
        """The ranks that must be ready before the steps can begin."""
        return self.steps[0].rank if self.barrier is None else self.barrier.rank


Act = RoundMessages | RoundSteps


def acts(rounds: Rounds, itemsize: int) -> Iterator[Act]:
    """Yield the messages of each round, and then its steps; elements have `itemsize` bytes."""
    for each in rounds:
        sends = [table for table in each.sends if len(table.rank)]
        if sends:
            yield RoundMessages(
                joined([table.rank for table in sends]),
                joined([table.peer for table in sends]),
                joined([table.count for table in sends]) * itemsize,
            )
        steps = tuple(step for step in each.local if len(step.rank))
        if steps or each.barrier is not None:
            yield RoundSteps(steps, each.barrier)


class ChannelClock:
    """The progress of a channel.

    Parameters
    ----------
    number : int
        Index of the channel in the schedule.
    channel : callable
        Makes the channel's rounds.
    itemsize : int
        Bytes of an element.
    clock : Times of ranks
        Time at which each rank begins.

    Attributes
    ----------
    number, clock
        The parameters; `Walk` advances the clock in place.
    following : RoundMessages, RoundSteps or None
        The next act; None at the end.
    ready, latest : float
        Seconds at which that act is ready: on average over its rows, and for its last row.
    """

    def __init__(self, number: int, channel: Channel, itemsize: int, clock: Times) -> None:
        self.number = number
        self.clock = clock
        self.following: Act | None = None
        self.ready = self.latest = 0.0
        self._acts = acts(channel(), itemsize)
        self.go_on()

    def go_on(self) -> None:
        """Make the next act `following`, and compute when it is ready."""
        self.following = next(self._acts, None)
        if self.following is not None:
            times = seconds(self.clock)[self.following.rank]
            self.ready, self.latest = float(times.mean()), float(times.max())


class _SentMessages(NamedTuple):
    """Messages that passed links together; each has `nbytes` bytes."""

    routes: LinkRoutes
    nbytes: Column


_Taken = _SentMessages | RoundSteps


class Walk:
    """The links and engines that channels share, and the time until which each is occupied.

    Parameters
    ----------
    network : Network
        The network of the ranks.
    itemsize : int
        Bytes of an element.
    begin : Times of ranks
        Time at which each rank begins. If it has columns, all times have components.
    together : bool
        Whether channels advance together, which excludes components. Then the messages of the earliest channel are
        sent with the other channels' messages that are ready before its last rank, and repeating acts are not
        computed again. Otherwise only the channel with the earliest ranks on average advances.
    """

    def __init__(self, network: Network, itemsize: int, begin: Times, *, together: bool) -> None:
        self._network = network
        self._itemsize = itemsize
        self._begin = begin
        self._together = together
        self._links = links = Links(network, *begin.shape[1:])
        self._engine = np.zeros_like(begin)
        self._worked = np.zeros(network.ranks)
        self._per_byte = np.zeros((2, *begin.shape[1:]))  # of a copy, and of a fold
        seconds(self._per_byte)[:] = 1 / network.copy, 1 / network.reduce
        if begin.ndim > 1:
            self._per_byte[0, _COPY] = self._per_byte[1, _REDUCE] = 1
            for laid, column in ((links.inner, _INNER), (links.across, _ACROSS)):
                if laid is not None:
                    laid.latency[:, column] = 1
                    for port, _ in laid.passed[:2]:
                        links.per_byte[port, column + 1] = 1
        # The last act of the same channels, which may repeat.
        self._last: dict[tuple[int, ...], tuple[_Taken, Repeats | None]] = {}

    def run(self, schedule: Schedule) -> Times:
        """Run a schedule, and return the time at which each rank ends each channel.

        The result has the times of the beginning, and then those of one channel after the other.
        """
        channels = [
            ChannelClock(number, channel, self._itemsize, self._begin.copy())
            for number, channel in enumerate(schedule.channels)
        ]
        while under_way := [channel for channel in channels if channel.following is not None]:
            first = min(under_way, key=lambda channel: channel.ready)
            chosen = [first]
            if self._together:
                latest = max(first.ready, first.latest)
                chosen = [channel for channel in under_way if channel.ready <= latest]
                # Steps run first: the messages that follow them may belong to those that are sent together.
                working = [each for each in chosen if isinstance(each.following, RoundSteps)]
                chosen = [min(working, key=lambda each: each.ready)] if working else chosen
            if isinstance(chosen[0].following, RoundSteps):
                self._take_steps(chosen[0], chosen[0].following)
            else:
                self._send(chosen)
            for channel in chosen:
                channel.go_on()
        return np.concatenate([self._begin, *(channel.clock for channel in channels)])

    def _send(self, channels: Sequence[ChannelClock]) -> None:
        """Send the next messages of some channels."""
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
            arrival = passed + routes.latency
            begin = 0
            for channel, each in together:
                own = slice(begin, begin + len(each.rank))
                take_latest(channel.clock, each.rank, passed[own])
                take_latest(channel.clock, each.peer, arrival[own])
                begin = own.stop

        def repeats() -> Repeats:
            passed = [queues.link for queues in routes.queues]
            clocks = [clock_slice(each.clock, [act.rank, act.peer]) for each, act in together]
            return Repeats(
                [clock_slice(self._links.free, passed), *clocks],
                [clock_slice(self._links.busy, passed)],
            )

        self._take(channels, _SentMessages(routes, nbytes), repeats, work_out)

    def _take_steps(self, channel: ChannelClock, steps: RoundSteps) -> None:
        """Run the next steps of a channel."""
        clock = channel.clock

        def work_out() -> None:
            for step in steps.steps:
                self._work(step, clock)
            if steps.barrier is not None:
                self._meet(steps.barrier, clock)

        def repeats() -> Repeats:
            ranks = [step.rank for step in steps.steps]
            clocks = [clock_slice(array, ranks) for array in (clock, self._engine)]
            return Repeats(clocks, [clock_slice(self._worked, ranks)])

        self._take([channel], steps, repeats, work_out)

    def _take(
        self,
        channels: Sequence[ChannelClock],
        act: _Taken,
        repeats: Callable[[], Repeats],
        work_out: Callable[[], None],
    ) -> None:
        """Compute an act, unless it repeats the last act of these channels."""
        key = (isinstance(act, RoundSteps), *(channel.number for channel in channels))
        last, again = self._last.get(key) if self._together else None, None
        if last is not None and _alike(act, last[0]):
            again = last[1] or repeats()
            again.take(work_out)
        else:
            work_out()
        self._last[key] = act, again

    def bottleneck(self) -> tuple[str, float]:
        """Return the name of the busiest resource, and its seconds."""
        taken: list[tuple[float, str]] = [(0.0, "")]
        if len(self._links.busy):
            link = int(self._links.busy.argmax())
            taken.append((float(self._links.busy[link]), self._links.name(link)))
        rank = int(self._worked.argmax())
        taken.append((float(self._worked[rank]), f"folds and copies of rank {rank}"))
        busy, name = max(taken, key=lambda each: each[0])
        return name, busy

    def _work(self, step: LocalStep, clock: Times) -> None:
        """Fold or copy; a rank's rows follow one after the other. Access to a peer's memory takes a message's time."""
        folded = len(step.sources) - 1
        rate = self._per_byte[int(folded > 0)] * ((folded or 1) * self._itemsize)
        elements = np.bincount(step.rank, step.count, minlength=self._network.ranks)
        working = rowwise(elements > 0, clock)
        begin = np.where(working, later(clock, self._engine), clock)
        took = rowwise(elements, clock) * rate
        end = begin + took
        for place, reads in touched(step):
            if place.peer is not None:
                # The access takes the time of a message, from `begin` on.
                ends = (place.peer, step.rank) if reads else (step.rank, place.peer)
                routes = self._links.routes(*ends)
                passed = self._links.carry(routes, begin[step.rank], step.count * self._itemsize)
                take_latest(end, step.rank, passed + routes.latency)
        np.copyto(clock, end)
        np.copyto(self._engine, end, where=working)
        self._worked += seconds(took)

    def _meet(self, group: Group, clock: Times) -> None:
        """Let the ranks of each group wait for its last rank, and for a dissemination barrier in log2 steps."""
        members, which = group.meetings()
        latest = members[np.arange(len(members)), seconds(clock)[members].argmax(axis=1)]
        level = self._links.inner if self._links.within_node(members) else self._links.across
        hops = (group.size - 1).bit_length()
        latency = 0.0 if level is None else hops * level.latency
        clock[group.rank] = clock[latest][which] + latency


def _alike(act: _Taken, other: _Taken) -> bool:
    """Whether two acts take equally long, and none accesses peers' memory or has a barrier."""
    if isinstance(act, RoundSteps):
        return (
            isinstance(other, RoundSteps)
            and act.barrier is other.barrier is None
            and len(act.steps) == len(other.steps)
            and all(map(_same, act.steps, other.steps))
        )
    return (
        isinstance(other, _SentMessages)
        and act.routes is other.routes
        and np.array_equal(act.nbytes, other.nbytes)
    )


def _same(step: LocalStep, other: LocalStep) -> bool:
    """Whether two steps cost the same on the same ranks, and access no other rank's memory."""
    places, others = touched(step), touched(other)
    return (
        len(places) == len(others)
        and all(place.peer is None for place, _ in [*places, *others])
        and np.array_equal(step.rank, other.rank)
        and np.array_equal(step.count, other.count)
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation.

    Attributes
    ----------
    ends : ndarray of float64, shape (ranks,)
        Seconds from the earliest start to each rank's end.
    bottleneck : str
        The link or engine that was busy longest, in words; empty if none was busy.
    busy : float
        Seconds for which that link or engine was busy: a lower bound of the time.
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
        The programs of all ranks of `network`.
    network : Network
        The network of the ranks.
    itemsize : int
        Bytes of an element.
    starts : ndarray of float64, shape (ranks,), optional
        Time at which each rank enters the call, in seconds; by default all at once.

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
    walk = Walk(network, itemsize, begin + network.overhead, together=True)
    clocks = walk.run(schedule).reshape(-1, network.ranks)
    return Outcome(clocks.max(axis=0) - begin.min(), *walk.bottleneck())


def price(network: Network, call: Signature, algorithm: AnyAlgorithm, tuning: Tuning) -> float:
    """Return the seconds that a call takes.

    Local; sends nothing. The computation takes time proportional to rounds times ranks; `terms.estimate` takes
    microseconds.

    Parameters
    ----------
    network : Network
        The network of the ranks, one node after the other.
    call : Signature
        The call.
    algorithm : str, Algorithm or callable
        The name of an algorithm, an `Algorithm`, or a function ``build``.
    tuning : Tuning
        Further arguments of the algorithm.

    Raises
    ------
    UsageError
        If the collective has no such algorithm, or it does not apply to such a network.
    """
    ends = _walked(network, call, algorithm, tuning, np.zeros(network.ranks))
    return network.overhead + float(ends.max())


def linear_price(
    network: Network, call: Signature, algorithm: AnyAlgorithm, tuning: Tuning
) -> tuple[float, NDArray[np.float64]]:
    """Return the seconds that `price` returns, and their components along the critical path.

    Parameters and errors are those of `price`.

    Returns
    -------
    float
        Seconds.
    ndarray of float64, shape (parameters,)
        The amount of each of `PARAMETERS`: a number of messages for a latency, else bytes. The rest of the
        seconds are the call's overhead, gaps, and the time on shared links.
    """
    begin = np.zeros((network.ranks, 1 + len(PARAMETERS)))
    ends = _walked(network, call, algorithm, tuning, begin)
    latest = ends[ends[:, 0].argmax()]
    return network.overhead + float(latest[0]), latest[1:]


def _walked(
    network: Network, call: Signature, algorithm: AnyAlgorithm, tuning: Tuning, begin: Times
) -> Times:
    """Return the time at which each rank ends each channel of a call; all begin at `begin`."""
    found = chosen(call.collective, algorithm)
    if found.shared and network.nodes > 1:
        raise UsageError(
            f"{algorithm!r} needs ranks that share memory, and {network.name} has {network.ranks} ranks on "
            f"{network.nodes} nodes; give at most {network.ranks_per_node} ranks, or another algorithm"
        )
    schedule = found.build(world(network.ranks), call, tuning)
    return Walk(network, call.dtype.itemsize, begin, together=False).run(schedule)
