"""A compressor that sends gradients as narrow floats. `GradientSync` takes it.

Each rank sums up one part of the bucket, as in a reduce-scatter, so that received values are
accumulated in float32, and rounded twice at most.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hpccomm.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, DType
from hpccomm.gradients.arrays import Array, drop_nonfinite, passes, wide
from hpccomm.gradients.checks import check_choice, set_checked
from hpccomm.gradients.compression.contract import Exchange
from hpccomm.gradients.parameters import Bucket
from hpccomm.settings import check_bool

WireDtype = Literal["float16", "bfloat16", "float8_e4m3", "float8_e5m2"]

_WIRE: dict[str, DType] = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float8_e4m3": FLOAT8_E4M3FN,
    "float8_e5m2": FLOAT8_E5M2,
}

ALIGNED = 16
"""The part of a rank is a multiple of this many elements, so that all parts begin aligned."""


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """Send gradients as narrow floats, and sum them up in float32.

    What is too large for the narrow dtype becomes infinite, or NaN in ``"float8_e4m3"``. With a `LossScale`, small
    gradients survive and such steps are left out: Micikevicius et al. 2018, "Mixed Precision Training", ICLR. For
    float8: Micikevicius et al. 2022, "FP8 Formats for Deep Learning".

    Attributes
    ----------
    wire_dtype : {"float16", "bfloat16", "float8_e4m3", "float8_e5m2"}
        What is sent: 2 bytes an element, or 1, twice.
    error_feedback : bool
        Whether what rounding took is added in the next step. Takes 4 bytes an element.
    """

    wire_dtype: WireDtype = "float16"
    error_feedback: bool = False

    def __post_init__(self) -> None:
        feedback = check_bool("error_feedback", self.error_feedback)
        wire_dtype = check_choice("wire_dtype", self.wire_dtype, WireDtype)
        set_checked(self, wire_dtype=wire_dtype, error_feedback=feedback)

    def channel(self, bucket: Bucket) -> "NarrowChannel":
        """Return the reducer of a bucket. Local."""
        return NarrowChannel(bucket, _WIRE[self.wire_dtype], error_feedback=self.error_feedback)


class NarrowChannel:
    """One bucket that is sent as narrow floats, see `Channel`.

    With error feedback, each rank adds to its gradients what rounding took from them in the step before; and the rank
    that sums a part up does the same with the sum.

    Parameters
    ----------
    bucket : Bucket
        Its bucket.
    wire : dtype
        What is sent.
    error_feedback : bool
        Whether errors of rounding are added in the next step.
    """

    def __init__(self, bucket: Bucket, wire: DType, *, error_feedback: bool) -> None:
        self._wire, self._feedback = wire, error_feedback
        self._length, self._dtype = bucket.length, wide(bucket.dtype)
        # Room for a part of each rank, and errors of this rank's gradients and of the part that it sums up: made by
        # the first reduction, which knows how many ranks there are.
        self._parts = self._errors = self._sum_errors = np.zeros((0, 0), self._dtype)

    @property
    def memory_bytes(self) -> int:
        """Errors of the bucket's elements."""
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
        # As bytes: they are only moved.
        for row in exchange.swap(self._narrowed(parts, scale, self._errors).view(np.uint8)):
            _widen(row.view(self._wire), received, scale)
            total += received
        if self._feedback:
            total += self._sum_errors
        sent = self._narrowed(total, scale, self._sum_errors).view(np.uint8)
        _widen(exchange.gather(sent).reshape(-1).view(self._wire), flat, scale)
        x[:] = flat[: x.size]

    def _narrowed(self, x: Array, scale: float, errors: Array) -> Array:
        """Return elements as they are sent, and write to `errors` what rounding took from them."""
        narrow: Array = np.empty(x.shape, self._wire)
        wanted, sent = x.reshape(-1), narrow.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is what is wanted
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
    """Write the elements that were sent."""
    factor: Any = out.dtype.type(1 / scale)
    for part in passes(out.size):
        out[part] = narrow[part]
        if scale != 1:
            out[part] *= factor
