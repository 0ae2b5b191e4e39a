"""The layout of buckets: which gradient lies in which bucket, and where; and the memory of buckets.

Gradients are packed in the order in which the backward pass is expected to produce them. So a bucket can be reduced while
the pass goes on (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13(12),
section 3.2.3).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from math import isfinite, sqrt

import numpy as np

from hpccomm.dtypes import is_narrow
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.parameters import Array, Bucket, BucketKind, Parameter, parts
from hpccomm.gradients.settings import Order, ReductionSettings
from hpccomm.units import grouped

ALIGNMENT = 64
"""Bytes of a cache line. Each gradient begins at one, so that its values do not depend on its bucket."""


def padded(parameter: Parameter) -> int:
    """Return the bytes that a gradient takes in a bucket."""
    return -(-parameter.nbytes // ALIGNMENT) * ALIGNMENT


def ordered(
    parameters: Sequence[Parameter], order: Order, readiness: Sequence[str] | None = None
) -> list[Parameter]:
    """Return the parameters in the order of filling buckets.

    Parameters
    ----------
    parameters : sequence of Parameter
        In the order of the forward pass.
    order : {"reverse", "ready", "largest"}
        As in `ReductionSettings`.
    readiness : sequence of str, optional
        For ``"ready"``, the names of all parameters in the order in which gradients became ready. None gives the
        reverse order, as before the first step.
    """
    backward = list(reversed(parameters))
    if order == "largest":
        return sorted(backward, key=lambda each: -each.nbytes)
    if order == "ready" and readiness is not None:
        place = {name: number for number, name in enumerate(readiness)}
        return sorted(backward, key=lambda each: place.get(each.name, len(place)))
    return backward


def mean_order(readiness: Sequence[Sequence[str]]) -> list[str]:
    """Return one order of readiness for all ranks: by the mean position of each name.

    Parameters
    ----------
    readiness : sequence of sequences of str
        For each rank, the names of gradients in the order in which they became ready. A name that a rank lacks counts
        as its last one. Names with equal means keep the order of the lowest rank.
    """
    seen = list(dict.fromkeys(chain.from_iterable(readiness)))
    places = [{name: number for number, name in enumerate(names)} for names in readiness]
    return sorted(seen, key=lambda name: sum(place.get(name, len(seen)) for place in places))


def fill(sizes: Sequence[int], settings: ReductionSettings) -> list[list[int]]:
    """Fill buckets one after the other. Return the numbers of the gradients in each.

    Parameters
    ----------
    sizes : sequence of int
        The bytes that each gradient takes in a bucket, see `padded`.
    settings : ReductionSettings
        The limits.
    """
    buckets: list[list[int]] = []
    nbytes = 0  # of the last one
    for number, size in enumerate(sizes):
        limit = settings.first_bucket_bytes if len(buckets) == 1 else settings.bucket_bytes
        if not (buckets and settings.bucketing and nbytes + size <= limit):
            buckets.append([])
            nbytes = 0
        buckets[-1].append(number)
        nbytes += size
    if settings.bucketing and nbytes < settings.min_bucket_bytes and len(buckets) > 1:
        last = buckets.pop()
        buckets[-1] += last
    return buckets


def layout(
    parameters: Sequence[Parameter],
    settings: ReductionSettings,
    readiness: Sequence[str] | None = None,
) -> tuple[Bucket, ...]:
    """Return the buckets, in the order in which they are reduced.

    Each dtype has buckets of its own, and so have host and device. Buckets come in the order in which they are expected
    to be complete, which is the order of their last gradients.

    Parameters
    ----------
    parameters : sequence of Parameter
        The parameters that have gradients, in the order of the forward pass.
    settings : ReductionSettings
        Limits and order.
    readiness : sequence of str, optional
        As in `ordered`.
    """
    order = ordered(parameters, settings.order, readiness)
    filled: list[list[Parameter]] = []
    for alike in grouped((each.kind, each) for each in order).values():
        buckets = fill([padded(each) for each in alike], settings)
        filled += [[alike[number] for number in inside] for inside in buckets]
    place = {each.name: number for number, each in enumerate(order)}
    layout = []
    for index, inside in enumerate(sorted(filled, key=lambda bucket: place[bucket[-1].name])):
        dtype = inside[0].dtype
        *offsets, length = accumulate((padded(x) // dtype.itemsize for x in inside), initial=0)
        layout.append(Bucket(index, dtype, tuple(inside), tuple(offsets), length))
    return tuple(layout)


class FlatMemory:
    """The arrays of one bucket in one array.

    Parameters
    ----------
    bucket : Bucket
        The places of the arrays.
    memory : ndarray, 1-D
        At least as long as the bucket. Elements behind the bucket have other uses.

    Attributes
    ----------
    elements : ndarray, 1-D
        The bucket's elements, with the padding between arrays.
    views : dict of str to ndarray
        The arrays by name, in the shapes of their parameters, in the order of the bucket.
    """

    def __init__(self, bucket: Bucket, memory: Array) -> None:
        self.bucket, self.memory = bucket, memory
        self.elements = memory[: bucket.length]
        self.views = bucket.views(memory)


def views_of(flats: Iterable[FlatMemory], names: Iterable[str] = ()) -> dict[str, Array]:
    """Return all arrays by name. If `names` are given, the arrays are in their order."""
    views = {name: view for flat in flats for name, view in flat.views.items()}
    return {name: views[name] for name in names} or views


def copy_arrays(source: Mapping[str, Array], target: Mapping[str, Array]) -> None:
    """Copy each array to the array of the same name, if there is one."""
    for name in source.keys() & target.keys():
        np.copyto(target[name], source[name])


def registered_together(
    group: RankGroup, buckets: Sequence[Bucket], flags: int
) -> tuple[list[Array], dict[BucketKind, Array]]:
    """Return registered memory with zeros: for each bucket, and for all buckets of one kind. Local.

    Buckets of one kind lie one behind the other, so that one call can reduce all of them. Behind each bucket there is
    room for `flags` elements, filled up to a cache line.
    """
    places: dict[int, Array] = {}
    regions: dict[BucketKind, Array] = {}
    for kind, alike in grouped((each.kind, each) for each in buckets).items():
        line = ALIGNMENT // kind.dtype.itemsize
        room = -(-flags // line) * line
        *starts, end = accumulate((each.length + room for each in alike), initial=0)
        device = group.comm.device if kind.on_device else None
        regions[kind] = memory = group.comm.empty(end, kind.dtype, device=device)
        memory[:] = 0
        for each, start in zip(alike, starts, strict=True):
            places[each.index] = memory[start : start + each.length + room]
    return [places[each.index] for each in buckets], regions


def scale(x: Array, factor: float) -> None:
    """Multiply an array in place. Narrow floats are widened to float32, and rounded once."""
    if not is_narrow(x.dtype):
        np.multiply(x, x.dtype.type(factor), out=x)
        return
    for part in parts(x):
        part[:] = (part.astype(np.float32) * np.float32(factor)).astype(x.dtype)


def clip(arrays: Sequence[Array], limit: float) -> float:
    """Scale arrays in place so that the norm of all of them is at most `limit`. Return the norm before.

    If the norm is infinite or NaN, nothing is scaled.
    """
    # All ranks must get the same bits. So this is NumPy's sum: the bits of BLAS's may depend on the processor.
    every = (part for x in arrays for part in parts(x))
    norm = sqrt(sum(float(np.square(part.astype(np.float64)).sum()) for part in every))
    if isfinite(norm) and norm > limit:
        for each in arrays:
            scale(each, limit / norm)
    return norm
