"""Halos on ranks that are threads: every grid of 1 to 6 ranks, and what misuse raises."""

import threading
import time
from typing import Any

import halos
import numpy as np
import pytest
from ranked import on_threads

from hpccomm import Communicator
from hpccomm.errors import CollectiveTimeout, RankMismatch, UsageError
from hpccomm.runtime.inquiry import ASK_SECONDS
from hpccomm.testing import run_ranks


@pytest.mark.parametrize(
    "ranks", [1, 4, 6, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 3, 5))]
)
def test_ghost_cells_are_those_of_the_padded_whole_in_any_layout(ranks: int) -> None:
    run_ranks(ranks, halos.check)
    if ranks in (1, 4):
        run_ranks(ranks, halos.check_layouts)
        run_ranks(ranks, halos.check_strides)


BLOCK = np.zeros((4, 5))
MISUSED: list[tuple[Any, dict[str, Any], str]] = [
    (None, {}, "u is None"),
    ("u", {}, "u is"),
    (np.zeros((4, 5), object), {}, "plain bytes"),
    (np.broadcast_to(0.0, (4, 5)), {}, "u is read-only"),
    (np.zeros((3, 5)), {"width": 2}, r"shape \(3, 5\), and along axis 0 4 of its cells are ghost"),
    (np.zeros((2, 5)), {}, r"a neighbor needs 1 others: give larger blocks"),
    (np.zeros((4, 5, 6)), {}, r"axes is None for u of shape \(4, 5, 6\) and a grid of 2 axes"),
    (np.zeros((4, 5, 6)), {"axes": (0, -3)}, "give the axis of u for each"),
    (np.zeros((4, 5, 6)), {"axes": (0, 3)}, "give the axis of u for each"),
    (BLOCK, {"axes": (0,)}, "give the axis of u for each"),
    (BLOCK, {"width": -1}, "width is -1; give numbers from 0"),
    (BLOCK, {"width": 1.0}, "give an integer"),
    (BLOCK, {"width": (1,)}, r"width is \(1,\); give a number of cells, or for each of the grid's 2"),
    (BLOCK, {"width": (1, (1, 2, 3))}, "a pair"),
    (BLOCK, {"corners": 1}, "corners is 1; give True or False"),
    (BLOCK, {"timeout": "1"}, "timeout"),
    ([BLOCK, np.zeros((4, 6), object)], {}, "plain bytes"),
    ([], {}, r"u is \[\]"),
]  # fmt: skip


@on_threads(2)
def test_arguments_that_do_not_fit_raise_on_every_rank(comm: Communicator) -> None:
    grid, one, good = comm.grid((2, 1), periodic=True), comm.rank == 1, BLOCK.copy()
    for u, keywords, text in MISUSED:
        with pytest.raises(UsageError if one else RankMismatch, match=text):
            grid.halo(u if one else BLOCK.copy(), **(keywords if one else {}))
    halo = grid.halo(good)
    with pytest.raises(UsageError, match="async_op is 1"):
        halo(1)
    halo()


@pytest.mark.parametrize(
    ("shape", "keywords", "text"),
    [
        ((4, 6), {}, r"shape \(4, 5\) on rank 0 and \(4, 6\) on rank 2, its neighbor along axis 0"),
        ((4, 5), {"width": (1, 0)}, r"ranks 0, 1 and 3: halo\(.*rank 2: halo\(.*width"),
        ((4, 5), {"corners": False}, r"rank 2: halo\(.*corners"),
    ],
)  # fmt: skip
@on_threads(4)
def test_blocks_that_do_not_fit_are_named(comm, shape: Any, keywords: Any, text: str) -> None:
    grid, odd = comm.grid((2, 2)), comm.rank == 2
    if comm.rank == 3:  # the watchdogs of others ask who differs, and leave it to the agreement
        time.sleep(2 * ASK_SECONDS)
    with pytest.raises(RankMismatch, match=text) as error:
        grid.halo(np.zeros(shape if odd else (4, 5)), **(keywords if odd else {}))
    assert 2 in error.value.ranks
    block = BLOCK.copy()
    grid.halo(block)()


def test_blocks_may_differ_along_the_axis_on_which_they_meet() -> None:
    def found(comm: Communicator) -> Any:
        u = np.zeros((3 + comm.rank, 4))
        u[1:-1, 1:-1] = comm.rank + 1
        comm.grid((3, 1)).halo(u)()
        return u[:, 1].tolist()

    assert run_ranks(3, found) == [[0, 1, 2], [1, 2, 2, 3], [2, 3, 3, 3, 0]]


@pytest.fixture
def raised() -> threading.Barrier:
    """Give two threads a place to meet without a call."""
    return threading.Barrier(2)


@on_threads(2)
def test_a_call_under_way_and_blocks_that_take_calls(comm: Communicator, raised) -> None:
    u = np.zeros(3)
    u[1] = comm.rank + 1
    grid = comm.grid((2,), periodic=True)
    halo = grid.halo(u)
    with comm.batch():
        with pytest.raises(UsageError, match="a halo does not go into"):
            halo()
        with pytest.raises(UsageError, match="halo does not go into"):
            grid.halo(u)
        with pytest.raises(UsageError, match="async_op is True within"):
            halo(async_op=True)
    if comm.rank == 0:
        work = halo(async_op=True)
        assert work is not None
        with pytest.raises(UsageError, match="this halo is under way"):
            halo()
        raised.wait()
        assert work.wait() is None
    else:
        raised.wait()
        halo()
    assert u.tolist() == [2 - comm.rank, 1 + comm.rank, 2 - comm.rank]
    assert ("halo", "to 1 KiB") in comm.stats()


@on_threads(2)
def test_the_array_that_is_given_is_exchanged(comm: Communicator) -> None:
    """As update_halo!(A) of ImplicitGlobalGrid and exchange(fields) of GHEX, which take the arrays in each call."""
    u = np.full(3, comm.rank + 1.0)
    halo = comm.grid((2,), periodic=True).halo(u)
    for number in range(1, 6):  # ranks may differ in the array that they give
        u = u + 1.0 if number % 2 or comm.rank else u.copy()
        if number == 3:
            work = halo(u, async_op=True)
            assert work is not None
            assert work.wait() is None
        else:
            halo(u)
        other = comm.all_gather(u[1])[1 - comm.rank]
        assert u[0] == u[2] == other
    for wrong in (u[::-1], np.zeros(4), np.zeros(3, int), [u, u], "u", 2.0):
        with pytest.raises(UsageError, match="u "):
            halo(wrong)
    with pytest.raises(UsageError, match=r"\(3,\), \(8,\), 'host'\)\] was planned; give such"):
        halo(u[::-1])


@pytest.mark.parametrize("async_op", [False, True])
@on_threads(2)
def test_a_rank_that_does_not_come_is_named(comm, async_op: bool, raised, caplog) -> None:
    # Which also sends to itself, across the second axis.
    halo = comm.grid((2, 1), periodic=True).halo(BLOCK.copy(), timeout=0.5)
    if comm.rank == 0:
        call = halo(True).wait if async_op else halo
        text = r"halo .*rank 1 .* has not taken part in the halo"
        with pytest.raises(CollectiveTimeout, match=text):
            call()
    raised.wait()
    assert "watchdog failed" not in caplog.text
