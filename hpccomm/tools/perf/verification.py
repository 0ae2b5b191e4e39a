"""Fills arrays with data of known outcome, and compares the outcome. For `measure`.

It works in blocks that fit the cache, so that the check of an array needs no second array.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.reductions import Op, ReduceOp
from hpccomm.tools.perf import patterns
from hpccomm.tools.perf.patterns import ElementRange

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RankSlice:
    """Consecutive elements of an array.

    Attributes
    ----------
    source : int
        The rank whose data it is, or `patterns.REDUCED`.
    start : int
        Index of its first element in that rank's input, or in the reduction of all inputs.
    count : int
        Elements.
    """

    source: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class CheckedData:
    """The contents of all ranks' arrays in one checked operation.

    Attributes
    ----------
    dtype : dtype
        Of the elements.
    op : ReduceOp, PremulSum or None
        The reduction; None without a reduction.
    ranks : int
        Number of ranks.
    seed : int
        Another seed gives other data.
    multiplied : bool
        Whether averages of floats are sums of contributions multiplied by 1 / ranks, as NCCL's are:
        each contribution is rounded then, so that no data give exact results.
    """

    dtype: DType
    op: Op | None
    ranks: int
    seed: int
    multiplied: bool = False

    @property
    def inexact(self) -> bool:
        """Whether results may differ in roundings. Multiplying by a power of two rounds nothing."""
        inexact_dtype = dtypes.is_float(self.dtype) or dtypes.is_complex(self.dtype)
        rounds = self.multiplied and self.ranks & (self.ranks - 1) != 0
        return rounds and self.op is ReduceOp.AVG and inexact_dtype


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The difference of an array from its expected contents.

    Attributes
    ----------
    wrong : int
        Elements that differ.
    index : int
        The first of them.
    expected, got : str
        Its value and, in hexadecimal, its bytes from the most significant to the least.
    repetition : int or None
        The timed operation that wrote it, from 0; None for an untimed one.
    """

    wrong: int
    index: int
    expected: str
    got: str
    repetition: int | None = None


Put = Callable[[Array, int, Array], None]
"""``put(array, at, block)`` writes a block of NumPy into an array, from an index on."""

Read = Callable[[Array, int, int], Array]
"""``read(array, at, count)`` returns elements of an array as an array of NumPy."""


def put_block(array: Array, at: int, block: Array) -> None:
    """Write a block of NumPy into an array of NumPy, from index `at` on."""
    array[at : at + block.size] = block


def read_block(array: Array, at: int, count: int) -> Array:
    """Return `count` elements of an array of NumPy from index `at` on."""
    return array[at : at + count]


def fill(
    array: Array, data: CheckedData, segments: Sequence[RankSlice], put: Put = put_block
) -> None:
    """Write `segments` of the data into `array`, one behind the other.

    Parameters
    ----------
    array : array, 1-D of data.dtype
        As long as the segments are together.
    data : CheckedData
        What the ranks hold.
    segments : sequence of RankSlice
        Which parts of it.
    put : callable, optional
        Writes a block into an array that is not NumPy's.
    """
    for at, block in blocks(data, segments):
        put(array, at, block)


def poison(
    array: Array, data: CheckedData, segments: Sequence[RankSlice], put: Put = put_block
) -> None:
    """Write into `array` what differs from `segments` in every byte (for bool: in every element)."""
    for at, block in blocks(data, segments):
        if block.dtype == dtypes.BOOL:
            put(array, at, np.logical_not(block))
        else:
            put(array, at, np.invert(block.view(np.uint8)).view(block.dtype))


def compare(
    array: Array, data: CheckedData, segments: Sequence[RankSlice], read: Read = read_block
) -> Mismatch | None:
    """Compare `array` with the data of `fill`. None if they are equal."""
    wrong = 0
    first = None
    for at, block in blocks(data, segments):
        got = read(array, at, block.size)
        if data.inexact:
            differs = _differs_by_more_than_roundings(got, block, data.ranks)
        else:
            differs = _differs(got, block, reduced=data.op is not None)
        count = int(np.count_nonzero(differs))
        if count and first is None:
            here = int(np.argmax(differs))
            first = (at + here, _spelled(block[here]), _spelled(got[here]))
        wrong += count
    return None if first is None else Mismatch(wrong, *first)


def blocks(data: CheckedData, segments: Sequence[RankSlice]) -> Iterator[tuple[int, Array]]:
    """Make the segments in blocks; yields where each block lies in the array, and the block."""
    at = 0
    for segment in segments:
        stop = segment.start + segment.count
        for start in range(segment.start, stop, patterns.BLOCK):
            count = min(patterns.BLOCK, stop - start)
            yield at, _block(data, segment.source, start, count)
            at += count


def _block(data: CheckedData, source: int, start: int, count: int) -> Array:
    if data.op is None:
        return patterns.moved(data.seed, source, start, count, data.dtype)
    span = ElementRange(data.seed, data.ranks, start, count)
    return patterns.scheme(data.op, data.dtype)(span, source, data.dtype)


def _differs(got: Array, expected: Array, *, reduced: bool) -> NDArray[np.bool_]:
    if reduced and dtypes.is_complex(expected.dtype):
        # The sign of a zero in a complex product depends on the order of the factors.
        differs: NDArray[np.bool_] = got != expected
        return differs
    width = min(expected.itemsize, 8)
    parts: NDArray[np.bool_] = got.view(f"u{width}") != expected.view(f"u{width}")
    if expected.itemsize == width:
        return parts
    return np.logical_or(parts[::2], parts[1::2])


def _differs_by_more_than_roundings(got: Array, expected: Array, ranks: int) -> NDArray[np.bool_]:
    """Compare sums of contributions times 1 / ranks with exact averages.

    The factor, each product and each sum is rounded: relative errors of ``ranks + 2`` unit roundoffs
    together, contributions being of one sign; below the normal numbers absolute ones.
    """
    real = expected.real.dtype
    kind = ml_dtypes.finfo(real)  # type: ignore[no-untyped-call]
    unit, least = float(kind.eps) / 2, float(kind.smallest_subnormal) / 2
    is_, should = (each.view(real).astype(np.float64) for each in (got, expected))
    size = np.abs(should)
    allowed = (ranks + 2) * unit * size + least * ranks * (1 + size)
    far: NDArray[np.bool_] = ~(np.abs(is_ - should) <= allowed)  # NaN counts as far
    return far if far.size == got.size else np.logical_or(far[::2], far[1::2])


def _spelled(element: Any) -> str:
    pattern = np.asarray(element).tobytes()
    if sys.byteorder == "little":
        pattern = pattern[::-1]
    return f"{element} (0x{pattern.hex()})"
