"""The buckets of one layout: their memory, and which of their gradients are given in a step.

`steps` fills them, `reducer` reduces them.
"""

from collections.abc import Collection, Mapping, Sequence
from operator import or_
from time import perf_counter
from typing import Any

import numpy as np

from hpccomm.errors import BufferMismatch, UsageError, did_you_mean
from hpccomm.gradients.arrays import Array, address, is_on_device, overlap, view
from hpccomm.gradients.flat import registered_together, scale, views_of
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.parameters import Bucket
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.gradients.written import WRITTEN, Views, Written

FLAGS = MISSING, NONFINITE, IS_WRITTEN, UNCHANGED, ELSEWHERE = range(5)
"""Flags that are sent with each bucket: a gradient is missing, one is not finite, and the flags of `Written`."""


class Buckets:
    """Where the gradients of a layout lie, and which of them are present. Making one is local.

    Parameters
    ----------
    group : RankGroup
        The ranks that train together.
    layout : sequence of Bucket
        Equal on all ranks.
    settings : ReductionSettings
        Equal on all ranks.
    owners : mapping of str to object
        As in `Written`.
    flags : int
        Number of flags that a reduction of a bucket takes along.

    Attributes
    ----------
    flats : list of FlatMemory
        The buckets.
    regions : dict of BucketKind to ndarray
        All buckets of a kind.
    gradients : dict of str to array
        Views of the buckets, by name.
    views : Views
        The same for users.
    bucket_of : dict of str to int
        The number of each gradient's bucket.
    nbytes : int
        Of all buckets.
    present : dict of str to bool
        Whether a gradient was given since the last reduction; after it, whether it is a result.
    marked : dict of str to float
        When the gradients of this micro-step were given, as ``time.perf_counter`` counts, in this order.
    sources : dict of str to array
        Arrays that get the results, by name.
    in_place : set of str
        Gradients that were said to lie in their buckets.
    nonfinite : set of str
        This rank's gradients that were NaN or infinite, if that is watched.
    any_flags : list of bool
        By the number of the flag, whether any rank set it for any bucket. Equal on all ranks.
    factor : float or None
        What gradients are multiplied by before they are summed.
    loss_scale : float
        What results are divided by.
    """

    def __init__(
        self,
        group: RankGroup,
        layout: Sequence[Bucket],
        settings: ReductionSettings,
        owners: Mapping[str, Any],
        flags: int,
    ) -> None:
        self.flats, self.regions = registered_together(group, layout, flags)
        self.bucket_of = {name: flat.bucket.index for flat in self.flats for name in flat.views}
        self.gradients = views_of(self.flats)
        self.views = Views(self.gradients)
        self.nbytes = sum(bucket.nbytes for bucket in layout)
        self._compressed = settings.compressor is not None
        self._watched = settings.nonfinite == "raise" or (self._compressed and settings.skips)
        self.factor: float | None = None
        self.loss_scale = 1.0
        self.marked: dict[str, float] = {}
        self.sources: dict[str, Array] = {}
        self.in_place: set[str] = set()
        self.nonfinite: set[str] = set()
        self._written = Written(self.flats, owners, watched=group.size > 1)
        self.begin()

    def begin(self) -> None:
        """Forget the results of the last step."""
        self.present = dict.fromkeys(self.gradients, False)
        self.any_flags = [False] * len(FLAGS)
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
            Of the parameter.
        array : ndarray or None
            What `source` returned.
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
