"""The price of a schedule, from its own rounds: what every message, fold and copy waits for.

Each channel moves a clock for every rank on, round by round, by the rules of
`hpccomm.schedules.cost.network`. RoundMessages queue in front of links in the order in which their senders
were ready; links and ranks are shared by all channels. With one channel the price is exact. Of
several channels, that one goes on whose ranks are the earliest on average, and a whole round of it at
a time: messages of different channels may then pass a link in another order than one by one.

A price is linear in the network's parameters along its critical path: so many latencies, so many
bytes through ports, so many bytes folded and copied. `coefficients` carries these numbers beside each
time, so that the later of two times brings its own along.
"""

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.cost.acts import Act, ChannelClock, RoundMessages
from hpccomm.schedules.cost.links import Links
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.schedule import Column, Copies, Folds, Group, Schedule, touched

Times = NDArray[np.float64]
"""Rows of seconds, float64 (rows, 1); or with what they are made of, (rows, 1 + parameters)."""

PARAMETERS = (
    "inner latency",
    "inner bandwidth",
    "across latency",
    "across bandwidth",
    "reduce",
    "copy",
)
"""What a price is linear in: latencies in seconds, the others as seconds a byte."""

_INNER, _ACROSS, _REDUCE, _COPY = 1, 3, 5, 6
"""Columns of times: of each level its latencies, and after these its bytes."""


def walked(schedule: Schedule, network: Network, itemsize: int) -> float:
    """Return the seconds that a schedule takes, without the call's overhead.

    Local: sends nothing. The time it takes grows with rounds times ranks.

    Parameters
    ----------
    schedule : Schedule
        Of all ranks of `network`.
    network : Network
        Where it runs.
    itemsize : int
        Bytes of an element.
    """
    return float(_Walk(network, itemsize, 1).end(schedule)[0])


def coefficients(
    schedule: Schedule, network: Network, itemsize: int
) -> tuple[float, NDArray[np.float64]]:
    """Return the same seconds, and what they are made of along the critical path.

    Returns
    -------
    float
        Seconds.
    ndarray of float64, shape (parameters,)
        How many of each of `PARAMETERS`: messages for a latency, else bytes. What is left of the
        seconds are gaps, and the time of links that ports share.
    """
    end = _Walk(network, itemsize, 1 + len(PARAMETERS)).end(schedule)
    return float(end[0]), end[1:]


class _Walk:
    """The links and ranks of a network, and until when each is taken."""

    def __init__(self, network: Network, itemsize: int, width: int) -> None:
        self._network = network
        self._itemsize = itemsize
        self._links = links = Links(network)
        self._node = network.node(np.arange(network.ranks, dtype=np.int64))
        self._free = np.zeros((len(links.gap), width))
        self._engine = np.zeros((network.ranks, width))
        self._gap, self._byte = np.zeros_like(self._free), np.zeros_like(self._free)
        self._gap[:, 0], self._byte[:, 0] = links.gap, links.per_byte
        self._latency = np.zeros((3, width))  # within a node, between nodes, to oneself
        levels = ((network.inner, links.inner, _INNER), (network.across, links.across, _ACROSS))
        for number, (level, laid, column) in enumerate(levels):
            if level is None or laid is None:
                continue
            self._latency[number, 0] = level.latency
            if width > 1:
                self._latency[number, column] = 1
                self._byte[laid.out, column + 1] = self._byte[laid.into, column + 1] = 1

    def end(self, schedule: Schedule) -> NDArray[np.float64]:
        """Return when the last rank has ended, a row of `Times`."""
        channels = [
            ChannelClock(number, channel, self._itemsize, np.zeros_like(self._engine))
            for number, channel in enumerate(schedule.channels)
        ]
        while under_way := [each for each in channels if each.following is not None]:
            first = min(under_way, key=lambda each: each.ready)
            assert first.following is not None
            self._take(first.following, first.clock)
            first.go_on()
        clocks = np.concatenate([np.zeros_like(self._engine), *(each.clock for each in channels)])
        last: NDArray[np.float64] = clocks[clocks[:, 0].argmax()]
        return last

    def _take(self, act: Act, clock: Times) -> None:
        """Move the clocks of a channel on by an act."""
        if isinstance(act, RoundMessages):
            passed, there = self._carry(act.rank, act.peer, clock[act.rank], act.nbytes)
            _take_latest(clock, act.rank, passed)
            _take_latest(clock, act.peer, there)
            return
        for step in act.steps:
            self._work(step, clock)
        if act.barrier is not None:
            self._meet(act.barrier, clock)

    def _carry(
        self, rank: Column, peer: Column, ready: Times, nbytes: Column
    ) -> tuple[Times, Times]:
        """Return when the messages of a round have passed their links, and when they are there."""
        passed = ready.copy()
        for queues in self._links.routes(rank, peer).queues:
            gap, byte = self._gap[queues.link], self._byte[queues.link]
            end = self._free[queues.link]
            for each in queues.in_order(ready[:, 0]):
                end = _later(ready[each], end) + gap + nbytes[each, np.newaxis] * byte
                _take_latest(passed, each, end)
            self._free[queues.link] = end
        kind = np.where(rank == peer, 2, self._node[rank] != self._node[peer])
        return passed, passed + self._latency[kind]

    def _work(self, step: Copies | Folds, clock: Times) -> None:
        """Fold or copy, a rank's rows one after the other; where ranks share memory, reach a peer's."""
        network, folded = self._network, len(step.sources) - 1
        rate = np.zeros(clock.shape[1])
        rate[0] = (folded / network.reduce if folded else 1 / network.copy) * self._itemsize
        if len(rate) > 1:
            rate[_REDUCE if folded else _COPY] = (folded or 1) * self._itemsize
        elements = np.bincount(step.rank, step.count, minlength=network.ranks)
        working = elements > 0
        begin = np.where(working[:, np.newaxis], _later(clock, self._engine), clock)
        end = begin + elements[:, np.newaxis] * rate
        for place, reads in touched(step):
            if place.peer is not None:
                ends = (place.peer, step.rank) if reads else (step.rank, place.peer)
                nbytes = step.count * self._itemsize
                _, there = self._carry(*ends, begin[step.rank], nbytes)
                _take_latest(end, step.rank, there)
        clock[:] = end
        self._engine[working] = end[working]

    def _meet(self, group: Group, clock: Times) -> None:
        """Let the ranks of each group wait for its last one: dissemination, in log2 steps."""
        members, which = group.meetings()
        latest = members[np.arange(len(members)), clock[members, 0].argmax(axis=1)]
        steps = (group.size - 1).bit_length()
        apart = not self._links.within_node(members)
        clock[group.rank] = clock[latest][which] + steps * self._latency[int(apart)]


def _later(one: Times, other: Times) -> Times:
    """Return row by row the later of two times; of equal ones the first."""
    if one.shape[1] == 1:
        return np.maximum(one, other)
    return np.where(one[:, :1] >= other[:, :1], one, other)


def _take_latest(clock: Times, index: Column, times: Times) -> None:
    """Move rows `index` of a clock on to `times`; of several for one row, the latest counts."""
    if clock.shape[1] == 1:
        np.maximum.at(clock[:, 0], index, times[:, 0])
        return
    order = np.lexsort((times[:, 0], index))
    index = index[order]
    last = np.append(index[1:] != index[:-1], True)
    row, latest = index[last], times[order[last]]
    clock[row] = _later(clock[row], latest)
