"""The layout of buckets: which gradient lies in which bucket, and where; and the memory that is laid out so.

Buckets are as in Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 13(12), section 3.2.3: gradients are packed in the order in which the backward pass is
expected to produce them, so that a bucket can be reduced while the pass goes on.

`steps`, `sharded` and `local_steps` make their buckets by it.

The settings of a gradient synchronisation, which ranks compare. `GradientSync` takes them, and adapts the loss scale.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from math import isfinite, sqrt
from typing import Any, Literal, TypedDict

import numpy as np

from hpccomm.dtypes import is_narrow
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.gradients.arrays import PASS, Array, is_on_device, passes
from hpccomm.gradients.compression import COMPRESSORS
from hpccomm.gradients.group import Compressor, RankGroup
from hpccomm.gradients.parameters import (
    Bucket,
    BucketKind,
    Parameter,
    check_choice,
    check_least,
    check_number,
    set_checked,
)
from hpccomm.settings import check_bool

TINY = 2.0**-40


@dataclass(frozen=True, slots=True)
class LossScale:
    """How the factor of the loss changes. Must be equal on all ranks.

    The rule is that of Micikevicius et al. 2018, "Mixed Precision Training", ICLR: a step whose gradients are NaN or
    infinite is left out, and the factor falls; after many steps without any it grows.

    Attributes
    ----------
    initial : float
        The first factor. If this and ``growth`` are powers of 2, multiplying and dividing by it is exact.
    growth : float
        What multiplies it after ``interval`` finite steps, at least 1.
    backoff : float
        What multiplies it after a step that is not finite, above 0 and below 1. It does not fall below
        2^-40.
    interval : int
        Finite steps, one after the other, before it grows.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        set_checked(
            self,
            initial=check_number(
                "initial", self.initial, lambda x: x >= TINY, "of at least 2**-40"
            ),
            growth=check_number("growth", self.growth, lambda x: x >= 1, "of at least 1"),
            backoff=check_number(
                "backoff", self.backoff, lambda x: 0 < x < 1, "above 0 and below 1"
            ),
            interval=check_least("interval", self.interval, 1),
        )

    def after(self, scale: float, steps: int, finite: bool) -> tuple[float, int]:
        """Return the factor after a step, and how many finite steps there were since it changed.

        Parameters
        ----------
        scale : float
            The factor of the step.
        steps : int
            Finite steps before it since the factor changed.
        finite : bool
            Whether the step's gradients were finite.
        """
        if not finite:
            return max(TINY, scale * self.backoff), 0
        if steps + 1 < self.interval:
            return scale, steps + 1
        grown = scale * self.growth
        return (grown if isfinite(grown) else scale), 0


class CurrentScale:
    """The factor of the loss in a training.

    Parameters
    ----------
    rule : LossScale or None
        How it changes; None keeps it at 1.

    Attributes
    ----------
    rule : LossScale or None
        The same.
    value : float
        The factor.
    """

    def __init__(self, rule: LossScale | None = None) -> None:
        self.rule = rule
        self.value, self._finite_steps = 1.0 if rule is None else rule.initial, 0

    def step(self, *, finite: bool) -> None:
        """Take note of a step."""
        if self.rule is not None:
            self.value, self._finite_steps = self.rule.after(self.value, self._finite_steps, finite)


Combine = Literal["average", "sum", "weighted"]
Unused = Literal["zero", "skip", "error"]
Nonfinite = Literal["keep", "skip", "raise"]
Initial = Literal["check", "broadcast", "ignore"]
Order = Literal["reverse", "ready", "largest"]

KIB, MIB = 1024, 1024**2

_LEAST = {"bucket_bytes": 1, "first_bucket_bytes": 1, "accumulate": 1}
"""The least value of integers; of others it is 0."""


class ReductionOptions(TypedDict, total=False):
    """Keywords of `ReductionSettings`."""

    op: Combine
    unused: Unused
    nonfinite: Nonfinite
    initial: Initial
    frozen: Collection[str]
    order: Order
    bucket_bytes: int
    first_bucket_bytes: int
    min_bucket_bytes: int
    bucketing: bool
    deterministic: bool
    accumulate: int
    adaptive: int
    check_every: int
    loss_scale: LossScale | None
    compressor: Compressor | None
    hierarchical: bool


@dataclass(frozen=True, slots=True)
class ReductionSettings:
    """What a `GradientSync` does. Must be equal on all ranks. `GradientSync` takes the same keywords.

    Attributes
    ----------
    op : {"average", "sum", "weighted"}
        The mean over the ranks, their sum, or the mean weighted by the samples of each rank, see `GradientSync.weigh`.
    unused : {"zero", "skip", "error"}
        For gradients that ranks do not have: ``"zero"`` counts them as 0. So does ``"skip"``, but a gradient that
        no rank has gives no result: `GradientSync.has_gradients` is False for it. ``"error"`` raises RankMismatch on
        every rank.
    nonfinite : {"keep", "skip", "raise"}
        For steps whose results are NaN or infinite somewhere. ``"skip"`` sets them to 0 on all ranks, and the step
        returns False. ``"raise"`` raises UsageError on every rank, which names the gradients, and the ranks from
        which they come. Both read all gradients once more, ``"raise"`` twice.
    initial : {"check", "broadcast", "ignore"}
        For the values that the parameters begin with. ``"check"`` compares a hash of them, and raises RankMismatch on
        every rank if they differ: equal updates would keep them apart. ``"broadcast"`` gives all ranks the values of
        rank 0. ``"ignore"`` sends nothing, for values that are set later.
    frozen : collection of str
        Names of parameters without gradients. Gradients given for them are left as they are.
    order : {"reverse", "ready", "largest"}
        ``"reverse"`` fills buckets from the last parameter to the first. ``"ready"`` does so for the first step,
        and from then on follows the order in which gradients became ready in it, averaged over the ranks.
        ``"largest"`` starts with the largest gradient.
    bucket_bytes : int
        Bytes of gradients in a bucket at most. A larger gradient has a bucket of its own.
    first_bucket_bytes : int
        The same for the first bucket of each dtype: a smaller one can be sent earlier.
    min_bucket_bytes : int
        If the last bucket of a dtype has fewer bytes, its gradients go into the bucket before it, which may
        then exceed its limit.
    bucketing : bool
        False reduces each gradient by a call of its own, for debugging.
    deterministic : bool
        Fold the ranks' gradients in rank order: the same gradients give the same bits, with any
        buckets, order and run.
    accumulate : int
        Micro-steps that are added up before each reduction. Nothing is divided by their number.
    adaptive : int
        After this number of steps by ``ready()`` and ``wait()``, ``bucket_bytes`` and ``first_bucket_bytes`` are
        chosen once from what was measured; see `GradientSync.choice`. The gradients get another layout then, as by
        `GradientSync.configure`. 0 keeps the sizes. For host arrays.
    check_every : int
        `GradientSync.check_consistency` is called after each such number of reduced steps; 0 never calls it.
    loss_scale : LossScale or None
        Gradients are of the loss times `GradientSync.loss_scale`, and results are divided by it. Steps that are
        not finite are left out, as by ``nonfinite="skip"``.
    compressor : Compressor or None
        Sends less than the gradients, such as `TopK`; see :doc:`/how_to/gradients`. For host arrays.
    hierarchical : bool
        Gradients are summed up within each node as they are, and only what goes between nodes is compressed.

    Raises
    ------
    UsageError
        If a setting does not fit, or does not fit another one.
    """

    op: Combine = "average"
    unused: Unused = "zero"
    nonfinite: Nonfinite = "keep"
    initial: Initial = "check"
    frozen: Collection[str] = ()
    order: Order = "reverse"
    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = MIB
    min_bucket_bytes: int = 64 * KIB
    bucketing: bool = True
    deterministic: bool = False
    accumulate: int = 1
    adaptive: int = 0
    check_every: int = 0
    loss_scale: LossScale | None = None
    compressor: Compressor | None = None
    hierarchical: bool = False

    def __post_init__(self) -> None:
        checked: dict[str, object] = {}
        for name, kind in ReductionOptions.__annotations__.items():
            value = getattr(self, name)
            if kind in (Combine, Unused, Nonfinite, Initial, Order):
                checked[name] = check_choice(name, value, kind)
            elif kind is bool:
                checked[name] = check_bool(name, value)
            elif kind is int:
                checked[name] = check_least(name, value, _LEAST.get(name, 0))
        names = [self.frozen] if isinstance(self.frozen, str) else self.frozen
        set_checked(self, **checked, frozen=tuple(sorted(set(map(str, names)))))
        if self.loss_scale is not None and not isinstance(self.loss_scale, LossScale):
            raise UsageError(f"loss_scale is {self.loss_scale!r}; give a LossScale")
        if self.loss_scale is not None and self.nonfinite == "raise":
            raise UsageError(
                "loss_scale needs steps that are not finite; leave nonfinite='raise' out"
            )
        if self.compressor is None:
            if self.hierarchical:
                raise UsageError("hierarchical=True is about what compressor= sends; give one")
            return
        if isinstance(self.compressor, type) or not callable(
            getattr(self.compressor, "channel", None)
        ):
            shown = repr(self.compressor)
            advice = "give an object with a method channel(), such as TopK()"
            known = [each.__name__ for each in COMPRESSORS]
            near = did_you_mean(shown.strip("'"), known, advice)
            raise UsageError(f"compressor is {shown}; {near}")
        if self.deterministic:
            raise UsageError(
                "deterministic=True has the same bits for all buckets, and a compressor works bucket by bucket; "
                "leave one out"
            )

    @property
    def by_name(self) -> dict[str, object]:
        """The settings by their names."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def skips(self) -> bool:
        """Whether steps that are not finite are left out."""
        return self.nonfinite == "skip" or self.loss_scale is not None

    def changed(self, changes: Mapping[str, Any]) -> "ReductionSettings":
        """Return other settings.

        Raises
        ------
        UsageError
            If one is unknown or does not fit.
        """
        known = sorted(self.by_name)
        for name in changes.keys() - set(known):
            advice = did_you_mean(name, known, f"give some of {', '.join(known)}")
            raise UsageError(f"unknown setting {name!r}; {advice}")
        return replace(self, **changes)

    def check_for(self, parameters: Iterable[Parameter]) -> None:
        """Raise unless the settings fit a model.

        Raises
        ------
        UsageError
            With the name of a parameter that is unknown, or is not in host memory.
        """
        on_device = {each.name: each.on_device for each in parameters}
        for name in self.frozen:
            check_known(name, on_device)
        device = next((name for name in on_device if on_device[name]), None)
        for setting, what in ((self.compressor, "a compressor"), (self.adaptive, "adaptive=")):
            if device and setting:
                raise UsageError(
                    f"{what} is for host arrays, and parameter {device!r} lies on a device; leave it out"
                )


def check_known(name: str, parameters: Collection[str]) -> None:
    """Raise unless there is a parameter of a name.

    Raises
    ------
    UsageError
        With the nearest name.
    """
    if name not in parameters:
        advice = did_you_mean(name, parameters, "give the name of a parameter")
        raise UsageError(f"unknown parameter {name!r}; {advice}")


ALIGNMENT = 64
"""Bytes: each gradient begins at a cache line, so that its values do not depend on the bucket it is in."""

MOST_URGENT = 32
"""Buckets that can be taken out of turn."""


@dataclass(slots=True)
class _Open:
    """A bucket that is being filled."""

    parameters: list[Parameter] = field(default_factory=list)
    nbytes: int = 0
    last: int = 0

    def put(self, parameter: Parameter, position: int) -> None:
        self.parameters.append(parameter)
        self.nbytes += padded(parameter)
        self.last = position


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
        For ``"ready"``: the names of all parameters. None, before it is known, is the reverse order.
    """
    backward = list(reversed(parameters))
    if order == "largest":
        return sorted(backward, key=lambda each: -each.nbytes)
    if order == "ready" and readiness is not None:
        place = {name: number for number, name in enumerate(readiness)}
        return sorted(backward, key=lambda each: place.get(each.name, len(place)))
    return backward


def mean_order(readiness: Sequence[Sequence[str]]) -> list[str]:
    """Return one order of readiness for all ranks: by the mean of the positions on each.

    Parameters
    ----------
    readiness : sequence of sequences of str
        By rank, the names of the gradients in the order in which they became ready. A name that a rank lacks
        counts as the last there. Of equal means, the order of the first rank that has both decides, else
        the name.
    """
    total: dict[str, int] = {}
    seen = list(dict.fromkeys(name for names in readiness for name in names))
    for names in readiness:
        place = {name: number for number, name in enumerate(names)}
        for name in seen:
            total[name] = total.get(name, 0) + place.get(name, len(seen))
    return sorted(seen, key=total.__getitem__)


def urgent_buckets(buckets: Sequence[Bucket], parameters: Sequence[Parameter]) -> list[int]:
    """Return buckets that can be taken out of turn, the one first that the next forward pass needs first.

    The list is empty if gradients lie on a device, which takes calls in the order in which they are made.

    Parameters
    ----------
    buckets : sequence of Bucket
        In order.
    parameters : sequence of Parameter
        In the order of the forward pass.
    """
    if len(buckets) == 1 or any(bucket.kind.on_device for bucket in buckets):
        return []
    place = {each.name: number for number, each in enumerate(parameters)}
    first = [min(place[each.name] for each in bucket.parameters) for bucket in buckets]
    return sorted(range(len(buckets)), key=first.__getitem__)[:MOST_URGENT]


def layout(
    parameters: Sequence[Parameter],
    settings: ReductionSettings,
    readiness: Sequence[str] | None = None,
) -> tuple[Bucket, ...]:
    """Return the buckets, in the order in which they are reduced.

    Each dtype, and each side (host or device), has buckets of its own, filled one after the other. They come in the
    order in which they are expected to be complete: that of the last gradient in each.

    Parameters
    ----------
    parameters : sequence of Parameter
        The parameters that have gradients, in the order of the forward pass.
    settings : ReductionSettings
        Limits and order.
    readiness : sequence of str, optional
        As in `ordered`.
    """
    filled: dict[BucketKind, list[_Open]] = {}
    for position, parameter in enumerate(ordered(parameters, settings.order, readiness)):
        buckets = filled.setdefault(parameter.kind, [])
        limit = settings.first_bucket_bytes if len(buckets) == 1 else settings.bucket_bytes
        fits = buckets and buckets[-1].nbytes + padded(parameter) <= limit
        if not fits or not settings.bucketing:
            buckets.append(_Open())
        buckets[-1].put(parameter, position)
    if settings.bucketing:
        for buckets in filled.values():
            _merge_last(buckets, settings.min_bucket_bytes)
    every = sorted((each for buckets in filled.values() for each in buckets), key=lambda b: b.last)
    return tuple(_closed(index, each.parameters) for index, each in enumerate(every))


def _merge_last(buckets: list[_Open], least: int) -> None:
    if len(buckets) > 1 and buckets[-1].nbytes < least:
        small = buckets.pop()
        for parameter in small.parameters:
            buckets[-1].put(parameter, small.last)


def _closed(index: int, parameters: list[Parameter]) -> Bucket:
    dtype = parameters[0].dtype
    sizes = [padded(each) // dtype.itemsize for each in parameters]
    *offsets, length = accumulate(sizes, initial=0)
    return Bucket(index, dtype, tuple(parameters), tuple(offsets), length)


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
