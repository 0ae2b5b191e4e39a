"""Folding contributions in device memory, by CuPy's function of the reduction.

It is one kernel with one rounded operation for each pair of contributions. What needs more (float32 for narrower
floats, integers' averages, the user's functions, the order of ranks) is folded on the host.

All work goes to CuPy's current stream, and nothing blocks. `hpccomm.calls.on_device` folds by it.
"""

from collections.abc import Sequence

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.arrays import wrapped
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.folding import UFUNC
from hpccomm.reductions import Op, ReduceOp, accumulator


def folds(op: Op, dtype: DType) -> bool:
    """Tell whether `DeviceFolder` has a reduction of a dtype."""
    if not isinstance(op, ReduceOp) or op not in UFUNC or accumulator(op, dtype) != dtype:
        return False
    return dtypes.is_reducible(dtype) and (op is not ReduceOp.AVG or dtypes.is_float(dtype))


class DeviceFolder:
    """Folds contributions in any order: every reduction that it has is commutative.

    Parameters
    ----------
    op : ReduceOp
        The reduction.
    dtype : dtype
        Of contributions and results; `folds` has it.
    device : int
        CUDA device of all arrays.
    average_over : int
        If not 0, the divisor of a final sum.
    """

    __slots__ = ("_average_over", "_device", "_dtype", "_ufunc")

    def __init__(self, op: ReduceOp, dtype: DType, device: int, average_over: int = 0) -> None:
        self._ufunc = getattr(cupy(), UFUNC[op].__name__)
        self._dtype = dtype
        self._device = device
        self._average_over = average_over

    def __call__(self, sources: Sequence[int], target: int, count: int, final: bool = True) -> None:
        """Fold `sources` into `target`.

        Parameters
        ----------
        sources : sequence of int
            Addresses of the contributions, at least one. One of them may be `target` itself.
        target : int
            Address of the result.
        count : int
            Elements of each.
        final : bool
            Whether this is the last fold, so that an average divides.
        """
        if not count:
            return
        out = wrapped(target, count, self._dtype, self._device)
        # CuPy takes two objects for arrays that overlap. And what lies in the target must not be written over first.
        left, *rest = (
            out if source == target else wrapped(source, count, self._dtype, self._device)
            for source in sorted(sources, key=target.__ne__)
        )
        for source in rest:
            self._ufunc(left, source, out=out)
            left = out
        if left is not out:
            cupy().copyto(out, left)
        if self._average_over and final:
            cupy().true_divide(out, self._dtype.type(self._average_over), out=out)
