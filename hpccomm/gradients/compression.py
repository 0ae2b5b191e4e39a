"""Gradient compression: the interface of compressors, and three compressors.

- `TopK` sends the largest gradients, and keeps the others for later steps.
- `PowerSGD` sends matrices as products of thin ones.
- `MixedPrecision` sends narrow floats. Each rank sums up one part of the bucket, as in a reduce-scatter. So received values
  are summed in float32, and rounded at most twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Literal, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, DType
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.parameters import Array, Bucket, drop_nonfinite, is_finite, passes, wide
from hpccomm.reductions import ReduceOp
from hpccomm.settings import check_bool, check_choice, check_least, check_number, set_checked


class Exchange:
    """The communication of a compressor. Each method is collective, and blocks.

    Parameters
    ----------
    group : RankGroup
        The ranks.

    Attributes
    ----------
    rank, size : int
        This rank, and the number of ranks that exchange compressed gradients.
    scale : float
        The loss scale, or 1. A compressor may multiply gradients by it before it narrows them, so that small ones
        survive, and divide them afterwards.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size
        self.scale = 1.0
        self.wire_nbytes = 0

    def sum(self, x: Array) -> None:
        """Replace an array by the sum over the ranks, with the same bits on each."""
        self.wire_nbytes += x.nbytes
        self._group.all_reduce(x, deterministic=True)

    def max(self, x: Array) -> None:
        """Replace an array by the largest elements over the ranks."""
        self.wire_nbytes += x.nbytes
        self._group.all_reduce(x, ReduceOp.MAX)

    def gather(self, x: Array) -> Array:
        """Return the arrays of all ranks, of shape ``(size, *x.shape)``. All ranks give the same shape and dtype."""
        self.wire_nbytes += x.nbytes
        every: Array = self._group.all_gather(np.ascontiguousarray(x))
        return every

    def gather_uneven(self, x: Array) -> Sequence[Array]:
        """Return the 1-D arrays of all ranks, by rank. They may have different lengths."""
        self.wire_nbytes += x.nbytes
        every, counts = self._group.all_gather_v(x, return_counts=True)
        return np.split(every, np.cumsum(counts)[:-1])

    def swap(self, x: Array) -> Array:
        """Send ``x[r]`` to each rank `r`. Return what each rank sent here, in the shape of `x`."""
        self.wire_nbytes += x.nbytes
        received: Array = self._group.all_to_all(np.ascontiguousarray(x))
        return received


class Channel(Protocol):
    """The work of a compressor on one bucket, and its state between steps.

    Attributes
    ----------
    memory_bytes : int
        Size of its state.
    """

    @property
    def memory_bytes(self) -> int:
        """Size of its state in bytes."""

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace a bucket's gradients by an approximation of their sum over the ranks. Collective; blocks.

        It calls `exchange` in the same way on all ranks. The result has the same bits on all of them.

        Parameters
        ----------
        x : ndarray, 1-D
            This rank's gradients, in the bucket's dtype and length. Each gradient begins at its offset in the bucket.
            The padding between gradients, and gradients that this rank lacks, are 0.
        exchange : Exchange
            The communication with the other ranks.
        """


class Compressor(Protocol):
    """Sends less than the gradients themselves.

    Its ``repr`` must have its settings, as that of a dataclass does, and be equal on all ranks.
    """

    def channel(self, bucket: Bucket) -> Channel:
        """Return the channel of a bucket. Local.

        Raises
        ------
        UsageError
            If the compressor cannot send the bucket's dtype.
        """


_finfo: Any = ml_dtypes.finfo  # also for NumPy's floats; it has no type hints

Places = NDArray[np.intp]

SAMPLES = 1 << 16
"""Number of elements from which a threshold is guessed."""

GENEROUS = 1.25
"""The guessed threshold shall let this multiple of the wanted number of elements pass."""


def largest(x: Array, count: int) -> Places:
    """Return the places of the `count` elements with the largest magnitudes, in order. There may be a few less.

    In a long array, a threshold is first guessed from a sample, as in Lin et al. 2018, section 3. So some of the smallest
    wanted elements may be missing.
    """
    if x.size <= count:
        return np.arange(x.size)
    if x.size <= 4 * SAMPLES:
        where = np.arange(x.size)
        magnitudes = np.abs(x)
    else:
        # The sample is random, since columns of a matrix lie at equal distances.
        drawn = np.random.default_rng(x.size).integers(0, x.size, SAMPLES)
        sample = np.abs(x[drawn])
        rank = max(0, sample.size - ceil(sample.size * GENEROUS * count / x.size) - 1)
        # Zeros are never sent.
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
    """Send the gradients with the largest magnitudes in each bucket, and their places. Keep the others.

    The method is that of Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent", EMNLP, and Lin et
    al. 2018, "Deep Gradient Compression", ICLR. For convergence see Stich et al. 2018, "Sparsified SGD with Memory",
    NeurIPS. NaN and infinities are not kept. With them, the result has a NaN.

    Attributes
    ----------
    ratio : float
        The fraction of a bucket's elements that each rank sends, above 0 and at most 1. Of buckets with more than 262,144
        elements, it may send a few less, since the threshold is guessed from a sample.
    error_feedback : bool
        Whether elements that were not sent are added in the next step. If False, they are lost.
    """

    ratio: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        ratio = check_number("ratio", self.ratio, lambda x: 0 < x <= 1, "above 0 and at most 1")
        feedback = check_bool("error_feedback", self.error_feedback)
        set_checked(self, ratio=ratio, error_feedback=feedback)

    def channel(self, bucket: Bucket) -> "SparseChannel":
        """Return the channel of a bucket. Local."""
        return SparseChannel(bucket, self)


class SparseChannel:
    """The `Channel` of a bucket that sends some of its elements."""

    def __init__(self, bucket: Bucket, how: TopK) -> None:
        self._count, self._feedback = ceil(how.ratio * bucket.length), how.error_feedback
        self._unsent = np.zeros(bucket.length, wide(bucket.dtype))
        index = np.uint32 if bucket.length < 1 << 32 else np.uint64
        self._form = np.dtype([("place", index), ("value", bucket.dtype)])
        self._largest = float(_finfo(bucket.dtype).max)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the elements that were not sent yet."""
        return self._unsent.nbytes

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by the sum of the elements that all ranks send."""
        unsent = self._unsent
        if self._feedback:
            unsent += x
        else:
            unsent[:] = x
        # All ranks send messages of one length. Unused elements have a place behind the bucket.
        message = np.zeros(self._count, self._form)
        message["place"] = x.size
        if drop_nonfinite(unsent):  # the step is lost, and what was not sent stays
            message[0] = 0, np.nan
        else:
            places = largest(unsent, self._count)
            wanted = unsent[places]
            # If an element is too large for the dtype, the rest stays for later steps, as rounding errors do.
            values = np.clip(wanted, -self._largest, self._largest).astype(x.dtype)
            unsent[places] = wanted - values
            message["place"][: len(places)] = places
            message["value"][: len(places)] = values
        total = x if x.dtype == unsent.dtype else np.zeros(x.size, unsent.dtype)
        total[:] = 0
        for row in exchange.gather(message.view(np.uint8)):
            sent = row.view(self._form)
            sent = sent[sent["place"] < x.size]
            total[sent["place"]] += sent["value"]
        if total is not x:
            x[:] = total


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Send each gradient of two or more axes as a product of two thin matrices, found by one step of a power iteration.

    The method is that of Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS: with error feedback and a warm start. A gradient's matrix has its first axis as rows and all
    others as columns. Gradients for which this saves less than half, such as vectors, are sent as they are.

    All ranks multiply the same thin matrices. If processors or BLAS libraries differ, they may round the product
    differently. `check_consistency` finds such differences.

    Attributes
    ----------
    rank : int
        Number of columns of the thin matrices, at least 1. A gradient sends ``rank * (rows + columns)`` elements.
    error_feedback : bool
        Whether the error of a step is added in the next one. Errors take as many bytes as the gradients, or as these in
        float32 if they are narrower.
    """

    rank: int = 4
    error_feedback: bool = True

    def __post_init__(self) -> None:
        feedback = check_bool("error_feedback", self.error_feedback)
        set_checked(self, rank=check_least("rank", self.rank, 1), error_feedback=feedback)

    def channel(self, bucket: Bucket) -> "PowerSGDChannel":
        """Return the channel of a bucket. Local."""
        return PowerSGDChannel(bucket, self)


class PowerSGDChannel:
    """The `Channel` of a bucket that sends thin matrices."""

    def __init__(self, bucket: Bucket, how: PowerSGD) -> None:
        self._dtype, self._bucket, self._rank = wide(bucket.dtype), bucket, how.rank
        self._errors = np.zeros(bucket.length, self._dtype) if how.error_feedback else None
        self._right: dict[str, Array] = {}
        plain = np.ones(bucket.length, np.bool_)
        views = bucket.views(plain).items()
        for offset, (name, place) in zip(bucket.offsets, views, strict=True):
            rows, columns = _matrix(place).shape
            if place.size and 2 * how.rank * (rows + columns) <= place.size:
                place[...] = False
                draw = np.random.default_rng([bucket.index, offset])  # the same on all ranks
                right = draw.standard_normal((columns, how.rank))
                self._right[name] = right.astype(self._dtype)
        self._plain = np.flatnonzero(plain)

    def _matrices(self, x: Array) -> list[Array]:
        """Return the gradients that are sent as products."""
        views = self._bucket.views(x)
        return [_matrix(views[name]) for name in self._right]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the errors of elements, and of the thin matrices of the last step."""
        errors = 0 if self._errors is None else self._errors.nbytes
        return errors + sum(each.nbytes for each in self._right.values())

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by an approximation of their sum over the ranks."""
        wanted = x if x.dtype == self._dtype else x.astype(self._dtype)
        if self._errors is not None:
            wanted += self._errors
        matrices, names = self._matrices(wanted), list(self._right)
        # One call sends the left matrices of all gradients, and behind them the uncompressed gradients.
        shapes = [(len(matrix), self._rank) for matrix in matrices]
        sent = np.empty(sum(map(prod, shapes)) + self._plain.size, self._dtype)
        lefts, plain = _parts(sent, shapes)
        plain[:] = wanted[self._plain]
        with np.errstate(invalid="ignore", over="ignore"):
            for matrix, name, left in zip(matrices, names, lefts, strict=True):
                np.matmul(matrix, self._right[name], out=left)
        exchange.sum(sent)
        # If this is so, it is on all ranks: the step is lost, and errors stay as they are.
        if not all(map(is_finite, lefts)):
            x[:] = np.nan
            return
        lefts = [np.linalg.qr(left)[0] for left in lefts]
        shapes = [each.shape for each in self._right.values()]
        sum_of_rights = np.empty(sum(map(prod, shapes)), self._dtype)
        rights, _ = _parts(sum_of_rights, shapes)
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            np.matmul(matrix.T, left, out=right)
        if self._errors is not None:
            self._errors[self._plain] = 0
            errors = self._matrices(self._errors)
            for matrix, left, right, error in zip(matrices, lefts, rights, errors, strict=True):
                np.matmul(left, right.T, out=error)
                np.subtract(matrix, error, out=error)
        if names:
            exchange.sum(sum_of_rights)
        for name, matrix, left, right in zip(names, matrices, lefts, rights, strict=True):
            np.matmul(left, right.T, out=matrix)
            if right.any():  # else the next step could not begin with it
                self._right[name] = right
        wanted[self._plain] = plain
        if wanted is not x:
            x[:] = wanted


def _matrix(x: Array) -> Array:
    """Return an array as a matrix. Its first axis becomes the rows, and all others the columns. A vector is one row."""
    return x.reshape(x.shape[0] if x.ndim > 1 else 1, -1) if x.size else x.reshape(1, 0)


def _parts(x: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Array], Array]:
    """Return arrays that lie one behind the other at the beginning of `x`, and the rest of `x`."""
    *parts, rest = np.split(x, np.cumsum([prod(shape) for shape in shapes], dtype=np.intp))
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], rest


WireDtype = Literal["float16", "bfloat16", "float8_e4m3", "float8_e5m2"]

_WIRE: dict[str, DType] = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float8_e4m3": FLOAT8_E4M3FN,
    "float8_e5m2": FLOAT8_E5M2,
}

ALIGNED = 16
"""The part of a rank has a multiple of this number of elements, so that all parts begin aligned."""


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """Send gradients as narrow floats, and sum them up in float32.

    An element that is too large for the narrow dtype becomes infinite, or NaN in ``"float8_e4m3"``. With a `LossScale`,
    such steps are left out, and small gradients survive (Micikevicius et al. 2018, "Mixed Precision Training", ICLR). For
    float8 see Micikevicius et al. 2022, "FP8 Formats for Deep Learning".

    Attributes
    ----------
    wire_dtype : {"float16", "bfloat16", "float8_e4m3", "float8_e5m2"}
        The dtype of messages. Each element is sent twice, and takes 2 bytes or 1.
    error_feedback : bool
        Whether rounding errors are added in the next step. They take 4 bytes for each element.
    """

    wire_dtype: WireDtype = "float16"
    error_feedback: bool = False

    def __post_init__(self) -> None:
        feedback = check_bool("error_feedback", self.error_feedback)
        wire_dtype = check_choice("wire_dtype", self.wire_dtype, WireDtype)
        set_checked(self, wire_dtype=wire_dtype, error_feedback=feedback)

    def channel(self, bucket: Bucket) -> "NarrowChannel":
        """Return the channel of a bucket. Local."""
        return NarrowChannel(bucket, self)


class NarrowChannel:
    """The `Channel` of a bucket that is sent as narrow floats.

    With error feedback, each rank adds the rounding errors of the last step to its gradients. The rank that sums up a part
    does the same with the sum.
    """

    def __init__(self, bucket: Bucket, how: MixedPrecision) -> None:
        self._wire, self._feedback = _WIRE[how.wire_dtype], how.error_feedback
        self._length, self._dtype = bucket.length, wide(bucket.dtype)
        # The parts of all ranks, the errors of this rank's gradients, and those of the part that it sums up. The first
        # reduction makes these arrays, because it knows the number of ranks.
        self._parts = self._errors = self._sum_errors = np.zeros((0, 0), self._dtype)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the errors of the bucket's elements."""
        return self._length * self._dtype.itemsize if self._feedback else 0

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by their sum over the ranks, rounded twice."""
        size, scale = exchange.size, exchange.scale
        part = -(-x.size // (size * ALIGNED)) * ALIGNED
        if self._parts.shape != (size, part):
            self._parts = np.zeros((size, part), self._dtype)
            if self._feedback:
                self._errors, self._sum_errors = self._parts.copy(), self._parts[0].copy()
        parts = self._parts
        flat = parts.reshape(-1)
        flat[: x.size], flat[x.size :] = x, 0
        if self._feedback:
            parts += self._errors
        total, received = np.zeros(part, self._dtype), np.empty(part, self._dtype)
        # Messages are bytes, because they are only moved.
        for row in exchange.swap(self._narrowed(parts, scale, self._errors).view(np.uint8)):
            _widen(row.view(self._wire), received, scale)
            total += received
        if self._feedback:
            total += self._sum_errors
        sent = self._narrowed(total, scale, self._sum_errors).view(np.uint8)
        _widen(exchange.gather(sent).reshape(-1).view(self._wire), flat, scale)
        x[:] = flat[: x.size]

    def _narrowed(self, x: Array, scale: float, errors: Array) -> Array:
        """Return elements in the dtype of messages, and write their rounding errors to `errors`."""
        narrow: Array = np.empty(x.shape, self._wire)
        wanted, sent = x.reshape(-1), narrow.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):  # such elements become infinite
            for part in passes(x.size):
                sent[part] = wanted[part] if scale == 1 else wanted[part] * x.dtype.type(scale)
        if self._feedback:
            left = errors.reshape(-1)
            _widen(sent, left, scale)
            with np.errstate(invalid="ignore"):
                np.subtract(wanted, left, out=left)
            drop_nonfinite(left)  # such a step is lost
        return narrow


def _widen(narrow: Array, out: Array, scale: float) -> None:
    """Write elements of a message to `out`, divided by `scale`."""
    factor: Any = out.dtype.type(1 / scale)
    for part in passes(out.size):
        out[part] = narrow[part]
        if scale != 1:
            out[part] *= factor


COMPRESSORS = MixedPrecision, PowerSGD, TopK
