"""The suite's own oracle: the result of each collective, computed by NumPy.

Cases compare with it, through `trials`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from hpccomm import ReduceOp
from hpccomm.reductions import Op, PremulSum
from hpccomm.testing.conformance.case import Array
from hpccomm.testing.conformance.inputs import moved, reduced, reduction

FLOAT32 = np.dtype(np.float32)

NEW, OUT, FLAT, IN_PLACE = "new", "out", "flat", "in place"
"""Where a rank has its result: where the call puts it, in an `out` of the result's shape or of one axis, or
where its contribution lies. A rank that has no contribution, and needs an `out`, has one."""

Graph = Callable[[int, int], Sequence[int | None]]
"""Returns the peers of a rank (first argument) among a number of ranks (second)."""

Inputs = Callable[[int, int], list[Array]]
"""Returns the contributions of a number of ranks (first argument), of a length (second)."""


def everyone(_rank: int, size: int) -> list[int]:
    """Return all ranks."""
    return list(range(size))


def circle(rank: int, size: int) -> list[int]:
    """Return the ranks beside it; on one or two ranks one of them twice."""
    return [(rank - 1) % size, (rank + 1) % size]


@dataclass(frozen=True, slots=True)
class Spec:
    """A call that a case makes.

    Attributes
    ----------
    collective : str
        Without ``_v``.
    count : int or tuple of int or None
        Rows of the array, or of each block; a tuple, one number a rank, makes it the uneven call. What
        ranks send in each block where they have numbers of their own is these, turned round by rank.
        None: the array is 0-d.
    dtype : dtype
        Of all arrays.
    op : ReduceOp, PremulSum or callable
        Where the collective reduces.
    root : int
        Where it has one.
    exclusive : bool
        Of a scan.
    results : tuple of str
        Where rank 0 has its result, rank 1, and so on, then from the beginning.
    rest : tuple of int
        Shape of a row.
    graph : callable
        Gives the peers, where the collective has such.
    inputs : callable, optional
        Gives the contributions, of one axis; else they come from `reduced` and `moved`.
    """

    collective: str
    count: int | tuple[int, ...] | None
    dtype: np.dtype[Any] = FLOAT32
    op: Op = ReduceOp.SUM
    root: int = 0
    exclusive: bool = False
    results: tuple[str, ...] = (OUT,)
    rest: tuple[int, ...] = ()
    graph: Graph = circle
    inputs: Inputs | None = None

    @property
    def uneven(self) -> bool:
        """Whether blocks have counts."""
        return isinstance(self.count, tuple)

    @property
    def call(self) -> str:
        """Name of the call."""
        suffix = "_v" if self.uneven and self.collective != "neighbor_all_to_all" else ""
        return self.collective + suffix


@dataclass(frozen=True, slots=True)
class Semantics:
    """The semantics of a collective.

    Attributes
    ----------
    rows : callable
        ``rows(part, rank)``: rows of a rank's contribution.
    result : callable
        Returns the result of a `RankView`'s rank.
    reduces : bool
        It folds the contributions.
    root_gives, root_gets : bool
        Whether only the root gives, or gets.
    takes_out : bool
        A result may go to an array other than x.
    makes : bool
        Without an `out` the result is a new array instead of x.
    """

    rows: Callable[["RankView", int], int]
    result: Callable[["RankView"], Array]
    reduces: bool = False
    root_gives: bool = False
    root_gets: bool = False
    takes_out: bool = True
    makes: bool = True


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's part in a call; another `seed` gives other values."""

    spec: Spec
    rank: int
    size: int
    seed: int = 0

    @property
    def meaning(self) -> Semantics:
        """The collective's semantics."""
        return SEMANTICS[self.spec.collective]

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each rank's block."""
        count = self.spec.count
        return count if isinstance(count, tuple) else (1 if count is None else count,) * self.size

    def all_given(self) -> list[Array]:
        """Return every rank's contribution."""
        spec, rows = self.spec, [self.meaning.rows(self, rank) for rank in range(self.size)]
        shape = () if spec.count is None else (max(rows), *spec.rest)
        op = spec.op if self.meaning.reduces else None
        arrays = _given(op, self.size, shape, spec.dtype, self.seed + spec.root, spec.inputs)
        return [a[:n] if a.ndim else a for a, n in zip(arrays, rows, strict=True)]

    def given(self) -> Array | None:
        """Return this rank's contribution, if any."""
        nothing = self.meaning.root_gives and self.rank != self.spec.root
        return None if nothing else self.all_given()[self.rank]

    def wanted(self) -> Array | None:
        """Return this rank's expected result, if any."""
        nothing = self.meaning.root_gets and self.rank != self.spec.root
        return None if nothing else self.meaning.result(self)

    def own(self) -> slice:
        """Return where this rank's block is among the elements of all blocks."""
        width, before = int(np.prod(self.spec.rest)), sum(self.counts[: self.rank])
        return slice(before * width, (before + self.counts[self.rank]) * width)

    def peers(self, rank: int) -> Sequence[int | None]:
        """Return the rank with which a rank exchanges each of its blocks."""
        graph = self.spec.graph if self.spec.collective == "neighbor_all_to_all" else everyone
        return graph(rank, self.size)

    def sent(self, rank: int) -> tuple[int, ...]:
        """Return how many rows a rank sends in each block."""
        # In place, sent and received rows are equal: the table is symmetric. Else it is not.
        turn = 1 if IN_PLACE in self.spec.results else 2
        counts = self.counts
        return tuple(
            counts[(turn * rank + block) % self.size] for block in range(len(self.peers(rank)))
        )

    def blocks(self, rank: int) -> list[Array]:
        """Return the blocks that a rank sends."""
        return cut(self.all_given()[rank], self.sent(rank))

    def arriving(self) -> list[Array]:
        """Return the block from each peer; without a peer, the own block."""
        blocks, seen = [], dict[int, int]()
        for number, peer in enumerate(self.peers(self.rank)):
            if peer is None:
                blocks.append(self.blocks(self.rank)[number])
                continue
            # The k-th time that a rank lists a peer belongs to the k-th time that the peer lists it.
            theirs = [at for at, other in enumerate(self.peers(peer)) if other == self.rank]
            blocks.append(self.blocks(peer)[theirs[seen.get(peer, 0)]])
            seen[peer] = seen.get(peer, 0) + 1
        return blocks

    def from_nobody(self) -> Array:
        """Return the rows of an exchange without a sender."""
        blocks = zip(self.peers(self.rank), self.arriving(), strict=True)
        return np.array([peer is None for peer, block in blocks for _ in block], np.bool_)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the call, without its arrays."""
        spec, meaning = self.spec, self.meaning
        arguments: dict[str, Any] = {}
        if meaning.reduces:
            arguments["op"] = spec.op
        if meaning.root_gives or meaning.root_gets:
            arguments["root"] = spec.root
        if spec.collective == "scan":
            arguments["exclusive"] = spec.exclusive
        if spec.collective == "neighbor_all_to_all":
            arguments["peers"] = self.peers(self.rank)
        if meaning.result is exchanged:
            if spec.uneven:
                arguments["send_counts"] = self.sent(self.rank)
                arguments["recv_counts"] = [len(block) for block in self.arriving()]
        elif spec.uneven:
            arguments["counts"] = spec.count
        return arguments


@lru_cache(maxsize=32)
def _given(
    op: Op | None,
    size: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    seed: int,
    inputs: Inputs | None,
) -> list[Array]:
    # Ranks that are threads all ask for the same arrays, which are read-only.
    if inputs is not None:
        return inputs(size, shape[0])
    if op is None:
        return moved(size, shape, dtype, seed)
    arrays = reduced(op if isinstance(op, ReduceOp) else ReduceOp.SUM, size, shape, dtype, seed)
    # Of a function nothing is known: small numbers of no sign are its easiest.
    exact = isinstance(op, ReduceOp | PremulSum)
    return arrays if exact else [np.asarray(array % 251).astype(dtype) for array in arrays]


def folded(op: Op, arrays: Sequence[Array]) -> Array:
    """Return the result of `op` on at least one array, folded in this order."""
    if isinstance(op, ReduceOp):
        return reduction(op, arrays)
    if isinstance(op, PremulSum):
        factor = arrays[0].dtype.type(op.factor)
        return reduction(ReduceOp.SUM, [(array * factor).astype(array.dtype) for array in arrays])
    return np.asarray(reduce(op, arrays))


def cut(array: Array, counts: Sequence[int]) -> list[Array]:
    """Return the blocks of `array`, of `counts` rows each."""
    return np.split(array, np.cumsum(counts)[:-1]) if counts else []


def total(part: RankView) -> Array:
    """Return the fold of all contributions."""
    return folded(part.spec.op, part.all_given())


def prefix(part: RankView) -> Array:
    """Return the fold of those up to this rank's."""
    arrays = part.all_given()
    before = arrays[: part.rank if part.spec.exclusive else part.rank + 1]
    # Nothing comes before rank 0: cases sum or multiply there.
    neutral = int(part.spec.op is ReduceOp.PROD)
    return folded(part.spec.op, before) if before else np.full_like(arrays[0], neutral)


def of_the_root(part: RankView) -> Array:
    """Return the root's contribution."""
    return part.all_given()[part.spec.root]


def joined(part: RankView) -> Array:
    """Return all contributions one after the other."""
    return (np.concatenate if part.spec.uneven else np.stack)(part.all_given())


def own_block(of: Callable[[RankView], Array]) -> Callable[[RankView], Array]:
    """Return a function for this rank's block of the result of `of`."""
    return lambda part: cut(of(part), part.counts)[part.rank]


def exchanged(part: RankView) -> Array:
    """Return the blocks that come from the peers."""
    return np.concatenate([part.all_given()[part.rank][:0], *part.arriving()])


def one(part: RankView, _rank: int) -> int:
    """Return the rows of an array that is not cut."""
    return part.counts[0]


def block(part: RankView, rank: int) -> int:
    """Return the rows of a rank's block."""
    return part.counts[rank]


def all_blocks(part: RankView, _rank: int) -> int:
    """Return the rows of all blocks."""
    return sum(part.counts)


def sent(part: RankView, rank: int) -> int:
    """Return the rows of a rank's blocks for its peers."""
    return sum(part.sent(rank))


SEMANTICS = {
    "broadcast": Semantics(one, of_the_root, root_gives=True, takes_out=False, makes=False),
    "reduce": Semantics(one, total, reduces=True, root_gets=True, makes=False),
    "all_reduce": Semantics(one, total, reduces=True, makes=False),
    "scan": Semantics(one, prefix, reduces=True),
    "gather": Semantics(block, joined, root_gets=True),
    "all_gather": Semantics(block, joined),
    "scatter": Semantics(all_blocks, own_block(of_the_root), root_gives=True),
    "reduce_scatter": Semantics(all_blocks, own_block(total), reduces=True),
    "all_to_all": Semantics(sent, exchanged),
    "neighbor_all_to_all": Semantics(sent, exchanged),
}
