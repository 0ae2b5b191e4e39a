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

    def bytes_in(self, rank: int, size: int) -> int:
        """Return the bytes that a rank puts in."""
        if self.kind in ROOTED_IN and rank != self.root:
            return 0
        return self.count * self._width * (size if self.kind in MANY_IN else 1)

    def bytes_out(self, rank: int, size: int) -> int:
        """Return the bytes that a rank gets."""
        if self.kind in ROOTED_OUT and rank != self.root:
            return 0
        return self.count * self._width * (size if self.kind in MANY_OUT else 1)

    @property
    def _width(self) -> int:
        return DTYPES[self.datatype].itemsize


def outcome(terms: Terms, given: list[bytes]) -> list[bytes]:
    """Return what each rank gets."""
    size = len(given)
    kind, root = terms.kind, terms.root
    if kind in REDUCTIONS:
        parts = [np.frombuffer(data, DTYPES[terms.datatype]) for data in given]
        total = reduced(parts, terms.op).tobytes()
        if kind == "all_reduce":
            return [total] * size
        if kind == "reduce":
            return [total if rank == root else b"" for rank in range(size)]
        return _blocks(total, size)
    if kind == "broadcast":
        return [given[root]] * size
    if kind == "all_gather":
        return [b"".join(given)] * size
    if kind == "gather":
        return [b"".join(given) if rank == root else b"" for rank in range(size)]
    if kind == "scatter":
        return _blocks(given[root], size)
    cut = [_blocks(data, size) for data in given]  # all_to_all
    return [b"".join(cut[source][rank] for source in range(size)) for rank in range(size)]


def _blocks(data: bytes, size: int) -> list[bytes]:
    each = len(data) // size
    return [data[i * each : (i + 1) * each] for i in range(size)]
