"""An algorithm, as data.

A schedule describes the actions of ranks. It consists of channels, and a channel consists of rounds. A round is a set
of messages to and from peers, followed by local steps on memory. Messages and steps refer to slices of named
buffers, counted in elements.

Rounds are tables of NumPy columns with a row for each slice. So the rounds of thousands of ranks
are a few arrays. The same function makes the rounds of one rank: its `Group` then has one row. The
rows of a rank are its actions in the round.

The executor, the prover and the simulator read a schedule in the same way:

- Channels are independent. They run at the same time, and none touches memory that another channel writes.
- In a channel a rank does one round after the other. In a round its receives and sends are under way
  at the same time; once they are complete, the local steps follow in their order, then the barrier.
- Round k of a channel holds both ends of each message: the peer receives it in the round in which
  it is sent. Two messages of the same pair and round match in the order of their rows. So ranks
  never wait in a circle, even if a send completes only once its receive has begun.

Algorithms build schedules. The executor (``hpccomm.calls.runner``), the proof, the cost model, ``hpccomm simulate``
and ``hpccomm plot`` read them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.topology import Topology

SEND = "send"
RECV = "recv"
SCRATCH = "scratch"

Column = NDArray[np.int64]
"""One value for each row."""

Mask = NDArray[np.bool_]
"""Whether each row is included."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Ranks that run an algorithm among themselves, and the ranks whose program is wanted.

    Several groups of one size (such as the nodes of a cluster) may run at once: each row belongs to one
    of them.

    Attributes
    ----------
    rank : Column
        The ranks whose program is wanted, one for each row.
    at : Column
        The position of each of them in its group, from 0.
    size : int
        Ranks in each group.
    members : ndarray of shape (groups, size), or None
        The rank at each position of each group; None where positions are ranks.
    which : Column or None
        The row of `members` of each rank's group.
    """

    rank: Column
    at: Column
    size: int
    members: NDArray[np.int64] | None = None
    which: Column | None = None

    def peer(self, position: Column) -> Column:
        """Return, for each row, the rank at `position` of its group."""
        if self.members is None:
            return position
        rank: Column = self.members[self.which, position]
        return rank

    def at_distance(self, distance: int) -> Column:
        """Return, for each row, the rank at `distance` from it, going round the end of its group."""
        return self.peer((self.at + distance) % self.size)

    def meetings(self) -> tuple[NDArray[np.int64], Column]:
        """Return the ranks of each group, of shape (groups, size), and the group of each row."""
        if self.members is None or self.which is None:
            return np.arange(self.size)[np.newaxis], np.zeros(len(self.rank), np.int64)
        return self.members, self.which


def world(size: int, ranks: Column | None = None) -> Group:
    """Return the group of all `size` ranks, with rows for all of them or for `ranks`."""
    wanted = np.arange(size, dtype=np.int64) if ranks is None else ranks
    return Group(wanted, wanted, size)


class Place(NamedTuple):
    """The beginnings of slices.

    Attributes
    ----------
    buffer : str
        `SEND`, `RECV` or `SCRATCH`.
    start : Column or int
        The first element.
    peer : Column or None
        The rank that the memory belongs to, where ranks share memory; None means the row's own rank.
    """

    buffer: str
    start: Column | int
    peer: Column | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Messages of `count` elements between `rank`, at `start` of its `buffer`, and `peer`."""

    rank: Column
    peer: Column
    buffer: str
    start: Column
    count: Column


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """`rank` copies `count` elements from `source` to `target`."""

    rank: Column
    source: Place
    target: Place
    count: Column

    @property
    def sources(self) -> tuple[Place]:
        """The source in a tuple, like the sources of a fold."""
        return (self.source,)


@dataclass(frozen=True, slots=True, eq=False)
class Folds:
    """`rank` folds `sources`, in their order, into `target`.

    `final` says that the result is complete, so that AVG divides here. The target may be one of the
    sources.
    """

    rank: Column
    sources: tuple[Place, ...]
    target: Place
    count: Column
    final: bool


LocalStep = Copies | Folds
"""A step on a rank's memory. It follows the messages of its round."""


def touched(step: LocalStep) -> list[tuple[Place, bool]]:
    """Return pairs of each place of a step and whether the step reads the place; else it writes there."""
    return [*((source, True) for source in step.sources), (step.target, False)]


class Round(NamedTuple):
    """Messages that are under way at the same time, then local steps, then for shared memory a barrier.

    Attributes
    ----------
    receives, sends : tuple of Transfers
        The messages, which are under way at the same time.
    local : tuple of Copies or Folds
        The local steps, in their order.
    barrier : Group or None
        The groups whose ranks meet at the round's end; None without a barrier.
    """

    receives: tuple[Transfers, ...] = ()
    sends: tuple[Transfers, ...] = ()
    local: tuple[LocalStep, ...] = ()
    barrier: Group | None = None


Rounds = Iterator[Round]
Channel = Callable[[], Rounds]
"""Makes a channel's rounds, lazily and as often as it is called."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The actions of ranks in a collective.

    Attributes
    ----------
    channels : tuple of callable
        Functions that make the rounds of a channel.
    scratch : int
        Elements of each rank's buffer `SCRATCH`.
    segment : int or None
        Elements that move at a time; None if the algorithm does not cut the array.
    """

    channels: tuple[Channel, ...]
    scratch: int = 0
    segment: int | None = None

    def segment_nbytes(self, itemsize: int) -> int | None:
        """Return the bytes that move at a time, if an element has `itemsize` bytes; None if the array is not cut."""
        return None if self.segment is None else self.segment * itemsize


@dataclass(frozen=True, slots=True)
class Tuning:
    """Further parameters of an algorithm, equal on all ranks.

    Attributes
    ----------
    segment : int
        Elements to move at a time, at least 1; `whole` for no cut.
    channels : int
        Most channels, each with one round under way; at least 1.
    topology : Topology or None
        The ranks of each node; None if irrelevant.
    room : int
        Most elements of scratch on a rank that peers can reach.
    """

    segment: int
    channels: int = 2
    topology: Topology | None = None
    room: int = 1 << 21


Build = Callable[[Group, Signature, Tuning], Schedule]
"""``build(group, call, tuning)`` returns the schedule of the ranks in a group for a call."""

whole = 1 << 62
"""A segment larger than any array: the array is not cut."""


def segment_elements(call: Signature, nbytes: int, most: int) -> int:
    """Return the elements of a segment of `nbytes`, so that there are about `most` segments at most."""
    segment = max(1, nbytes // call.dtype.itemsize)
    if call.individual:  # ranks have different numbers of elements, but must get the same segment
        return segment
    return max(segment, call.elements // most)


def transfers(
    rank: Column,
    peer: Column | int,
    buffer: str,
    start: Column | int,
    count: Column | int,
    where: Mask | None = None,
) -> Transfers:
    """Return a table of messages, without the rows that are empty or not in `where`.

    Both ends of a message must have the same count. An empty message is not sent.
    """
    rows = len(rank)
    counts = _column(count, rows)
    keep = counts > 0 if where is None else (counts > 0) & where
    table = (rank, _column(peer, rows), _column(start, rows), counts)
    if not keep.all():
        table = (table[0][keep], table[1][keep], table[2][keep], table[3][keep])
    return Transfers(table[0], table[1], buffer, table[2], table[3])


def signals(rank: Column, peer: Column, where: Mask | None = None) -> Transfers:
    """Return a table of messages without data, which are sent although they are empty."""
    if where is not None:
        rank, peer = rank[where], peer[where]
    nothing = np.zeros(len(rank), np.int64)
    return Transfers(rank, peer, RECV, nothing, nothing)


def copies(
    rank: Column, source: Place, target: Place, count: Column | int, where: Mask | None = None
) -> Copies:
    """Return a table of copies, without the rows that are empty or not in `where`."""
    counts, keep = _kept(rank, count, where)
    return Copies(rank[keep], _at(source, keep), _at(target, keep), counts[keep])


def folds(
    rank: Column,
    sources: tuple[Place, ...],
    target: Place,
    count: Column | int,
    *,
    final: bool,
    where: Mask | None = None,
) -> Folds:
    """Return a table of folds, without the rows that are empty or not in `where`."""
    counts, keep = _kept(rank, count, where)
    rows = tuple(_at(source, keep) for source in sources)
    return Folds(rank[keep], rows, _at(target, keep), counts[keep], final)


def _column(value: Column | int, rows: int) -> Column:
    return value if isinstance(value, np.ndarray) else np.full(rows, value, np.int64)


def _kept(rank: Column, count: Column | int, where: Mask | None) -> tuple[Column, Mask | slice]:
    counts = _column(count, len(rank))
    keep = counts > 0 if where is None else (counts > 0) & where
    return counts, slice(None) if keep.all() else keep


def _at(place: Place, keep: Mask | slice) -> Place:
    """Return `place` with only the rows in `keep`."""
    start, peer = place.start, place.peer
    if isinstance(start, np.ndarray):
        start = start[keep]
    return Place(place.buffer, start, None if peer is None else peer[keep])
