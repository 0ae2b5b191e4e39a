"""The calls for which algorithms are proven."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np

from hpccomm.contracts.collectives import BLOCKWISE, REDUCTIONS, ROOTED
from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm, Build
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.proof import ProofCase, case, prove_all
from hpccomm.schedules.proof.case import Form
from hpccomm.schedules.schedule import Schedule, Tuning, whole, world
from hpccomm.topology import Topology, arrange


class Which(NamedTuple):
    """One of the builds that are registered."""

    collective: str
    name: str
    deterministic: bool = False
    form: Form = "build"

    def __str__(self) -> str:
        form = "" if self.form == "build" else f"-{self.form}"
        return f"{self.collective}-{self.name}{form}" + "-ordered" * self.deterministic

    @property
    def algorithm(self) -> Algorithm:
        return ALGORITHMS[self.collective][self.name]

    def case(self, ranks: int, **asked: Any) -> ProofCase:
        """Make a case; of a barrier without the count that the others have."""
        if self.collective == "barrier":
            asked.pop("count", None)
        asked.setdefault("room", self.room(ranks, asked.get("segment", whole)))
        how = {"deterministic": self.deterministic, "form": self.form}
        return case(self.collective, self.name, ranks, **how, **asked)

    def room(self, ranks: int, segment: int) -> int:
        """Return room for two slots: ample where arrays are not cut, else as little as will do."""
        return 1 << 21 if segment == whole else 2 * ranks * min(segment, 2) + segment % 2


def every() -> Iterator[Which]:
    """Each build that is registered, once: where one does both, it folds in rank order."""
    for collective, named in ALGORITHMS.items():
        seen: list[object] = []
        for deterministic in (True, False):
            for name, algorithm in named.items():
                build = algorithm.ordered if deterministic else algorithm.build
                if build is not None and build not in seen:
                    seen.append(build)
                    yield Which(collective, name, deterministic)
        for name, algorithm in named.items():
            if algorithm.direct is not None:
                yield Which(collective, name, form="direct")
            if algorithm.staged is not None:
                yield Which(
                    collective, name, algorithm.shared and collective in REDUCTIONS, "staged"
                )


EVERY = list(every())

SLICING = ("ring", "pairwise", "scatter_all_gather", "shm", "hierarchical")
"""These cut the array into a slice for each rank, and that into segments."""


def sizes_of(which: Which, n: int) -> list[tuple[Any, int]]:
    """Counts and segments that are proven on `n` ranks: counts of the array, or of blocks."""
    if which.collective == "barrier":
        return [(0, whole)]
    if which.collective not in BLOCKWISE:
        if which.name == "linear" and n > 16:  # n messages of n-fold memory, of all alike
            return [(5, 2), (0, 1), (2, whole)]
        if n <= 8:
            return list(product([n + 1, 0, 1, 2 * n + 3, n - 1, n, 5], [whole, 1, 3, n]))
        # Few pieces: many on many ranks take long. Those that slice cut the slices.
        slicing = which.deterministic or which.name in SLICING
        segment = 1 if slicing else n
        several = [(2 * n + 3, segment), (n + 1, segment), (3 * n, segment), (5, 2), (0, 3)]
        one = [(n - 1, whole), (n, whole), (n + 1, whole)] if slicing else [(5, whole), (2, whole)]
        return [*several, *one, (1, whole), (2 * n + 3, whole)]
    even = [(1, whole), (0, 1), (2, 1), (3, whole), (5, 2)]
    if which.algorithm.uniform:
        return even
    one, another = [(rank * rank + 2) % 4 for rank in range(n)], [n] + [0] * (n - 1)
    uneven: list[Any] = [one, another]
    if which.collective == "all_to_all":  # who sends more to whom differs for each pair
        uneven = [[[row[(i - j) % n] for j in range(n)] for i in range(n)] for row in uneven]
        # Each rank has a call of its own, and so a build.
        if n > 16 and n not in (31, 32, 33, 64):
            return even
    several = [(uneven[0], 1), (uneven[0], 2), (uneven[1], n // 3 + 1)]
    return [*even, *several, *((count, whole) for count in uneven)]


def topologies_of(which: Which, n: int) -> list[Topology | None]:
    """Return the nodes on which an algorithm is proved; None where it knows of none."""
    if which.name != "hierarchical":
        return [None]
    nodes = [
        [rank // 4 for rank in range(n)],
        [rank % 3 for rank in range(n)],  # ranks that share a node do not follow
        [0] * n,
        [rank * rank % 5 for rank in range(n)],
        range(n),
        [0] + [1] * (n - 1),
    ]
    return list({topology.node_of: topology for topology in map(arrange, nodes)}.values())


def calls(which: Which, n: int, *, everything: bool = True) -> Iterator[dict[str, Any]]:
    """Every root, or some; counts and segments in turn; channels, placements and being in place by chance.

    What is not `everything` has a few for each number of ranks. They are the same in every run.
    """
    roots: Sequence[int] = range(n) if which.collective in ROOTED else ()
    few = which.form == "staged"  # many steps, and roots differ in their number alone
    if few and n > 8:
        roots = roots[:: n // 4]
    elif not everything and n > 8:
        roots = roots[n // 3 :: n - 1 - n // 3]  # all are proven on fewer ranks
    chance = random.Random(f"{which} {n}")
    sizes, topologies = sizes_of(which, n), topologies_of(which, n)
    # Many elements, pieces, and calls that differ in being in place take long on many ranks.
    quick = [size for size in sizes if size[1] == whole and size[0] != 2 * n + 3]
    begin = chance.randrange(len(sizes))
    for root in roots or (0,):
        wanted = many(n, rooted=bool(roots)) if everything else few_of(n, rooted=bool(roots))
        for i in range(begin, begin + wanted):
            light = n > 16 and i % (17 if roots and (everything or few) else 3)
            count, segment = chance.choice(quick) if light else sizes[i % len(sizes)]
            yield {
                "count": count,
                "root": root,
                "segment": segment,
                "channels": 2 if light else chance.choice((2, 1, 3)),
                "in_place": not light and chance.random() < 0.5,
                "exclusive": not light and which.collective == "scan" and chance.random() < 0.5,
                "topology": chance.choice(topologies),
            }
        begin += wanted


def many(n: int, *, rooted: bool) -> int:
    """Return how many calls of one root, or of all ranks, a run of everything takes."""
    if n <= 3:
        return 24 if rooted else 96
    if n <= 8:
        return 3 if rooted else 12
    return 1 if rooted else 4


def few_of(n: int, *, rooted: bool) -> int:
    """Return how many of them any other run takes."""
    if n <= 3:
        return 4 if rooted else 9
    if rooted:
        return 1
    return 5 if n <= 8 else 2


def prove_sizes(which: Which, sizes: Sequence[int], *, everything: bool) -> None:
    """Prove all `calls`, about 2048 ranks at once."""
    every = (
        which.case(n, **asked) for n in sizes for asked in calls(which, n, everything=everything)
    )
    for first in every:
        prove_all([first, *islice(every, max(2048 // first.size, 8) - 1)])


def scheduled(build: Build, calls: Sequence[Signature], tuning: Tuning) -> Schedule:
    """Build the schedule of all ranks, whose calls may differ."""
    ranks = len(calls)
    if not calls[0].individual:
        return build(world(ranks), calls[0], tuning)
    alone = [world(ranks, np.array([rank])) for rank in range(ranks)]
    return merged([build(group, call, tuning) for group, call in zip(alone, calls, strict=True)])
