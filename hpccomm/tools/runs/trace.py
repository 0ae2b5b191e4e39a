"""Follows the elements of a call's arrays through a schedule: which elements each message moves.

The schedule runs on the prover's symbolic memory, which knows what each element is.

`hpccomm plot` makes the subject, an algorithm that carries out an example call; `hpccomm.tools.runs.schedule` shows it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS, ROOTED, ring
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.schedules.algorithms import KNOWN, Algorithm
from hpccomm.schedules.algorithms.partition import even, merged, offsets
from hpccomm.schedules.proof.case import ProofCase, Unproven, case
from hpccomm.schedules.proof.machine import SymbolicMachine
from hpccomm.schedules.proof.memory import BITS, FIRST, ORIGIN, Cells, SymbolicMemory, arrivals
from hpccomm.schedules.schedule import Column, Copies, Group, LocalStep, Round, Schedule, whole
from hpccomm.topology import Topology, arrange
from hpccomm.units import counted, grouped

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
    marks : mapping of int to list of str
        The kinds of local steps of each rank that has some, each once: ``"copy"``, ``"fold"``, or ``"final"``, a
        fold after which the result is complete.
    meeting : tuple of tuple of int
        The groups of ranks that meet in a barrier at the end.
    """

    number: int
    moves: tuple[Move, ...]
    marks: Mapping[int, list[str]]
    meeting: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True, eq=False)
class _Part:
    """The moves of a part of a round, and pairs of a rank and the kind of a local step."""

    moves: list[Move] = field(default_factory=list)
    marks: dict[tuple[int, str], None] = field(default_factory=dict)


class _Trace(SymbolicMachine):
    """Runs one channel of one case, and collects what each round moves."""

    def __init__(self, memory: SymbolicMemory, channel: int) -> None:
        super().__init__(memory, channel)
        self._begins = _begins(memory.cases[0])
        self._parts = [_Part()]

    def see_messages(self, source: Column, target: Column, count: Column, cells: Cells) -> None:
        """See the messages of a round."""
        parts = np.split(cells, np.cumsum(count)[:-1])
        self._parts[-1].moves += [
            Move(int(rank), int(peer), self._data(part))
            for rank, peer, part in zip(source, target, parts, strict=True)
        ]

    def see_step(self, table: LocalStep, count: Column, sources: Cells, target: Cells) -> None:
        """See a local step."""
        what = "copy" if isinstance(table, Copies) else "final" if table.final else "fold"
        owner, moves = self._memory.owner, []
        for row in np.flatnonzero(count).tolist():
            rank, where = int(table.rank[row]), np.arange(count[row])
            owners = [*owner[sources[:, row]].tolist(), int(owner[target[row]])]
            if owners == [rank] * len(owners):
                continue
            read = [self._data(first + where) for first in sources[:, row]]
            moves += [
                Move(other, rank, data, "read")
                for other, data in zip(owners[:-1], read, strict=True)
                if other != rank
            ]
            if owners[-1] != rank:
                folded = np.bitwise_or.reduce([data.contributions for data in read], axis=0)
                moves.append(Move(rank, owners[-1], Data(read[0].elements, folded), "write"))
        before = self._parts[-1].moves
        if moves and before and moves[0].how != before[0].how:
            self._parts.append(_Part())
        self._parts[-1].moves += moves
        self._parts[-1].marks |= dict.fromkeys((rank, what) for rank in table.rank.tolist())

    def shown(self, number: int, barrier: Group | None) -> Iterator[DrawnStep]:
        """Yield the steps of the last round, and forget them."""
        met = [] if barrier is None else arrivals(barrier)
        for part in self._parts:
            last = part is self._parts[-1]
            meeting = tuple(tuple(ranks.tolist()) for ranks, _ in met) if last else ()
            if part.moves or part.marks or meeting:
                by_ranks = sorted(part.moves, key=lambda move: (move.source, move.target))
                yield DrawnStep(number, tuple(by_ranks), grouped(part.marks), meeting)
        self._parts = [_Part()]

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
    description = DESCRIPTIONS[call.collective]
    if description.sends == "block":
        return np.array(offsets(call.counts), np.int64)
    if description.individual:
        return sum(call.counts) * np.arange(size, dtype=np.int64)
    return np.zeros(size, np.int64)


Algorithms = Mapping[str, Mapping[str, Algorithm]]
"""By collective and name."""

MOST_ELEMENTS = 1 << 16
"""The most elements. The picture follows each of them, on every rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A schedule, its call, and what each of its steps moves.

    Attributes
    ----------
    algorithm, collective : str
        Their names.
    call : Signature
        The example call.
    topology : Topology
        Which ranks share a node.
    segment : int or None
        Elements moved at a time, if the algorithm cuts the array.
    ordered : bool
        Whether contributions are folded in rank order.
    channels : tuple of tuple of DrawnStep
        The rounds of each channel.
    """

    algorithm: str
    collective: str
    call: Signature
    topology: Topology
    segment: int | None
    ordered: bool
    channels: tuple[tuple[DrawnStep, ...], ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.topology.size

    @property
    def title(self) -> str:
        """The picture's title."""
        call = self.call
        root = f", root {call.root}" if call.root >= 0 else ""
        if call.description.sends == "nothing":
            return f"{self.algorithm} {self.collective}: {self.size} ranks"
        cut = f", segments of {self.segment}" if self.segment else ""
        order = ", in rank order" if self.ordered else ""
        return (
            f"{self.algorithm} {self.collective}{order}: {self.size} ranks{root}, "
            f"{counted(call.elements, 'element')}{cut}"
        )

    @property
    def summary(self) -> str:
        """Its cost: rounds, messages, and the elements of the rank that sends most."""
        rounds = [len({step.number for step in steps}) for steps in self.channels]
        sent = np.zeros(self.size, np.int64)
        messages = accesses = 0
        for move in (move for steps in self.channels for step in steps for move in step.moves):
            if move.how == "message":
                messages += 1
                sent[move.source] += len(move.data.elements)
            else:
                accesses += 1
        parts = [counted(max(rounds, default=0), "round")]
        if len(rounds) > 1:
            parts[0] = f"{len(rounds)} channels of {'+'.join(map(str, rounds))} rounds"
        if messages or not accesses:
            parts.append(counted(messages, "message"))
        if sent.any():
            parts.append(f"a rank sends at most {counted(int(sent.max()), 'element')}")
        if accesses:
            parts.append(f"{accesses} times a peer's memory")
        return ", ".join(parts)


def subject(
    algorithm: str,
    collective: str | None = None,
    *,
    ranks: int = 8,
    root: int | None = None,
    count: int | None = None,
    segment: int | None = None,
    channels: int = 1,
    nodes: int = 1,
    deterministic: bool = False,
    known: Algorithms | None = None,
) -> Subject:
    """Return the subject of a picture of `algorithm`.

    Parameters
    ----------
    algorithm : str
        Its name.
    collective : str, optional
        By default the first collective that has this algorithm; with `root` the first that has a root.
    ranks : int
        Number of ranks, at most `hpccomm.tools.runs.trace.MOST_RANKS`.
    root : int, optional
        Of a rooted collective; by default 0.
    count : int, optional
        Elements of the array; for all_gather, gather and scatter, of all ranks together. By default
        one for each rank.
    segment : int, optional
        Elements to move at a time; by default all of them.
    channels : int
        Rounds that may be under way at the same time.
    nodes : int
        Number of nodes that the ranks lie on, neighbors together.
    deterministic : bool
        Whether contributions are folded in rank order.
    known : mapping, optional
        Algorithms by collective and name; by default all that there are.

    Raises
    ------
    UsageError
        If the algorithm is unknown, a number does not fit it, or it has too many moves for a
        picture.
    """
    collective, chosen = _choose(
        algorithm, collective, KNOWN if known is None else known, rooted=root is not None
    )
    size = _within("ranks", ranks, 1, MOST_RANKS)
    _within("nodes", nodes, 1, size)
    description = DESCRIPTIONS[collective]
    blocks = len(ring(0, size)) if description.peers else size if description.blockwise else 1
    usual = blocks if description.peers else size
    elements = _within("count", usual if count is None else count, 0, MOST_ELEMENTS)
    if count is not None and description.sends == "nothing":
        raise UsageError(f"{collective} moves no elements; leave count out")
    if root is not None and not description.rooted:
        raise UsageError(f"{collective} has no root; leave it out")
    if deterministic and chosen.ordered is None:
        raise UsageError(
            f"{algorithm} {collective} has no form that folds in rank order; leave deterministic out"
        )
    if chosen.shared and nodes > 1:
        raise UsageError(
            f"{algorithm} takes ranks that share memory, and {nodes} nodes do not; give 1 node"
        )
    counts = (0,) if description.sends == "nothing" else even(elements, blocks)
    uniform = len(set(counts)) <= 1
    if not uniform and (chosen.uniform or description.individual):
        raise UsageError(
            f"{algorithm} {collective} is drawn with blocks of one size, and {elements} elements are "
            f"not {blocks} of them; give a count that is a multiple of {blocks}"
        )
    topology = arrange([rank * nodes // size for rank in range(size)])
    drawn = case(
        collective,
        chosen,
        size,
        count=counts[0] if uniform else counts,
        root=root or 0,
        segment=whole if segment is None else segment,
        channels=_within("channels", channels, 1, size * MOST_ELEMENTS),
        topology=topology,
        deterministic=deterministic,
        dtype=np.dtype(np.float32),
    )
    schedule, steps = follow(replace(drawn, title=f"{algorithm} {collective}"))
    return Subject(
        algorithm, collective, drawn.calls[0], topology, schedule.segment, deterministic, steps
    )


def _choose(
    algorithm: str, collective: str | None, known: Algorithms, *, rooted: bool
) -> tuple[str, Algorithm]:
    """Return the collective, and its algorithm of that name."""
    serves = [each for each, named in known.items() if algorithm in named]
    if collective is None and serves:
        fit = [each for each in serves if each in ROOTED] if rooted else serves
        collective = (fit or serves)[0]
    if collective is None:
        every = sorted({name for named in known.values() for name in named})
        advice = did_you_mean(algorithm, every, f"give one of {', '.join(every)}")
        raise UsageError(f"no algorithm is called {algorithm!r}; {advice}")
    if collective not in known:
        advice = did_you_mean(collective, known, f"give one of {', '.join(known)}")
        raise UsageError(f"no collective is called {collective!r}; {advice}")
    if collective not in serves:
        own = known[collective]
        advice = did_you_mean(algorithm, own, f"give one of {', '.join(own)}")
        raise UsageError(f"{collective} has no algorithm {algorithm!r}; {advice}")
    return collective, known[collective][algorithm]


def _within(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise UsageError(f"{name} is {value}; give a number from {least} to {most}")
    return value
