"""Whether gradients that lie in buckets were written since the last results."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.gradients.arrays import address, host_view
from hpccomm.gradients.flat import FlatBucket

SAMPLE = 256
"""Elements of a bucket that are looked at, but at least `LEAST` of each gradient."""
LEAST = 8

FLAGS = 3
"""What a rank tells of a bucket: something was written, something is as it was, something lies elsewhere."""

WRITTEN = [True, False, False]


class Views(Mapping[str, NDArray[Any]]):
    """The gradients of all buckets by name, as a program sees them.

    Attributes
    ----------
    taken : bool
        Whether one was taken since the last results. It may have been written then.
    """

    def __init__(self, views: Mapping[str, NDArray[Any]]) -> None:
        self._views = views
        self.taken = False

    def __getitem__(self, name: str) -> NDArray[Any]:
        self.taken = True
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class _Sample(NamedTuple):
    """Elements of a bucket that are looked at.

    Attributes
    ----------
    flat : FlatBucket
        The bucket.
    where : ndarray of int
        Where they lie.
    starts : ndarray of int
        Which of them are the first of each gradient.
    held : list of tuple
        Name, view and address of each gradient.
    """

    flat: FlatBucket
    where: NDArray[np.intp]
    starts: NDArray[np.intp]
    held: list[tuple[str, NDArray[Any], int]]

    def now(self) -> NDArray[Any]:
        """Return the elements as they are."""
        return self.flat.memory.take(self.where, mode="clip")  # which needs no buffer


class Written:
    """Looks at samples of buckets in host memory, before each reduction and after it.

    Parameters
    ----------
    flats : sequence of FlatBucket
        The buckets.
    owners : mapping of str to object
        Objects with their gradients in ``grad``, such as PyTorch's parameters, by name.

    Attributes
    ----------
    as_before, elsewhere : list of str
        This rank's gradients that have the bits of the last result; and those that lie with their owners.
    owned : bool
        Whether any of them has an owner.
    """

    def __init__(self, flats: Sequence[FlatBucket], owners: Mapping[str, Any]) -> None:
        self._owners = owners
        self._samples = list(map(_sample, flats))
        self.as_before, self.elsewhere = list[str](), list[str]()
        self.remember([])

    def begin(self) -> None:
        """Forget what was found in the last step."""
        self.owned = False
        if self.as_before or self.elsewhere:
            self.as_before, self.elsewhere = [], []

    def remember(self, in_place: Collection[str]) -> None:
        """Take what lies in the buckets for the results of a step; without gradients `in_place`, for written."""
        self.begin()
        self._last = [each.now() if in_place and each.held else None for each in self._samples]

    def flags(self, number: int, in_place: Collection[str], *, written: bool) -> list[bool]:
        """Look at a bucket that is about to be reduced, and return `FLAGS` flags for the other ranks.

        `written` says that something was written, whatever lies here. Zeros, NaN and infinities that are as they were
        tell nothing.
        """
        sample = self._samples[number]
        _, _, starts, held = sample
        if not held or (written and not self._owners):
            return WRITTEN
        now, last = sample.now(), self._last[number]
        if not self._owners:
            if last is None or (found := now.tobytes()) != last.tobytes():  # as in most steps
                return WRITTEN
            if found.count(0) == len(found):  # zeros, quickly
                return [written, False, False]
        alike = np.zeros(len(held), np.bool_)
        if last is not None:
            bits = f"u{now.itemsize}"
            alike = np.logical_and.reduceat(now.view(bits) == last.view(bits), starts)
        tells = np.logical_and.reduceat(np.isfinite(now), starts)
        tells &= np.logical_or.reduceat(now != 0, starts)
        as_before, elsewhere = len(self.as_before), len(self.elsewhere)
        for (name, view, place), same, telling in zip(
            held, alike.tolist(), tells.tolist(), strict=True
        ):
            if name not in in_place:
                continue
            owner = self._owners.get(name)
            if owner is None or owner.grad is None:
                written |= not same
                if same and telling:
                    self.as_before.append(name)
                    self.owned |= owner is not None
            elif owner.grad.data_ptr() == place or (telling and not same):  # or written by hand
                written = True
            elif not np.array_equal(host_view(owner.grad, f"the gradient of {name!r}"), view):
                self.elsewhere.append(name)
                self.owned = True
        return [written, len(self.as_before) > as_before, len(self.elsewhere) > elsewhere]


def _sample(flat: FlatBucket) -> _Sample:
    bucket = flat.bucket
    each = zip(bucket.parameters, bucket.offsets, flat.views, strict=True)
    held = [(p, offset, view) for p, offset, view in each if p.size and not p.on_device]
    most = max(LEAST, SAMPLE // max(len(held), 1))
    indices = [
        offset + np.linspace(0, p.size - 1, min(most, p.size)).astype(np.intp)
        for p, offset, _ in held
    ]
    starts = np.cumsum([0, *(part.size for part in indices)], dtype=np.intp)[:-1]
    where = np.concatenate([np.empty(0, np.intp), *indices])
    return _Sample(flat, where, starts, [(p.name, view, address(view)) for p, _, view in held])


def elsewhere(owners: Mapping[str, Any], views: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the gradients that their owners have somewhere else, with other values than in their places."""
    return [
        name
        for name, owner in owners.items()
        if owner.grad is not None
        and owner.grad.data_ptr() != address(views[name])
        and not np.array_equal(host_view(owner.grad, f"the gradient of {name!r}"), views[name])
    ]
