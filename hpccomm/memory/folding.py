"""Folds contributions in host memory, with the meaning that `hpccomm.reductions` gives them.

`hpccomm.calls`, windows and `hpccomm.gradients` fold by a `Folder`, and the MPI backend compares the library's
reductions with it.

A user's function is tried before it reduces anything. With a function that is not elementwise, commutative
and associative, the result depends on the number of ranks and on the algorithm, and nothing in the
result shows it. So the function is tried on a few values first, once for each dtype. With ``deterministic=True``
contributions are folded in rank order, and the function must only be elementwise.

The values of the trial are small, so that sums and products do not overflow in 8 bits. None of them is zero, and
no two that are combined differ only in their sign. A common reduction returns the element of the larger magnitude,
and prefers one of two elements of equal magnitude.
"""

from collections.abc import Callable, Sequence
from contextvars import Context
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.contracts.transport import Pages
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.reductions import LOCATING, Op, PremulSum, ReduceOp, accumulator, name_of

Array = NDArray[Any]

ELEMENTS = 8
"""Elements of each array of the trial."""

REMEDY = "give a commutative, associative, elementwise function of two arrays, such as np.maximum"

IN_ORDER = "; collectives fold others in the order of the ranks with deterministic=True"

KEPT = 256
"""Most functions that are remembered as fit. A program with more functions tries them again."""

_A = (1, 2, 3, -5, 1, 2, 4, 3)
_B = (2, 1, 5, 3, 3, 2, -1, 4)
_C = (3, 4, 1, 2, 16, 1, 2, -6)

_finfo: Any = ml_dtypes.finfo  # of NumPy's floats too; it has no types


def samples(dtype: DType) -> Array:
    """Return three arrays of `ELEMENTS` elements for the trial of a user's function."""
    if dtype.names is not None:
        whole = np.zeros((3, ELEMENTS), dtype)
        for place, name in enumerate(dtype.names):
            field = whole[name]
            base = dtype[name].base
            if base.names is not None or dtypes.is_reducible(base):  # others stay zero
                # Each field gets other values. They are positive, since fields may be counts and variances.
                each = np.roll(samples(base), place, axis=1)
                each = each if base.names is not None else abs(each)
                field[...] = each.reshape(each.shape + (1,) * (field.ndim - 2))
        return whole
    if dtype == dtypes.BOOL:
        bits = np.arange(ELEMENTS)
        return np.array((bits & 1, bits & 2, bits & 4), np.bool_)
    each = np.array((_A, _B, _C))
    if dtype.kind == "u":
        each = np.abs(each)
    if dtypes.is_complex(dtype):
        # The signs distinguish a number from its conjugate.
        each = each + 1j * each * np.array([[0.5], [-0.25], [0.5]])
    return each.astype(dtype)


@lru_cache(maxsize=KEPT)
@np.errstate(all="ignore")
def _try(op: Op, dtype: DType, ordered: bool) -> None:
    name, combine = name_of(op), _combine(op, dtype)
    a, b, c = samples(dtype)

    def call(x: Array, y: Array) -> Array:
        given, result = (x.tobytes(), y.tobytes()), np.ones(x.size, dtype)
        try:
            combine(x, y, out=result)
        except UsageError:
            raise
        except Exception as error:  # any exception of the user's function
            raise UsageError(
                f"op {name} fails on two NumPy arrays of {x.size} elements of {dtype} ({error!r}); {REMEDY}"
            ) from error
        if (x.tobytes(), y.tobytes()) != given:
            before, after = (np.frombuffer(each, dtype) for each in given)
            raise UsageError(
                f"op {name} writes to its arguments, which may be the arrays of any rank: of "
                f"{before} and {after} it left {x} and {y}; give a function that returns a new array"
            )
        return result

    def refuse(law: str, shown: str, remedy: str = IN_ORDER) -> UsageError:
        return UsageError(f"op {name} is not {law} on {dtype}: {shown}; {REMEDY}{remedy}")

    whole, half = call(a, b), ELEMENTS // 2
    for part in (slice(half), slice(half, None), slice(1), slice(1, 2)):
        alone = call(a[part], b[part])
        if _differing(whole[part], alone, (a[part], b[part])) is not None:
            raise refuse(
                "elementwise",
                f"of {a} and {b} it makes {whole}, and of their parts {a[part]} and {b[part]} it makes "
                f"{alone}, not {whole[part]}",
                remedy="",
            )
    if ordered:
        return
    turned = call(b, a)
    at = _differing(whole, turned, (a, b))
    if at is not None:
        raise refuse(
            "commutative",
            f"{name}({a[at]}, {b[at]}) is {whole[at]}, and {name}({b[at]}, {a[at]}) is {turned[at]}",
        )
    left, right = call(whole, c), call(a, call(b, c))
    at = _differing(left, right, (a, b, c))
    if at is not None:
        raise refuse(
            "associative",
            f"{name}({name}({a[at]}, {b[at]}), {c[at]}) is {left[at]}, and "
            f"{name}({a[at]}, {name}({b[at]}, {c[at]})) is {right[at]}",
        )


def _differing(one: Array, other: Array, inputs: tuple[Array, ...]) -> int | None:
    """Return the index of the first element in which two results differ by more than rounding, or None.

    Elements that are not finite are ignored, since the function may not be defined for the trial's values.
    """
    dtype = one.dtype
    if dtype.names is not None:
        each = (_differing(one[n], other[n], tuple(x[n] for x in inputs)) for n in dtype.names)
        return min((at for at in each if at is not None), default=None)
    if not (dtypes.is_float(dtype) or dtypes.is_complex(dtype)):
        differs = one != other
    else:
        wide = np.complex128 if dtypes.is_complex(dtype) else np.float64
        x, y, *given = (each.astype(wide) for each in (one, other, *inputs))
        scale = np.max(np.abs([x, y, *given]), axis=0)
        differs = np.abs(x - y) > sqrt(float(_finfo(dtype).eps)) * scale
        differs &= np.isfinite(x) & np.isfinite(y)
    differs = differs.reshape(len(differs), -1).any(axis=1)  # of fields that are arrays
    return int(np.argmax(differs)) if differs.any() else None


BLOCK_BYTES = 256 * 1024
"""Bytes of the blocks in which sources are folded: so few that the accumulator stays in cache."""


FAR_BLOCK_BYTES = 512 * 1024
"""Bytes of a block if contributions are read piece by piece, since each read costs some microseconds."""


SMALL_BYTES = 16 * 1024
"""Bytes of an accumulator up to which a fresh allocation is faster than kept memory."""


_idle: list[NDArray[np.uint8]] = []
"""Memory of accumulators that no fold uses now. There are as many as folds have run at the same time."""


Pair = Callable[..., object]


UFUNC: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


_ORDERED_INTO: dict[object, Pair] = {
    ReduceOp.MIN: lambda a, b, out: np.minimum(a, b, out=out),
    ReduceOp.MAX: lambda a, b, out: np.maximum(a, b, out=out),
}


_NEARER: dict[ReduceOp, np.ufunc] = {
    ReduceOp.MINLOC: np.less,
    ReduceOp.MAXLOC: np.greater,
}


def _locating(nearer: np.ufunc, dtype: DType) -> Pair:
    """Return the fold of pairs of a value and an index. Of equal values, and of NaN, the smallest index wins."""
    numbers = dtypes.is_float(dtype["value"])

    def combine(a: Array, b: Array, out: Array) -> None:
        left, right = a["value"], b["value"]
        tied = left == right
        second = nearer(right, left)
        if numbers:  # a NaN wins over numbers
            lost, nans = np.isnan(left), np.isnan(right)
            tied |= lost & nans
            second |= nans & ~lost
        second |= tied & (b["index"] < a["index"])
        np.copyto(out, np.where(second, b, a))

    return combine


class Average:
    """Divides sums by the number of contributions, in place.

    Integers are divided towards zero. The object owns temporary memory, so one thread at a time may use it.

    Parameters
    ----------
    dtype : dtype
        Type of the sums.
    contributions : int
        The divisor.
    """

    def __init__(self, dtype: DType, contributions: int) -> None:
        self._integers = dtypes.is_integer(dtype)
        if self._integers:
            # The division is in 64 bits, because the divisor must not wrap: 200 ranks do not fit int8.
            wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
        else:
            # Real and imaginary parts are divided separately: NumPy divides complex numbers by a reciprocal.
            wide = np.empty(0, dtype).real.dtype
        self._part = wide
        self._memory: Array | None = None
        self._divisor = wide.type(contributions)

    def __call__(self, total: Array) -> None:
        """Divide the sums in `total` (1-D)."""
        if not self._integers:
            parts = total.view(self._part)
            np.divide(parts, self._divisor, out=parts)
            return
        memory = self._memory
        if memory is None:
            memory = self._memory = np.empty((2, BLOCK_BYTES // self._part.itemsize), self._part)
        for start in range(0, total.size, memory.shape[1]):
            block = total[start : start + memory.shape[1]]
            sums, rest = memory[:, : block.size]
            np.copyto(sums, block)
            np.fmod(sums, self._divisor, out=rest)
            np.subtract(sums, rest, out=sums)
            np.floor_divide(sums, self._divisor, out=sums)
            np.copyto(block, sums, casting="unsafe")


Sources = Sequence[Array | Pages]
"""The contributions to a fold: arrays, or arrays of peers that are read piece by piece. A piece must be used before the
next one is read."""


class Folder:
    """Folds contributions in their order.

    It allocates next to no memory in a call. One thread at a time may use it.

    Parameters
    ----------
    op : ReduceOp, PremulSum or callable
        The reduction. AVG sums, and divides only with `average_over`. PremulSum sums; `premultiply`
        multiplies the contributions beforehand.
    dtype : dtype
        Type of contributions and results.
    average_over : int
        If not 0, the divisor of a final sum, which is divided before it is rounded to the dtype.

    Attributes
    ----------
    pair : callable or None
        ``pair(a, b, out)`` folds two arrays by a single NumPy call. None if that is impossible: with an average, a
        wide accumulator or a user's function.
    """

    __slots__ = (
        "_average",
        "_combine",
        "_exact",
        "_named",
        "_run",
        "_wide",
        "pair",
    )

    def __init__(self, op: Op, dtype: DType, average_over: int = 0) -> None:
        self._combine = _combine(op, dtype)
        self._named = isinstance(op, ReduceOp | PremulSum)
        self._wide = accumulator(op, dtype)
        # Whether the accumulator has the dtype of the arrays.
        self._exact = self._wide == dtype
        self._average = Average(self._wide, average_over) if average_over else None
        # Floats overflow to infinity or NaN without a warning, as on every backend. Setting this once in
        # a context costs a call almost nothing; `np.errstate` costs a microsecond.
        self._run = Context().run
        self._run(np.seterr, over="ignore", invalid="ignore")
        single = self._named and self._exact and self._average is None and op not in LOCATING
        # For minimum and maximum, NumPy deprecates a third positional argument.
        combine = _ORDERED_INTO.get(op, self._combine) if self._named else self._combine
        self.pair: Pair | None = partial(self._run, combine) if single else None

    def __call__(self, sources: Sources, out: Array, final: bool = True) -> None:
        """Fold `sources` into `out`.

        Parameters
        ----------
        sources : sequence of ndarray or Pages, each 1-D of out's length
            The contributions, at least one. Any of them may be `out` itself, element for element.
        out : ndarray, 1-D
            The array that gets the result.
        final : bool
            Whether this is the last fold, so that an average divides.
        """
        arrays = all(isinstance(source, np.ndarray) for source in sources)
        if self.pair is not None and len(sources) == 2 and arrays:
            self.pair(*sources, out)
        elif self._named:
            self._run(self._by_blocks, sources, out, final, arrays)
        else:  # the user's own function sees the user's context
            self._by_blocks(sources, out, final, arrays)

    def _by_blocks(self, sources: Sources, out: Array, final: bool, arrays: bool) -> None:
        """Fold block by block, so that each element passes through memory once."""
        average = self._average if final else None
        into = self._in_place if self._exact else self._widened
        wide, size = self._wide, out.size
        if size * wide.itemsize <= SMALL_BYTES or wide.itemsize > BLOCK_BYTES:
            into(sources, slice(0, size), out, average, np.empty(size, wide))
            return
        step = (BLOCK_BYTES if arrays else FAR_BLOCK_BYTES) // wide.itemsize
        try:
            memory = _idle.pop()
        except IndexError:
            memory = np.empty(FAR_BLOCK_BYTES, np.uint8)
        so_far = memory[: step * wide.itemsize].view(wide)
        for start in range(0, size, step):
            where = slice(start, min(start + step, size))
            into(sources, where, out[where], average, so_far[: where.stop - start])
        _idle.append(memory)

    def _in_place(
        self, sources: Sources, where: slice, out: Array, average: Average | None, so_far: Array
    ) -> None:
        """Fold one block. The last fold writes to `out`, which may be any of the sources."""
        last = len(sources) - 1
        left = sources[0][where]
        if not last:
            np.copyto(out, left)
        elif not any(isinstance(source, np.ndarray) for source in sources[:2]):
            np.copyto(so_far, left)  # the next read would overwrite this piece
            left = so_far
        for number in range(1, last + 1):
            target = out if number == last else so_far
            self._combine(left, sources[number][where], out=target)
            left = target
        if average is not None:
            average(out)

    def _widened(
        self, sources: Sources, where: slice, out: Array, average: Average | None, so_far: Array
    ) -> None:
        """Fold one block in the wide dtype, and round once."""
        np.copyto(so_far, sources[0][where])
        for source in sources[1:]:
            self._combine(so_far, source[where], out=so_far)
        if average is not None:
            average(so_far)
        np.copyto(out, so_far, casting="unsafe")


def _multiply(a: Array, b: Array | np.generic, out: Array) -> None:
    """Multiply complex numbers; `out` may be one of the factors.

    NumPy rounds the product of a single element that is multiplied in place in another way, as in a reduction.
    The bits must not depend on how an array was cut.
    """
    if out.size == 1:
        np.copyto(out, np.multiply(a, b))
    else:
        np.multiply(a, b, out=out)


def _combine(op: Op, dtype: DType) -> Callable[..., object]:
    if isinstance(op, PremulSum):
        return np.add
    if op is ReduceOp.PROD and dtype.kind == "c":
        return _multiply
    if op is ReduceOp.SUM and dtype == dtypes.BINNED:
        from hpccomm.memory.binned import add

        return add
    if isinstance(op, ReduceOp):
        return UFUNC[op] if op in UFUNC else _locating(_NEARER[op], dtype)
    elementwise = op

    def call(a: Array, b: Array, out: Array) -> None:
        result = np.asarray(elementwise(a, b))
        if result.shape != out.shape or not np.can_cast(result.dtype, out.dtype, "same_kind"):
            raise UsageError(
                f"op {name_of(elementwise)} made an array of shape {result.shape} and dtype "
                f"{result.dtype} of two of shape {out.shape} and dtype {out.dtype}; "
                "it must be elementwise and keep the dtype"
            )
        np.copyto(out, result, casting="same_kind")

    return call


def try_out(op: Op, dtype: DType, *, ordered: bool = False) -> None:
    """Try a user's function on a few values in NumPy arrays, so that an unfit function is refused before the call.

    A function that was found fit is not tried again. It must not write to its arguments, which may be arrays of other
    ranks. With `ordered`, contributions are folded in rank order, and the function need not be commutative and
    associative.

    Raises
    ------
    UsageError
        If `op` is a callable but not a commutative, associative, elementwise function of two such arrays. The message
        has the values that show the fault.
    """
    if isinstance(op, ReduceOp | PremulSum):
        return
    try:
        _try(op, dtype, ordered)
    except TypeError:  # a callable object that cannot be hashed is tried each time
        _try.__wrapped__(op, dtype, ordered)


def premultiply(op: PremulSum, source: Array, target: Array) -> None:
    """Write the elements of `source` times the factor into `target`, which may be `source`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtypes.is_narrow(source.dtype):
            factor = np.float32(op.factor.real)
            np.multiply(source, factor, out=target, dtype=np.float32, casting="unsafe")
        else:
            multiply = _multiply if source.dtype.kind == "c" else np.multiply
            multiply(source, source.dtype.type(op.factor), target)
