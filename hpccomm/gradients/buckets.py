"""The buckets of one layout: which of their gradients are given in a step, and whether the step has results.

A step has none if gradients are missing, were not written since the last one, or are not finite. With each bucket go flags
that say so, so that nothing more is sent where all is well.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import or_
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import BufferMismatch, RankMismatch, UsageError, did_you_mean
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.layout import FlatMemory, registered_together, scale, views_of
from hpccomm.gradients.parameters import Array, Bucket, address, is_on_device, overlap, view
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.units import few, ranks_named

MOST = 5
"""Gradients that a message names."""

SAMPLE = 256
"""Elements of a bucket that are compared, but at least `LEAST` of each gradient."""
LEAST = 8

FLAGS = MISSING, NONFINITE, IS_WRITTEN, UNCHANGED, ELSEWHERE = range(5)
"""Flags that are sent with each bucket: a gradient is missing, one is not finite, and the flags of `Written`."""

WRITTEN = [True, False, False]
"""Flags of a bucket: a gradient was written, one is unchanged, one lies elsewhere."""


class Views(Mapping[str, Array]):
    """The gradients of all buckets by name, as a program sees them."""

    def __init__(self, views: Mapping[str, Array]) -> None:
        self._views = views
        self.taken = False  # whether one was taken since the last results: it may have been written

    def __getitem__(self, name: str) -> Array:
        self.taken = True
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class _Sample(NamedTuple):
    """Elements of a bucket that are compared."""

    memory: Array  # the bucket's
    where: NDArray[np.intp]  # the places of the elements in it
    starts: NDArray[np.intp]  # which of the elements are the first of each gradient
    gradients: list[tuple[str, Array, int]]  # name, view and address of each

    def now(self) -> Array:
        """Return the elements as they are."""
        return self.memory.take(self.where, mode="clip")  # which needs no buffer


class Written:
    """Compares samples of buckets in host memory before each reduction with those after the last one.

    `owners` are objects that have their gradients in ``grad``, such as PyTorch's parameters. If buckets are not `watched`,
    all gradients count as written: on one rank a result is what was given.
    """

    def __init__(
        self, flats: Sequence[FlatMemory], owners: Mapping[str, Any], *, watched: bool
    ) -> None:
        self._owners = owners
        self._samples = [_sample(flat, watched) for flat in flats]
        self.unchanged = list[str]()  # gradients of this rank that have the bits of the last result
        self.elsewhere = list[str]()  # gradients that lie with their owners
        self.owned = False  # whether any of these has an owner
        self.remember([])

    def begin(self) -> None:
        """Forget what the last step found."""
        self.owned = False
        self.unchanged, self.elsewhere = [], []

    def remember(self, in_place: Collection[str]) -> None:
        """Take the content of the buckets for the results of a step. Without gradients `in_place`, it counts as written."""
        self.begin()
        self._last = [each.now() if in_place and each.gradients else None for each in self._samples]

    def flags(self, number: int, in_place: Collection[str], *, written: bool) -> list[bool]:
        """Look at a bucket that is about to be reduced, and return flags for the other ranks, see `WRITTEN`.

        `written` says that something was written, independent of the bits. Zeros, NaN and
        infinities that are unchanged prove nothing.
        """
        sample = self._samples[number]
        if not sample.gradients or (written and not self._owners):
            return WRITTEN
        now, last = sample.now(), self._last[number]
        if not self._owners:
            if last is None or (content := now.tobytes()) != last.tobytes():  # as in most steps
                return WRITTEN
            if content.count(0) == len(content):  # zeros, quickly
                return [written, False, False]
        same = np.zeros(len(sample.gradients), np.bool_)
        if last is not None:
            bits = f"u{now.itemsize}"
            same = np.logical_and.reduceat(now.view(bits) == last.view(bits), sample.starts)
        proves = np.logical_and.reduceat(np.isfinite(now), sample.starts)
        proves &= np.logical_or.reduceat(now != 0, sample.starts)
        unchanged, elsewhere = len(self.unchanged), len(self.elsewhere)
        for (name, place, start), alike, proof in zip(
            sample.gradients, same.tolist(), proves.tolist(), strict=True
        ):
            if name not in in_place:
                continue
            owner = self._owners.get(name)
            if owner is None or owner.grad is None:
                written |= not alike
                if alike and proof:
                    self.unchanged.append(name)
                    self.owned |= owner is not None
            elif owner.grad.data_ptr() == start or (proof and not alike):  # or written by hand
                written = True
            elif _differs(name, owner, place):
                self.elsewhere.append(name)
                self.owned = True
        return [written, len(self.unchanged) > unchanged, len(self.elsewhere) > elsewhere]


def _sample(flat: FlatMemory, watched: bool) -> _Sample:
    each = zip(flat.bucket.parameters, flat.bucket.offsets, strict=True)
    on_host = [(p, offset) for p, offset in each if watched and p.size and not p.on_device]
    most = max(LEAST, SAMPLE // max(len(on_host), 1))
    places = [
        offset + np.linspace(0, p.size - 1, min(most, p.size)).astype(np.intp)
        for p, offset in on_host
    ]
    starts = np.cumsum([0, *(part.size for part in places)], dtype=np.intp)[:-1]
    where = np.concatenate([np.empty(0, np.intp), *places])
    views = [(p.name, flat.views[p.name]) for p, _ in on_host]
    return _Sample(flat.memory, where, starts, [(name, x, address(x)) for name, x in views])


def elsewhere(owners: Mapping[str, Any], views: Mapping[str, Array]) -> list[str]:
    """Return the gradients that their owners have somewhere else, with other values than in their places."""
    return [
        name
        for name, owner in owners.items()
        if owner.grad is not None
        and owner.grad.data_ptr() != address(views[name])
        and _differs(name, owner, views[name])
    ]


def _differs(name: str, owner: Any, place: Array) -> bool:
    return not np.array_equal(view(owner.grad, f"the gradient of {name!r}"), place)


class Buckets:
    """The memory of a layout's gradients, and which of them are present. Making one is local.

    `layout` and `settings` are equal on all ranks. `flags` is how many flags a reduction of a bucket takes along.
    """

    def __init__(
        self,
        group: RankGroup,
        layout: Sequence[Bucket],
        settings: ReductionSettings,
        owners: Mapping[str, Any],
        flags: int,
    ) -> None:
        # The buckets, and the memory of all buckets of a kind.
        self.flats, self.regions = registered_together(group, layout, flags)
        self.bucket_of = {name: flat.bucket.index for flat in self.flats for name in flat.views}
        self.gradients = views_of(self.flats)
        self.views = Views(self.gradients)  # the same for users
        self.nbytes = sum(bucket.nbytes for bucket in layout)
        self._compressed = settings.compressor is not None
        self._watched = settings.nonfinite == "raise" or (self._compressed and settings.skips)
        self.factor: float | None = None  # multiplies gradients before they are summed
        self.loss_scale = 1.0  # divides results
        # When each gradient of this micro-step was given, by time.perf_counter, in this order.
        self.marked: dict[str, float] = {}
        self.sources: dict[str, Array] = {}  # arrays that get the results
        self.in_place: set[str] = set()  # gradients that were said to lie in their buckets
        self.nonfinite: set[str] = set()  # this rank's gradients that were NaN or infinite
        self._written = Written(self.flats, owners, watched=group.size > 1)
        self.begin()

    def begin(self) -> None:
        """Forget the results of the last step."""
        # Whether a gradient was given since the last reduction; after it, whether it is a result.
        self.present = dict.fromkeys(self.gradients, False)
        self.any_flags = [False] * len(FLAGS)  # whether any rank set each for any bucket
        self._copied = False  # an array was copied to a bucket
        self.in_place.clear()
        self.sources.clear()
        self.nonfinite.clear()
        self._written.begin()

    def source(self, name: str, grad: object, *, written: bool = False) -> Array | None:
        """Return the array of a gradient that has to be copied; None if it lies in its bucket.

        Raises
        ------
        UsageError
            If the name is unknown, the array is not where its parameter is, or it is read-only and will be `written`.
        BufferMismatch
            If it has another shape or dtype than the parameter.
        """
        place = gradient_of(name, self.gradients)
        if grad is None or grad is place:
            return None
        array = fitting(name, grad, place)
        if written and not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise UsageError(
                f"the gradient of {name!r} is read-only, and gets the result; give a copy, or use ready()"
            )
        if overlap(array, place):
            if address(array) == address(place) and array.strides == place.strides:
                return None  # another array over the same memory
            raise UsageError(
                f"the gradient of {name!r} overlaps its place in the bucket; "
                "give the array of `gradients`, or one that shares no memory with it"
            )
        return array

    def mark(self, name: str, array: Array | None, *, back: bool) -> None:
        """Take a gradient: copy it to its bucket, or add it to that of earlier micro-steps.

        Parameters
        ----------
        name : str
            The parameter's name.
        array : ndarray or None
            The result of `source`.
        back : bool
            Whether the array gets the result.

        Raises
        ------
        UsageError
            If it was given before in this micro-step.
        """
        if name in self.marked:
            raise UsageError(f"gradient {name!r} was given before in this step; give it once")
        if array is None:
            self.in_place.add(name)
        else:
            self._copied = True
            place = self.gradients[name]
            if self.present[name]:
                place += array
            else:
                place[...] = array
            if back:
                self.sources[name] = array
        self.marked[name] = perf_counter()
        self.present[name] = True

    def mark_all(self) -> None:
        """Take all gradients as they lie in their buckets, at the begin of a micro-step."""
        self.in_place.update(self.gradients)
        self.marked = dict.fromkeys(self.gradients, perf_counter())
        self.present = dict.fromkeys(self.gradients, True)

    def prepare(self, number: int) -> list[bool]:
        """Make a bucket ready to be reduced, and return this rank's `FLAGS`."""
        flat = self.flats[number]
        missing = bad = False
        written = WRITTEN
        if self.in_place:
            known = self.views.taken or self._copied
            written = self._written.flags(number, self.in_place, written=known)
        watch = self._watched and not flat.is_finite()
        for name, place in flat.views.items():
            if not self.present[name]:
                place[...] = 0
                missing = True
            elif self.factor == 0:
                place[...] = 0  # also NaN, from no samples
            elif watch and not np.isfinite(place).all():
                self.nonfinite.add(name)
                bad = True
        factor = 1.0 if self.factor is None else self.factor
        if self._compressed:
            # Thresholds, and what is not sent yet, are in units that do not change.
            factor /= self.loss_scale
        if factor != 1:
            scale(flat.elements, factor)
        return [missing, bad, *written]

    def reduced(self, number: int, flags: Sequence[bool], divisor: int) -> None:
        """Take a reduced bucket: the flags that any rank set, and what the sum has to be divided by."""
        self.any_flags = list(map(or_, self.any_flags, flags))
        factor = 1 / (divisor if self._compressed else divisor * self.loss_scale)
        if factor != 1:
            scale(self.flats[number].elements, factor)

    def clear(self) -> None:
        """Set all gradients to 0."""
        for place in self.gradients.values():
            place[...] = 0
        self.accept([])

    def copy_back(self) -> None:
        """Write the results to the arrays that were given."""
        for name, array in self.sources.items():
            array[...] = self.gradients[name]

    def accept(self, names: Collection[str] | None = None) -> None:
        """Take these gradients in buckets for results that were not written; None are those `in_place`."""
        self.views.taken = False
        self._written.remember(self.in_place if names is None else names)

    def unwritten(self) -> tuple[list[str], bool]:
        """Return this rank's gradients in buckets that were not written, and whether their owners hold them."""
        return self._written.elsewhere or self._written.unchanged, self._written.owned

    def adopt(self, other: "Buckets") -> None:
        """Take the gradients of another layout over, as far as this one has them."""
        for name, place in self.gradients.items():
            if name in other.gradients and other.gradients[name].shape == place.shape:
                place[...] = other.gradients[name]
                self.present[name] = other.present[name]
                if name in other.sources:
                    self.sources[name] = other.sources[name]


def gradient_of(name: str, gradients: Mapping[str, Array]) -> Array:
    """Return the place of a gradient.

    Raises
    ------
    UsageError
        If no gradient has this name.
    """
    place = gradients.get(name)
    if place is None:
        advice = did_you_mean(name, gradients, "give the name of a parameter")
        raise UsageError(f"unknown gradient {name!r}; {advice}")
    return place


def fitting(name: str, grad: object, place: Array) -> Array:
    """Return an array over the memory of a gradient.

    Raises
    ------
    UsageError
        If it is not on the side of its place.
    BufferMismatch
        If it has another shape or dtype.
    """
    array = view(grad, f"the gradient of {name!r}", device=is_on_device(place))
    if array.shape != place.shape or array.dtype != place.dtype:
        raise BufferMismatch(
            f"the gradient of {name!r} is {array.dtype} {array.shape}, and its parameter "
            f"{place.dtype} {place.shape}; give it the parameter's"
        )
    return array


def is_skipped(group: RankGroup, buckets: Buckets, settings: ReductionSettings) -> bool:
    """Check a reduced step, and return whether it has no results because they are not finite.

    All ranks have the same flags, so that nothing is sent if all is well. Else collective; blocks.

    Raises
    ------
    UsageError
        On every rank, if gradients were not written; or if results are not finite, with ``nonfinite="raise"``.
    RankMismatch
        On every rank, if a gradient is missing, with ``unused="error"``.
    """
    flags = buckets.any_flags
    if flags[ELSEWHERE] or (flags[UNCHANGED] and not flags[IS_WRITTEN]):
        _raise_unwritten(group, buckets)
    if flags[MISSING]:
        if settings.unused == "zero":
            buckets.present = dict.fromkeys(buckets.present, True)
        else:
            _fill_missing(group, buckets, settings.unused == "error")
    if settings.nonfinite == "keep" and not settings.skips:
        return False
    bad = [
        name
        for flat in buckets.flats
        if not flat.is_finite()
        for name, view in flat.views.items()
        if not np.isfinite(view).all()
    ]
    if not bad and not flags[NONFINITE]:
        return False
    if settings.nonfinite == "raise":
        _raise_nonfinite(group, buckets, bad)
    return True


def _raise_unwritten(group: RankGroup, buckets: Buckets) -> None:
    """Raise for gradients in buckets: their sum would silently contain old results."""
    every = group.exchange(buckets.unwritten())
    buckets.accept([])
    names = list(dict.fromkeys(name for unwritten, _ in every for name in unwritten))
    ranks = [rank for rank, (unwritten, _) in enumerate(every) if unwritten]
    if any(owned for _, owned in every):
        cause = (
            "zero_grad() and backward() made new tensors in .grad, which the step did not see and where no results "
            "arrive; give them, by sync({name: parameter.grad, ...}) or ready(name, parameter.grad)"
        )
    else:
        cause = (
            "they have the bits of the last results; write them in each step, or give arrays to sync() or ready(). "
            "zero() before a step says that equal ones are meant"
        )
    raise UsageError(
        "gradients that lie in buckets were not written since the last step: "
        f"{few(map(repr, names), MOST)} on {ranks_named(ranks)}; {cause}"
    )


def _fill_missing(group: RankGroup, buckets: Buckets, fail: bool) -> None:
    """Find the missing gradients of all ranks."""
    own = np.fromiter(buckets.present.values(), np.uint8, len(buckets.present))
    present: Any = group.gather(own).astype(bool)
    buckets.present = dict(zip(buckets.present, present.any(axis=0).tolist(), strict=True))
    if fail:
        missing = [
            f"{name!r} on {ranks_named(np.flatnonzero(~column).tolist())}"
            for name, column in zip(buckets.present, present.T, strict=True)
            if not column.all()
        ]
        raise RankMismatch(
            f"gradients are missing: {'; '.join(missing)}; give them, or take unused='zero' or 'skip'",
            rank=group.rank,
            operation="all_reduce",
            ranks=np.flatnonzero(~present.all(axis=1)).tolist(),
        )


def _raise_nonfinite(group: RankGroup, buckets: Buckets, bad: list[str]) -> None:
    every = group.exchange(sorted(buckets.nonfinite))
    lines = []
    for name in dict.fromkeys([*bad, *(name for names in every for name in names)]):
        ranks = [rank for rank, names in enumerate(every) if name in names]
        where = f"on {ranks_named(ranks)}" if ranks else "in the result alone"
        lines.append(f"{name!r} {where}")
    raise UsageError(
        f"gradients are NaN or infinite: {'; '.join(lines)}; nonfinite='skip' leaves such steps out"
    )
