"""Ranks in an n-dimensional arrangement, with the groups along its dimensions. `Communicator.mesh` and `grid` make it.

A `Mesh` has named dimensions. A `Grid` is Cartesian, like MPI's, with neighbors, blocks of arrays, and halos.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from hpccomm.calls.core import Core
from hpccomm.communicator.groups import GroupMember
from hpccomm.communicator.halo import Halo, Width, plan_halo
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.schedules.algorithms.partition import array_split, offsets
from hpccomm.settings import check_bool, check_int
from hpccomm.spelling import Hinting
from hpccomm.topology import check_rank

CHOSEN = (-1, 0)
"""Values that stand for a length to be chosen."""


class Splitting(GroupMember, Protocol):
    """The part of a communicator that an arrangement of its ranks needs."""

    def split(self, color: int | None, key: int = 0, name: str | None = None) -> Any:
        """Make a communicator of the ranks that pass the same color."""


C = TypeVar("C", bound=Splitting)


class Arrangement(Hinting, Generic[C]):
    """The ranks of a communicator at the places of an n-dimensional grid, and the groups along its dimensions.

    Parameters
    ----------
    comm : Communicator
        The communicator of the ranks.
    core : Core
        The communicator's core.
    shape : sequence of int
        The lengths, as the user gave them.
    checked : callable
        Takes the lengths, and returns the further arguments that must be equal on all ranks; or raises.
    """

    call: ClassVar[str]
    """The method of `Communicator` that makes it."""
    given: ClassVar[str]
    """The name of that method's argument of lengths."""

    def __init__(
        self,
        comm: C,
        core: Core,
        shape: Sequence[int],
        checked: Callable[[list[int]], dict[str, object]],
    ) -> None:
        error, asked, lengths = None, dict[str, object](), list[int]()
        try:
            lengths = _lengths(self.given, shape, comm.size)
            asked = {self.given: lengths} | checked(lengths)
        except UsageError as refused:
            error = refused
        self.comm = comm
        self._core = core
        self._agree(asked, error)
        self.shape = tuple(lengths)
        self.ranks = np.arange(comm.size).reshape(lengths)
        self.ranks.setflags(write=False)
        self.coords = tuple(map(int, np.unravel_index(comm.rank, lengths)))
        self._made: dict[tuple[object, ...], C] = {}

    def _agree(self, asked: dict[str, object], error: UsageError | None = None) -> None:
        """Raise on every rank unless all ask for the same; a rank with an `error` raises the error. Collective."""
        with self._core.outside_batch(self.call):
            self._core.agree(self.call, asked, error)

    def _group(self, axes: Sequence[int], chosen: tuple[object, ...], what: str) -> C:
        """Make the group along the dimensions `axes`, which the user named by `chosen`. Collective."""
        others = [axis for axis in range(len(self.shape)) if axis not in axes]
        groups = self.ranks.transpose([*others, *axes]).reshape(
            -1, math.prod(self.shape[axis] for axis in axes)
        )
        self._agree({what: list(chosen)})
        if np.array_equal(groups, [range(self.comm.size)]):
            return self._made.setdefault(chosen, self.comm)
        ((color, key),) = np.argwhere(groups == self.comm.rank).tolist()
        name = f"{self.comm.name}.{'-'.join(map(str, chosen))}{color}"
        group: C = self.comm.split(color, key, name)
        return self._made.setdefault(chosen, group)

    def finalize(self) -> None:
        """End its groups. Collective over its ranks; blocks; idempotent."""
        for each in self._own():
            each.finalize()
        self._made.clear()

    def abort(self) -> None:
        """Abort its groups. Local."""
        for each in self._own():
            each.abort()

    def _own(self) -> list[C]:
        return [each for each in self._made.values() if each is not self.comm]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.finalize()
        else:
            self.abort()


class Mesh(Arrangement[C]):
    """The ranks of a communicator as a grid with named dimensions. Made by `Communicator.mesh`.

    ``mesh["tp"]`` is the communicator of the ranks whose coordinates differ from this rank's in ``tp`` alone, in the
    order of ``tp``. ``mesh["dp", "tp"]`` is the communicator of the ranks that differ in these dimensions alone, the
    last of them running fastest.

    The first use of a group makes it. **That is collective over all ranks of the mesh**, as `Communicator.split` is:
    all ranks must use the same names, in the same order. If ranks ask for different groups, they raise `RankMismatch`;
    if a rank does not ask, the others raise `CollectiveTimeout` at the deadline. Later uses are local. A finalized
    group is not made again. So a program whose ranks have different parts, such as stages of a pipeline, should use
    each group once at the beginning.

    The mesh is a context manager. Leaving it normally ends its groups, but not `comm`; leaving it by an exception
    aborts them.

    Attributes
    ----------
    comm : Communicator
        The communicator of the mesh, which is also the group of all its ranks in their order.
    names : tuple of str
        Names of the dimensions.
    shape : tuple of int
        Lengths of the dimensions. Their product is the number of ranks.
    ranks : array of shape `shape`, int64
        The rank at each place: row by row, the last dimension fastest. It cannot be written to.
    coords : tuple of int
        Place of this rank.
    """

    call, given = "mesh", "shape"

    def __init__(self, comm: C, core: Core, shape: Sequence[int], names: Sequence[str]) -> None:
        super().__init__(comm, core, shape, lambda lengths: {"names": _names(lengths, names)})
        self.names = tuple(names)

    def __getitem__(self, names: str | tuple[str, ...]) -> C:
        """Return the communicator along one or several dimensions. Collective over the mesh in its first use.

        Raises
        ------
        UsageError
            If the names do not fit. Raised on this rank alone; nothing is sent.
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
        return self._group(axes, chosen, "names")

    def _axis(self, name: str) -> int:
        if name not in self.names:
            advice = did_you_mean(str(name), self.names, f"give names out of {self.names}")
            raise UsageError(f"the mesh has no dimension {name!r}; {advice}")
        return self.names.index(name)

    def __repr__(self) -> str:
        lengths = ", ".join(f"{name}={n}" for name, n in zip(self.names, self.shape, strict=True))
        return f"<hpccomm.Mesh of {self.comm.name!r}: {lengths}; this rank is at {self.coords}>"


def _names(lengths: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return the names of the dimensions, after a check that each dimension has one, and no two the same."""
    if not isinstance(names, tuple | list) or not all(isinstance(each, str) for each in names):
        raise UsageError(f'names is {names!r}; give strings, such as ("dp", "tp")')
    if len(lengths) != len(names) or len(set(names)) < len(names):
        raise UsageError(
            f"shape is {tuple(lengths)} and names is {tuple(names)}; give a name to each dimension, none twice"
        )
    return list(names)


def _lengths(what: str, shape: Sequence[int], size: int) -> list[int]:
    """Return the lengths of the dimensions, with chosen lengths in place of those in `CHOSEN`."""
    if not isinstance(shape, tuple | list) or not shape:
        raise UsageError(f"{what} is {shape!r}; give lengths, such as (2, 0)")
    lengths = [check_int(what, each) for each in shape]
    given = [each for each in lengths if each not in CHOSEN]
    product = math.prod(given)
    left = len(lengths) - len(given)
    if min(given, default=1) < 1 or size % product or (not left and product != size):
        raise UsageError(
            f"{what} is {tuple(lengths)} for {size} ranks; give lengths whose product is {size}, such as "
            f"{tuple(balanced(size, len(lengths)))}, or 0 for one that is to be chosen"
        )
    free = iter(balanced(size // product, left))
    return [next(free) if each in CHOSEN else each for each in lengths]


def balanced(size: int, dimensions: int) -> list[int]:
    """Return lengths whose product is `size`, the largest first. The largest is as small as possible, and so on.

    Parameters
    ----------
    size : int
        At least 1.
    dimensions : int
        At least 1, or 0 for a size of 1.
    """
    return next(_descending(size, dimensions, size))


def _descending(size: int, dimensions: int, most: int) -> Iterator[list[int]]:
    """Yield lists of lengths up to `most`, largest first, whose product is `size`; ordered by their largest length."""
    if not dimensions:
        yield from [[]] * (size == 1)
        return
    for length in range(1, min(size, most) + 1):
        if size % length == 0 and length**dimensions >= size:
            for others in _descending(size // length, dimensions - 1, length):
                yield [length, *others]


class Grid(Arrangement[C]):
    """The ranks of a communicator as a Cartesian grid. Made by `Communicator.grid`.

    It has the ranks and neighbors of ``MPI_Cart_create`` without reordering. The grid is a context manager:
    leaving it normally ends its groups, but not `comm`; leaving it by an exception aborts them.

    Attributes
    ----------
    comm : Communicator
        The communicator of the grid.
    dims : tuple of int
        Number of ranks along each axis. Their product is the number of ranks.
    periodic : tuple of bool
        Whether the first and the last rank along each axis are neighbors.
    coords : tuple of int
        Place of this rank.
    ranks : array of shape `dims`, int64
        The rank at each place: row by row, the last axis fastest. It cannot be written to.
    """

    call, given = "grid", "dims"

    def __init__(
        self, comm: C, core: Core, dims: Sequence[int], periodic: bool | Sequence[bool]
    ) -> None:
        super().__init__(
            comm, core, dims, lambda lengths: {"periodic": _periodic(lengths, periodic)}
        )
        self.dims = self.shape
        self.periodic = tuple(_periodic(self.dims, periodic))

    def coords_of(self, rank: int) -> tuple[int, ...]:
        """Return the place of a rank. Local."""
        places = (self.ranks == check_rank("rank", rank, self.comm.size)).nonzero()
        return tuple([int(each[0]) for each in places])

    def rank_of(self, coords: Sequence[int]) -> int | None:
        """Return the rank at a place. Local.

        Parameters
        ----------
        coords : sequence of int
            Coordinates of the place. Along a periodic axis, any integer is valid.

        Returns
        -------
        int or None
            None beyond an edge.
        """
        if len(coords) != len(self.dims):
            raise UsageError(f"coords is {coords!r}; give one for each axis of dims {self.dims}")
        place = []
        for at, length, periodic in zip(coords, self.dims, self.periodic, strict=True):
            number = check_int("coords", at)
            if not periodic and not 0 <= number < length:
                return None
            place.append(number % length)
        return int(self.ranks[tuple(place)])

    def shift(self, axis: int, steps: int = 1) -> tuple[int | None, int | None]:
        """Return the ranks to receive from and to send to, to shift data along an axis. Local.

        Parameters
        ----------
        axis : int
            Axis of the grid.
        steps : int
            The number of places by which data move; negative towards lower coordinates.

        Returns
        -------
        src, dst : int or None
            Ranks to pass to `Communicator.send_recv`. None beyond an edge.
        """
        axis, steps = self._axis(axis), check_int("steps", steps)
        src, dst = (
            self.rank_of([at + way * (each == axis) for each, at in enumerate(self.coords)])
            for way in (-steps, steps)
        )
        return src, dst

    @property
    def neighbors(self) -> tuple[tuple[int | None, int | None], ...]:
        """The two neighbors of this rank along each axis: the rank before it and the one after; None beyond an edge."""
        return tuple([self.shift(axis) for axis in range(len(self.dims))])

    def along(self, *axes: int) -> C:
        """Return the communicator of the ranks whose coordinates differ from this rank's along these axes alone.

        Collective over the grid in its first use, as `Communicator.split` is; later uses are local. Its ranks are
        in the order of the axes, the last axis fastest.

        Raises
        ------
        UsageError
            If the axes do not fit. Raised on this rank alone; nothing is sent.
        RankMismatch
            On all ranks, if they make groups along different axes.
        """
        chosen = tuple([self._axis(each) for each in axes])
        if not chosen or len(set(chosen)) < len(chosen):
            raise UsageError(f"along has axes {axes}; give axes of the grid, none twice")
        group = self._made.get(chosen)
        return self._group(chosen, chosen, "along") if group is None else group

    def block(self, shape: Sequence[int], rank: int | None = None) -> tuple[slice, ...]:
        """Return the part of a whole array that a rank owns. Local.

        Blocks are those of ``numpy.array_split`` along each axis: they differ by at most one element.

        Parameters
        ----------
        shape : sequence of int
            Shape of the whole array, which has an axis for each axis of the grid.
        rank : int, optional
            The rank; None is this rank.

        Returns
        -------
        tuple of slice
            An index of the whole array: ``whole[grid.block(whole.shape)]``.
        """
        if len(shape) != len(self.dims):
            raise UsageError(
                f"shape is {shape!r}; give an extent for each axis of dims {self.dims}"
            )
        coords = self.coords if rank is None else self.coords_of(rank)
        parts = []
        for extent, length, at in zip(shape, self.dims, coords, strict=True):
            if check_int("shape", extent) < 0:
                raise UsageError(f"shape is {shape!r}; give extents from 0")
            counts = array_split(extent, length)
            start = offsets(counts)[at]
            parts.append(slice(start, start + counts[at]))
        return tuple(parts)

    def halo(
        self,
        u: Any,
        width: Width = 1,
        *,
        corners: bool = True,
        axes: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Halo:
        """Plan the exchange that fills the ghost cells of arrays. Collective; blocks.

        Along a periodic axis that is one rank wide, the cells are copied. If it is two ranks wide, each side gets the
        right cells of the one neighbor. Beyond an edge, ghost cells stay as they are.

        Parameters
        ----------
        u : array, or list of arrays
            The block of this rank with ghost cells around it, on the host or on a device. It need not be C-contiguous.
            Blocks of neighbors have the same shape, except along the axis on which they meet. The ghost cells of
            several arrays are filled at the same time.
        width : int, or sequence of int or of pairs
            Number of ghost cells on each side: a number for all axes, a number for each axis, or for each axis a pair,
            before and after the block. Equal on all ranks.
        corners : bool
            Also fill the cells that lie beyond several sides, which stencils with diagonal neighbors need.
        axes : sequence of int, optional
            The axes of u that the grid divides, if u has further axes, such as components.
        timeout : float, optional
            Deadline of one exchange in seconds. None is the communicator's, ``math.inf`` sets none.

        Returns
        -------
        Halo
            Each call of it fills the ghost cells of u, or of another array like u, from the neighbors' current values.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On the other ranks if one raises `UsageError`, and on all ranks if blocks do not fit each other.
        """
        return plan_halo(self, self._core, u, width, corners, axes, timeout)

    def _axis(self, axis: int) -> int:
        number, count = check_int("axis", axis), len(self.dims)
        if not -count <= number < count:
            raise UsageError(f"axis is {axis!r}; give one from 0 to {count - 1}")
        return number % count

    def __repr__(self) -> str:
        lengths = " x ".join(
            f"{n}{' periodic' * each}" for n, each in zip(self.dims, self.periodic, strict=True)
        )
        return f"<hpccomm.Grid of {self.comm.name!r}: {lengths}; this rank is at {self.coords}>"


def _periodic(dims: Sequence[int], periodic: bool | Sequence[bool]) -> list[bool]:
    """Return, for each axis, whether it is periodic."""
    if not isinstance(periodic, tuple | list):
        return [check_bool("periodic", periodic)] * len(dims)
    if len(periodic) != len(dims):
        raise UsageError(
            f"periodic is {periodic!r}; give one for each of dims {tuple(dims)}, or one for all"
        )
    return [check_bool("periodic", each) for each in periodic]
