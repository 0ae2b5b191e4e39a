"""The subject of a picture: an algorithm that carries out an example call.

`hpccomm.cli.plot` makes it; `layout`, `schedule` and `text` show it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hpccomm.contracts.collectives import DESCRIPTIONS, ROOTED, ring
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.schedules.algorithms import KNOWN, Algorithm
from hpccomm.schedules.algorithms.partition import even
from hpccomm.schedules.draw.trace import MOST_RANKS, DrawnStep, follow
from hpccomm.schedules.proof.case import case
from hpccomm.schedules.schedule import whole
from hpccomm.topology import Topology, arrange
from hpccomm.units import counted

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
        Number of ranks, at most `hpccomm.schedules.draw.trace.MOST_RANKS`.
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
    what = DESCRIPTIONS[collective]
    blocks = len(ring(0, size)) if what.peers else size if what.blockwise else 1
    fits = blocks if what.peers else size
    elements = _within("count", fits if count is None else count, 0, MOST_ELEMENTS)
    if count is not None and what.sends == "nothing":
        raise UsageError(f"{collective} moves no elements; leave count out")
    if root is not None and not what.rooted:
        raise UsageError(f"{collective} has no root; leave it out")
    if what.rooted:
        root = _within("root", 0 if root is None else root, 0, size - 1)
    if deterministic and chosen.ordered is None:
        raise UsageError(
            f"{algorithm} {collective} has no form that folds in rank order; leave deterministic out"
        )
    if chosen.shared and nodes > 1:
        raise UsageError(
            f"{algorithm} takes ranks that share memory, and {nodes} nodes do not; give 1 node"
        )
    counts = (0,) if what.sends == "nothing" else even(elements, blocks)
    uniform = len(set(counts)) <= 1
    if not uniform and (chosen.uniform or what.individual):
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
        root=0 if root is None else root,
        segment=whole if segment is None else _within("segment", segment, 1, whole),
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
        fits = f"at least {least}" if most == whole else f"from {least} to {most}"
        raise UsageError(f"{name} is {value}; give a number {fits}")
    return value
