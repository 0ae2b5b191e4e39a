"""Compressors that send the largest gradients and keep the others for later steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.gradients.compression.contract import Exchange
from hpccomm.gradients.compression.widths import drop_nonfinite, wide
from hpccomm.gradients.parameters import Bucket
from hpccomm.settings import check_bool

_finfo: Any = ml_dtypes.finfo  # of NumPy's floats too; it has no types

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

PASS = 1 << 16
"""Elements that are searched at once: they stay in the cache."""

SAMPLES = 1 << 16
"""Elements from which a threshold is guessed."""

GENEROUS = 1.25
"""So many times as many elements are looked for by the guessed threshold as are wanted."""

COUNT = np.dtype(np.int64)


class _Kept:
    """Gradients that were not sent yet.

    Attributes
    ----------
    values : ndarray
        Those of earlier steps, and of this one when they were added.
    """

    def __init__(self, bucket: Bucket, *, error_feedback: bool) -> None:
        self._feedback = error_feedback
        self.values = np.zeros(bucket.length, wide(bucket.dtype))
        self.index = np.dtype(np.uint32 if bucket.length < 1 << 32 else np.uint64)
        self.dtype = bucket.dtype
        self._most = float(_finfo(bucket.dtype).max)

    @property
    def memory_bytes(self) -> int:
        return self.values.nbytes

    def add(self, x: Array) -> bool:
        """Add this step's gradients; return whether some were NaN or infinite, which are dropped."""
        if self._feedback:
            self.values += x
        else:
            self.values[:] = x
        return drop_nonfinite(self.values)

    def take(self, where: NDArray[np.intp]) -> Array:
        """Return elements as they are sent, and keep what rounding takes from them."""
        wanted = self.values[where]
        # What is too large for the dtype is sent over several steps.
        sent = np.clip(wanted, -self._most, self._most).astype(self.dtype)
        self.values[where] = wanted - sent
        return sent


def _pack(index: DType, where: NDArray[np.intp], values: Array) -> Bytes:
    return np.concatenate([where.astype(index).view(np.uint8), values.view(np.uint8)])


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


def _larger(x: Array, least: float) -> NDArray[np.intp]:
    """Return where magnitudes are at least `least`, in order."""
    found = [
        start + np.flatnonzero(np.abs(x[start : start + PASS]) >= least)
        for start in range(0, x.size, PASS)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.intp)


def largest(x: Array, count: int) -> NDArray[np.intp]:
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
        where = _larger(x, least)
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
        if not isinstance(self.ratio, int | float) or not 0 < self.ratio <= 1:
            raise UsageError(f"ratio is {self.ratio!r}; give a number above 0 and at most 1")
        check_bool("error_feedback", self.error_feedback)

    def channel(self, bucket: Bucket) -> "_TopKChannel":
        """Return what reduces a bucket. Local."""
        kept = _Kept(bucket, error_feedback=self.error_feedback)
        return _TopKChannel(kept, ceil(self.ratio * bucket.length))


class _TopKChannel:
    def __init__(self, kept: _Kept, count: int) -> None:
        self._kept, self._count = kept, count

    @property
    def memory_bytes(self) -> int:
        return self._kept.memory_bytes

    def reduce(self, x: Array, exchange: Exchange) -> None:
        kept = self._kept
        bad = kept.add(x)
        where = largest(kept.values, self._count)
        if bad:  # the step is lost, and what is kept stays
            where, values = np.zeros(1, np.intp), np.full(1, np.nan, x.dtype)
        else:
            values = kept.take(where)
        # One message of one length on all ranks: how many bytes count, and room for as many as are wanted.
        content = _pack(kept.index, where, values)
        room = self._count * (kept.index.itemsize + x.itemsize)
        message = np.zeros(COUNT.itemsize + room, np.uint8)
        message[: COUNT.itemsize].view(COUNT)[0] = content.size
        message[COUNT.itemsize : COUNT.itemsize + content.size] = content
        every = exchange.gather(message)
        sizes = (int(each[: COUNT.itemsize].copy().view(COUNT)[0]) for each in every)
        _sum(
            x,
            (each[COUNT.itemsize :][:n] for each, n in zip(every, sizes, strict=True)),
            kept.index,
        )


@dataclass(frozen=True, slots=True)
class Threshold:
    """Send the gradients whose magnitude reaches a threshold, with their places, and keep the others.

    The method is that of Strom 2015, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech, but the values themselves are sent, not the threshold in their place. NaN and infinities are not kept;
    the result has a NaN then.

    Attributes
    ----------
    value : float
        Least magnitude that is sent, above 0.
    error_feedback : bool
        Whether what was not sent is added in the next step. Without it, it is lost.
    """

    value: float
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float) or not 0 < self.value < inf:
            raise UsageError(f"value is {self.value!r}; give a number above 0")
        check_bool("error_feedback", self.error_feedback)

    def channel(self, bucket: Bucket) -> "_ThresholdChannel":
        """Return what reduces a bucket. Local."""
        return _ThresholdChannel(_Kept(bucket, error_feedback=self.error_feedback), self.value)


class _ThresholdChannel:
    def __init__(self, kept: _Kept, least: float) -> None:
        self._kept, self._least = kept, least

    @property
    def memory_bytes(self) -> int:
        return self._kept.memory_bytes

    def reduce(self, x: Array, exchange: Exchange) -> None:
        kept = self._kept
        bad = kept.add(x)
        where = _larger(kept.values, self._least)
        if bad:  # the step is lost, and what is kept stays
            where, values = np.zeros(1, np.intp), np.full(1, np.nan, x.dtype)
        else:
            values = kept.take(where)
        _sum(x, exchange.gather_uneven(_pack(kept.index, where, values)), kept.index)
