"""What a collective gives each rank, from what all of them put in."""

from dataclasses import dataclass

import numpy as np

from standin.nccl.reductions import DTYPES, reduced

ROOTED_IN = frozenset({"broadcast", "scatter"})
"""Only the root puts something in."""
ROOTED_OUT = frozenset({"reduce", "gather"})
"""Only the root gets something."""
REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
MANY_IN = frozenset({"reduce_scatter", "all_to_all", "scatter"})
"""A rank that puts something in has `size` times the count."""
MANY_OUT = frozenset({"all_gather", "all_to_all", "gather"})


@dataclass(frozen=True)
class Terms:
    """What has to be the same on every rank: of the reduction, what it does and not its number."""

    kind: str
    count: int
    datatype: int
    op: int = 0
    root: int = 0

    def sizes(self, rank: int, size: int) -> list[int]:
        """Return the bytes that a rank puts in, and those that it gets."""
        nbytes = self.count * DTYPES[self.datatype].itemsize
        return [
            (rank == self.root or self.kind not in rooted)
            * nbytes
            * (size if self.kind in many else 1)
            for rooted, many in ((ROOTED_IN, MANY_IN), (ROOTED_OUT, MANY_OUT))
        ]


def outcome(terms: Terms, given: list[bytes]) -> list[bytes]:
    """Return what each rank gets."""
    size, kind, root = len(given), terms.kind, terms.root
    if kind == "all_to_all":
        return [b"".join(each) for each in zip(*(_blocks(x, size) for x in given), strict=True)]
    if kind in REDUCTIONS:
        parts = [np.frombuffer(data, DTYPES[terms.datatype]) for data in given]
        whole = reduced(parts, terms.op).tobytes()
    else:
        whole = given[root] if kind in ROOTED_IN else b"".join(given)
    every = _blocks(whole, size) if kind in MANY_IN else [whole] * size
    return [x if kind not in ROOTED_OUT or rank == root else b"" for rank, x in enumerate(every)]


def _blocks(data: bytes, size: int) -> list[bytes]:
    each = len(data) // size
    return [data[i * each : (i + 1) * each] for i in range(size)]
