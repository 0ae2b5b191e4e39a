"""Whether gradients in buckets were written since the last results. `buckets` asks at each step."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.gradients.arrays import Array, address, view
from hpccomm.gradients.flat import FlatMemory

SAMPLE = 256
"""Elements of a bucket that are compared, but at least `LEAST` of each gradient."""
LEAST = 8

WRITTEN = [True, False, False]
"""Flags of a bucket: a gradient was written, one is unchanged, one lies elsewhere."""


class Views(Mapping[str, Array]):
    """The gradients of all buckets by name, as a program sees them.

    Attributes
    ----------
    taken : bool
        Whether one was taken since the last results. It may have been written then.
    """

    def __init__(self, views: Mapping[str, Array]) -> None:
        self._views = views
        self.taken = False

    def __getitem__(self, name: str) -> Array:
        self.taken = True
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class _Sample(NamedTuple):
    """Elements of a bucket that are compared.

    Attributes
    ----------
    memory : ndarray, 1-D
        Of the bucket.
    where : ndarray of int
        Their places.
    starts : ndarray of int
        Which of them are the first of each gradient.
    gradients : list of tuple
        Name, view and address of each.
    """

    memory: Array
    where: NDArray[np.intp]
    starts: NDArray[np.intp]
    gradients: list[tuple[str, Array, int]]

    def now(self) -> Array:
        """Return the elements as they are."""
        return self.memory.take(self.where, mode="clip")  # which needs no buffer


class Written:
    """Compares samples of buckets in host memory before each reduction with those after the last one.

    Parameters
    ----------
    flats : sequence of FlatMemory
        The buckets.
    owners : mapping of str to object
        Objects with their gradients in ``grad``, such as PyTorch's parameters, by name.
    watched : bool
        Without it, all gradients count as written: on one rank a result is what was given.

    Attributes
    ----------
    unchanged, elsewhere : list of str
        This rank's gradients that have the bits of the last result; and gradients that lie with their owners.
    owned : bool
        Whether any of them has an owner.
    """

    def __init__(
        self, flats: Sequence[FlatMemory], owners: Mapping[str, Any], *, watched: bool
    ) -> None:
        self._owners = owners
        self._samples = [_sample(flat, watched) for flat in flats]
        self.unchanged, self.elsewhere = list[str](), list[str]()
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
