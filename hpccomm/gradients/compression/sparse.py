"""A compressor that sends the largest gradients and keeps the others for later steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import DType
from hpccomm.gradients.arrays import Array, drop_nonfinite, passes, wide
from hpccomm.gradients.checks import check_number, set_checked
from hpccomm.gradients.compression.contract import Exchange
from hpccomm.gradients.parameters import Bucket
from hpccomm.settings import check_bool

_finfo: Any = ml_dtypes.finfo  # of NumPy's floats too; it has no types

Bytes = NDArray[np.uint8]
Places = NDArray[np.intp]

SAMPLES = 1 << 16
"""Size of the sample for the guess of a threshold."""

GENEROUS = 1.25
"""The guessed threshold looks for this multiple of the wanted number of elements."""

SIZE = np.dtype(np.int64)
"""Of the number in front of a message."""


def _sum(x: Array, messages: Iterable[Bytes], index: DType) -> None:
    """Write the sum of sparse arrays, in the order of the messages."""
    total = np.zeros(x.size, wide(x.dtype)) if wide(x.dtype) != x.dtype else x
    total[:] = 0
    for message in messages:
        count = message.size // (index.itemsize + x.itemsize)
        end = count * index.itemsize
        values = message[end:].copy().view(x.dtype)
        total[message[:end].copy().view(index)] += values
    if total is not x:
        x[:] = total


def largest(x: Array, count: int) -> Places:
    """Return where the elements of the largest magnitudes lie: `count`, or a few less, in order.

    In long arrays a threshold is guessed from a sample first, as in Lin et al. 2018, section 3. So some of the
    smallest wanted ones may be missing.
    """
    if x.size <= count:
        return np.arange(x.size)
    if x.size <= 4 * SAMPLES:
        where = np.arange(x.size)
        magnitudes = np.abs(x)
    else:
        # At random, since columns of a matrix lie at equal distances.
        drawn = np.random.default_rng(x.size).integers(0, x.size, SAMPLES)
        sample = np.abs(x[drawn])
        rank = max(0, sample.size - ceil(sample.size * GENEROUS * count / x.size) - 1)
        # Zeros are not sent, however many are wanted.
        least = max(float(np.partition(sample, rank)[rank]), float(np.finfo(x.dtype).tiny))
        where = np.concatenate(
            [part.start + np.flatnonzero(np.abs(x[part]) >= least) for part in passes(x.size)]
        )
        magnitudes = np.abs(x[where])
    if where.size > count:
        where = np.sort(where[np.argpartition(magnitudes, -count)[-count:]])
    return where


@dataclass(frozen=True, slots=True)
class TopK:
    """Send the gradients of the largest magnitudes in each bucket, with their places, and keep the others.

    The method is that of Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent", EMNLP; Lin et
    al. 2018, "Deep Gradient Compression", ICLR; for convergence Stich et al. 2018, "Sparsified SGD with Memory",
    NeurIPS. NaN and infinities are not kept; the result has a NaN then.

    Attributes
    ----------
    ratio : float
        Part of a bucket's elements that each rank sends, above 0 and at most 1. In buckets of more than 262,144 elements
        it may be a few less, since the threshold is guessed from a sample.
    error_feedback : bool
        Whether what was not sent is added in the next step. Without it, it is lost.
    """

    ratio: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        ratio = check_number("ratio", self.ratio, lambda x: 0 < x <= 1, "above 0 and at most 1")
        feedback = check_bool("error_feedback", self.error_feedback)
        set_checked(self, ratio=ratio, error_feedback=feedback)

    def channel(self, bucket: Bucket) -> "SparseChannel":
        """Return the reducer of a bucket. Local."""
        count = ceil(self.ratio * bucket.length)
        return SparseChannel(bucket, count, error_feedback=self.error_feedback)


class SparseChannel:
    """One bucket that sends some of its elements, see `Channel`.

    Parameters
    ----------
    bucket : Bucket
        Its bucket.
    count : int
        How many elements are sent at most.
    error_feedback : bool
        Whether what was not sent is added in the next step.
    """

    def __init__(self, bucket: Bucket, count: int, *, error_feedback: bool) -> None:
        self._count, self._feedback = count, error_feedback
        self._unsent = np.zeros(bucket.length, wide(bucket.dtype))
        self._index = np.dtype(np.uint32 if bucket.length < 1 << 32 else np.uint64)
        self._largest = float(_finfo(bucket.dtype).max)

    @property
    def memory_bytes(self) -> int:
        """Elements that were not sent yet."""
        return self._unsent.nbytes

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by the sum of the elements that ranks send."""
        unsent = self._unsent
        if self._feedback:
            unsent += x
        else:
            unsent[:] = x
        if drop_nonfinite(unsent):  # the step is lost, and what was not sent stays
            places, values = np.zeros(1, np.intp), np.full(1, np.nan, x.dtype)
        else:
            places = largest(unsent, self._count)
            wanted = unsent[places]
            # What is too large for the dtype is sent over several steps, as is what rounding takes.
            values = np.clip(wanted, -self._largest, self._largest).astype(x.dtype)
            unsent[places] = wanted - values
        content = np.concatenate([places.astype(self._index).view(np.uint8), values.view(np.uint8)])
        # One message of one length on all ranks: the number of bytes that count, and room for `count` elements.
        room = self._count * (self._index.itemsize + x.itemsize)
        message = np.zeros(SIZE.itemsize + room, np.uint8)
        message[: SIZE.itemsize].view(SIZE)[0] = content.size
        message[SIZE.itemsize :][: content.size] = content
        every = exchange.gather(message)
        sizes = every[:, : SIZE.itemsize].copy().view(SIZE)[:, 0]
        _sum(x, (m[SIZE.itemsize :][:n] for m, n in zip(every, sizes, strict=True)), self._index)
