"""The calls for which algorithms are proven."""

from collections.abc import Iterator
from itertools import islice, product
from typing import Any, NamedTuple

from hpccomm.algorithms import ALGORITHMS, Algorithm
from hpccomm.contracts.schedule import whole
from hpccomm.testing.proof import ONE_COUNT, ROOTED, Case, case
from hpccomm.topology import Topology, arrange


class Which(NamedTuple):
    """One of the builds that are registered."""

    collective: str
    name: str
    deterministic: bool = False

    def __str__(self) -> str:
        return f"{self.collective}-{self.name}" + "-ordered" * self.deterministic

    @property
    def algorithm(self) -> Algorithm:
        return ALGORITHMS[self.collective][self.name]

    def case(self, ranks: int, **asked: Any) -> Case:
        return case(self.collective, self.name, ranks, deterministic=self.deterministic, **asked)


EVERY = [
    Which(collective, name, deterministic)
    for collective, named in ALGORITHMS.items()
    for name, algorithm in named.items()
    for deterministic in ((False, True) if algorithm.ordered else (False,))
]


def counts_of(which: Which, n: int) -> list[Any]:
    """The counts that are proven on `n` ranks: of the array, or of blocks."""
    if which.collective == "barrier":
        return [0]
    if which.collective in ONE_COUNT:
        return [n + 1, 0, 1, 2 * n + 3, n - 1, n, 5]
    even = [1, 0, 2, 3, 5]
    if which.algorithm.uniform:
        return even
    uneven: list[Any] = [[(rank * rank + 2) % 4 for rank in range(n)], [n] + [0] * (n - 1)]
    if which.collective == "all_to_all":  # who sends more to whom differs for each pair
        uneven = [[[row[(i - j) % n] for j in range(n)] for i in range(n)] for row in uneven]
        # Each rank has a call of its own, and so a build.
        uneven = uneven if n <= 16 or n in (31, 32, 33, 64) else []
    return even + uneven


def segments_of(n: int) -> list[int]:
    return [whole, 1, 3, n]


def topologies_of(which: Which, n: int) -> list[Topology | None]:
    if which.name != "hierarchical":
        return [None]
    return [
        arrange([rank // 4 for rank in range(n)]),
        arrange([rank % 3 for rank in range(n)]),  # ranks that share a node do not follow
        arrange([0] * n),
        arrange([rank * rank % 5 for rank in range(n)]),
        arrange(range(n)),
        arrange([0] + [1] * (n - 1)),
    ]


def cases(which: Which, n: int) -> Iterator[Case]:
    """Every root; on few ranks all combinations of the rest, on many these in turn."""
    roots = range(n) if which.collective in ROOTED else (0,)
    variants = list(
        product(
            counts_of(which, n),
            segments_of(n),
            (2, 1, 3),
            (False, True),
            (False, True) if which.collective == "scan" else (False,),
            topologies_of(which, n),
        )
    )
    for root in roots:
        if n <= 3:
            chosen = variants
        else:
            # A stride that shares no factor with the number of variants comes by all of them.
            wanted = 1 if which.collective in ROOTED else 8
            wanted = min(wanted * (1 if n > 16 else 3), len(variants))
            begin = 31 * n + 5 * root
            chosen = [variants[(begin + i) * 1009 % len(variants)] for i in range(wanted)]
        for count, segment, channels, in_place, exclusive, topology in chosen:
            yield which.case(
                n,
                count=count,
                root=root,
                segment=segment,
                channels=channels,
                in_place=in_place,
                exclusive=exclusive,
                topology=topology,
            )


def batches(every: Iterator[Case]) -> Iterator[list[Case]]:
    """Several cases at once: at most about as many as have 1024 ranks."""
    for first in every:
        yield [first, *islice(every, max(1024 // first.size, 8) - 1)]
