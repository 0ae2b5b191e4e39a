"""Flat memory: several arrays one behind the other in one array, with views.

Buckets, shards and averaged models lie in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, sqrt

import numpy as np

from hpccomm.dtypes import is_narrow
from hpccomm.gradients.arrays import PASS, Array, is_on_device, passes
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.layout import ALIGNMENT
from hpccomm.gradients.parameters import Bucket, BucketKind

DEVICE_PASS = 1 << 24
"""Elements that are widened at once on a device, where each pass takes some launches."""


class FlatMemory:
    """The arrays of one bucket in one array.

    Parameters
    ----------
    bucket : Bucket
        What lies where.
    memory : ndarray, 1-D
        Of at least the bucket's length. What lies behind it belongs to others.

    Attributes
    ----------
    elements : ndarray, 1-D
        Of the bucket, with the padding between arrays.
    views : dict of str to ndarray
        The arrays by name, of their parameters' shapes, in the order of the bucket.
    """

    def __init__(self, bucket: Bucket, memory: Array) -> None:
        self.bucket, self.memory = bucket, memory
        self.elements = memory[: bucket.length]
        self.views = bucket.views(memory)

    def read(self, arrays: Mapping[str, Array]) -> None:
        """Copy arrays of others here."""
        for name, view in self.views.items():
            np.copyto(view, arrays[name])

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Copy what lies here to arrays of others."""
        for name, view in self.views.items():
            np.copyto(arrays[name], view)

    def is_finite(self) -> bool:
        """Return whether all elements are finite. On a device it waits once, for all of them."""
        return bool(np.isfinite(self.elements).all())


def views_of(flats: Iterable[FlatMemory], names: Iterable[str] = ()) -> dict[str, Array]:
    """Return all arrays by name, in the order of `names` as far as given."""
    views = {name: view for flat in flats for name, view in flat.views.items()}
    return {name: views[name] for name in names} or views


def registered(group: RankGroup, bucket: Bucket, length: int) -> FlatMemory:
    """Return zeros in registered memory, the padding included, as it is reduced with them. Local."""
    memory = group.comm.empty(length, bucket.dtype)
    memory[:] = 0
    return FlatMemory(bucket, memory)


def registered_together(
    group: RankGroup, buckets: Sequence[Bucket], flags: int
) -> tuple[list[FlatMemory], dict[BucketKind, Array]]:
    """Return zeros for all buckets in registered memory, and the memory of each kind. Local.

    Buckets of one kind lie one behind the other, so that one call reduces all of them. Behind each there is room
    for `flags` elements, up to a cache line.
    """
    ends: dict[BucketKind, int] = {}
    places = []
    for bucket in buckets:
        line = ALIGNMENT // bucket.dtype.itemsize
        start = ends.get(bucket.kind, 0)
        ends[bucket.kind] = end = start + bucket.length + -(-flags // line) * line
        places.append(slice(start, end))
    regions = {}
    for kind, end in ends.items():
        device = group.comm.device if kind.on_device else None
        regions[kind] = group.comm.empty(end, kind.dtype, device=device)
        regions[kind][:] = 0
    pairs = zip(buckets, places, strict=True)
    return [FlatMemory(each, regions[each.kind][place]) for each, place in pairs], regions


def scale(x: Array, factor: float) -> None:
    """Multiply an array in place; narrow floats are widened to float32 and rounded once."""
    if not is_narrow(x.dtype):
        np.multiply(x, x.dtype.type(factor), out=x)
        return
    for part in _parts(x):
        part[:] = (part.astype(np.float32) * np.float32(factor)).astype(x.dtype)


def clip(arrays: Sequence[Array], limit: float) -> float:
    """Scale arrays in place so that the norm over all of them is at most `limit`, and return the norm before.

    If it is infinite or NaN, nothing is scaled.
    """
    # NumPy's own sum, not BLAS's, whose bits may depend on the processor: all ranks are to get the same.
    squares = [
        sum(float(np.square(part.astype(np.float64)).sum()) for part in _parts(x)) for x in arrays
    ]
    norm = sqrt(sum(squares))
    if isfinite(norm) and norm > limit:
        for each in arrays:
            scale(each, limit / norm)
    return norm


def _parts(x: Array) -> list[Array]:
    """Return a C-contiguous array in parts that are small enough to be widened."""
    flat = x.reshape(-1)
    return [flat[part] for part in passes(flat.size, DEVICE_PASS if is_on_device(x) else PASS)]
