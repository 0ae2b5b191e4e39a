"""A bucket's memory, and the calls that reduce it."""

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import DType, is_narrow
from hpccomm.gradients.layout import ALIGNMENT, Bucket
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator
    from hpccomm.runtime.work import Work

PASS = 1 << 16
"""Elements that are widened at once."""


class FlatBucket:
    """The gradients of one bucket in registered memory.

    Behind the gradients lies one more element, which is reduced with them. It is 0 if all gradients of the bucket
    are there, so that the ranks learn from the reduction itself whether any rank lacks one.

    Parameters
    ----------
    bucket : Bucket
        What lies where.
    memory : ndarray of `needed` elements
        Of the bucket's dtype, all 0.
    size : int
        Number of ranks.

    Attributes
    ----------
    views : list of ndarray
        The gradients, of their parameters' shapes, in the order of the bucket.
    memory : ndarray, 1-D
        All of it.
    """

    def __init__(self, bucket: Bucket, memory: NDArray[Any], size: int) -> None:
        self.bucket = bucket
        self.memory = memory
        self.gradients = self.memory[: bucket.length]
        self._missing = self.memory[bucket.length : bucket.length + 1]
        self.views = [
            self.memory[offset : offset + parameter.size].reshape(parameter.shape)
            for parameter, offset in zip(bucket.parameters, bucket.offsets, strict=True)
        ]
        # An average of narrow floats over many ranks must not become 0.
        self._mark = float(min(size, 256))

    def mark(self, complete: bool) -> None:
        """Note for the other ranks whether this rank has all gradients."""
        self._missing[0] = 0.0 if complete else self._mark

    @property
    def incomplete(self) -> bool:
        """Whether some rank lacked a gradient, once reduced. It is equal on all ranks."""
        return bool(self._missing[0] != 0)

    def scale(self, factor: float) -> None:
        """Multiply all gradients; narrow floats are rounded once."""
        scale(self.gradients, factor)

    def plan(
        self, comm: "Communicator", op: ReduceOp, *, deterministic: bool, timeout: float | None
    ) -> "Callable[[], Work]":
        """Plan the asynchronous reduction. Collective; blocks."""
        plan: Callable[[], Work] = comm.plan(
            "all_reduce",
            self.memory,
            op,
            deterministic=deterministic,
            timeout=timeout,
            async_op=True,
        )
        return plan


def needed(bucket: Bucket) -> int:
    """Return the elements of a bucket with what is reduced besides the gradients."""
    return bucket.length + ALIGNMENT // bucket.dtype.itemsize


def flat_buckets(
    comm: "Communicator", buckets: Sequence[Bucket]
) -> tuple[list[FlatBucket], list[NDArray[Any]]]:
    """Return buckets in registered memory, and the memory of each dtype. Local.

    Buckets of one dtype lie one behind the other, so that one call reduces all of them.
    """
    regions: dict[DType, NDArray[Any]] = {}
    for dtype in dict.fromkeys(bucket.dtype for bucket in buckets):
        size = sum(needed(bucket) for bucket in buckets if bucket.dtype == dtype)
        regions[dtype] = comm.empty(size, dtype)
        regions[dtype][:] = 0  # the padding as well, which is reduced
    flats, used = [], dict.fromkeys(regions, 0)
    for bucket in buckets:
        start = used[bucket.dtype]
        used[bucket.dtype] = end = start + needed(bucket)
        flats.append(FlatBucket(bucket, regions[bucket.dtype][start:end], comm.size))
    return flats, list(regions.values())


def scale(x: NDArray[Any], factor: float) -> None:
    """Multiply an array in place; narrow floats are widened to float32 and rounded once."""
    if not is_narrow(x.dtype):
        np.multiply(x, x.dtype.type(factor), out=x)
        return
    flat = x.reshape(-1)
    for start in range(0, flat.size, PASS):
        part = flat[start : start + PASS]
        part[:] = (part.astype(np.float32) * np.float32(factor)).astype(x.dtype)


def clip(arrays: Sequence[NDArray[Any]], limit: float) -> float:
    """Scale arrays in place so that the norm over all of them is at most `limit`, and return the norm before.

    If it is infinite or NaN, nothing is scaled.
    """
    norm = sqrt(sum(map(_square_sum, arrays)))
    if isfinite(norm) and norm > limit:
        for each in arrays:
            scale(each, limit / norm)
    return norm


def _square_sum(x: NDArray[Any]) -> float:
    # NumPy's own sum, not BLAS's, whose bits may depend on the processor: all ranks are to get the same.
    flat, total = x.reshape(-1), 0.0
    for start in range(0, flat.size, PASS):
        part = flat[start : start + PASS].astype(np.float64)
        total += float(np.add.reduce(part * part))
    return total
