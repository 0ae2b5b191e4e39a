"""Ranks in a Cartesian grid, as MPI's: neighbors, blocks of arrays, and halos.

`Communicator.grid` makes it.
"""

from collections.abc import Sequence

from hpccomm.communicator.halo import halo
from hpccomm.communicator.mesh import Arrangement, C
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms.partition import array_split, offsets
from hpccomm.settings import check_bool, check_int
from hpccomm.topology import check_rank


class Grid(Arrangement[C]):
    """The ranks of a communicator as a Cartesian grid. Made by `Communicator.grid`.

    It has the ranks and neighbors of ``MPI_Cart_create`` without reordering. The grid is a context manager:
    leaving it normally ends its groups, but not the communicator that it is a grid of; leaving it by an
    exception aborts them.

    Attributes
    ----------
    comm : Communicator
        Its communicator.
    dims : tuple of int
        Ranks along each axis. Their product is the number of ranks.
    periodic : tuple of bool
        By axis, whether the last rank's neighbor is the first one.
    coords : tuple of int
        Place of this rank.
    ranks : array of shape `dims`, int64
        Rank at each place: row by row, the last axis fastest. It cannot be written to.
    """

    call, given = "grid", "dims"

    def __init__(self, comm: C, dims: Sequence[int], periodic: bool | Sequence[bool]) -> None:
        super().__init__(comm, dims, lambda lengths: {"periodic": _periodic(lengths, periodic)})
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
            Of the place. Along a periodic axis, any integer is one.

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
            Of the grid.
        steps : int
            Their distance from this rank; negative towards lower coordinates.

        Returns
        -------
        src, dst : int or None
            For `Communicator.send_recv`, say. None beyond an edge.
        """
        axis, steps = self._axis(axis), check_int("steps", steps)
        src, dst = (
            self.rank_of([at + way * (each == axis) for each, at in enumerate(self.coords)])
            for way in (-steps, steps)
        )
        return src, dst

    @property
    def neighbors(self) -> tuple[tuple[int | None, int | None], ...]:
        """By axis, the neighbors of this rank: before it and after it. None beyond an edge."""
        return tuple([self.shift(axis) for axis in range(len(self.dims))])

    def along(self, *axes: int) -> C:
        """Return the communicator of the ranks that differ from this one along these axes alone.

        Collective over the grid in its first use, as `Communicator.split` is; later uses are local. Its ranks are
        in the order of the axes, the last of them fastest.

        Raises
        ------
        UsageError
            If the axes do not fit. On this rank alone: nothing is sent.
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
            Of the whole array: an element for each axis of the grid.
        rank : int, optional
            None is this one.

        Returns
        -------
        tuple of slice
            Such as ``whole[grid.block(whole.shape)]``.
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

    halo = halo

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


def grid(self: C, dims: Sequence[int], periodic: bool | Sequence[bool] = False) -> Grid[C]:
    """Return the ranks as a Cartesian grid, as MPI's, with neighbors and halos. Collective; blocks.

    Parameters
    ----------
    dims : sequence of int
        Ranks along each axis. Ranks run along the last one first. 0 is chosen to fit; several are chosen about
        equal, the larger first, as by ``MPI_Dims_create``.
    periodic : bool or sequence of bool
        For all axes or by axis, whether the last rank's neighbor is the first one.

    Returns
    -------
    Grid
        Of this communicator's ranks, in their order.

    Raises
    ------
    UsageError
        If this rank's arguments do not fit.
    RankMismatch
        On the other ranks in that case, and on all ranks if they differ.
    """
    return Grid(self, dims, periodic)


def _periodic(dims: Sequence[int], periodic: bool | Sequence[bool]) -> list[bool]:
    """Return for each axis whether it is periodic."""
    if not isinstance(periodic, tuple | list):
        return [check_bool("periodic", periodic)] * len(dims)
    if len(periodic) != len(dims):
        raise UsageError(
            f"periodic is {periodic!r}; give one for each of dims {tuple(dims)}, or one for all"
        )
    return [check_bool("periodic", each) for each in periodic]
