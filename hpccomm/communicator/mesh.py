"""Ranks in an n-dimensional grid with named dimensions, and the groups along them.

`Communicator.mesh` makes it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.settings import check_int

CHOSEN = (-1, 0)
"""Lengths that stand for "whatever fits"."""

Agree = Callable[[str, dict[str, object], "UsageError | None"], None]
"""Raises on every rank unless all bring the same; a rank with an error raises that."""


class Splitting(Protocol):
    """The part of a communicator that a mesh needs."""

    rank: int
    size: int

    @property
    def name(self) -> str:
        """Its name."""

    def split(self, color: int | None, key: int = 0, name: str | None = None) -> Any:
        """Make a communicator of the ranks that pass the same color."""

    def finalize(self) -> None:
        """End it."""

    def abort(self) -> None:
        """End it on this rank alone."""


C = TypeVar("C", bound=Splitting)


class Mesh(Generic[C]):
    """The ranks of a communicator as a grid with named dimensions. Made by `Communicator.mesh`.

    ``mesh["tp"]`` is the communicator of the ranks that differ from this one in ``tp`` alone, in that order.
    ``mesh["dp", "tp"]`` is that of the ranks that differ in these dimensions, the last of them running fastest.

    The first use of each makes it. **That is collective over all ranks of the mesh**, as `Communicator.split` is:
    all must use the same names, in the same order. If another rank asks for something else, both raise
    `RankMismatch`; if it does not come, `CollectiveTimeout` at the deadline. Later uses are local; a group that was
    ended stays so. So a program whose ranks have different parts, such as stages of a pipeline, names its groups once at
    the beginning.

    The mesh is a context manager. Leaving it normally ends its groups, but not the communicator that
    it is a mesh of; leaving it by an exception aborts them.

    Attributes
    ----------
    comm : Communicator
        Its communicator, which is also the group of all its ranks in their order.
    names : tuple of str
        Of the dimensions.
    shape : tuple of int
        Their lengths. Their product is the number of ranks.
    ranks : array of shape `shape`, int64
        Rank at each place: row by row, the last dimension fastest. It cannot be written to.
    coords : tuple of int
        Place of this rank.
    """

    def __init__(self, comm: C, agree: Agree, shape: Sequence[int], names: Sequence[str]) -> None:
        error, asked, lengths = None, dict[str, object](), list[int]()
        try:
            lengths = _lengths(shape, names, comm.size)
            asked = {"shape": lengths, "names": list(names)}
        except UsageError as refused:
            error = refused
        agree("mesh", asked, error)
        self.comm = comm
        self.names = tuple(names)
        self.shape = tuple(lengths)
        self.ranks = np.arange(comm.size).reshape(lengths)
        self.ranks.setflags(write=False)
        self.coords = tuple(map(int, np.unravel_index(comm.rank, lengths)))
        self._agree = agree
        self._made: dict[tuple[str, ...], C] = {}

    def __getitem__(self, names: str | tuple[str, ...]) -> C:
        """Return the communicator along one or several dimensions. Collective over the mesh in its first use.

        Raises
        ------
        UsageError
            If the names do not fit. On this rank alone: nothing is sent.
        RankMismatch
            On all ranks, if they make groups along different dimensions.
        """
        chosen = tuple(names) if isinstance(names, tuple | list) else (names,)
        group = self._made.get(chosen)
        return self._make(chosen) if group is None else group

    def _make(self, chosen: tuple[str, ...]) -> C:
        axes = [self._axis(name) for name in chosen]
        if not axes or len(set(axes)) < len(axes):
            raise UsageError(
                f"the mesh is indexed by {chosen!r}; give names of its dimensions, none twice: {self.names}"
            )
        others = [axis for axis in range(len(self.shape)) if axis not in axes]
        groups = self.ranks.transpose([*others, *axes]).reshape(
            -1, math.prod(self.shape[axis] for axis in axes)
        )
        self._agree("mesh", {"names": list(chosen)}, None)
        if np.array_equal(groups, [range(self.comm.size)]):
            return self._made.setdefault(chosen, self.comm)
        ((color, key),) = np.argwhere(groups == self.comm.rank).tolist()
        group: C = self.comm.split(color, key, f"{self.comm.name}.{'-'.join(chosen)}{color}")
        return self._made.setdefault(chosen, group)

    def _axis(self, name: str) -> int:
        if name not in self.names:
            advice = did_you_mean(str(name), self.names, f"give names out of {self.names}")
            raise UsageError(f"the mesh has no dimension {name!r}; {advice}")
        return self.names.index(name)

    def finalize(self) -> None:
        """End the mesh's groups. Collective over it; blocks; idempotent."""
        for each in self._own():
            each.finalize()
        self._made.clear()

    def abort(self) -> None:
        """Abort the mesh's groups. Local."""
        for each in self._own():
            each.abort()

    def _own(self) -> list[C]:
        return [each for each in self._made.values() if each is not self.comm]

    def __enter__(self) -> "Mesh[C]":
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.finalize()
        else:
            self.abort()

    def __repr__(self) -> str:
        lengths = ", ".join(f"{name}={n}" for name, n in zip(self.names, self.shape, strict=True))
        return f"<hpccomm.Mesh of {self.comm.name!r}: {lengths}; this rank is at {self.coords}>"


def _lengths(shape: Sequence[int], names: Sequence[str], size: int) -> list[int]:
    """Return the lengths of the dimensions. What is left open is chosen."""
    if not isinstance(names, tuple | list) or not all(isinstance(each, str) for each in names):
        raise UsageError(f'names is {names!r}; give strings, such as ("dp", "tp")')
    if not isinstance(shape, tuple | list):
        raise UsageError(f"shape is {shape!r}; give lengths, such as (2, -1)")
    lengths = [check_int("shape", each) for each in shape]
    if not lengths or len(lengths) != len(names) or len(set(names)) < len(names):
        raise UsageError(
            f"shape is {tuple(lengths)} and names is {tuple(names)}; give a name to each dimension, none twice"
        )
    given = [each for each in lengths if each not in CHOSEN]
    product = math.prod(given)
    left = len(lengths) - len(given)
    if min(given, default=1) < 1 or size % product or (not left and product != size):
        raise UsageError(
            f"shape is {tuple(lengths)} for {size} ranks; give lengths whose product is {size}, "
            "or -1 for one that is to be chosen"
        )
    free = iter(balanced(size // product, left))
    return [next(free) if each in CHOSEN else each for each in lengths]


def balanced(size: int, dimensions: int) -> list[int]:
    """Return lengths whose product is `size`, about equal, the largest first.

    Parameters
    ----------
    size : int
        At least 1.
    dimensions : int
        At least 1, or 0 for a size of 1.
    """
    lengths = []
    for left in range(dimensions, 0, -1):
        length = next(
            each for each in range(1, size + 1) if size % each == 0 and each**left >= size
        )
        lengths.append(length)
        size //= length
    return sorted(lengths, reverse=True)
