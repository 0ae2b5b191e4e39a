"""The suite's oracle: the inputs of each rank, and the result of each collective, computed by NumPy.

Every rank computes the inputs of all ranks from a seed, without communication, and from them the right result. The
values are chosen so that every partial result is exact in the dtype. So any order of reduction gives the same bits, and
cases require equality.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hpccomm import ReduceOp
from hpccomm.contracts.collectives import DESCRIPTIONS, Collective
from hpccomm.dtypes import NARROW, REDUCIBLE
from hpccomm.reductions import LOCATING, Op, PremulSum, meaningful
from hpccomm.testing.conformance.case import Array

OPS = tuple(op for op in ReduceOp if op not in LOCATING)
"""The reductions of plain dtypes."""

PAIRS = tuple((op, dtype) for op in OPS for dtype in REDUCIBLE if meaningful(op, dtype))
"""Pairs of an operation of `OPS` and a dtype for which it has a meaning."""

RECORD = np.dtype([("index", np.int32), ("point", np.float64, (2,)), ("flag", np.bool_)])
"""A structured dtype of odd size, with a sub-array."""

MOVABLE = (*REDUCIBLE, RECORD, np.dtype("S5"), np.dtype("U3"), np.dtype("datetime64[ns]"))
"""Dtypes that the calls without a reduction carry."""

SHAPES = ((), (1,), (7,), (0,), (3, 5), (2, 0, 3))
"""Shapes of arrays: 0-d, one element, an odd number, empty, two axes, and empty with three axes."""


def ranks_for(dtype: npt.DTypeLike, size: int) -> list[int]:
    """Return the roots or partners that a case tries: all ranks for float32, else the last rank alone.

    What a rank does in a call does not depend on the dtype, so one dtype shows it for all.
    """
    return list(range(size)) if np.dtype(dtype) == np.float32 else [size - 1]


def moved(size: int, shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int = 0) -> list[Array]:
    """Return each rank's contribution to a call that moves data.

    Parameters
    ----------
    size : int
        Number of ranks.
    shape : tuple of int
        The shape of each rank's array.
    dtype : dtype
        One of `MOVABLE`.
    seed : int
        Another seed gives other values.

    Returns
    -------
    list of ndarray
        Entry r is the array of rank r: random, writable, C-contiguous, without NaN.
    """
    randoms = [np.random.default_rng([seed, size, rank]) for rank in range(size)]
    return [_filled(np.empty(shape, dtype), random) for random in randoms]


def _filled(array: Array, random: np.random.Generator) -> Array:
    if array.dtype.names is not None:
        for name in array.dtype.names:
            _filled(array[name], random)
    else:
        numbers = random.integers(1, 120, array.shape)
        array[...] = numbers % 2 == 1 if array.dtype.kind == "b" else numbers
    return array


def reduced(
    op: ReduceOp, size: int, shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int = 0
) -> list[Array]:
    """Return each rank's contribution to a reduction with exact partial results.

    Parameters
    ----------
    op : ReduceOp
        SUM and AVG get small integers, PROD powers of two, the others any values. Integer dtypes
        get their full range, because wrapping is exact too. For AVG of floats, an element has the
        same sign on all ranks: a library may divide first, and rounded quotients of both signs do
        not cancel exactly.
    size : int
        Number of ranks.
    shape : tuple of int
        The shape of each rank's array.
    dtype : dtype
        A dtype with a meaning of `op`.
    seed : int
        Another seed gives other values.

    Returns
    -------
    list of ndarray
        Entry r is the array of rank r: writable, C-contiguous.
    """
    dtype = np.dtype(dtype)
    arrays = []
    for rank in range(size):
        random = np.random.default_rng([seed, size, rank, list(ReduceOp).index(op)])
        if op in LOCATING:
            arrays.append(_located(random, shape, dtype))
            continue
        if dtype.kind == "b":
            values: Any = random.integers(0, 2, shape)
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            values = random.integers(info.min, info.max, shape, dtype, endpoint=True)
        elif op is ReduceOp.PROD:
            # The product of six ranks' factors from 1/2 to 2 stays within the exponents of float8;
            # the other ranks change the sign only.
            exponent = random.integers(-1, 2, shape) if rank < 6 else np.zeros(shape)
            units = (1, 1j, -1, -1j) if dtype.kind == "c" else (1, -1)
            values = np.ldexp(1.0, exponent.astype(np.intp)) * random.choice(units, shape)
        elif op in (ReduceOp.MIN, ReduceOp.MAX):
            values = random.normal(size=shape)
        else:
            magnitude = _magnitude(dtype, size, rank)
            values = random.integers(-magnitude, magnitude + 1, shape)
            if dtype.kind == "c":
                values = values + 1j * random.integers(-magnitude, magnitude + 1, shape)
            if op is ReduceOp.AVG:
                sign = np.random.default_rng([seed, size]).choice((-1, 1), shape)
                values = sign * (abs(values.real) + 1j * abs(values.imag))
                values = values if dtype.kind == "c" else values.real
        arrays.append(np.ascontiguousarray(np.asarray(values).astype(dtype)).reshape(shape))
    return arrays


def _located(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of few different values, so that some are equal; some are NaN. Indices are in no order."""
    array = np.zeros(shape, dtype)
    values = random.integers(0, 4, shape).astype(np.float64)
    if dtype["value"].kind not in "biu":
        values = np.where(random.integers(0, 6, shape) == 0, np.nan, values - 2)
    array["value"] = values.astype(dtype["value"])
    array["index"] = random.integers(0, 100, shape)
    return array


def _best(op: ReduceOp, contributions: Sequence[Array]) -> Array:
    """Return, for each element, the pair that `numpy.argmin` or `numpy.argmax` finds in the order of the indices."""
    stacked = np.stack(contributions)
    order = np.argsort(stacked["index"], axis=0, kind="stable")
    by_index = np.take_along_axis(stacked, order, axis=0)
    values = by_index["value"]
    if values.dtype in NARROW:
        values = values.astype(np.float32)
    find = np.argmin if op is ReduceOp.MINLOC else np.argmax
    at = np.asarray(find(values, axis=0))
    return np.asarray(np.take_along_axis(by_index, at[np.newaxis], axis=0)[0])


def float_info(dtype: np.dtype[Any]) -> Any:
    """Return `numpy.finfo` of a float or complex dtype, the narrow ones included."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _magnitude(dtype: np.dtype[Any], size: int, rank: int) -> int:
    """Return the largest integer that a rank may contribute to an exact sum over `size` ranks."""
    exact = 2 ** (int(float_info(dtype).nmant) + 1)
    return min(100, exact // size) or int(rank < exact)


def reduction(op: ReduceOp, contributions: Sequence[Array]) -> Array:
    """Return the reduction of `contributions`, computed by NumPy.

    Parameters
    ----------
    op : ReduceOp
        The operation.
    contributions : sequence of ndarray
        In rank order, with one shape and dtype. They are folded in that order. Narrow floats are
        folded in float32, and the result is rounded once.

    Returns
    -------
    ndarray
        New, of the same shape and dtype.
    """
    if op in LOCATING:
        return _best(op, contributions)
    dtype = contributions[0].dtype
    wide = np.dtype(np.float32) if dtype in NARROW else dtype
    operands = [array.astype(wide) for array in contributions]
    with np.errstate(all="ignore"):
        total = np.asarray(reduce(_FOLD[op], operands)).astype(wide)
        if op is ReduceOp.AVG:
            total = _divided(total, len(operands))
        return np.asarray(total.astype(dtype))


_FOLD: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVG: np.add,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def _divided(total: Array, size: int) -> Array:
    if total.dtype.kind not in "iu":
        return np.asarray(total / total.dtype.type(size))
    # Python's integers: the division neither wraps, as a dtype may, nor rounds, as a float does.
    quotients = [abs(int(t)) // size * (-1 if t < 0 else 1) for t in total.flat]
    return np.array(quotients, dtype=total.dtype).reshape(total.shape)


def tolerance(op: Op, dtype: npt.DTypeLike, size: int) -> float:
    """Return the relative error that a reduction of `reduced` inputs may have.

    Parameters
    ----------
    op : ReduceOp, PremulSum or callable
        The operation.
    dtype : dtype
        The arrays' dtype.
    size : int
        Number of ranks.

    Returns
    -------
    float
        For AVG of floats: half a unit in the last place for the reciprocal of `size`, for the product with it, and for
        each sum, since a library may multiply each contribution by the reciprocal. Else 0.
    """
    dtype = np.dtype(dtype)
    if op is ReduceOp.AVG and dtype.kind not in "iu":
        return float(float_info(dtype).eps) * (size + 1) / 2
    return 0.0


def poison(expected: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Return an array that differs from `expected` in every element.

    Parameters
    ----------
    expected : ndarray
        The expected result.
    shape : tuple of int, optional
        Another shape of the same size.

    Returns
    -------
    ndarray
        Writable, C-contiguous, of `expected`'s dtype. Holds the inverted bytes; for bool, the opposite values.
    """
    if expected.dtype.kind == "b":
        inverted = ~expected
    elif expected.dtype.kind == "U":
        inverted = np.full(expected.shape, "?", expected.dtype)
    else:
        bits = np.frombuffer(expected.tobytes(), np.uint8)
        inverted = np.frombuffer(bytearray(~bits), expected.dtype)
    return np.ascontiguousarray(inverted).reshape(expected.shape if shape is None else shape)


WITH_DATA = tuple(name for name, what in DESCRIPTIONS.items() if what.moves)
"""The collectives that move data."""

FLOAT32 = np.dtype(np.float32)

NEW, OUT, FLAT, IN_PLACE = "new", "out", "flat", "in place"
"""Places of a rank's result: an array that the call chooses, an `out` of the result's shape, an `out` of one axis, or
the memory of the rank's contribution. A rank without a contribution whose result needs an `out` gives one."""

Graph = Callable[[int, int], Sequence[int | None]]
"""Returns the peers of a rank, from the rank (first argument) and the number of ranks (second)."""

Inputs = Callable[[int, int], list[Array]]
"""Returns the ranks' contributions, from the number of ranks (first argument) and the length of each (second)."""


def circle(rank: int, size: int) -> list[int]:
    """Return the previous and the next rank, which are the same on one or two ranks."""
    return [(rank - 1) % size, (rank + 1) % size]


@dataclass(frozen=True, slots=True)
class Spec:
    """A call that a case makes.

    Attributes
    ----------
    collective : str
        Its name without ``_v``.
    count : int or tuple of int or None
        Rows of the array, or of each block. A tuple holds a number for each rank, and makes the call the uneven one. If
        each rank chooses how many rows it sends in each block, the numbers are this tuple, rotated by an amount that
        depends on the rank (`RankView.sent`). None: the array is 0-d.
    dtype : dtype
        The dtype of all arrays.
    op : ReduceOp, PremulSum or callable
        The operation, if the collective reduces.
    root : int
        The root, if the collective has one.
    exclusive : bool
        Whether a scan leaves out the rank's own contribution.
    results : tuple of str
        Places of the results of rank 0, rank 1, and so on; repeated for further ranks.
    rest : tuple of int
        Shape of a row.
    graph : callable
        Returns the peers, for the collective that has peers.
    inputs : callable, optional
        Returns the contributions, which have one axis. Without it, they come from `reduced` and `moved`.
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
        """Whether blocks differ in their numbers of rows."""
        return isinstance(self.count, tuple)

    @property
    def call(self) -> str:
        """Name of the call."""
        suffix = "_v" if self.uneven and self.collective != "neighbor_all_to_all" else ""
        return self.collective + suffix


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's part in a call; another `seed` gives other values."""

    spec: Spec
    rank: int
    size: int
    seed: int = 0

    @property
    def what(self) -> Collective:
        """The description of the collective."""
        return DESCRIPTIONS[self.spec.collective]

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each rank's block."""
        count = self.spec.count
        return count if isinstance(count, tuple) else (1 if count is None else count,) * self.size

    def rows(self, rank: int) -> int:
        """Return the rows of a rank's contribution."""
        if self.what.sends == "blocks":
            return sum(self.sent(rank))
        return self.counts[rank if self.what.sends == "block" else 0]

    def all_given(self) -> list[Array]:
        """Return every rank's contribution."""
        spec, rows = self.spec, [self.rows(rank) for rank in range(self.size)]
        shape = () if spec.count is None else (max(rows), *spec.rest)
        op = spec.op if self.what.reduces else None
        arrays = _given(op, self.size, shape, spec.dtype, self.seed + spec.root, spec.inputs)
        return [a[:n] if a.ndim else a for a, n in zip(arrays, rows, strict=True)]

    def given(self) -> Array | None:
        """Return this rank's contribution, if any."""
        nothing = self.what.root_sends and self.rank != self.spec.root
        return None if nothing else self.all_given()[self.rank]

    def wanted(self) -> Array | None:
        """Return this rank's expected result, if any."""
        spec, what, arrays = self.spec, self.what, self.all_given()
        if what.root_receives and self.rank != spec.root:
            return None
        if what.individual:
            return np.concatenate([arrays[self.rank][:0], *self.arriving()])
        if what.sends == "block":
            return (np.concatenate if spec.uneven else np.stack)(arrays)
        if what.prefix and spec.exclusive and self.rank == 0:
            # There is no contribution before rank 0. The cases sum or multiply.
            return np.full_like(arrays[0], int(spec.op is ReduceOp.PROD))
        if what.prefix:
            arrays = arrays[: self.rank + (not spec.exclusive)]
        whole = folded(spec.op, arrays) if what.reduces else arrays[spec.root]
        return cut(whole, self.counts)[self.rank] if what.receives == "block" else whole

    def own(self) -> slice:
        """Return the slice of this rank's block in the elements of all blocks."""
        width, before = int(np.prod(self.spec.rest)), sum(self.counts[: self.rank])
        return slice(before * width, (before + self.counts[self.rank]) * width)

    def peers(self, rank: int) -> Sequence[int | None]:
        """Return, for each block of `rank`, the rank with which it is exchanged."""
        return self.spec.graph(rank, self.size) if self.what.peers else range(self.size)

    def sent(self, rank: int) -> tuple[int, ...]:
        """Return the rows that a rank sends in each block."""
        # In place, as many rows are sent as are received, so the table is symmetric. Else it is not.
        turn = (1 if IN_PLACE in self.spec.results else 2) if self.what.individual else 0
        blocks = range(len(self.peers(rank)))
        return tuple(self.counts[(turn * rank + block) % self.size] for block in blocks)

    def blocks(self, rank: int) -> list[Array]:
        """Return the blocks that a rank sends."""
        return cut(self.all_given()[rank], self.sent(rank))

    def arriving(self) -> list[Array]:
        """Return the block from each peer; without a peer, this rank's own block."""
        blocks, seen = [], dict[int, int]()
        for number, peer in enumerate(self.peers(self.rank)):
            if peer is None:
                blocks.append(self.blocks(self.rank)[number])
                continue
            # A rank's k-th mention of a peer matches the peer's k-th mention of the rank.
            theirs = [at for at, other in enumerate(self.peers(peer)) if other == self.rank]
            blocks.append(self.blocks(peer)[theirs[seen.get(peer, 0)]])
            seen[peer] = seen.get(peer, 0) + 1
        return blocks

    def from_nobody(self) -> Array:
        """Return which rows of an exchange's result have no sender, as a mask."""
        blocks = zip(self.peers(self.rank), self.arriving(), strict=True)
        return np.array([peer is None for peer, block in blocks for _ in block], np.bool_)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the call, without its arrays."""
        spec, what = self.spec, self.what
        arguments: dict[str, Any] = {}
        if what.reduces:
            arguments["op"] = spec.op
        if what.rooted:
            arguments["root"] = spec.root
        if what.prefix:
            arguments["exclusive"] = spec.exclusive
        if what.peers:
            arguments["peers"] = self.peers(self.rank)
        if spec.uneven and what.individual:
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
    # Cached: ranks that are threads all ask for the same arrays, which callers only read.
    if inputs is not None:
        return inputs(size, shape[0])
    if op is None:
        return moved(size, shape, dtype, seed)
    arrays = reduced(op if isinstance(op, ReduceOp) else ReduceOp.SUM, size, shape, dtype, seed)
    # Nothing is known about a function: small numbers that are not negative are easiest for it.
    exact = isinstance(op, ReduceOp | PremulSum)
    return arrays if exact else [np.asarray(array % 251).astype(dtype) for array in arrays]


def folded(op: Op, arrays: Sequence[Array]) -> Array:
    """Return the fold of the arrays, at least one, by `op` in their order."""
    if isinstance(op, ReduceOp):
        return reduction(op, arrays)
    if isinstance(op, PremulSum):
        factor = arrays[0].dtype.type(op.factor)
        return reduction(ReduceOp.SUM, [(array * factor).astype(array.dtype) for array in arrays])
    return np.asarray(reduce(op, arrays))


def cut(array: Array, counts: Sequence[int]) -> list[Array]:
    """Return the blocks of `array`; block i has ``counts[i]`` rows."""
    return np.split(array, np.cumsum(counts)[:-1]) if counts else []
