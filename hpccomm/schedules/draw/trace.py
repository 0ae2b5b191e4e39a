"""Follows the elements of a call's arrays through a schedule: which elements each message moves.

The schedule runs on the prover's symbolic memory, which knows what each element is.

`subject`, `schedule` and `text` show what it saw.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms.partition import merged, offsets
from hpccomm.schedules.proof.case import ProofCase, Unproven
from hpccomm.schedules.proof.machine import SymbolicMachine
from hpccomm.schedules.proof.memory import BITS, FIRST, ORIGIN, Cells, SymbolicMemory, arrivals
from hpccomm.schedules.schedule import Column, Copies, Group, LocalStep, Round, Schedule

MOST_RANKS = 64
"""Contributions are bits of one number. A picture of more ranks would not be readable either."""

MOST_MOVES = 1 << 14
"""The most moves and local steps. Drawing them takes half a minute; more would be unreadable."""

MOST_MOVED = 1 << 25
"""The most elements that they read. The moves' elements are kept, at most 512 MiB."""

Contributions = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Elements that lie one after the other in a buffer.

    Attributes
    ----------
    elements : ndarray of int64
        The position of each in the collective's array. If each rank has its own array (all_to_all),
        rank r's begin at r times the length.
    contributions : ndarray of uint64
        The contributions in each: bit r for rank r.
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
    """The kind of a local step of a rank.

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
class DrawnStep:
    """The marks at one height: a round of a channel, or a part of it.

    Where local steps first read the memory of peers and then write it, a round has two parts.

    Attributes
    ----------
    number : int
        The round.
    moves : tuple of Move
        Between ranks.
    marks : tuple of Mark
        The local steps, each kind once a rank.
    meeting : tuple of tuple of int
        The groups of ranks that meet in a barrier at the end.
    """

    number: int
    moves: tuple[Move, ...]
    marks: tuple[Mark, ...] = ()
    meeting: tuple[tuple[int, ...], ...] = ()


class _Trace(SymbolicMachine):
    """Runs one channel of one case, and collects what each round moves."""

    def __init__(self, memory: SymbolicMemory, channel: int) -> None:
        super().__init__(memory, channel)
        self._begins = _begins(memory.cases[0])
        self._sent: list[Move] = []
        self._steps: list[tuple[list[Mark], list[Move]]] = []

    def see_messages(self, source: Column, target: Column, count: Column, cells: Cells) -> None:
        """See the messages of a round."""
        parts = np.split(cells, np.cumsum(count)[:-1])
        self._sent = [
            Move(int(rank), int(peer), self._data(part))
            for rank, peer, part in zip(source, target, parts, strict=True)
        ]

    def see_step(self, table: LocalStep, count: Column, sources: Cells, target: Cells) -> None:
        """See a local step."""
        what = "copy" if isinstance(table, Copies) else "final" if table.final else "fold"
        owner, moves = self._memory.owner, []
        for row in np.flatnonzero(count).tolist():
            rank, where = int(table.rank[row]), np.arange(count[row])
            whose = [*owner[sources[:, row]].tolist(), int(owner[target[row]])]
            if whose == [rank] * len(whose):
                continue
            read = [self._data(first + where) for first in sources[:, row]]
            moves += [
                Move(other, rank, data, "read")
                for other, data in zip(whose[:-1], read, strict=True)
                if other != rank
            ]
            if whose[-1] != rank:
                folded = np.bitwise_or.reduce([data.contributions for data in read], axis=0)
                moves.append(Move(rank, whose[-1], Data(read[0].elements, folded), "write"))
        self._steps.append(([Mark(rank, what) for rank in table.rank.tolist()], moves))

    def shown(self, number: int, barrier: Group | None) -> Iterator[DrawnStep]:
        """Return the marks of the last round, and clear them."""
        moves, marks = self._sent, dict[Mark, None]()
        for its, reached in self._steps:
            if reached and moves and reached[0].how != moves[0].how:
                yield _step(number, moves, marks)
                moves, marks = [], {}
            moves = moves + reached
            marks.update(dict.fromkeys(its))
        met = [] if barrier is None else arrivals(barrier)
        meeting = tuple(tuple(ranks.tolist()) for ranks, _ in met)
        if moves or marks or meeting:
            yield _step(number, moves, marks, meeting)
        self._sent, self._steps = [], []

    def _data(self, cells: Cells) -> Data:
        state = self._memory.state[cells]
        elements = state[:, ORIGIN] + self._begins[state[:, FIRST]]
        return Data(elements, state[:, BITS].astype(np.uint64))


def follow(case: ProofCase) -> tuple[Schedule, tuple[tuple[DrawnStep, ...], ...]]:
    """Return a schedule and the steps of each channel. Empty rounds have no step.

    Parameters
    ----------
    case : ProofCase
        An equal call of at most `MOST_RANKS` ranks, not in place, and what carries it out.

    Raises
    ------
    UsageError
        If a round is certain to be wrong, such as a message with one end; or if there is more to
        follow than `MOST_MOVES` and `MOST_MOVED`.
    """
    size = case.size
    too_much = UsageError(
        f"{size} ranks make more than {MOST_MOVES} moves and local steps, or these read more than "
        f"{MOST_MOVED} elements; give a larger --segment, a smaller --count or fewer --ranks"
    )
    parts = case.parts()
    schedule = parts[0].schedule if len(parts) == 1 else merged([part.schedule for part in parts])
    if size * schedule.scratch > MOST_MOVED:
        raise too_much
    memory = SymbolicMemory([case], [parts])
    # Channels touch no memory that another one writes: one after the other gives the same.
    channels = []
    moves = moved = 0
    for which, channel in enumerate(schedule.channels):
        trace = _Trace(memory, which)
        steps: list[DrawnStep] = []
        for number, each in enumerate(channel()):
            rows, elements = _extent(each)
            moves += rows
            moved += elements
            if moves > MOST_MOVES or moved > MOST_MOVED:
                raise too_much
            try:
                trace.take(number, [(0, size, each)])
            except Unproven as problem:
                raise UsageError(f"{problem}; prove the schedule first") from problem
            steps += trace.shown(number, each.barrier)
        channels.append(tuple(steps))
    return schedule, tuple(channels)


def _extent(each: Round) -> tuple[int, int]:
    """Return how many moves and local steps a round has, and the elements that they read."""
    rows = sum(len(table.rank) for table in each.sends)
    elements = sum(int(table.count.sum()) for table in each.sends)
    for table in each.local:
        foreign = sum(place.peer is not None for place in (*table.sources, table.target))
        rows += len(table.rank) * (1 + foreign)
        elements += int(table.count.sum()) * len(table.sources)
    return rows, elements


def _begins(case: ProofCase) -> Column:
    """Return which element of the collective's array each rank's contribution begins with."""
    call, size = case.calls[0], case.size
    what = DESCRIPTIONS[call.collective]
    if what.sends == "block":
        return np.array(offsets(call.counts), np.int64)
    if what.individual:
        return sum(call.counts) * np.arange(size, dtype=np.int64)
    return np.zeros(size, np.int64)


def _step(
    number: int,
    moves: Iterable[Move],
    marks: Iterable[Mark],
    meeting: tuple[tuple[int, ...], ...] = (),
) -> DrawnStep:
    by_ranks = sorted(moves, key=lambda move: (move.source, move.target))
    return DrawnStep(number, tuple(by_ranks), tuple(marks), meeting)
