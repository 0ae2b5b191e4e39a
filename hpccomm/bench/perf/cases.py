"""What the lines of a table measure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpccomm import dtypes
from hpccomm.bench.perf.collectives import Benchmark
from hpccomm.bench.perf.layouts import Layout, Member
from hpccomm.bench.perf.names import NO_OP, NO_TYPE, OPS, TYPES
from hpccomm.bench.perf.options import Options, Pair
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.dtypes import DType
from hpccomm.reductions import Op


@dataclass(frozen=True, slots=True)
class PerfCase:
    """What one line measures.

    Attributes
    ----------
    collective : Benchmark
        The collective.
    type_name, op_name : str
        Type and reduction, as they are printed.
    root : int
        The root, or -1.
    size : int
        Bytes.
    """

    collective: Benchmark
    type_name: str
    op_name: str
    root: int
    size: int

    @property
    def dtype(self) -> DType:
        """The type; bool for a barrier, which has none."""
        return TYPES.get(self.type_name, dtypes.BOOL)

    @property
    def op(self) -> Op | None:
        """The reduction; None where nothing is reduced."""
        return OPS[self.op_name] if self.collective.reduces else None

    def arrange(self, rank: int, ranks: int) -> Layout:
        """Return the layout of the case on one rank."""
        member = Member(rank, ranks, self.root)
        return self.collective.arrange(self.size, self.dtype.itemsize, member)

    def __str__(self) -> str:
        words = [self.collective.name, self.type_name if self.collective.moves else ""]
        words += [self.op_name if self.collective.reduces else ""]
        words += [f"root {self.root}" if self.root >= 0 else ""]
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class SweepSegment:
    """The lines of a table that differ only in size.

    Attributes
    ----------
    empty : PerfCase
        The case of size 0.
    sizes : Sizes
        Sizes of the lines.
    """

    empty: PerfCase
    sizes: Sizes

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self.sizes.number(self.empty.dtype.itemsize)

    def cases(self) -> Iterator[PerfCase]:
        """Yield the case of each line."""
        for size in self.sizes.measured(self.empty.dtype.itemsize):
            yield replace(self.empty, size=size)

    def warmups(self) -> Iterator[PerfCase]:
        """Yield the cases to warm up with."""
        for size in self.sizes.warmups(self.empty.dtype.itemsize):
            yield replace(self.empty, size=size)


def segments(
    collective: Benchmark, options: Options, pairs: Sequence[Pair], ranks: int
) -> Iterator[SweepSegment]:
    """Yield the lines of a table, type by type, reduction by reduction, root by root.

    Parameters
    ----------
    collective : Benchmark
        The collective.
    options : Options
        Sizes and roots.
    pairs : sequence of Pair
        Types and reductions.
    ranks : int
        Number of ranks.
    """
    if not collective.moves:
        yield SweepSegment(PerfCase(collective, NO_TYPE, NO_OP, -1, 0), Sizes(0, 0, 2, 0))
        return
    for type_name, op_name in pairs:
        for root in options.roots(collective, ranks):
            yield SweepSegment(PerfCase(collective, type_name, op_name, root, 0), options.sizes)
