"""The buckets of one layout: which of their gradients are given in a step, and whether the step has results.

A step has none if gradients are missing, were not written since the last one, or are not finite. With each bucket go flags
that say so, so that nothing more is sent where all is well.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import or_
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from hpccomm.errors import BufferMismatch, RankMismatch, UsageError, did_you_mean
from hpccomm.gradients.layout import (
    FlatMemory,
    layout,
    registered_together,
    scale,
    urgent_buckets,
    views_of,
)
from hpccomm.gradients.parameters import Array, address, is_on_device, overlap, view
from hpccomm.gradients.settings import CurrentScale, Model
from hpccomm.units import few, grouped, ranks_named

T = TypeVar("T", bound=Hashable)

MOST = 5
"""Gradients that a message names."""

SAMPLE = 256
"""Elements of a bucket that are compared, but at least `LEAST` of each gradient."""
LEAST = 8

FLAGS = MISSING, NONFINITE, IS_WRITTEN, UNCHANGED, ELSEWHERE = range(5)
"""Flags that are sent with each bucket: a gradient is missing or not finite; one was written since the last step, has the
bits of the last result, or lies elsewhere."""


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


class Sample:
    """Elements of a bucket in host memory, compared before each reduction with those after the last one.

    If the bucket is not `watched`, its gradients count as written: on one rank a result is what was given.
    """

    def __init__(self, flat: FlatMemory, *, watched: bool) -> None:
        each = zip(flat.bucket.parameters, flat.bucket.offsets, strict=True)
        on_host = [(p, offset) for p, offset in each if watched and p.size and not p.on_device]
        most = max(LEAST, SAMPLE // max(len(on_host), 1))
        self._memory = flat.memory
        self._gradients: list[
            tuple[str, Array, int, slice]
        ] = []  # the last is its part of the sample
        places, end = [np.empty(0, np.intp)], 0
        for p, offset in on_host:
            places.append(offset + np.linspace(0, p.size - 1, min(most, p.size)).astype(np.intp))
            begin, end = end, end + places[-1].size
            place = flat.views[p.name]
            self._gradients.append((p.name, place, address(place), slice(begin, end)))
        self._places = np.concatenate(places)
        self._last: Array | None = None

    def remember(self, in_place: Collection[str]) -> None:
        """Take the content of the bucket for results. Without gradients `in_place`, it counts as written."""
        self._last = None
        if in_place and self._gradients:
            self._last = self._memory.take(self._places, mode="clip")  # which needs no buffer

    def compare(
        self, in_place: Collection[str], owners: Mapping[str, Any], *, written: bool
    ) -> tuple[bool, list[str], list[str]]:
        """Look at the bucket, which is about to be reduced.

        Parameters
        ----------
        in_place : collection of str
            The gradients that were said to lie in their buckets.
        owners : mapping of str to object
            Objects that have their gradients in ``grad``, such as PyTorch's parameters.
        written : bool
            Whether something was written, independent of the bits.

        Returns
        -------
        bool
            Whether a gradient was written.
        list of str
            The gradients that have the bits of the last result.
        list of str
            The gradients that lie with their owners.
        """
        if not self._gradients or (written and not owners):
            return True, [], []
        now, last = self._memory.take(self._places, mode="clip"), self._last
        if not owners:
            if last is None or (content := now.tobytes()) != last.tobytes():  # as in most steps
                return True, [], []
            if content.count(0) == len(content):  # zeros, quickly
                return written, [], []
        unchanged, elsewhere = [], []
        for name, place, start, part in self._gradients:
            if name not in in_place:
                continue
            alike = last is not None and now[part].tobytes() == last[part].tobytes()
            owner = owners.get(name)
            if owner is None or owner.grad is None:
                written |= not alike
                if alike and _proves(now[part]):
                    unchanged.append(name)
            elif owner.grad.data_ptr() == start or (not alike and _proves(now[part])):
                written = True  # maybe by hand
            elif _differs(name, owner, place):
                elsewhere.append(name)
        return written, unchanged, elsewhere


def _proves(x: Array) -> bool:
    """Return whether elements prove something if they are unchanged: zeros, NaN and infinities do not."""
    return bool(np.isfinite(x).all() and x.any())


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
    """The memory of a layout's gradients, which of them are present, and whether a step has results. Making one is local.

    Parameters
    ----------
    model : Model
        The model on which all ranks agreed.
    scale : CurrentScale
        The factor of the loss.
    readiness : sequence of str, optional
        As in `ordered`.

    Attributes
    ----------
    layout : tuple of Bucket
        In the order of the reductions.
    urgent : list of int
        See `urgent_buckets`.
    channels : list of Channel
        The compressor's channel of each bucket; empty without a compressor.
    flats, regions
        The memory of each bucket, and that of all buckets of a kind.
    """

    def __init__(
        self, model: Model, scale: CurrentScale, readiness: Sequence[str] | None = None
    ) -> None:
        self.settings, self.scale = model.settings, scale
        self._group, self._owners = model.group, model.owners
        compressor = self.settings.compressor
        self.layout = layout(model.trained, self.settings, readiness)
        self.urgent = urgent_buckets(self.layout, model.trained)
        self.channels = [compressor.channel(each) for each in self.layout if compressor is not None]
        flags = len(FLAGS) + len(self.urgent)
        self.flats, self.regions = registered_together(self._group, self.layout, flags)
        self.gradients = views_of(self.flats)
        self.views = Views(self.gradients)  # the same for users
        self.nbytes = sum(bucket.nbytes for bucket in self.layout)
        self._compressed = bool(self.channels)
        self._watched = self.settings.nonfinite == "raise" or (
            self._compressed and self.settings.skips
        )
        self._samples = [Sample(flat, watched=self._group.size > 1) for flat in self.flats]
        self.factor: float | None = None  # multiplies gradients before they are summed
        # When each gradient of this micro-step was given, by time.perf_counter, in this order.
        self.marked: dict[str, float] = {}
        self.sources: dict[str, Array] = {}  # arrays that get the results
        self._in_place: set[str] = set()  # gradients that were said to lie in their buckets
        self.begin()

    def begin(self) -> None:
        """Forget the results of the last step."""
        # Whether a gradient was given since the last reduction; after it, whether it is a result.
        self.present = dict.fromkeys(self.gradients, False)
        self._flags = [False] * len(FLAGS)  # whether any rank set each for any bucket
        self._copied = False  # an array was copied to a bucket
        self._in_place.clear()
        self.sources.clear()
        # This rank's gradients, by the flag that they have set.
        self._found: dict[int, list[str]] = {NONFINITE: [], UNCHANGED: [], ELSEWHERE: []}

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
            self._in_place.add(name)
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
        self._in_place.update(self.gradients)
        self.marked = dict.fromkeys(self.gradients, perf_counter())
        self.present = dict.fromkeys(self.gradients, True)

    def prepare(self, number: int) -> list[bool]:
        """Make a bucket ready to be reduced, and return this rank's `FLAGS`."""
        flat, found = self.flats[number], self._found
        missing = nonfinite = unchanged = elsewhere = False
        written = True
        if self._in_place:
            written, same, lost = self._samples[number].compare(
                self._in_place, self._owners, written=self.views.taken or self._copied
            )
            found[UNCHANGED] += same
            found[ELSEWHERE] += lost
            unchanged, elsewhere = bool(same), bool(lost)
        watch = self._watched and not flat.is_finite()
        for name, place in flat.views.items():
            if not self.present[name]:
                place[...] = 0
                missing = True
            elif self.factor == 0:
                place[...] = 0  # also NaN, from no samples
            elif watch and not np.isfinite(place).all():
                found[NONFINITE].append(name)
                nonfinite = True
        factor = 1.0 if self.factor is None else self.factor
        if self._compressed:
            # Thresholds, and what is not sent yet, are in units that do not change.
            factor /= self.scale.value
        if factor != 1:
            scale(flat.elements, factor)
        return [missing, nonfinite, written, unchanged, elsewhere]

    def take(self, number: int, flags: Sequence[bool], divisor: int) -> None:
        """Take a reduced bucket: the flags that any rank set, and what the sum has to be divided by."""
        self._flags = list(map(or_, self._flags, flags))
        factor = 1 / (divisor if self._compressed else divisor * self.scale.value)
        if factor != 1:
            scale(self.flats[number].elements, factor)

    def check(self) -> bool:
        """Check a reduced step, and return whether it has results: False if they are not finite.

        All ranks have the same flags, so that nothing is sent if all is well. Else collective; blocks.

        Raises
        ------
        UsageError
            On every rank, if gradients were not written; or if results are not finite, with ``nonfinite="raise"``.
        RankMismatch
            On every rank, if a gradient is missing, with ``unused="error"``.
        """
        flags, settings = self._flags, self.settings
        if flags[ELSEWHERE] or (flags[UNCHANGED] and not flags[IS_WRITTEN]):
            self._raise_unwritten()
        if flags[MISSING] and settings.unused == "zero":
            self.present = dict.fromkeys(self.present, True)
        elif flags[MISSING]:
            self._find_missing()
        if settings.nonfinite == "keep" and not settings.skips:
            return True
        bad = [
            name
            for flat in self.flats
            if not flat.is_finite()
            for name, place in flat.views.items()
            if not np.isfinite(place).all()
        ]
        if (bad or flags[NONFINITE]) and settings.nonfinite == "raise":
            self._raise_nonfinite(bad)
        return not bad and not flags[NONFINITE]

    def _raise_unwritten(self) -> None:
        """Raise for gradients in buckets: their sum would silently contain old results."""
        own = self._found[ELSEWHERE] or self._found[UNCHANGED]
        ranks_of = self._ranks_of((name, name in self._owners) for name in own)
        self._remember(())
        names = dict.fromkeys(name for name, _ in ranks_of)
        ranks = sorted({rank for ranks in ranks_of.values() for rank in ranks})
        if any(owned for _, owned in ranks_of):
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

    def _find_missing(self) -> None:
        """Learn which gradients any rank has. Raise for those that a rank lacks, with ``unused="error"``."""
        own = np.fromiter(self.present.values(), np.uint8, len(self.present))
        present: Any = self._group.all_gather(own).astype(bool)
        self.present = dict(zip(self.present, present.any(axis=0).tolist(), strict=True))
        if self.settings.unused == "error":
            columns = zip(self.present, present.T, strict=True)
            ranks_of = {name: np.flatnonzero(~x).tolist() for name, x in columns if not x.all()}
            raise RankMismatch(
                f"gradients are missing: {_named(ranks_of)}; give them, or take unused='zero' or 'skip'",
                rank=self._group.rank,
                operation="all_reduce",
                ranks=np.flatnonzero(~present.all(axis=1)).tolist(),
            )

    def _raise_nonfinite(self, bad: list[str]) -> None:
        ranks_of: dict[str, list[int]] = {name: [] for name in bad}
        ranks_of |= self._ranks_of(sorted(self._found[NONFINITE]))
        raise UsageError(
            f"gradients are NaN or infinite: {_named(ranks_of)}; nonfinite='skip' leaves such steps out"
        )

    def _ranks_of(self, own: Iterable[T]) -> dict[T, list[int]]:
        """Return on which ranks each gradient was found. Collective; blocks."""
        every = self._group.all_gather_object(list(own))
        return grouped((name, rank) for rank, names in enumerate(every) for name in names)

    def hand_back(self) -> None:
        """Write the results to the arrays that were given, and take them for results that were not written since."""
        for name, array in self.sources.items():
            array[...] = self.gradients[name]
        self._remember(self._in_place)

    def clear(self) -> None:
        """Set all gradients to 0."""
        for place in self.gradients.values():
            place[...] = 0
        self._remember(())

    def _remember(self, in_place: Collection[str]) -> None:
        self.views.taken = False
        self._found[UNCHANGED], self._found[ELSEWHERE] = [], []
        for sample in self._samples:
            sample.remember(in_place)

    def adopt(self, other: "Buckets") -> None:
        """Take the gradients of another layout over, as far as this one has them."""
        for name, place in self.gradients.items():
            if name in other.gradients and other.gradients[name].shape == place.shape:
                place[...] = other.gradients[name]
                self.present[name] = other.present[name]
                if name in other.sources:
                    self.sources[name] = other.sources[name]


def _named(ranks_of: Mapping[str, Sequence[int]]) -> str:
    """Return gradients and the ranks of each in words."""
    return "; ".join(
        f"{name!r} " + (f"on {ranks_named(ranks)}" if ranks else "in the result alone")
        for name, ranks in ranks_of.items()
    )


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
