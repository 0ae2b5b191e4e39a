"""Halos beside NumPy: what `np.pad` makes of the whole array is what each rank's ghost cells must hold."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np

import hpccomm

UNTOUCHED = -1.0

Asarray = Callable[[np.ndarray], Any]


def shapes(ranks: int) -> list[tuple[int, ...]]:
    """Every grid of that many ranks in up to three dimensions."""
    counts = range(1, ranks + 1)
    every = chain(*(product(counts, repeat=axes) for axes in (1, 2, 3)))
    return [each for each in every if prod(each) == ranks]


def edges(count: int) -> list[tuple[bool, ...]]:
    """Grids without periodic axes, with these alone, and with both."""
    return sorted({(False,) * count, (True,) * count, (True, False, True)[:count]})


def padded(whole: np.ndarray, widths: Sequence[tuple[int, int]], periodic: Sequence[bool]) -> Any:
    """The whole array with the cells around it; beyond an edge `UNTOUCHED`."""
    for axis, (width, each) in enumerate(zip(widths, periodic, strict=True)):
        around = [width if other == axis else (0, 0) for other in range(whole.ndim)]
        how: Any = {"mode": "wrap"} if each else {"constant_values": UNTOUCHED}
        whole = np.pad(whole, around, **how)
    return whole


def expected(
    grid: Any, whole: np.ndarray, widths: Sequence[tuple[int, int]], *, corners: bool
) -> tuple[np.ndarray, np.ndarray]:
    """A rank's block with ghost cells that nobody has filled, and with those of its neighbors."""
    block = grid.block(whole.shape)
    pairs = zip(block, widths, strict=True)
    around = tuple(slice(each.start, each.stop + sum(width)) for each, width in pairs)
    filled = padded(whole, widths, grid.periodic)[around].copy()
    sizes = zip(filled.shape, widths, strict=True)
    inside = tuple(slice(before, cells - after) for cells, (before, after) in sizes)
    given = np.full_like(filled, UNTOUCHED)
    given[inside] = whole[block]
    if not corners:
        ghosts = [np.ones(cells, bool) for cells in filled.shape]
        for ghost, own in zip(ghosts, inside, strict=True):
            ghost[own] = False
        beyond = np.sum(np.meshgrid(*ghosts, indexing="ij"), axis=0)  # how many sides
        filled[beyond > 1] = UNTOUCHED
    return given, filled


def check(comm: hpccomm.Communicator, asarray: Asarray = np.array, host: Any = np.asarray) -> None:
    """Compare the halos of every grid of these ranks."""
    every = product(shapes(comm.size), (1, 2), (True, False))
    for number, (dims, width, corners) in enumerate(every):
        for periodic in edges(len(dims)):
            grid = comm.grid(dims, periodic)
            shape = [2 * each + (each > 1) for each in dims]  # uneven blocks of 2 cells and more
            whole = np.arange(1.0, prod(shape) + 1).reshape(shape)
            given, filled = expected(grid, whole, [(width, width)] * len(dims), corners=corners)
            first, last = asarray(given), asarray(given)
            halo = grid.halo(first, width, corners=corners)
            # Each time with other values, the last time in another array.
            for times, u in ((1, first), (10, first), (100, last)):
                u[...] = asarray(np.where(given == UNTOUCHED, given, times * given))
                work = halo(None if u is first else u, async_op=number % 2 == 0)
                if work is not None:
                    work.wait()
                right = np.where(filled == UNTOUCHED, filled, times * filled)
                case = f"{dims} {periodic} {width} {corners}"
                np.testing.assert_array_equal(host(u), right, case)


def check_layouts(
    comm: hpccomm.Communicator, asarray: Asarray = np.array, host: Any = np.asarray
) -> None:
    """Compare halos of arrays with more axes, of several at a time, and of other widths."""
    grid = comm.grid((0, 0), periodic=(True, False))
    rows, columns = (3 * each for each in grid.dims)
    whole = np.arange(1.0, rows * columns + 1).reshape(rows, columns)
    for widths in ([(1, 2), (2, 1)], [(0, 1), (1, 0)], [(2, 2), (0, 0)]):
        given, filled = expected(grid, whole, widths, corners=True)
        behind = np.stack([given, 2 * given], 2)
        between = np.stack([given, 3 * given], 1)
        u, v = asarray(behind), asarray(between.astype(np.int16))
        grid.halo(u, widths, axes=(0, 1))()
        grid.halo([v], widths, axes=[0, -1])()
        np.testing.assert_array_equal(host(u)[..., 0], filled)
        other = np.where(filled == UNTOUCHED, 3 * UNTOUCHED, 3 * filled)
        np.testing.assert_array_equal(host(v)[:, 1], other)
        pair = [asarray(given), asarray(given.astype(np.complex64) * 1j)]
        grid.halo(pair, widths)()
        for factor, each in zip((1, 1j), pair, strict=True):
            np.testing.assert_array_equal(host(each), factor * filled)


def layouts(x: np.ndarray) -> Iterator[np.ndarray]:
    """An array in memory of other layouts."""
    yield np.asfortranarray(x)
    every = np.zeros([2 * each for each in x.shape])
    every[(slice(None, None, -2),) * x.ndim] = x
    yield every[(slice(None, None, -2),) * x.ndim]


def check_strides(comm: hpccomm.Communicator) -> None:
    """Compare halos of host arrays that are not contiguous themselves."""
    grid = comm.grid((0, 0), periodic=True)
    whole = np.arange(1.0, 9 * comm.size + 1).reshape(3 * grid.dims[0], -1)
    given, filled = expected(grid, whole, [(1, 1), (1, 1)], corners=True)
    for u in layouts(given):
        grid.halo(u)()
        np.testing.assert_array_equal(u, filled)
    # Open MPI's vectors are wrong for steps of -1 byte.
    for turned in (np.s_[:, ::-1], np.s_[::-1, ::-1]):
        u = given.astype(np.int8)[turned].copy()[turned]
        grid.halo(u)()
        np.testing.assert_array_equal(u, filled.astype(np.int8))
