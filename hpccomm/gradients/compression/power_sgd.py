"""A compressor that sends matrices as products of thin ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import UsageError
from hpccomm.gradients.compression.contract import Exchange
from hpccomm.gradients.compression.widths import is_finite, wide
from hpccomm.gradients.parameters import Bucket
from hpccomm.settings import check_bool, check_int

Array = NDArray[Any]


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
        Whether what was not sent is added in the next step. Takes as many bytes as the gradients, in float32 for
        narrower ones.
    """

    rank: int = 4
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if check_int("rank", self.rank) < 1:
            raise UsageError(f"rank is {self.rank}; give a number of columns of at least 1")
        check_bool("error_feedback", self.error_feedback)

    def channel(self, bucket: Bucket) -> "PowerSGDChannel":
        """Return what reduces a bucket. Local."""
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
        self._dtype = wide(bucket.dtype)
        self._errors = np.zeros(bucket.length, self._dtype) if error_feedback else None
        self._matrices: list[tuple[slice, int, int]] = []  # where it lies, rows, columns
        plain = np.ones(bucket.length, bool)
        self._right: list[Array] = []
        for parameter, offset in zip(bucket.parameters, bucket.offsets, strict=True):
            rows = parameter.shape[0] if len(parameter.shape) > 1 else 1
            columns = parameter.size // rows if rows else 0
            if 2 * rank * (rows + columns) > parameter.size or not parameter.size:
                continue
            where = slice(offset, offset + parameter.size)
            plain[where] = False
            self._matrices.append((where, rows, columns))
            # The same on all ranks.
            draw = np.random.default_rng([bucket.index, offset])
            self._right.append(draw.standard_normal((columns, rank)).astype(self._dtype))
        self._plain = np.flatnonzero(plain)
        self._rank = rank

    @property
    def memory_bytes(self) -> int:
        """Errors of the bucket's elements, and the thin matrices of the step before."""
        errors = 0 if self._errors is None else self._errors.nbytes
        return errors + sum(each.nbytes for each in self._right)

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by an approximation of their sum over the ranks."""
        wanted = x if x.dtype == self._dtype else x.astype(self._dtype)
        if self._errors is not None:
            wanted += self._errors
        matrices = [wanted[where].reshape(rows, columns) for where, rows, columns in self._matrices]
        # The left matrices of all gradients, and behind them what is sent as it is, in one call.
        left_size = sum(rows for _, rows, _ in self._matrices) * self._rank
        sent = np.empty(left_size + self._plain.size, self._dtype)
        sent[left_size:] = wanted[self._plain]
        lefts = _views(sent, [(rows, self._rank) for _, rows, _ in self._matrices])
        with np.errstate(invalid="ignore", over="ignore"):
            for matrix, right, left in zip(matrices, self._right, lefts, strict=True):
                np.matmul(matrix, right, out=left)
        exchange.sum(sent)
        if not is_finite(
            sent[:left_size]
        ):  # on all ranks; the step is lost, and errors stay as they are
            x[:] = np.nan
            return
        lefts = [np.linalg.qr(left)[0] for left in lefts]
        rights = np.empty(sum(n for _, _, n in self._matrices) * self._rank, self._dtype)
        views = _views(rights, [(columns, self._rank) for _, _, columns in self._matrices])
        for matrix, left, right in zip(matrices, lefts, views, strict=True):
            np.matmul(matrix.T, left, out=right)
        if self._errors is not None:
            self._errors[self._plain] = 0
            errors = (self._errors[where].reshape(n, m) for where, n, m in self._matrices)
            for matrix, left, right, error in zip(matrices, lefts, views, errors, strict=True):
                np.matmul(left, right.T, out=error)
                np.subtract(matrix, error, out=error)
        if self._matrices:
            exchange.sum(rights)
        for number, (matrix, left, right) in enumerate(zip(matrices, lefts, views, strict=True)):
            np.matmul(left, right.T, out=matrix)
            if right.any():  # else the next step could not begin with it
                self._right[number] = right
        wanted[self._plain] = sent[left_size:]
        if wanted is not x:
            x[:] = wanted


def _views(x: Array, shapes: list[tuple[int, int]]) -> list[Array]:
    """Return matrices one behind the other in an array."""
    found, start = [], 0
    for rows, columns in shapes:
        end = start + rows * columns
        found.append(x[start:end].reshape(rows, columns))
        start = end
    return found
