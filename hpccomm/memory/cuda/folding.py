"""Folding contributions in device memory, as `hpccomm.memory.folding` does in the host's.

This uses only CuPy's elementwise functions. Each is a kernel with one rounded operation, so float32 and
float64 give the same bits as on the host.

All work goes to CuPy's current stream, and nothing blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.dtypes import FLOAT32, DType
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.arrays import wrapped
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.memory import Scratch
from hpccomm.memory.cuda.narrow import carrier, narrow, widen
from hpccomm.memory.cuda.streams import capturing, make_stream, on_device
from hpccomm.memory.folding import UFUNC
from hpccomm.reductions import Op, PremulSum, ReduceOp, accumulator, name_of, samples, writes

BLOCK = 1 << 22
"""Elements that are folded at a time if that needs scratch. This bounds the scratch."""

Combine = Callable[[Any, Any, Any], object]
"""``combine(a, b, out)``."""


class DeviceFolder:
    """Folds contributions in their order.

    Parameters
    ----------
    op : ReduceOp, PremulSum or callable
        The reduction, as for `hpccomm.memory.folding.Folder`. A callable gets CuPy arrays.
    dtype : dtype
        Of contributions and results.
    average_over : int
        If not 0, the divisor of a final sum, before it is rounded to the dtype.
    device : int
        CUDA device of all arrays.
    scratch : Scratch
        Source of temporary memory.

    Raises
    ------
    UsageError
        If `op` is a callable that is no elementwise function of two CuPy arrays of this dtype.
    """

    __slots__ = ("_average_over", "_combine", "_device", "_dtype", "_scratch", "_seen", "_wide")

    def __init__(
        self, op: Op, dtype: DType, average_over: int = 0, *, device: int, scratch: Scratch
    ) -> None:
        named = isinstance(op, ReduceOp | PremulSum)
        self._dtype = dtype
        self._wide = accumulator(op, dtype)
        self._seen = carrier(dtype) if named else dtype
        self._combine = _named(op) if isinstance(op, ReduceOp | PremulSum) else _users(op)
        if not named:
            _try(op, self._combine, dtype, device)
        self._average_over = average_over
        self._device = device
        self._scratch = scratch

    def __call__(self, sources: Sequence[int], target: int, count: int, final: bool = True) -> None:
        """Fold `sources` into `target`.

        Parameters
        ----------
        sources : sequence of int
            Addresses of the contributions, at least one. Any of them may be `target` itself.
        target : int
            Address of the result.
        count : int
            Elements of each.
        final : bool
            Whether this is the last fold, so that an average divides.
        """
        average = self._average_over if final else 0
        itemsize = self._dtype.itemsize
        whole = self._wide == self._dtype and not (average and dtypes.is_integer(self._dtype))
        for start, some in _blocks(count, count if whole else BLOCK):
            # One array object per place. CuPy treats two objects as arrays that overlap.
            at = {
                pointer: wrapped(pointer + start * itemsize, some, self._seen, self._device)
                for pointer in {*sources, target}
            }
            self._fold([at[source] for source in sources], at[target], average)

    def _fold(self, sources: list[Any], out: Any, average: int) -> None:
        if self._wide != self._dtype:
            self._widened(sources, out, average)
            return
        left, *rest = sources
        between = None
        for number, source in enumerate(rest, 1):
            into = out
            if any(later is out for later in rest[number:]):  # a later step reads it
                if between is None:
                    between = self._scratch.empty(out.size, self._dtype)
                into = between
            self._combine(left, source, into)
            left = into
        if left is not out:
            cupy().copyto(out, left)
        if average:
            _divide(out, average, self._dtype, self._device, self._scratch)

    def _widened(self, sources: list[Any], out: Any, average: int) -> None:
        """Fold in float32, and round once."""
        empty = self._scratch.empty
        total = empty(out.size, FLOAT32)
        widen(sources[0], self._dtype, total, empty)
        other = empty(out.size, FLOAT32) if len(sources) > 1 else None
        for source in sources[1:]:
            widen(source, self._dtype, other, empty)
            self._combine(total, other, total)
        if average:
            _divide(total, average, FLOAT32, self._device, self._scratch)
        narrow(total, out, self._dtype, empty)


def premultiply(
    op: PremulSum,
    source: int,
    target: int,
    count: int,
    *,
    dtype: DType,
    device: int,
    scratch: Scratch,
) -> None:
    """Write the elements at `source` times the factor to `target`, which may be `source`.

    Parameters are those of `DeviceFolder`.
    """
    module = cupy()
    if not dtypes.is_narrow(dtype):
        data = wrapped(source, count, dtype, device)
        out = data if target == source else wrapped(target, count, dtype, device)
        module.multiply(data, dtype.type(op.factor), out=out)
        return
    factor = np.float32(op.factor.real)
    for start, some in _blocks(count):
        offset = start * dtype.itemsize
        wide = scratch.empty(some, FLOAT32)
        widen(_elements(source + offset, some, dtype, device), dtype, wide, scratch.empty)
        module.multiply(wide, factor, out=wide)
        narrow(wide, _elements(target + offset, some, dtype, device), dtype, scratch.empty)


def to_float32(
    source: int, target: int, count: int, *, dtype: DType, device: int, scratch: Scratch
) -> None:
    """Write elements of a narrow float at `source` as float32 to `target`, apart from it."""
    for elements, wide in _with_float32(source, target, count, dtype, device):
        widen(elements, dtype, wide, scratch.empty)


def from_float32(
    source: int, target: int, count: int, *, dtype: DType, device: int, scratch: Scratch
) -> None:
    """Round float32 at `source`, which is overwritten, to elements of a narrow float at `target`."""
    for elements, wide in _with_float32(target, source, count, dtype, device):
        narrow(wide, elements, dtype, scratch.empty)


def _with_float32(
    pointer: int, wide: int, count: int, dtype: DType, device: int
) -> Iterator[tuple[Any, Any]]:
    """Return each block of elements at `pointer`, and that of as many float32 at `wide`."""
    for start, some in _blocks(count):
        yield (
            _elements(pointer + start * dtype.itemsize, some, dtype, device),
            wrapped(wide + start * FLOAT32.itemsize, some, FLOAT32, device),
        )


def _blocks(count: int, step: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Return the start and the length of each block of at most `step` elements."""
    return ((start, min(step, count - start)) for start in range(0, count, max(step, 1)))


def fill(target: int, count: int, value: Any, dtype: DType, device: int) -> None:
    """Write `value`, an element of `dtype`, to `count` places from `target` on."""
    seen = carrier(dtype)
    if count:
        wrapped(target, count, seen, device).fill(np.array(value, dtype).view(seen)[()])


def _elements(pointer: int, count: int, dtype: DType, device: int) -> Any:
    return wrapped(pointer, count, carrier(dtype), device)


def _named(op: ReduceOp | PremulSum) -> Combine:
    ufunc = getattr(cupy(), (np.add if isinstance(op, PremulSum) else UFUNC[op]).__name__)
    return lambda a, b, out: ufunc(a, b, out=out)


def _users(op: Callable[[Any, Any], Any]) -> Combine:
    def combine(a: Any, b: Any, out: Any) -> None:
        module = cupy()
        try:
            result = op(a, b)
        except Exception as error:  # whatever the user's function raises
            raise UsageError(
                f"op {name_of(op)} fails on CuPy arrays of {a.dtype} ({error!r}); give a commutative "
                "elementwise function that takes them, such as one of NumPy's or CuPy's, or use host "
                "arrays"
            ) from error
        if (
            not isinstance(result, module.ndarray)
            or result.shape != out.shape
            or not np.can_cast(result.dtype, out.dtype, "same_kind")
        ):
            raise UsageError(
                f"op {name_of(op)} made {type(result).__name__} of two CuPy arrays of shape "
                f"{out.shape} and dtype {out.dtype}; it must be elementwise and keep the dtype"
            )
        module.copyto(out, result, casting="same_kind")

    return combine


def _try(op: Op, combine: Combine, dtype: DType, device: int) -> None:
    """Call a user's function on two elements, so that an unfit one is refused before the call."""
    module = cupy()
    given = samples(dtype)
    with on_device(device):
        try:
            if capturing(module.cuda.get_current_stream().ptr):
                return  # only the call itself may be captured
        except module.cuda.runtime.CUDARuntimeError:
            return  # the default stream during the capture of another one
        # On a stream of its own, because the host waits for it and must not wait for other work.
        with make_stream(device, high_priority=False):
            try:
                a, b, out = (module.empty(2, dtype) for _ in range(3))
            except ValueError as error:
                raise UsageError(
                    f"op {name_of(op)}: CuPy has no arrays of {dtype} that it could be given; "
                    "move host arrays, or use one of hpccomm's reductions"
                ) from error
            arrays = (a, b)
            for array, elements in zip(arrays, given, strict=True):
                array.set(elements)
            combine(a, b, out)
            if any((x.get() != y).any() for x, y in zip(arrays, given, strict=True)):
                raise writes(op)


def _divide(total: Any, contributions: int, dtype: DType, device: int, scratch: Scratch) -> None:
    """Divide sums by the number of contributions, in place; integers towards zero."""
    module = cupy()
    if not dtypes.is_integer(dtype):
        part = np.empty(0, dtype).real.dtype
        # Parts of complex numbers apart: a complex divisor has its own rounding.
        parts = total.size * (dtype.itemsize // part.itemsize)
        sums = total if part == dtype else wrapped(total.data.ptr, parts, part, device)
        module.true_divide(sums, part.type(contributions), out=sums)
        return
    # In 64 bits, because the divisor must not wrap: 200 ranks do not fit int8. CuPy's fmod uses doubles,
    # which do not hold all 64-bit integers.
    wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    sums = scratch.empty(total.size, wide)
    module.copyto(sums, total)
    if dtype.kind == "i":
        # The division rounds towards minus infinity, so negative sums are raised beforehand.
        raised = scratch.empty(total.size, wide)
        module.right_shift(sums, wide.type(63), out=raised)
        module.bitwise_and(raised, wide.type(contributions - 1), out=raised)
        module.add(sums, raised, out=sums)
    module.floor_divide(sums, wide.type(contributions), out=sums)
    module.copyto(total, sums, casting="unsafe")
