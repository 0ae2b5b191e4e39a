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
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype
from hpccomm.reductions import Op, PremulSum, ReduceOp, premul_sum

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

OPS: dict[str, Op] = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PROD,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "avg": ReduceOp.AVG,
    "mulsum": premul_sum(PREMUL_FACTOR),
    # nccl-tests ends here, since NCCL has no bitwise reductions.
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
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


def _significand(dtype: DType) -> int:
    """Return the bits of a float's significand: integers with that many bits are exact."""
    return int(_format(dtype).nmant) + 1


def _largest_exponent(dtype: DType) -> int:
    """Return the largest exponent that is used in products.

    It is one below a float's largest, since float8_e4m3fn has no finite number with the largest
    exponent and a full significand.
    """
    return int(_format(dtype).maxexp) - 2


@functools.lru_cache
def _format(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


# Streams above any rank's.
_RESULT = 1 << 40
_MANTISSA = 1 << 41
_TURN = 1 << 42


Scheme = Callable[[ElementRange, int, DType], Array]
"""The way in which a reduction's result is shared out. ``scheme(span, source, dtype)`` is the contribution of rank
`source` or, for `REDUCED`, the reduction of all contributions."""


def _bounds(span: ElementRange, source: int) -> tuple[int, int]:
    """Return the range of ranks whose contributions `source` stands for: the first, and the one after the last."""
    return (0, span.ranks) if source == REDUCED else (source, source + 1)


# --- groups -------------------------------------------------------------------------------------


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


def _as(bits: Array, dtype: DType) -> Array:
    """Read unsigned integers as elements of an integer dtype or bool of the same width."""
    if dtype == dtypes.BOOL:
        bits = bits & bits.dtype.type(1)
    return bits.view(dtype)


def _group(quotient: Callable[[Array, Array], Array], scale: int = 1) -> Scheme:
    def elements(span: ElementRange, source: int, dtype: DType) -> Array:
        lower, upper = _bounds(span, source)
        bits = span.bits(upper, dtype.itemsize)
        bits = quotient(bits, span.bits(lower, dtype.itemsize) if lower else np.zeros_like(bits))
        if source == REDUCED and scale != 1:
            bits = bits * bits.dtype.type(scale)
        return _as(bits, dtype)

    return elements


# --- one owner ----------------------------------------------------------------------------------


def _from_key(key: Array, dtype: DType) -> Array:
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
        return _as(key ^ key.dtype.type(1 << (8 * key.itemsize - 1)), dtype)
    return _as(key, dtype)


def _owner(mask: Callable[[Array, Array], Array], read: Callable[[Array, DType], Array]) -> Scheme:
    def elements(span: ElementRange, source: int, dtype: DType) -> Array:
        result = span.bits(_RESULT, dtype.itemsize)
        if source == REDUCED:
            return read(result, dtype)
        own = mask(result, span.bits(source, dtype.itemsize))
        owned = span.owned_by(source)
        own[owned] = result[owned]
        return read(own, dtype)

    return elements


# --- an integer, cut into shares ----------------------------------------------------------------


def _real_for(precision: int) -> DType:
    """Return a float dtype that holds integers of `precision` bits exactly."""
    return np.dtype(np.float32 if precision <= 24 else np.float64)


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


def _precision(dtype: DType) -> int:
    """Return the largest number of bits such that every integer of so many bits is exact in `dtype`."""
    if dtypes.is_float(dtype):
        return _significand(dtype)
    return min(8 * dtype.itemsize - (dtype.kind == "i"), 53)


def _total(span: ElementRange, dtype: DType, precision: int) -> Array:
    """Draw results: integers of exactly `precision` bits."""
    half = 1 << (precision - 1)
    bits = span.bits(_RESULT, dtype.itemsize)
    drawn = bits & bits.dtype.type(half - 1)
    real = _real_for(precision)
    numbers: Array = drawn.astype(real)
    numbers += real.type(half)
    return numbers


def _signed(span: ElementRange, magnitude: Array, dtype: DType) -> Array:
    """Give each element the sign that all ranks' shares of it have."""
    if dtype.kind == "u":
        return magnitude
    negative = (span.bits(_TURN, 1) & np.uint8(1)).astype(bool)
    return np.negative(magnitude, out=magnitude, where=negative)


def _parts(spare: int, finish: Callable[[Array, int, DType], Array]) -> Scheme:
    """Share out integers that leave `spare` bits of the dtype's precision unused."""

    def elements(span: ElementRange, source: int, dtype: DType) -> Array:
        lower, upper = _bounds(span, source)
        total = _total(span, dtype, _precision(dtype) - spare)
        own = _cut(span, upper, total, dtype.itemsize) - _cut(span, lower, total, dtype.itemsize)
        own = _signed(span, own, dtype)
        return (finish(own, span.ranks, dtype) if source == REDUCED else own).astype(dtype)

    return elements


def _averaged(total: Array, ranks: int, dtype: DType) -> Array:
    """Divide: floats with one rounding in the dtype, integers towards zero."""
    if dtypes.is_float(dtype):
        # Two roundings, to float32 and then to a narrow float, are one: float32 has more than
        # twice the narrow float's precision and two bits (Figueroa, When is double rounding
        # innocuous?, 1995).
        total /= total.dtype.type(ranks)
        return total
    quotient = np.abs(total).astype(np.int64) // ranks
    return np.where(total < 0, -quotient, quotient)


# --- powers of two, exponents cut into shares -----------------------------------------------------


def _magnitude(span: ElementRange, lower: int, upper: int, dtype: DType) -> Array:
    """Return the product of the shares of ranks `lower` to `upper`, without signs."""
    real = _real_for(_precision(dtype))
    largest = _largest_exponent(dtype)
    width = dtype.itemsize
    drawn = span.fraction(_RESULT, width, real) * real.type(largest + 1)
    total = np.minimum(np.floor(drawn), real.type(largest))
    exponent = _cut(span, upper, total, width) - _cut(span, lower, total, width)
    bits = _significand(dtype) - 1
    mantissa = np.ones(span.count, real)
    owned = slice(None) if upper - lower == span.ranks else span.owned_by(lower)
    drawn = span.bits(_MANTISSA, width)[owned]
    tail = (drawn & drawn.dtype.type((1 << bits) - 1)).astype(real)
    mantissa[owned] += tail * real.type(2.0**-bits)
    return np.ldexp(mantissa, exponent.astype(np.int32))


def _turns(span: ElementRange, lower: int, upper: int) -> Array:
    """Return the quarter turns of the product of the shares of ranks `lower` to `upper`."""
    turns = span.bits(_TURN + upper, 1) - (span.bits(_TURN + lower, 1) if lower else np.uint8(0))
    return turns & np.uint8(3)


def _powers(span: ElementRange, source: int, dtype: DType) -> Array:
    lower, upper = _bounds(span, source)
    turns = _turns(span, lower, upper)
    if dtypes.is_complex(dtype):
        parts = np.dtype(f"f{dtype.itemsize // 2}")
        return _QUARTERS.astype(dtype)[turns] * _magnitude(span, lower, upper, parts)
    magnitude = _magnitude(span, lower, upper, dtype)
    np.negative(magnitude, out=magnitude, where=(turns & np.uint8(1)).astype(bool))
    return magnitude.astype(dtype)


_QUARTERS = np.array([1, 1j, -1, -1j])


# --- which scheme ---------------------------------------------------------------------------------


def _in_parts(scheme: Scheme) -> Scheme:
    """Treat a complex element as two real ones."""

    def elements(span: ElementRange, source: int, dtype: DType) -> Array:
        pairs = ElementRange(span.seed, span.ranks, 2 * span.start, 2 * span.count)
        return scheme(pairs, source, np.dtype(f"f{dtype.itemsize // 2}")).view(dtype)

    return elements


_BXOR = _group(np.bitwise_xor)
_MOST = _owner(np.bitwise_and, _from_key)
_LEAST = _owner(np.bitwise_or, _from_key)
_BOR = _owner(np.bitwise_and, _as)
_BAND = _owner(np.bitwise_or, _as)
_FLOAT_SUM = _parts(0, lambda total, *_: total)
_FLOAT_PREMUL = _parts(PREMUL_FACTOR.bit_length() - 1, lambda total, *_: total * PREMUL_FACTOR)
_AVG = _parts(0, _averaged)

_BOOL: dict[ReduceOp | str, Scheme] = {
    ReduceOp.SUM: _BOR,
    ReduceOp.MAX: _BOR,
    ReduceOp.BOR: _BOR,
    ReduceOp.PROD: _BAND,
    ReduceOp.MIN: _BAND,
    ReduceOp.BAND: _BAND,
    ReduceOp.BXOR: _BXOR,
}
_INTEGER: dict[ReduceOp | str, Scheme] = {
    ReduceOp.SUM: _group(np.subtract),
    ReduceOp.PROD: _group(_quotient),
    ReduceOp.MAX: _MOST,
    ReduceOp.MIN: _LEAST,
    ReduceOp.AVG: _AVG,
    ReduceOp.BAND: _BAND,
    ReduceOp.BOR: _BOR,
    ReduceOp.BXOR: _BXOR,
    "premul_sum": _group(np.subtract, PREMUL_FACTOR),
}
_FLOAT: dict[ReduceOp | str, Scheme] = {
    ReduceOp.SUM: _FLOAT_SUM,
    ReduceOp.PROD: _powers,
    ReduceOp.MAX: _MOST,
    ReduceOp.MIN: _LEAST,
    ReduceOp.AVG: _AVG,
    "premul_sum": _FLOAT_PREMUL,
}
_COMPLEX: dict[ReduceOp | str, Scheme] = {
    ReduceOp.SUM: _in_parts(_FLOAT_SUM),
    ReduceOp.PROD: _powers,
    ReduceOp.AVG: _in_parts(_AVG),
    "premul_sum": _in_parts(_FLOAT_PREMUL),
}


def scheme(op: Op, dtype: DType) -> Scheme:
    """Return the scheme by which results of `op` on `dtype` are shared out.

    Raises
    ------
    UnsupportedDtype
        If there are no exact data for the pair.
    """
    if dtype == dtypes.BOOL:
        table = _BOOL
    elif dtypes.is_integer(dtype):
        table = _INTEGER
    elif dtypes.is_complex(dtype):
        table = _COMPLEX
    else:
        table = _FLOAT
    key: object = op.value if isinstance(op, PremulSum) else op
    if isinstance(key, ReduceOp | str) and key in table:
        return table[key]
    raise UnsupportedDtype(f"no exact data for reduction {op!r} on dtype {dtype}")


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
    if data.op is None:
        return moved(data.seed, source, start, count, data.dtype)
    span = ElementRange(data.seed, data.ranks, start, count)
    return scheme(data.op, data.dtype)(span, source, data.dtype)


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

    The factor, each product and each sum is rounded. Since contributions have one sign, these are relative errors
    of together ``ranks + 2`` unit roundoffs; below the normal numbers, they are absolute errors.
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
