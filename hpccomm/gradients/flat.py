"""The memory of buckets."""

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import is_narrow
from hpccomm.gradients.arrays import is_on_device
from hpccomm.gradients.layout import ALIGNMENT, Bucket

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.gradients.parameters import Kind

PASS = 1 << 16
"""Elements that are widened at once."""

DEVICE_PASS = 1 << 24
"""The same on a device, where each pass takes some launches."""


class FlatBucket:
    """The gradients of one bucket in registered memory.

    Behind the gradients lie some flags, which are reduced with them: so the ranks learn without another message which
    flags any rank has set.

    Parameters
    ----------
    bucket : Bucket
        What lies where.
    memory : ndarray of `needed` elements
        Of the bucket's dtype, all 0.
    size : int
        Number of ranks.
    flags : int
        How many.

    Attributes
    ----------
    views : list of ndarray
        The gradients, of their parameters' shapes, in the order of the bucket.
    gradients : ndarray, 1-D
        All of them, with the padding between them.
    memory : ndarray, 1-D
        The gradients and the flags.
    """

    def __init__(self, bucket: Bucket, memory: NDArray[Any], size: int, flags: int) -> None:
        self.bucket = bucket
        self.memory = memory
        self.gradients = self.memory[: bucket.length]
        self._flags = self.memory[bucket.length : bucket.length + flags]
        self.views = [
            self.memory[offset : offset + parameter.size].reshape(parameter.shape)
            for parameter, offset in zip(bucket.parameters, bucket.offsets, strict=True)
        ]
        # An average of narrow floats over many ranks must not become 0.
        self._mark = float(min(size, 256))

    def tell(self, flags: Sequence[bool]) -> None:
        """Note this rank's flags for the other ranks."""
        marks = [self._mark if flag else 0.0 for flag in flags]
        behind: Any = self._flags[: len(marks)]
        if is_on_device(behind):
            behind.set(np.array(marks, self.memory.dtype))  # one copy
        else:
            behind[:] = marks

    def finite(self) -> bool:
        """Tell whether all gradients are finite. On a device it waits once, for all of them."""
        return bool(np.isfinite(self.gradients).all())

    def told(self) -> list[bool]:
        """Return which flags any rank has set, once reduced. They are equal on all ranks."""
        found: list[bool] = (self._flags != 0).tolist()
        return found

    def scale(self, factor: float) -> None:
        """Multiply all gradients; narrow floats are rounded once."""
        scale(self.gradients, factor)


def needed(bucket: Bucket, flags: int) -> int:
    """Return the elements of a bucket with its flags; those of the next bucket begin at a cache line."""
    line = ALIGNMENT // bucket.dtype.itemsize
    return bucket.length + -(-flags // line) * line


def flat_buckets(
    comm: "Communicator", buckets: Sequence[Bucket], flags: int
) -> tuple[list[FlatBucket], list[NDArray[Any]]]:
    """Return buckets in registered memory, and the memory of each kind. Local.

    Buckets of one kind lie one behind the other, so that one call reduces all of them.
    """
    regions: dict[Kind, NDArray[Any]] = {}
    for kind in dict.fromkeys(bucket.kind for bucket in buckets):
        size = sum(needed(bucket, flags) for bucket in buckets if bucket.kind == kind)
        device = comm.device if kind.on_device else None
        regions[kind] = comm.empty(size, kind.dtype, device=device)
        regions[kind][:] = 0  # the padding as well, which is reduced
    flats, used = [], dict.fromkeys(regions, 0)
    for bucket in buckets:
        start = used[bucket.kind]
        used[bucket.kind] = end = start + needed(bucket, flags)
        flats.append(FlatBucket(bucket, regions[bucket.kind][start:end], comm.size, flags))
    return flats, list(regions.values())


def scale(x: NDArray[Any], factor: float) -> None:
    """Multiply an array in place; narrow floats are widened to float32 and rounded once."""
    if not is_narrow(x.dtype):
        np.multiply(x, x.dtype.type(factor), out=x)
        return
    flat = x.reshape(-1)
    step = DEVICE_PASS if is_on_device(x) else PASS
    for start in range(0, flat.size, step):
        part = flat[start : start + step]
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
    step = DEVICE_PASS if is_on_device(x) else PASS
    for start in range(0, flat.size, step):
        part = flat[start : start + step].astype(np.float64)
        total += float((part * part).sum())
    return total
