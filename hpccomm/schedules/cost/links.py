"""The links of a network, and the times at which messages pass them: queues at ports and shared links.

The rules are in `hpccomm.schedules.cost.network`. All messages of a round are one table, and all
queues of one length are processed at once. Let the messages of a queue arrive at r_1 <= r_2 <= ...,
and hold the link for h_1, h_2, ... Then message k has passed at ``H_k + max(r_j - H_(j-1) for j <=
k)``, where H_k is the sum of the first k holds, and r_1 is not before the link is free.

`rounds` sends messages through these links.

A row of times has seconds alone, or seconds and a column for each parameter of a network, with the amount of that
parameter along the critical path. The later of two times keeps its columns. ``hpccomm simulate --like`` needs these
components.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.schedule import Column, Mask

Times = NDArray[np.float64]
"""Rows of times, float64: of shape (rows,), or with components of shape (rows, 1 + parameters)."""


def seconds(times: Times) -> Times:
    """Return the seconds of each row, without components; a view."""
    return times if times.ndim == 1 else times[:, 0]


def rowwise(values: NDArray[np.int64] | Times | Mask, rows: Times) -> Any:
    """Return `values`, one for each row, in a shape that broadcasts with `rows`."""
    return values if rows.ndim == 1 else values[..., np.newaxis]


def later(one: Times, other: Times) -> Times:
    """Return row by row the later of two times; `one` if they are equal."""
    if one.ndim == 1:
        return np.maximum(one, other)
    return np.where(one[:, :1] >= other[:, :1], one, other)


def take_latest(clock: Times, index: Column, times: Times) -> None:
    """Move rows `index` of a clock on to `times`; of several times for one row, the latest counts."""
    if clock.ndim == 1:
        np.maximum.at(clock, index, times)
        return
    order = np.lexsort((times[:, 0], index))
    index = index[order]
    last = np.append(index[1:] != index[:-1], True)
    row, latest = index[last], times[order[last]]
    clock[row] = later(clock[row], latest)


RECENT = 16
"""Number of tables of senders and receivers whose routes are remembered, since rounds repeat them."""


TICK = 1e-15
"""Seconds: times that differ by less are equal, so that no rounding decides which message goes first."""


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """Queues of one length in front of links, in one round.

    Attributes
    ----------
    link : Column of shape (links,)
        The links.
    message : Column of shape (length, links)
        The messages of each queue, by their row in the table.
    gap, per_byte : Times of links
        Seconds for which a message occupies a link, and additional seconds for each of its bytes.
    """

    link: Column
    message: Column
    gap: Times
    per_byte: Times

    def in_order(self, ready: Times) -> Column:
        """Return the messages of each queue in the order in which they are `ready`."""
        order = _order(seconds(ready)[self.message])
        return self.message if order is None else np.take_along_axis(self.message, order, axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class LinkRoutes:
    """The links that a table of messages passes.

    Attributes
    ----------
    rank, peer : Column
        Sender and receiver of each message.
    latency : Times of messages
        Latency of each message.
    queues : tuple of Queues
        The queues that the messages pass.
    """

    rank: Column
    peer: Column
    latency: Times
    queues: tuple[Queues, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LevelLinks:
    """The numbers of a level's links.

    Attributes
    ----------
    latency : Times
        Latency of a message, as one row.
    passed : sequence of tuple of Column and bool
        The kinds of links that a message passes. Each entry has the link of each rank, and whether the sender's link
        is passed; else it is the receiver's. The first two entries are the ports; then come the links that the ports
        of a node share, and the link that all nodes share.
    """

    latency: Times
    passed: Sequence[tuple[Column, bool]]


class Links:
    """The links of a network, and the time until which each is occupied.

    Parameters
    ----------
    network : Network
        The network.
    width : int
        Number of columns of all times; 0 for seconds alone.

    Attributes
    ----------
    free : Times of links
        Time at which each link is free again.
    busy : ndarray of float64, shape (links,)
        Seconds for which each link has been occupied so far.
    gap, per_byte : Times of links
        Seconds for which a message occupies each link, and additional seconds for each of its bytes.
    inner, across : LevelLinks or None
        The numbers of each level's links; None for a level without links.
    """

    def __init__(self, network: Network, width: int = 0) -> None:
        self._row = (width,) if width else ()
        ranks = np.arange(network.ranks, dtype=np.int64)
        self._node = network.node(ranks)
        self._local = ranks % network.ranks_per_node
        self._nodes = network.nodes
        self._names: list[tuple[int, int, str]] = []  # first link, links of a node, words
        self._gaps: list[Times] = []
        self._inverse: list[Times] = []
        self.inner = None if network.inner is None else self._laid(network.inner, "inner")
        self.across = None if network.across is None else self._laid(network.across, "across")
        self.free, self.gap, self.per_byte = (
            np.zeros((sum(map(len, self._gaps)), *self._row)) for _ in range(3)
        )
        seconds(self.gap)[:] = np.concatenate([*self._gaps, np.empty(0)])
        seconds(self.per_byte)[:] = np.concatenate([*self._inverse, np.empty(0)])
        self.busy = np.zeros(len(self.gap))
        self._recent: list[LinkRoutes] = []

    def carry(self, routes: LinkRoutes, ready: Times, nbytes: Column) -> Times:
        """Send messages, and return the time at which each has passed all its links.

        Parameters
        ----------
        routes : LinkRoutes
            The links that the messages pass.
        ready : ndarray of float64
            Time at which each message's sender was ready.
        nbytes : Column
            Bytes of each message.
        """
        passed = ready.copy()
        for queues in routes.queues:
            message, link = queues.in_order(ready), queues.link
            hold = queues.gap + rowwise(nbytes[message], queues.gap) * queues.per_byte
            ends = _passed(ready[message], hold, self.free[link])
            self.free[link] = ends[-1]
            self.busy[link] += seconds(hold.sum(axis=0))
            # `np.maximum.at` is much quicker in one dimension.
            take_latest(passed, message.ravel(), ends.reshape(-1, *self._row))
        return passed

    def routes(self, rank: Column, peer: Column) -> LinkRoutes:
        """Return the links of messages from each of `rank` to each of `peer`."""
        for number, known in enumerate(self._recent):
            same = (rank is known.rank and peer is known.peer) or (
                np.array_equal(rank, known.rank) and np.array_equal(peer, known.peer)
            )
            if same:
                self._recent.insert(0, self._recent.pop(number))
                return known
        routes = self._found(rank, peer)
        self._recent = [routes, *self._recent[: RECENT - 1]]
        return routes

    def within_node(self, ranks: NDArray[np.int64]) -> bool:
        """Whether the ranks in each row of `ranks` share a node."""
        node = self._node[ranks]
        return bool((node == node[..., :1]).all())

    def name(self, link: int) -> str:
        """Return the name of a link in words."""
        first, of_a_node, what = max(each for each in self._names if each[0] <= link)
        if not of_a_node:
            return what
        node, port = divmod(link - first, of_a_node)
        return f"{what} of node {node}" if of_a_node == 1 else f"{what} {port} of node {node}"

    def _laid(self, level: Level, name: str) -> LevelLinks:
        """Number the links of a level."""
        half = level.duplex == "half"
        both = "" if half else " out"

        def ports(direction: str) -> Column:
            what = f"{name} port{direction}"
            first = self._added(what, level.ports, level.bandwidth, level.gap)
            return first + self._node * level.ports + self._local % level.ports

        def shared(direction: str) -> Column:
            what = f"what {name} ports share{direction}"
            return self._added(what, 1, level.node_bandwidth, 0.0) + self._node

        out = ports(both)
        passed = [(out, True), (out if half else ports(" in"), False)]
        if np.isfinite(level.node_bandwidth):
            # Within a node a message passes the shared link once.
            out = shared("" if half or name == "inner" else both)
            passed.append((out, True))
            if name != "inner":
                passed.append((out if half else shared(" in"), False))
        if np.isfinite(level.total_bandwidth):
            first = self._added(f"what all {name} ports share", 0, level.total_bandwidth, 0.0)
            passed.append((np.full_like(self._node, first), True))
        latency = np.zeros((1, *self._row))
        seconds(latency)[:] = level.latency
        return LevelLinks(latency, passed)

    def _added(self, what: str, of_a_node: int, bandwidth: float, gap: float) -> int:
        """Add links of one kind, and return the number of the first.

        There are `of_a_node` links for each node; 0 means one link for all nodes.
        """
        first = sum(map(len, self._gaps))
        number = self._nodes * of_a_node or 1
        self._names.append((first, of_a_node, what))
        self._gaps.append(np.full(number, gap))
        self._inverse.append(np.full(number, 1 / bandwidth))
        return first

    def _found(self, rank: Column, peer: Column) -> LinkRoutes:
        inside = self._node[rank] == self._node[peer]
        latency = np.zeros((len(rank), *self._row))
        messages: list[Column] = []
        links: list[Column] = []
        for laid, mask in ((self.inner, inside & (rank != peer)), (self.across, ~inside)):
            chosen = np.flatnonzero(mask)
            if laid is None or not len(chosen):
                continue
            latency[chosen] = laid.latency
            sender, receiver = rank[chosen], peer[chosen]
            for link, of_sender in laid.passed:
                messages.append(chosen)
                links.append(link[sender if of_sender else receiver])
        return LinkRoutes(rank, peer, latency, self._queues(messages, links))

    def _queues(self, messages: list[Column], links: list[Column]) -> tuple[Queues, ...]:
        """Return the queues of messages that pass links; `messages` and `links` are pairs of columns."""
        if not messages:
            return ()
        message, link = np.concatenate(messages), np.concatenate(links)
        length = np.bincount(link, minlength=len(self.gap))[link]
        if length.max() > 1:
            # Sorted by length, link and message. One key is sorted much quicker than three, and 64
            # bits suffice for all messages that memory can hold.
            queue = length * len(self.gap) + link
            order = np.argsort(queue * (int(message.max()) + 1) + message)
            message, link, length = message[order], link[order], length[order]
        queues = []
        number = np.bincount(length)
        stop = np.cumsum(number)
        for each in np.flatnonzero(number):
            rows = slice(stop[each] - number[each], stop[each])
            # Queues side by side, so that the first messages of all queues lie together.
            fronts = np.ascontiguousarray(message[rows].reshape(-1, each).T)
            front = link[rows][::each].copy()
            queues.append(Queues(front, fronts, self.gap[front], self.per_byte[front]))
        return tuple(queues)


def _passed(arrival: Times, hold: Times, free: Times) -> Times:
    """Return the times at which the messages of queues have passed.

    Messages arrive at `arrival`, hold their link for `hold` seconds, and the links are free from `free` on. If times
    have components, the messages go one by one, so that each keeps the components of its wait.
    """
    if arrival.ndim > 2:
        ends = [free]
        for each, held in zip(arrival, hold, strict=True):
            ends.append(later(each, ends[-1]) + held)
        return np.stack(ends[1:])
    arrival[0] = np.maximum(arrival[0], free)
    if len(arrival) == 1:
        return arrival + hold
    so_far = np.cumsum(hold, axis=0)
    passed: Times = np.maximum.accumulate(arrival - (so_far - hold), axis=0) + so_far
    return passed


def _order(arrival: Times) -> NDArray[np.int64] | None:
    """Return the order in which the messages of each queue (a column) arrived; None if they are in order."""
    if len(arrival) == 1:
        return None
    ticks = np.rint(arrival / TICK)
    if not (ticks[1:] < ticks[:-1]).any():
        return None
    return np.argsort(ticks, axis=0, kind="stable")


def joined(columns: Sequence[Column]) -> Column:
    """Put columns one after the other. A single column stays the same object, so that its route is recognised."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
