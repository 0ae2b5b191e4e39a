"""Test data whose reduction is known without reducing them.

Every element is drawn by a hash of (seed, stream, index), so any rank can write any other rank's
data, from any index, without communication. For reductions the value of the result is drawn first
and then shared out over the ranks. Every partial result, in any order, is exactly representable in
the dtype: any correct algorithm gives the same bits, and the expected element costs the same on two
ranks as on two thousand.

The way of sharing out a result depends on the reduction:

========================================== ========================================================
integers under SUM, PROD, BXOR             a group: ``share(r) = g(r+1) - g(r)`` with
                                           ``g(0)`` neutral and ``g(ranks)`` the result
MAX, BOR, SUM of bool                      one rank owns the result, the others have some of its
                                           bits (fewer bits are never more)
MIN, BAND, PROD of bool                    one rank owns the result, the others have more bits
floats under SUM, AVG, mulsum;             an integer of the dtype's precision, cut into shares of
integers under AVG                         one sign: no partial sum exceeds the result
floats under PROD                          powers of two, exponents cut into shares too; one
                                           rank owns the mantissa; signs (complex: quarter turns)
                                           form a group
========================================== ========================================================

The idea is that of NCCL's verifiable reductions, with other formulas.

`fill` fills arrays with the data, and `compare` compares results with them. Both work in blocks that fit the cache, so
that the check of an array needs no second array. `sweep` and `arrays` use them.

`TYPES` and `OPS` have the names of types and reductions in flags, tables, logs and tuning. They are those of
nccl-tests; where it has none, NumPy's or hpccomm's own.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.reductions import Op, ReduceOp, premul_sum

PREMUL_FACTOR = 2
"""Factor of the reduction ``mulsum``: exact in every dtype, and never lost in a rounding."""


def _of_numpy(*names: str) -> dict[str, DType]:
    return {name: np.dtype(name) for name in names}


TYPES: dict[str, DType] = {
    **_of_numpy("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    "half": np.dtype(np.float16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bfloat16": dtypes.BFLOAT16,
    "f8e4m3": dtypes.FLOAT8_E4M3FN,
    "f8e5m2": dtypes.FLOAT8_E5M2,
    # nccl-tests ends here; the rest goes by NumPy's names.
    **_of_numpy("bool", "int16", "uint16", "complex64", "complex128"),
}
"""Element types in the order of ``-d all``, by the name that is printed."""

_OF_NCCL = ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG

OPS: dict[str, Op] = {
    **{op.value: op for op in _OF_NCCL},
    "mulsum": premul_sum(PREMUL_FACTOR),
    # nccl-tests ends here, since NCCL has no bitwise reductions.
    **{op.value: op for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)},
}
"""Reductions in the order of ``-o all``, by the name that is printed."""

AUTO, HOST, DEVICE = "auto", "host", "device"
"""Memory of the arrays, as ``--arrays`` names it."""

NCCL = "nccl"
"""Name of the backend that is made for device arrays."""

NO_OP = "none"
"""The printed reduction of a collective that reduces nothing."""

NO_TYPE = "none"
"""The printed type of a collective that moves nothing: the barrier."""


Array = NDArray[Any]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def words(seed: int, stream: int, start: int, count: int, width: int) -> Array:
    """Draw unsigned integers of `width` bytes: elements `start` to ``start + count`` of a stream.

    The generator is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, 2014), which is a hash of the position and needs no state. Narrower integers are the
    parts of its 64-bit words.

    Returns
    -------
    ndarray, shape (count,)
    """
    per_word = 8 // width
    first = start // per_word
    last = -(-(start + count) // per_word)
    z = np.arange(first, last, dtype=np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(_key(seed, stream))
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MULTIPLIERS[0])
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MULTIPLIERS[1])
    z ^= z >> np.uint64(31)
    skipped = start - first * per_word
    parts: Array = z.view(f"u{width}")
    return parts[skipped : skipped + count]


@functools.lru_cache(maxsize=4096)
def _key(seed: int, stream: int) -> int:
    key = (seed * _GOLDEN + stream + 1) & _MASK
    for _ in range(2):
        key = ((key ^ key >> 32) * _MULTIPLIERS[1]) & _MASK
    return key ^ key >> 29


@dataclass(frozen=True, slots=True)
class ElementRange:
    """Elements `start` to ``start + count`` of the data of `ranks` ranks that are drawn from `seed`."""

    seed: int
    ranks: int
    start: int
    count: int

    def bits(self, stream: int, width: int) -> Array:
        """Draw one unsigned integer of `width` bytes for each element."""
        return words(self.seed, stream, self.start, self.count, width)

    def fraction(self, stream: int, width: int, real: DType) -> Array:
        """Draw one number in [0, 1] for each element."""
        numbers: Array = self.bits(stream, width).astype(real)
        numbers *= real.type(2.0 ** (-8 * width))
        return numbers

    def owned_by(self, rank: int) -> slice:
        """Return the elements that `rank` owns: every `ranks`-th, beginning with another one for each seed."""
        return slice((rank - self.seed - self.start) % self.ranks, None, self.ranks)


REDUCED = -1
"""The source of elements that are the reduction of all ranks' contributions."""

BLOCK = 1 << 14
"""Number of elements that are made at a time: the temporaries of a block stay in cache."""


@functools.lru_cache
def _format(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _significand(dtype: DType) -> int:
    """Return the bits of a float's significand: integers with that many bits are exact."""
    return int(_format(dtype).nmant) + 1


def _precision(dtype: DType) -> int:
    """Return the largest number of bits such that every integer of so many bits is exact in `dtype`."""
    if dtypes.is_float(dtype):
        return _significand(dtype)
    return min(8 * dtype.itemsize - (dtype.kind == "i"), 53)


def _real_for(precision: int) -> DType:
    """Return a float dtype that holds integers of `precision` bits exactly."""
    return np.dtype(np.float32 if precision <= 24 else np.float64)


# Streams above any rank's.
_RESULT = 1 << 40
_MANTISSA = 1 << 41
_TURN = 1 << 42


Scheme = Callable[[ElementRange, int, int, DType], Array]
"""The way in which a reduction's result is shared out. ``scheme(span, lower, upper, dtype)`` folds the contributions of
the ranks from `lower` to below `upper`: of one rank, or of all."""


# --- groups -------------------------------------------------------------------------------------


def _as(bits: Array, dtype: DType) -> Array:
    """Read unsigned integers as elements of an integer dtype or bool of the same width."""
    if dtype == dtypes.BOOL:
        bits = bits & bits.dtype.type(1)
    return bits.view(dtype)


def _quotient(upper: Array, lower: Array) -> Array:
    """Divide odd integers modulo 2**bits, where each odd integer has an inverse."""
    one = upper.dtype.type(1)
    odd = lower | one
    # Newton's iteration: the first guess has 3 bits right, and each step doubles them.
    inverse = odd.copy()
    right = 3
    while right < 8 * odd.itemsize:
        inverse *= upper.dtype.type(2) - odd * inverse
        right *= 2
    quotient: Array = (upper | one) * inverse
    return quotient


def _group(
    quotient: Callable[[Array, Array], Array],
    span: ElementRange,
    lower: int,
    upper: int,
    dtype: DType,
) -> Array:
    bits = span.bits(upper, dtype.itemsize)
    before = span.bits(lower, dtype.itemsize) if lower else np.zeros_like(bits)
    return _as(quotient(bits, before), dtype)


# --- one owner ----------------------------------------------------------------------------------


def _ordered(key: Array, dtype: DType) -> Array:
    """Read unsigned integers as elements in the same order.

    Floats are the integers from ``-2**precision`` to ``2**precision - 1``.
    """
    if dtypes.is_float(dtype):
        precision = _significand(dtype)
        low = key & key.dtype.type((2 << precision) - 1)
        real = _real_for(precision)
        numbers: Array = low.astype(real) - real.type(1 << precision)
        return numbers.astype(dtype)
    if dtype.kind == "i":
        key = key ^ key.dtype.type(1 << (8 * key.itemsize - 1))
    return _as(key, dtype)


def _owner(
    mask: Callable[[Array, Array], Array],
    read: Callable[[Array, DType], Array],
    span: ElementRange,
    lower: int,
    upper: int,
    dtype: DType,
) -> Array:
    bits = span.bits(_RESULT, dtype.itemsize)
    if upper - lower < span.ranks:
        owned, result = span.owned_by(lower), bits
        bits = mask(result, span.bits(lower, dtype.itemsize))
        bits[owned] = result[owned]
    return read(bits, dtype)


# --- an integer, cut into shares ----------------------------------------------------------------


def _cut(span: ElementRange, rank: int, total: Array, width: int) -> Array:
    """Return the sum of the shares of `total` of the ranks below `rank`: an integer that grows with the rank."""
    if rank == 0:
        return np.zeros_like(total)
    if rank == span.ranks:
        return total
    real = total.dtype
    place = span.fraction(rank, width, real)
    place += real.type(rank)
    place *= real.type(1.0 / span.ranks)
    # Each step is monotone in floating point too, so the cuts of higher ranks are never lower; only
    # the whole could be passed, by rounding.
    place *= total
    np.floor(place, out=place)
    np.minimum(place, total, out=place)
    return place


def _parts(spare: int, span: ElementRange, lower: int, upper: int, dtype: DType) -> Array:
    """Share out integers that leave `spare` bits of the dtype's precision unused."""
    if dtypes.is_complex(dtype):  # two real elements
        pairs = ElementRange(span.seed, span.ranks, 2 * span.start, 2 * span.count)
        return _parts(spare, pairs, lower, upper, _real_part(dtype)).view(dtype)
    width, half = dtype.itemsize, 1 << (_precision(dtype) - spare - 1)
    real = _real_for(_precision(dtype))
    bits = span.bits(_RESULT, width)
    total = (bits & bits.dtype.type(half - 1)).astype(real)
    total += real.type(half)
    share: Array = _cut(span, upper, total, width) - _cut(span, lower, total, width)
    if dtype.kind != "u":  # all shares of an element have its sign
        np.negative(share, out=share, where=_odd(span.bits(_TURN, 1)))
    return share.astype(dtype)


def _odd(bits: Array) -> NDArray[np.bool_]:
    return (bits & np.uint8(1)).astype(np.bool_)


def _real_part(dtype: DType) -> DType:
    """Return the dtype of a complex dtype's two parts, and any other dtype itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtypes.is_complex(dtype) else dtype


# --- powers of two, exponents cut into shares -----------------------------------------------------


def _powers(span: ElementRange, lower: int, upper: int, dtype: DType) -> Array:
    """Share out products. The factors are powers of two, times a mantissa on its owner, with quarter turns."""
    magnitude = _magnitude(span, lower, upper, _real_part(dtype))
    turns = span.bits(_TURN + upper, 1) - (span.bits(_TURN + lower, 1) if lower else np.uint8(0))
    if dtypes.is_complex(dtype):
        turned: Array = _QUARTERS.astype(dtype)[turns & np.uint8(3)]
        turned *= magnitude
        return turned
    np.negative(magnitude, out=magnitude, where=_odd(turns))
    return magnitude.astype(dtype)


_QUARTERS = np.array([1, 1j, -1, -1j])


def _magnitude(span: ElementRange, lower: int, upper: int, dtype: DType) -> Array:
    """Return the product of the shares of ranks `lower` to below `upper`, without signs."""
    width, bits = dtype.itemsize, _significand(dtype) - 1
    real = _real_for(bits + 1)
    # One below a float's largest: float8_e4m3fn has no finite number with that and a full significand.
    largest = int(_format(dtype).maxexp) - 2
    drawn = span.fraction(_RESULT, width, real) * real.type(largest + 1)
    total = np.minimum(np.floor(drawn), real.type(largest))
    exponent = _cut(span, upper, total, width) - _cut(span, lower, total, width)
    mantissa = np.ones(span.count, real)
    owned = slice(None) if upper - lower == span.ranks else span.owned_by(lower)
    tail = span.bits(_MANTISSA, width)[owned]
    mantissa[owned] += (tail & tail.dtype.type((1 << bits) - 1)).astype(real) * real.type(
        2.0**-bits
    )
    return np.ldexp(mantissa, exponent.astype(np.int32))


# --- which scheme ---------------------------------------------------------------------------------

_BITS: dict[Op, Scheme] = {
    ReduceOp.MAX: partial(_owner, np.bitwise_and, _ordered),
    ReduceOp.MIN: partial(_owner, np.bitwise_or, _ordered),
    ReduceOp.BAND: partial(_owner, np.bitwise_or, _as),
    ReduceOp.BOR: partial(_owner, np.bitwise_and, _as),
    ReduceOp.BXOR: partial(_group, np.bitwise_xor),
}
"""Schemes of every dtype on which the reduction has a meaning."""

_BOOL = _BITS | {ReduceOp.SUM: _BITS[ReduceOp.BOR], ReduceOp.PROD: _BITS[ReduceOp.BAND]}

_INTEGER = _BITS | {
    ReduceOp.SUM: partial(_group, np.subtract),
    ReduceOp.PROD: partial(_group, _quotient),
    ReduceOp.AVG: partial(_parts, 0),
    OPS["mulsum"]: partial(_group, np.subtract),
}
_FLOAT = _BITS | {
    ReduceOp.SUM: partial(_parts, 0),
    ReduceOp.PROD: _powers,
    ReduceOp.AVG: partial(_parts, 0),
    OPS["mulsum"]: partial(_parts, PREMUL_FACTOR.bit_length() - 1),
}
"""Schemes of real and of complex floats."""


def _finished(fold: Array, op: Op, ranks: int) -> Array:
    """Return the result of a reduction from the fold of all contributions."""
    dtype = fold.dtype
    if op == OPS["mulsum"]:
        fold *= dtype.type(PREMUL_FACTOR)
    if op is not ReduceOp.AVG:
        return fold
    if dtypes.is_integer(dtype):  # divided towards zero
        quotient = np.abs(fold.astype(np.int64)) // ranks
        return np.where(fold < 0, -quotient, quotient).astype(dtype)
    # Two roundings, to float32 and then to a narrow float, are one: float32 has more than
    # twice the narrow float's precision and two bits (Figueroa, When is double rounding
    # innocuous?, 1995).
    part = _real_part(dtype)
    real = _real_for(_precision(part))
    mean = fold.view(part).astype(real)
    mean /= real.type(ranks)
    return mean.astype(part).view(dtype)


def moved(seed: int, source: int, start: int, count: int, dtype: DType) -> Array:
    """Return elements that rank `source` sends without a reduction: any bits at all."""
    if dtype == dtypes.BOOL:
        return _as(words(seed, source, start, count, 1), dtype)
    width = min(dtype.itemsize, 8)
    parts = dtype.itemsize // width
    return words(seed, source, start * parts, count * parts, width).view(dtype)


@dataclass(frozen=True, slots=True)
class RankSlice:
    """Consecutive elements of an array.

    Attributes
    ----------
    source : int
        The rank whose data they are, or `patterns.REDUCED`.
    start : int
        Index of the first element in that rank's input, or in the reduction of all inputs.
    count : int
        Number of elements.
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
        Dtype of the elements.
    op : ReduceOp, PremulSum or None
        The reduction; None without a reduction.
    ranks : int
        Number of ranks.
    seed : int
        Another seed gives other data.
    multiplied : bool
        Whether averages of floats are sums of contributions multiplied by 1 / ranks, as in NCCL. Then each
        contribution is rounded, so that no data give exact results.
    """

    dtype: DType
    op: Op | None
    ranks: int
    seed: int
    multiplied: bool = False

    @property
    def inexact(self) -> bool:
        """Whether results may differ by rounding. Multiplication by a power of two does not round."""
        inexact_dtype = dtypes.is_float(self.dtype) or dtypes.is_complex(self.dtype)
        rounds = self.multiplied and self.ranks & (self.ranks - 1) != 0
        return rounds and self.op is ReduceOp.AVG and inexact_dtype


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The difference of an array from its expected contents.

    Attributes
    ----------
    wrong : int
        Number of elements that differ.
    index : int
        Index of the first of them.
    expected, got : str
        Its expected and its actual value: as a number and, in hexadecimal, the bytes from the most significant on.
    repetition : int or None
        Number of the timed operation that wrote it, from 0; None for an untimed operation.
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
        An array as long as all segments together.
    data : CheckedData
        The data of the ranks.
    segments : sequence of RankSlice
        The parts of the data.
    put : callable, optional
        Writes a block into an array that is not NumPy's.
    """
    for at, block in blocks(data, segments):
        put(array, at, block)


def poison(
    array: Array, data: CheckedData, segments: Sequence[RankSlice], put: Put = put_block
) -> None:
    """Fill `array` so that it differs from `segments` in every byte (for bool: in every element)."""
    for at, block in blocks(data, segments):
        if block.dtype == dtypes.BOOL:
            put(array, at, np.logical_not(block))
        else:
            put(array, at, np.invert(block.view(np.uint8)).view(block.dtype))


def compare(
    array: Array, data: CheckedData, segments: Sequence[RankSlice], read: Read = read_block
) -> Mismatch | None:
    """Return the difference of `array` from the data that `fill` writes; None if they are equal."""
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
    """Yield the blocks of the segments: the index of each block in the array, and the block."""
    at = 0
    for segment in segments:
        stop = segment.start + segment.count
        for start in range(segment.start, stop, BLOCK):
            count = min(BLOCK, stop - start)
            yield at, _block(data, segment.source, start, count)
            at += count


def _block(data: CheckedData, source: int, start: int, count: int) -> Array:
    op, dtype, ranks = data.op, data.dtype, data.ranks
    if op is None:
        return moved(data.seed, source, start, count, dtype)
    table = _BOOL if dtype == dtypes.BOOL else _INTEGER if dtypes.is_integer(dtype) else _FLOAT
    scheme, span = table[op], ElementRange(data.seed, ranks, start, count)
    if source == REDUCED:
        return _finished(scheme(span, 0, ranks, dtype), op, ranks)
    return scheme(span, source, source + 1, dtype)


def _differs(got: Array, expected: Array, *, reduced: bool) -> NDArray[np.bool_]:
    if reduced and dtypes.is_complex(expected.dtype):
        # The sign of a zero in a complex product depends on the order of the factors.
        differs: NDArray[np.bool_] = got != expected
        return differs
    width = min(expected.itemsize, 8)
    return _of_elements(got.view(f"u{width}") != expected.view(f"u{width}"), got.size)


def _differs_by_more_than_roundings(got: Array, expected: Array, ranks: int) -> NDArray[np.bool_]:
    """Compare sums of contributions times 1 / ranks with exact averages.

    The factor, each product and each sum is rounded. Since contributions have one sign, these are relative errors
    of together ``ranks + 2`` unit roundoffs; below the normal numbers, they are absolute errors.
    """
    real = _real_part(expected.dtype)
    unit, least = float(_format(real).eps) / 2, float(_format(real).smallest_subnormal) / 2
    actual, exact = (each.view(real).astype(np.float64) for each in (got, expected))
    size = np.abs(exact)
    allowed = (ranks + 2) * unit * size + least * ranks * (1 + size)
    return _of_elements(~(np.abs(actual - exact) <= allowed), got.size)  # NaN counts as far


def _of_elements(parts: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return whether any part of each of `count` elements is True; an element has one or two parts."""
    return parts if parts.size == count else np.logical_or(parts[::2], parts[1::2])


def _spelled(element: Any) -> str:
    pattern = np.asarray(element).tobytes()
    if sys.byteorder == "little":
        pattern = pattern[::-1]
    return f"{element} (0x{pattern.hex()})"
