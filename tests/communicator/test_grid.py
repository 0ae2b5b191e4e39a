"""Cartesian grids: what misuse of them and of meshes raises, blocks of arrays, and lengths that are chosen."""

from typing import Any

import numpy as np
import pytest
from ranked import on_threads

from hpccomm import Communicator
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.testing import run_ranks

GRID, MESH = ((2, 2), False), ((2, 2), ("dp", "tp"))
MISUSED: list[tuple[str, Any, Any, str]] = [
    ("grid", (2, 3), False, r"\(2, 3\) for 4 ranks; .* product is 4, such as \(2, 2\), or 0"),
    ("grid", (3, 0), False, r"such as \(2, 2\)"),
    ("grid", (-2, -2), False, "such as"),
    ("grid", (), False, "give lengths"),
    ("grid", 4, False, "give lengths"),
    ("grid", (2.0, 2), False, "give an integer"),
    ("grid", (2, 2), (True,), r"periodic is \(True,\); give one for each of dims \(2, 2\)"),
    ("grid", (2, 2), 1, "periodic is 1; give True or False"),
    ("grid", (2, 2), (True, None), "periodic is None; give True or False"),
    ("mesh", (-1, 3), ("dp", "tp"), "whose product is 4"),
    ("mesh", (), (), "give lengths"),
    ("mesh", (2, 2), ("dp",), "a name to each dimension"),
    ("mesh", (2, 2), ("dp", "dp"), "none twice"),
    ("mesh", (2, 2), "dp", "give strings"),
    ("mesh", (2, 2), ("dp", 2), "give strings"),
    ("mesh", 4, ("dp",), "give lengths"),
    ("mesh", (2.0, 2), ("dp", "tp"), "give an integer"),
]


@on_threads(4)
def test_arguments_that_do_not_fit_raise_on_every_rank(comm: Communicator) -> None:
    one = comm.rank == 1
    for verb, lengths, more, text in MISUSED:
        right = GRID if verb == "grid" else MESH
        with pytest.raises(UsageError if one else RankMismatch, match=text):
            getattr(comm, verb)(*((lengths, more) if one else right))
    assert comm.grid((2, 2)).dims == (2, 2)
    assert comm.mesh(*MESH)["tp"].size == 2


@on_threads(4)
def test_ranks_that_ask_for_different_grids_say_so(comm: Communicator) -> None:
    with pytest.raises(RankMismatch, match=r"ranks 0-2: grid\(.*rank 3: grid\("):
        comm.grid((2, 2), periodic=(comm.rank == 3, False))
    grid = comm.grid((2, 2))
    with pytest.raises(RankMismatch, match=r"rank 3: grid\(along \[1\]\)"):
        grid.along(int(comm.rank == 3))


@on_threads(2)
def test_arguments_of_local_calls(comm: Communicator) -> None:
    grid = comm.grid((0, 1), periodic=True)
    assert repr(grid).endswith(f"2 periodic x 1 periodic; this rank is at ({comm.rank}, 0)>")
    assert repr(comm).endswith(f"rank {comm.rank} of 2, host over loopback>")
    for name, arguments, text in [
        ("coords_of", (2,), "give a rank from 0 to 1"),
        ("rank_of", ((1,),), "give one for each axis"),
        ("rank_of", ((1.0, 0),), "give an integer"),
        ("shift", (2,), "axis is 2; give one from 0 to 1"),
        ("along", (), "none twice"),
        ("along", (0, -2), "none twice"),
        ("block", ((3,),), "an extent for each axis"),
        ("block", ((3, -1),), "give extents from 0"),
    ]:
        with pytest.raises(UsageError, match=text):
            getattr(grid, name)(*arguments)


@pytest.mark.parametrize("dims", [(5,), (2, 3), (3, 1), (2, 1, 2)])
def test_blocks_are_the_whole_array(dims: tuple[int, ...]) -> None:
    shape = (7, 5, 1)[: len(dims)]

    def found(comm: Communicator) -> Any:
        grid = comm.grid(dims)
        blocks = [grid.block(shape, rank) for rank in range(comm.size)]
        assert blocks[comm.rank] == grid.block(shape)
        return blocks

    every, *others = run_ranks(int(np.prod(dims)), found)
    assert all(each == every for each in others)
    owners = np.zeros(shape, int)
    for block in every:
        owners[block] += 1
    assert (owners == 1).all()
    for axis in range(len(dims)):
        extents = {block[axis].stop - block[axis].start for block in every}
        assert max(extents) - min(extents) <= 1
