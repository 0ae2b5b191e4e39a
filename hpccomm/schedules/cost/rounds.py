"""The price of a schedule, from its own rounds: for algorithms that have no formula.

The rule is that of the formulas: the larger of what the busiest link or rank has to do in all, and of
the longest path through messages and steps. Each channel moves a clock for every rank on, round by
round; what is sent, folded and copied is summed up for each link and rank besides.

A link takes a channel's messages round by round. Within a round all have passed it once it was free,
the first was ready, and each has had its time: those that go first are not told from the last, so
there is no queue to sort. That is exact where the ranks of a round are alike. It is too much where
somebody goes on with the first of several messages, and too little where channels, which know nothing of
each other here, want a link at the same time without filling it. ``docs/cost.rst`` has by how much.
"""

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.schedule import Column, Copies, Folds, Group, Place, Round, Schedule

Times = NDArray[np.float64]


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
    cluster = _Cluster(network, itemsize)
    ends = [0.0]
    for channel in schedule.channels:
        clock = np.zeros(network.ranks)
        cluster.free[:] = 0.0
        for each in channel():
            cluster.take(each, clock)
        ends.append(float(clock.max()))
    return max(*ends, float(cluster.busy.max(initial=0.0)), float(cluster.worked.max()))


class _Cluster:
    """Links and ranks.

    Attributes
    ----------
    free : ndarray of float64, shape (links,)
        When each is free again from what the present channel sent.
    busy : ndarray of float64, shape (links,)
        Seconds that each has been taken for, by all channels.
    worked : ndarray of float64, shape (ranks,)
        Seconds that each has folded and copied, for all channels.
    """

    def __init__(self, network: Network, itemsize: int) -> None:
        self._network = network
        self._itemsize = itemsize
        self._node = network.node(np.arange(network.ranks, dtype=np.int64))
        self._gap, self._per_byte = np.zeros(0), np.zeros(0)
        self._inner = self._laid(network.inner, across=False)
        self._across = self._laid(network.across, across=True)
        self.free = np.zeros(len(self._gap))
        self.busy = np.zeros(len(self._gap))
        self.worked = np.zeros(network.ranks)

    def take(self, each: Round, clock: Times) -> None:
        """Move the clocks on by a round of one channel."""
        sends = [table for table in each.sends if len(table.rank)]
        if sends:
            rank = np.concatenate([table.rank for table in sends])
            peer = np.concatenate([table.peer for table in sends])
            count = np.concatenate([table.count for table in sends])
            passed, there = self._carry(rank, peer, clock[rank], count)
            np.maximum.at(clock, rank, passed)
            np.maximum.at(clock, peer, there)
        for step in each.local:
            self._work(step, clock)
        if each.barrier is not None:
            self._meet(each.barrier, clock)

    def _laid(self, level: Level | None, *, across: bool) -> list[tuple[Column, bool]]:
        """Number a level's links: for each rank the one that it sends, or (True) receives through."""
        found: list[tuple[Column, bool]] = []
        if level is None:
            return found
        local = np.arange(self._network.ranks, dtype=np.int64) % self._network.ranks_per_node
        port, everybody = self._node * level.ports + local % level.ports, np.zeros_like(local)
        for number, bandwidth, gap, twice in (
            (port, level.bandwidth, level.gap, True),
            (self._node, level.node_bandwidth, 0.0, across),  # passed once within a node
            (everybody, level.total_bandwidth, 0.0, False),
        ):
            if 1 / bandwidth == gap == 0:
                continue
            out = self._added(number, bandwidth, gap)
            found.append((out, False))
            if twice:
                half = level.duplex == "half"
                found.append((out if half else self._added(number, bandwidth, gap), True))
        return found

    def _added(self, number: Column, bandwidth: float, gap: float) -> Column:
        """Add links of one kind, of which each rank has that of its `number`."""
        before, links = len(self._gap), int(number.max()) + 1
        self._gap = np.append(self._gap, np.full(links, gap))
        self._per_byte = np.append(self._per_byte, np.full(links, 1 / bandwidth))
        return before + number

    def _carry(
        self, rank: Column, peer: Column, ready: Times, count: Column
    ) -> tuple[Times, Times]:
        """Return when the messages of a round have passed their links, and when they are there."""
        inside = self._node[rank] == self._node[peer]
        passed, latency = ready.copy(), np.zeros(len(rank))
        messages: list[Column] = []
        links: list[Column] = []
        for mask, laid, level in (
            (inside & (rank != peer), self._inner, self._network.inner),
            (~inside, self._across, self._network.across),
        ):
            chosen = np.flatnonzero(mask)
            if level is not None and len(chosen):
                latency[chosen] = level.latency
                for column, receives in laid:
                    messages.append(chosen)
                    links.append(column[(peer if receives else rank)[chosen]])
        if messages:
            message, link = np.concatenate(messages), np.concatenate(links)
            nbytes = count[message] * self._itemsize
            hold = self._gap[link] + nbytes * self._per_byte[link]
            load = np.bincount(link, hold, minlength=len(self.busy))
            self.busy += load
            first = np.full(len(load), np.inf)
            np.minimum.at(first, link, ready[message])
            last = np.maximum(first, self.free) + load
            np.copyto(self.free, last, where=first < np.inf)
            np.maximum.at(passed, message, np.maximum(ready[message] + hold, last[link]))
        return passed, passed + latency

    def _work(self, step: Copies | Folds, clock: Times) -> None:
        """Fold or copy, a rank's rows one after the other; where ranks share memory, reach a peer's."""
        sources = step.sources if isinstance(step, Folds) else (step.source,)
        network = self._network
        per_byte = (len(sources) - 1) / network.reduce if len(sources) > 1 else 1 / network.copy
        took = np.bincount(
            step.rank, step.count * (per_byte * self._itemsize), minlength=network.ranks
        )
        self.worked += took
        end = clock + took
        places: list[tuple[Place, bool]] = [(source, True) for source in sources]
        for place, reads in [*places, (step.target, False)]:
            if place.peer is not None:
                ways = (place.peer, step.rank) if reads else (step.rank, place.peer)
                _, there = self._carry(*ways, clock[step.rank], step.count)
                np.maximum.at(end, step.rank, there)
        clock[:] = end

    def _meet(self, group: Group, clock: Times) -> None:
        """Let the ranks of each group wait for its last one: dissemination, in log2 steps."""
        if group.members is None or group.which is None:
            members, which = group.rank[np.newaxis], np.zeros(len(group.rank), np.int64)
        else:
            members, which = group.members, group.which
        node = self._node[members]
        level = self._network.inner if (node == node[:, :1]).all() else self._network.across
        latency = 0.0 if level is None else level.latency
        steps = (group.size - 1).bit_length()
        clock[group.rank] = clock[members].max(axis=1)[which] + steps * latency
