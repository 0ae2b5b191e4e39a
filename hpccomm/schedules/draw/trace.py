"""Follows the elements of a call's arrays through a schedule: what each message moves, and of whom."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Copies,
    Folds,
    Place,
    Round,
    Schedule,
    Transfers,
)

MOST_RANKS = 64
"""Contributions are bits of a number. No picture of more ranks could be read either."""

MOST_MOVES = 1 << 14
"""Moves and local steps: as many are drawn in half a minute, and nobody could read more."""

MOST_MOVED = 1 << 25
"""Elements that these read together; those of moves are kept, at most 512 MiB."""

Contributions = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Elements, as they lie one after the other in a buffer.

    Attributes
    ----------
    elements : ndarray of int64
        Which element of the collective's array each is: of all_to_all, which has an array a rank,
        those of rank r begin at r times the length. -1 was never written.
    contributions : ndarray of uint64
        Whose contributions each holds: bit r for rank r.
    """

    elements: Column
    contributions: Contributions


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Elements that go from one rank to another.

    Attributes
    ----------
    source, target : int
        The ranks.
    data : Data
        What goes.
    how : str
        ``"message"``; or, where ranks reach each other's memory, ``"read"`` by the target or
        ``"write"`` by the source.
    """

    source: int
    target: int
    data: Data
    how: str = "message"


@dataclass(frozen=True, slots=True)
class Mark:
    """A local step of a rank.

    Attributes
    ----------
    rank : int
        Who does it.
    what : str
        ``"copy"``, ``"fold"``, or ``"final"``: a fold after which the result is complete.
    """

    rank: int
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What is shown at once: a round of a channel, or a part of it.

    Where a rank's local steps first read its peers' memory and then write it, these are two parts.

    Attributes
    ----------
    number : int
        The round.
    moves : tuple of Move
        Between ranks.
    marks : tuple of Mark
        What ranks do with their memory, each kind once a rank.
    meeting : tuple of tuple of int
        The groups of ranks that meet in a barrier at the end.
    """

    number: int
    moves: tuple[Move, ...]
    marks: tuple[Mark, ...] = ()
    meeting: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True, eq=False)
class _Memory:
    """The buffers of all ranks, by name: elements and contributions, (ranks, length) each."""

    elements: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    contributions: dict[str, Contributions] = field(default_factory=dict)

    def add(self, name: str, elements: NDArray[np.int64]) -> None:
        """Add a buffer; what is written in it at first is the rank's own contribution."""
        own = np.left_shift(np.uint64(1), np.arange(len(elements), dtype=np.uint64))
        self.elements[name] = elements
        self.contributions[name] = np.where(elements >= 0, own[:, None], np.uint64(0))

    def read(self, rank: int, buffer: str, start: int, count: int) -> Data:
        """Return what lies there now."""
        where = rank, slice(start, start + count)
        return Data(self.elements[buffer][where].copy(), self.contributions[buffer][where].copy())

    def write(self, rank: int, buffer: str, start: int, data: Data) -> None:
        """Put `data` there."""
        where = rank, slice(start, start + len(data.elements))
        self.elements[buffer][where] = data.elements
        self.contributions[buffer][where] = data.contributions


def follow(schedule: Schedule, call: Signature, size: int) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of each channel; rounds in which no rank does anything have none.

    Parameters
    ----------
    schedule : Schedule
        Of all ranks.
    call : Signature
        What it carries out; the same on all ranks, and not in place.
    size : int
        Number of ranks, at most `MOST_RANKS`.

    Raises
    ------
    UsageError
        If a message has only one end, or there is more to follow than `MOST_MOVES` and `MOST_MOVED`.
    """
    too_much = UsageError(
        f"{size} ranks make more than {MOST_MOVES} moves and local steps, or these read more than "
        f"{MOST_MOVED} elements; give a larger --segment, a smaller --count or fewer --ranks"
    )
    if size * schedule.scratch > MOST_MOVED:
        raise too_much
    memory = _Memory()
    sent, received = _at_first(call, size)
    memory.add(SEND, sent)
    memory.add(RECV, received)
    memory.add(SCRATCH, np.full((size, schedule.scratch), -1, np.int64))
    # Channels touch no memory that another one writes: one after the other gives the same.
    channels = []
    moves = moved = 0
    for channel in schedule.channels:
        steps: list[Step] = []
        for number, each in enumerate(channel()):
            rows, elements = _extent(each)
            moves += rows
            moved += elements
            if moves > MOST_MOVES or moved > MOST_MOVED:
                raise too_much
            steps += _steps(each, memory, number)
        channels.append(tuple(steps))
    return tuple(channels)


def _extent(each: Round) -> tuple[int, int]:
    """Return how many moves and local steps a round has, and the elements that they read."""
    rows = sum(len(table.rank) for table in each.sends)
    elements = sum(int(table.count.sum()) for table in each.sends)
    for table in each.local:
        sources = (table.source,) if isinstance(table, Copies) else table.sources
        foreign = sum(place.peer is not None for place in (*sources, table.target))
        rows += len(table.rank) * (1 + foreign)
        elements += int(table.count.sum()) * len(sources)
    return rows, elements


def _at_first(call: Signature, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the elements of `send` and `recv` before the call, (ranks, length) each."""
    total = sum(call.counts)
    everything = np.arange(total, dtype=np.int64)
    whole = np.tile(everything, (size, 1))
    nothing = np.full((size, total), -1, np.int64)
    at_root = np.where(np.arange(size)[:, None] == call.root, whole, -1)
    if call.collective == "broadcast":
        return nothing, at_root
    if call.collective == "scatter":
        return at_root, nothing
    if call.collective == "all_to_all":
        return whole + total * np.arange(size)[:, None], nothing
    if call.collective in ("all_gather", "gather"):
        # A rank's own block begins at the first element of `send`.
        own = nothing.copy()
        for rank, first in enumerate(np.cumsum((0, *call.counts[:-1]))):
            count = call.counts[rank]
            own[rank, :count] = everything[first : first + count]
        return own, nothing
    return whole, nothing


def _steps(each: Round, memory: _Memory, number: int) -> Iterator[Step]:
    moves = _deliver(each, memory, number)
    marks: dict[Mark, None] = {}
    for table in each.local:
        ranks, found = _carry_out(table, memory)
        if found and moves and found[0].how != moves[0].how:
            yield _step(number, moves, marks)
            moves, marks = [], {}
        moves += found
        kind = "copy" if isinstance(table, Copies) else "final" if table.final else "fold"
        marks.update(dict.fromkeys(Mark(rank, kind) for rank in ranks))
    meeting = _meeting(each)
    if moves or marks or meeting:
        yield _step(number, moves, marks, meeting)


def _step(
    number: int,
    moves: Iterable[Move],
    marks: Iterable[Mark],
    meeting: tuple[tuple[int, ...], ...] = (),
) -> Step:
    by_ranks = sorted(moves, key=lambda move: (move.source, move.target))
    return Step(number, tuple(by_ranks), tuple(marks), meeting)


def _deliver(each: Round, memory: _Memory, number: int) -> list[Move]:
    """Carry out the messages of a round: all are read before one is written."""
    under_way: dict[tuple[int, int], list[Data]] = defaultdict(list)
    for rank, peer, buffer, start, count in _rows(each.sends):
        under_way[rank, peer].append(memory.read(rank, buffer, start, count))
    moves = []
    for rank, peer, buffer, start, count in _rows(each.receives):
        waiting = under_way[peer, rank]
        if not waiting or len(waiting[0].elements) != count:
            raise UsageError(
                f"round {number}: rank {rank} expects {count} elements of rank {peer}, which sends "
                f"{len(waiting[0].elements) if waiting else 'nothing'}; prove the schedule first"
            )
        data = waiting.pop(0)
        memory.write(rank, buffer, start, data)
        moves.append(Move(peer, rank, data))
    for (source, target), left in under_way.items():
        if left:
            raise UsageError(
                f"round {number}: rank {source} sends to rank {target}, which expects nothing; "
                "prove the schedule first"
            )
    return moves


def _rows(tables: Sequence[Transfers]) -> list[tuple[int, int, str, int, int]]:
    return [
        (int(rank), int(peer), table.buffer, int(start), int(count))
        for table in tables
        for rank, peer, start, count in zip(
            table.rank, table.peer, table.start, table.count, strict=True
        )
    ]


def _carry_out(table: Copies | Folds, memory: _Memory) -> tuple[list[int], list[Move]]:
    """Carry out a table of local steps; return who did, and what went from one rank to another."""
    sources = (table.source,) if isinstance(table, Copies) else table.sources
    ranks = table.rank.tolist()
    moves = []
    for row, (rank, count) in enumerate(zip(ranks, table.count.tolist(), strict=True)):
        read = []
        for source in sources:
            owner, start = _where(source, row, rank)
            data = memory.read(owner, source.buffer, start, count)
            read.append(data)
            if owner != rank:
                moves.append(Move(owner, rank, data, "read"))
        whose = np.bitwise_or.reduce([data.contributions for data in read], axis=0)
        result = Data(read[0].elements, whose)
        owner, start = _where(table.target, row, rank)
        memory.write(owner, table.target.buffer, start, result)
        if owner != rank:
            moves.append(Move(rank, owner, result, "write"))
    return ranks, moves


def _where(place: Place, row: int, rank: int) -> tuple[int, int]:
    """Return whose memory a row's place is in, and the first element."""
    start = place.start[row] if isinstance(place.start, np.ndarray) else place.start
    return rank if place.peer is None else int(place.peer[row]), int(start)


def _meeting(each: Round) -> tuple[tuple[int, ...], ...]:
    group = each.barrier
    if group is None:
        return ()
    if group.members is None or group.which is None:
        return (tuple(group.rank.tolist()),)
    return tuple(tuple(group.members[which].tolist()) for which in np.unique(group.which))
