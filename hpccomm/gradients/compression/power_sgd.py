"""A compressor that sends matrices as products of thin ones. `GradientSync` takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np

from hpccomm.gradients.arrays import Array, is_finite, wide
from hpccomm.gradients.checks import check_least, set_checked
from hpccomm.gradients.compression.contract import Exchange
from hpccomm.gradients.parameters import Bucket
from hpccomm.settings import check_bool


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Send each gradient of two or more axes as a product of two thin matrices, found by one step of a power iteration.

    The method is that of Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS: with error feedback and a warm start. A gradient's matrix has its first axis as rows and all
    others as columns. Gradients for which this saves less than half, such as vectors, are sent as they are.

    All ranks multiply the same thin matrices. Ranks whose processors or BLAS libraries differ may round the product
    differently; `check_consistency` finds where that leads.

    Attributes
    ----------
    rank : int
        Columns of the thin matrices, at least 1: it sends ``rank * (rows + columns)`` elements.
    error_feedback : bool
        Whether what was not sent is added in the next step. Takes the bytes of the gradients, in float32 for
        narrower ones.
    """

    rank: int = 4
    error_feedback: bool = True

    def __post_init__(self) -> None:
        feedback = check_bool("error_feedback", self.error_feedback)
        set_checked(self, rank=check_least("rank", self.rank, 1), error_feedback=feedback)

    def channel(self, bucket: Bucket) -> "PowerSGDChannel":
        """Return the reducer of a bucket. Local."""
        return PowerSGDChannel(bucket, self.rank, error_feedback=self.error_feedback)


class PowerSGDChannel:
    """One bucket of thin matrices, see `Channel`.

    Parameters
    ----------
    bucket : Bucket
        Its bucket.
    rank : int
        Columns of the thin matrices.
    error_feedback : bool
        Whether what was not sent is added in the next step.
    """

    def __init__(self, bucket: Bucket, rank: int, *, error_feedback: bool) -> None:
        self._dtype, self._bucket, self._rank = wide(bucket.dtype), bucket, rank
        self._errors = np.zeros(bucket.length, self._dtype) if error_feedback else None
        self._right: dict[str, Array] = {}
        plain = np.ones(bucket.length, bool)
        for each, offset in zip(bucket.parameters, bucket.offsets, strict=True):
            rows, columns = _matrix(np.empty(each.shape, np.bool_)).shape
            if each.size and 2 * rank * (rows + columns) <= each.size:
                plain[offset : offset + each.size] = False
                # The same on all ranks.
                draw = np.random.default_rng([bucket.index, offset])
                self._right[each.name] = draw.standard_normal((columns, rank)).astype(self._dtype)
        self._plain = np.flatnonzero(plain)

    def _matrices(self, x: Array) -> list[Array]:
        """Return the gradients that are sent as products."""
        views = self._bucket.views(x)
        return [_matrix(views[name]) for name in self._right]

    @property
    def memory_bytes(self) -> int:
        """Errors of the bucket's elements, and the thin matrices of the step before."""
        errors = 0 if self._errors is None else self._errors.nbytes
        return errors + sum(each.nbytes for each in self._right.values())

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by an approximation of their sum over the ranks."""
        wanted = x if x.dtype == self._dtype else x.astype(self._dtype)
        if self._errors is not None:
            wanted += self._errors
        matrices, names = self._matrices(wanted), list(self._right)
        # The left matrices of all gradients, and behind them what is sent as it is, in one call.
        shapes = [(len(matrix), self._rank) for matrix in matrices]
        left_size = sum(map(prod, shapes))
        sent = np.empty(left_size + self._plain.size, self._dtype)
        sent[left_size:] = wanted[self._plain]
        lefts = _views(sent, shapes)
        with np.errstate(invalid="ignore", over="ignore"):
            for matrix, name, left in zip(matrices, names, lefts, strict=True):
                np.matmul(matrix, self._right[name], out=left)
        exchange.sum(sent)
        # On all ranks; the step is lost, and errors stay as they are.
        if not is_finite(sent[:left_size]):
            x[:] = np.nan
            return
        lefts = [np.linalg.qr(left)[0] for left in lefts]
        shapes = [each.shape for each in self._right.values()]
        sum_of_rights = np.empty(sum(map(prod, shapes)), self._dtype)
        rights = _views(sum_of_rights, shapes)
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
        wanted[self._plain] = sent[left_size:]
        if wanted is not x:
            x[:] = wanted


def _matrix(x: Array) -> Array:
    """Return an array as a matrix: its first axis as rows, all others as columns; a vector as one row."""
    return x.reshape(x.shape[0] if x.ndim > 1 else 1, -1) if x.size else x.reshape(1, 0)


def _views(x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return arrays one behind the other in another one."""
    ends = accumulate(map(prod, shapes))
    return [
        x[end - prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)
    ]
