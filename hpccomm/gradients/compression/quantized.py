"""Compressors that send each gradient with fewer bits: narrow floats, 8-bit integers, signs.

Each rank sums up one part of the bucket, as in a reduce-scatter, so that received values are
accumulated in float32, and rounded twice at most. ``compressor=`` of `GradientSync` takes them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, DType
from hpccomm.gradients.arrays import PASS, Array, drop_nonfinite, passes, wide
from hpccomm.gradients.checks import check_choice, check_least, set_checked
from hpccomm.gradients.compression.contract import Exchange
from hpccomm.gradients.parameters import Bucket, padding
from hpccomm.settings import check_bool

Bytes = NDArray[np.uint8]

WireDtype = Literal["float16", "bfloat16", "float8_e4m3", "float8_e5m2"]

_WIRE: dict[str, DType] = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float8_e4m3": FLOAT8_E4M3FN,
    "float8_e5m2": FLOAT8_E5M2,
}


def _round_up(nbytes: int) -> int:
    return -(-nbytes // 8) * 8


@dataclass(frozen=True, slots=True)
class _Cast:
    wire: DType
    unit: int = 16
    scale: float = 1.0

    def scaled(self, by: float) -> Self:
        return replace(self, scale=by)

    def nbytes(self, length: int) -> int:
        return _round_up(length * self.wire.itemsize)

    def encode(self, x: Array, out: Bytes, real: Array) -> None:
        codes = out[: x.size * self.wire.itemsize].view(self.wire)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is what is wanted
            for part in passes(x.size):
                codes[part] = x[part] if self.scale == 1 else x[part] * x.dtype.type(self.scale)

    def decode(self, coded: Bytes, out: Array) -> None:
        codes = coded[: out.size * self.wire.itemsize].view(self.wire)
        for part in passes(out.size):
            out[part] = codes[part]
            if self.scale != 1:
                out[part] *= out.dtype.type(1 / self.scale)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Blocks with a float32 scale each: the scales come first, and then the codes.

    Attributes
    ----------
    unit : int
        Elements of a block.
    bits : int
        Of a code.
    scales, codes, values : callable
        Return the scales of blocks, the codes of blocks with scales, and what codes stand for.
    """

    unit: int
    bits: int
    scales: Callable[[Array, Array], Any]
    codes: Callable[[Array, Array], Any]
    values: Callable[[Bytes], Any]

    def scaled(self, by: float) -> Self:
        return self  # each block has a scale of its own

    def nbytes(self, length: int) -> int:
        return _round_up(length * self.bits // 8 + length // self.unit * 4)

    def _parts(self, coded: Bytes, length: int) -> Iterator[tuple[slice, slice, Array, Bytes]]:
        """Return parts of elements, and of their blocks, with the scales and codes of each."""
        scales, codes = np.split(coded, [length // self.unit * 4])
        for part in passes(length, max(1, PASS // self.unit) * self.unit):
            blocks = slice(part.start // self.unit, part.stop // self.unit)
            code = codes[part.start * self.bits // 8 : part.stop * self.bits // 8]
            yield part, blocks, scales.view(np.float32)[blocks], code

    def encode(self, x: Array, out: Bytes, real: Array) -> None:
        for part, blocks, scales, codes in self._parts(out, x.size):
            elements = x[part].reshape(-1, self.unit)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                scales[:] = self.scales(elements, real[blocks])
                scales[~np.isfinite(scales)] = np.nan
                codes[:] = self.codes(elements, scales)

    def decode(self, coded: Bytes, out: Array) -> None:
        for part, _, scales, codes in self._parts(coded, out.size):
            values = self.values(codes).reshape(-1, self.unit)
            np.multiply(values, scales[:, None], out=out[part].reshape(values.shape))


def _int8(blocks: Array, scales: Array) -> Any:
    multiples = np.rint(blocks * np.where(scales > 0, 1 / scales, 0)[:, None])
    return np.clip(multiples, -127, 127).astype(np.int8).reshape(-1).view(np.uint8)


Codec = _Cast | _Scaled
"""How elements become bytes, and bytes elements. Elements come in whole blocks.

- ``unit``: elements of a block.
- ``scaled(by)``: a codec of elements times a loss scale.
- ``nbytes(length)``: bytes that elements take, a multiple of 8.
- ``encode(x, out, real)`` codes elements. `real` has the number of gradients in each block, without zeros between or
  behind them.
- ``decode(coded, out)`` writes the elements that bytes stand for.
"""


class QuantizedChannel:
    """One bucket that is sent in a codec, see `Channel`.

    With error feedback, each rank adds to its gradients what coding took from them in the step before; and the rank
    that sums a part up does the same with the sum.

    Parameters
    ----------
    bucket : Bucket
        Its bucket.
    codec : Codec
        What it is sent in.
    error_feedback : bool
        Whether errors of coding are added in the next step.
    """

    def __init__(self, bucket: Bucket, codec: Codec, *, error_feedback: bool) -> None:
        self._codec, self._feedback = codec, error_feedback
        self._dtype, self._bucket = wide(bucket.dtype), bucket
        # What `_lay_out` makes for a number of ranks: room for a part of each, errors of this rank's gradients and of
        # the part that it sums up, places without gradients, and the number of gradients in each block.
        self._parts = self._errors = self._sum_errors = np.zeros((0, 0), self._dtype)
        self._gaps: NDArray[np.intp] = np.zeros(0, np.intp)
        self._real: Array = np.zeros(0)

    def _lay_out(self, size: int, part: int) -> None:
        self._parts = np.zeros((size, part), self._dtype)
        if self._feedback:
            self._errors, self._sum_errors = self._parts.copy(), self._parts[0].copy()
        gaps = padding(self._bucket, size * part)
        self._gaps = np.flatnonzero(gaps)
        self._real = (~gaps.reshape(size, -1, self._codec.unit)).sum(axis=2, dtype=self._dtype)

    @property
    def memory_bytes(self) -> int:
        """Errors of the bucket's elements."""
        return self._bucket.length * self._dtype.itemsize if self._feedback else 0

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace gradients by their sum over the ranks, coded twice."""
        codec, size = self._codec.scaled(exchange.scale), exchange.size
        part = -(-x.size // (size * codec.unit)) * codec.unit
        if self._parts.shape != (size, part):
            self._lay_out(size, part)
        parts, first = self._parts, exchange.rank * part
        flat = parts.reshape(-1)
        flat[: x.size], flat[x.size :] = x, 0
        if self._feedback:
            parts += self._errors
        flat[self._gaps] = 0
        coded = np.zeros((size, codec.nbytes(part)), np.uint8)
        total, each = np.zeros(part, self._dtype), np.empty(part, self._dtype)
        for number in range(size):
            codec.encode(parts[number], coded[number], self._real[number])
            if self._feedback:
                _leave(parts[number], codec, coded[number], each, self._errors[number])
        for code in exchange.swap(coded):
            codec.decode(code, each)
            total += each
        if self._feedback:
            total += self._sum_errors
        total[self._gaps[(first <= self._gaps) & (self._gaps < first + part)] - first] = 0
        codec.encode(total, coded[0], self._real[exchange.rank])
        if self._feedback:
            _leave(total, codec, coded[0], each, self._sum_errors)
        for row, code in zip(parts, exchange.gather(coded[0]), strict=True):
            codec.decode(code, row)
        flat[self._gaps] = 0
        x[:] = flat[: x.size]


def _leave(x: Array, codec: Codec, coded: Bytes, decoded: Array, errors: Array) -> None:
    """Write what coding took from elements; 0 where they are not finite, since such a step is lost."""
    codec.decode(coded, decoded)
    with np.errstate(invalid="ignore"):
        np.subtract(x, decoded, out=errors)
    drop_nonfinite(errors)


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

    def channel(self, bucket: Bucket) -> QuantizedChannel:
        """Return the reducer of a bucket. Local."""
        codec = _Cast(_WIRE[self.wire_dtype])
        return QuantizedChannel(bucket, codec, error_feedback=self.error_feedback)


@dataclass(frozen=True, slots=True)
class Int8:
    """Send gradients as 8-bit integers, with a float32 scale for each block of elements.

    An element becomes the nearest multiple of its block's largest magnitude over 127. Blocks are as in Dettmers et
    al. 2022, "8-bit Optimizers via Block-wise Quantization", ICLR; quantized gradients as in Alistarh et al. 2017,
    "QSGD", NeurIPS. A block with NaN or infinities becomes NaN.

    Attributes
    ----------
    block : int
        Elements, a multiple of 8.
    error_feedback : bool
        Whether what rounding took is added in the next step. Takes 4 bytes an element.
    """

    block: int = 256
    error_feedback: bool = True

    def __post_init__(self) -> None:
        feedback = check_bool("error_feedback", self.error_feedback)
        block = check_least("block", self.block, 8, multiple=8)
        set_checked(self, block=block, error_feedback=feedback)

    def channel(self, bucket: Bucket) -> QuantizedChannel:
        """Return the reducer of a bucket. Local."""
        codec = _Scaled(
            unit=self.block,
            bits=8,
            scales=lambda blocks, _: np.abs(blocks).max(axis=1) / 127,
            codes=_int8,
            values=lambda codes: codes.view(np.int8),
        )
        return QuantizedChannel(bucket, codec, error_feedback=self.error_feedback)


@dataclass(frozen=True, slots=True)
class Sign:
    """Send the signs of gradients, one bit each, and a float32 scale for each block; the majority decides.

    The scale is the mean magnitude of the block, and each rank's vote counts by it. The result is the sign that wins,
    times the mean magnitude of the sum of the votes. The vote is that of Bernstein et al. 2018, "signSGD: Compressed
    Optimisation for Non-Convex Problems", ICML; scale and error feedback are as in Karimireddy et al. 2019, "Error
    Feedback Fixes SignSGD", ICML. 0 counts as positive. A block with NaN or infinities becomes NaN.

    Attributes
    ----------
    block : int
        Elements, a multiple of 8.
    error_feedback : bool
        Whether what coding took is added in the next step. Takes 4 bytes an element. Training converges with it in more
        cases, but takes a lower learning rate: a block's single large gradient is sent over many steps, late.
    """

    block: int = 1024
    error_feedback: bool = False

    def __post_init__(self) -> None:
        feedback = check_bool("error_feedback", self.error_feedback)
        block = check_least("block", self.block, 8, multiple=8)
        set_checked(self, block=block, error_feedback=feedback)

    def channel(self, bucket: Bucket) -> QuantizedChannel:
        """Return the reducer of a bucket. Local."""
        codec = _Scaled(
            unit=self.block,
            bits=1,
            scales=lambda blocks, real: np.abs(blocks).sum(axis=1) / np.maximum(real, 1),
            codes=lambda blocks, _: np.packbits(blocks.reshape(-1) >= 0),
            values=lambda codes: 2 * np.unpackbits(codes).view(np.int8) - 1,
        )
        return QuantizedChannel(bucket, codec, error_feedback=self.error_feedback)
