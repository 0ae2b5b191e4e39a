"""Folding contributions in device memory, as `hpccomm.memory.folding` does in the host's.

This uses CuPy's elementwise functions. Each is a kernel with one rounded operation, so float32 and
float64 give the same bits as on the host. Floats that are accumulated in float32 have kernels of their
own, in `hpccomm.memory.cuda.narrow`.

All work goes to CuPy's current stream, and nothing blocks.

`hpccomm.dispatch` folds device arrays by it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import FLOAT32, DType
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.arrays import wrapped
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.memory import Scratch
from hpccomm.memory.cuda.narrow import AT_ONCE, COMBINED, MULTIPLIED, carrier, kernel
from hpccomm.memory.cuda.streams import capturing, make_stream, on_device
from hpccomm.memory.folding import UFUNC
from hpccomm.memory.op_trial import check_fit
from hpccomm.reductions import Op, PremulSum, ReduceOp, accumulator, name_of

BLOCK = 1 << 22
"""Elements that are folded at a time if that needs scratch. This bounds the scratch."""

Combine = Callable[[Any, Any, Any], object]
"""``combine(a, b, out)``."""

_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class DeviceElements:
    """Operations on elements of one dtype in device memory, by their addresses.

    Attributes
    ----------
    dtype : dtype
        Of the elements.
    device : int
        CUDA device of all arrays.
    scratch : Scratch
        Source of temporary memory.
    """

    dtype: DType
    device: int
    scratch: Scratch

    def at(self, pointer: int, count: int) -> Any:
        """Return a CuPy array over elements, in CuPy's dtype for them."""
        return wrapped(pointer, count, carrier(self.dtype), self.device)

    def fill(self, target: int, count: int, value: Any) -> None:
        """Write `value`, an element of the dtype, to `count` places from `target` on."""
        if count:
            seen = carrier(self.dtype)
            self.at(target, count).fill(np.array(value, self.dtype).view(seen)[()])

    def premultiply(self, op: PremulSum, source: int, target: int, count: int) -> None:
        """Write the elements at `source` times the factor to `target`, which may be `source`."""
        module, dtype = cupy(), self.dtype
        if not dtypes.is_narrow(dtype):
            data = self.at(source, count)
            out = data if target == source else self.at(target, count)
            module.multiply(data, dtype.type(op.factor), out=out)
            return
        data, out = self.at(source, count), self.at(target, count)
        factor = np.float32(op.factor.real)
        kernel((dtype,), dtype, last=MULTIPLIED)(data, factor, data if target == source else out)

    def to_float32(self, source: int, target: int, count: int) -> None:
        """Write elements of a narrow float at `source` as float32 to `target`, a disjoint array."""
        wide = wrapped(target, count, FLOAT32, self.device)
        kernel((self.dtype,), FLOAT32)(self.at(source, count), _ONE, wide)

    def from_float32(self, source: int, target: int, count: int) -> None:
        """Round float32 at `source` to elements of a narrow float at `target`, a disjoint array."""
        wide = wrapped(source, count, FLOAT32, self.device)
        kernel((FLOAT32,), self.dtype)(wide, _ONE, self.at(target, count))

    def divide(self, total: Any, contributions: int) -> None:
        """Divide sums by the number of contributions, in place; integers towards zero."""
        module, dtype = cupy(), self.dtype
        if not dtypes.is_integer(dtype):
            part = np.empty(0, dtype).real.dtype
            # Real and imaginary parts separately: a complex divisor has its own rounding.
            parts = total.size * (dtype.itemsize // part.itemsize)
            sums = total if part == dtype else wrapped(total.data.ptr, parts, part, self.device)
            module.true_divide(sums, part.type(contributions), out=sums)
            return
        # In 64 bits, because the divisor must not wrap: 200 ranks do not fit int8. CuPy's fmod uses
        # doubles, which do not hold all 64-bit integers.
        wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
        sums = self.scratch.empty(total.size, wide)
        module.copyto(sums, total)
        if dtype.kind == "i":
            # The division rounds towards minus infinity, so negative sums are raised beforehand.
            raised = self.scratch.empty(total.size, wide)
            module.right_shift(sums, wide.type(63), out=raised)
            module.bitwise_and(raised, wide.type(contributions - 1), out=raised)
            module.add(sums, raised, out=sums)
        module.floor_divide(sums, wide.type(contributions), out=sums)
        module.copyto(total, sums, casting="unsafe")


class DeviceFolder:
    """Folds contributions in their order.

    Parameters
    ----------
    op : ReduceOp, PremulSum or callable
        The reduction, as for `hpccomm.memory.folding.Folder`. A callable gets CuPy arrays.
    elements : DeviceElements
        Contributions and results.
    average_over : int
        If not 0, the divisor of a final sum, before it is rounded to the dtype.
    ordered : bool
        Whether contributions come in rank order.

    Raises
    ------
    UsageError
        If `op` is a callable, but not a commutative, associative, elementwise function of two CuPy
        arrays of this dtype.
    """

    __slots__ = ("_average_over", "_combine", "_elements", "_exact", "_op", "_seen")

    def __init__(
        self, op: Op, elements: DeviceElements, average_over: int = 0, *, ordered: bool = False
    ) -> None:
        dtype = elements.dtype
        self._elements = elements
        self._exact = accumulator(op, dtype) == dtype
        self._op = op
        self._average_over = average_over
        if isinstance(op, ReduceOp | PremulSum):
            self._seen, self._combine = carrier(dtype), _named(op)
        else:
            self._seen, self._combine = dtype, _users(op)
            _try(op, self._combine, dtype, elements.device, ordered)

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
        dtype, device = self._elements.dtype, self._elements.device
        fold = self._exactly if self._exact else self._widened
        scratch = average and dtypes.is_integer(dtype) if self._exact else len(sources) > AT_ONCE
        for start, some in _blocks(count, BLOCK if scratch else count):
            # One array object per place. CuPy treats two objects as arrays that overlap.
            at = {
                pointer: wrapped(pointer + start * dtype.itemsize, some, self._seen, device)
                for pointer in {*sources, target}
            }
            fold([at[source] for source in sources], at[target], average)

    def _exactly(self, sources: list[Any], out: Any, average: int) -> None:
        left, *rest = sources
        between = None
        for number, source in enumerate(rest, 1):
            into = out
            if any(later is out for later in rest[number:]):  # a later step reads it
                if between is None:
                    between = self._elements.scratch.empty(out.size, self._elements.dtype)
                into = between
            self._combine(left, source, into)
            left = into
        if left is not out:
            cupy().copyto(out, left)
        if average:
            self._elements.divide(out, average)

    def _widened(self, sources: list[Any], out: Any, average: int) -> None:
        """Fold in float32, and round once."""
        dtype, op = self._elements.dtype, self._op
        combined = COMBINED[op if isinstance(op, ReduceOp) else ReduceOp.SUM]
        given = [dtype] * len(sources)
        while len(sources) > AT_ONCE:
            scratch = self._elements.scratch
            total = sources[0] if given[0] == FLOAT32 else scratch.empty(out.size, FLOAT32)
            kernel(tuple(given[:AT_ONCE]), FLOAT32, combined)(*sources[:AT_ONCE], _ONE, total)
            sources, given = [total, *sources[AT_ONCE:]], [FLOAT32, *given[AT_ONCE:]]
        kernel(tuple(given), dtype, combined)(*sources, np.float32(average or 1), out)


def _blocks(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Return the start and the length of each block of at most `step` elements."""
    return ((start, min(step, count - start)) for start in range(0, count, max(step, 1)))


def _named(op: ReduceOp | PremulSum) -> Combine:
    ufunc = getattr(cupy(), (np.add if isinstance(op, PremulSum) else UFUNC[op]).__name__)
    return lambda a, b, out: ufunc(a, b, out=out)


def _users(op: Callable[[Any, Any], Any]) -> Combine:
    def combine(a: Any, b: Any, out: Any) -> None:
        module = cupy()
        try:
            result = op(a, b)
        except Exception as error:  # any exception of the user's function
            raise UsageError(
                f"op {name_of(op)} fails on CuPy arrays of {a.dtype} ({error!r}); give a commutative, "
                "associative, elementwise function that takes them, such as one of NumPy's or CuPy's, or use host "
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


def _try(op: Op, combine: Combine, dtype: DType, device: int, ordered: bool) -> None:
    """Call a user's function on a few elements, so that an unfit one is refused before the call."""
    module = cupy()

    def apply(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        try:
            x, y, out = (module.empty(a.size, dtype) for _ in range(3))
        except ValueError as error:
            raise UsageError(
                f"op {name_of(op)}: CuPy has no arrays of {dtype} that it could be given; "
                "move host arrays, or use one of hpccomm's reductions"
            ) from error
        x.set(a)
        y.set(b)
        combine(x, y, out)
        a[:], b[:] = x.get(), y.get()  # which shows whether the function wrote to them
        result: NDArray[Any] = out.get()
        return result

    with on_device(device):
        try:
            if capturing(module.cuda.get_current_stream().ptr):
                return  # only the call itself may be captured
        except module.cuda.runtime.CUDARuntimeError:
            return  # the default stream during the capture of another one
        # On a stream of its own, because the host waits for it and must not wait for other work.
        with make_stream(device, high_priority=False):
            check_fit(op, dtype, apply, device, ordered=ordered)
