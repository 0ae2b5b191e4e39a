"""Meshes: which ranks a group has, what misuse raises, and a training that finds what one rank finds."""

import sys
from itertools import permutations, product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from ranked import on_threads

from hpccomm import Communicator
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.testing import run_ranks

FOLDER = Path(__file__).parents[2] / "docs/examples"
sys.path.append(str(FOLDER))

import train_mesh  # noqa: E402


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2), (1, 4), (3, 1), (2, 3), (2, 1, 3)])
def test_a_group_has_the_ranks_that_differ_in_its_dimensions_alone(shape: tuple[int, ...]) -> None:
    names = tuple("abc"[: len(shape)])
    places = [dict(zip(names, each, strict=True)) for each in product(*map(range, shape))]
    groups = [each for n in range(1, len(names) + 1) for each in permutations(names, n)]

    def found(comm: Communicator) -> None:
        mine = places[comm.rank]
        with comm.mesh(shape, names) as mesh:
            assert (mesh.shape, mesh.names) == (shape, names)
            assert mesh.coords == tuple(mine.values())
            assert mesh.ranks[mesh.coords] == comm.rank
            made = [mesh[along] for along in groups]
            assert mesh[names] is comm
            assert mesh[names[0]] is mesh[names[:1]] is mesh[[names[0]]]  # type: ignore[index]
            for along, group in zip(groups, made, strict=True):
                alike = [name for name in names if name not in along]
                members = [r for r, p in enumerate(places) if all(p[n] == mine[n] for n in alike)]
                members.sort(key=lambda r, along=along: [places[r][n] for n in along])
                assert group.all_gather(np.array(comm.rank)).tolist() == members
        for each in made:
            if each is not comm:
                with pytest.raises(UsageError, match="finalized"):
                    each.barrier()
        comm.barrier()

    run_ranks(prod(shape), found)


@pytest.mark.parametrize(
    ("asked", "given"),
    [((-1, 2), (3, 2)), ((0, 2), (3, 2)), ((-1, -1), (3, 2)), ((0,), (6,)), ((1, 0, 6), (1, 1, 6))],
)
def test_lengths_are_chosen(asked: tuple[int, ...], given: tuple[int, ...]) -> None:
    names = tuple("abc"[: len(asked)])
    assert run_ranks(6, lambda comm: comm.mesh(asked, names).shape) == [given] * 6


@on_threads(2)
def test_a_name_that_is_not_there_sends_nothing(comm: Communicator) -> None:
    mesh = comm.mesh((2, 1), ("data", "tensor"))
    if comm.rank == 0:
        for names in ("datas", ("data", "data"), (), 0):
            with pytest.raises(UsageError, match="data"):
                mesh[names]  # type: ignore[index]
    assert mesh["data"].size == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda comm, mesh: mesh["dp"], r"ranks 0-2: mesh\(names \['tp'\]\).*rank 3: mesh\(names \['dp'\]\)"),
        (lambda comm, mesh: mesh["dp", "tp"], r"rank 3: mesh\(names \['dp', 'tp'\]\)"),
        (lambda comm, mesh: comm.all_reduce(np.zeros(2)), r"rank 3: all_reduce\("),
    ],
)  # fmt: skip
@on_threads(4)
def test_ranks_that_make_different_groups_say_so(comm, other, text) -> None:
    mesh = comm.mesh((2, 2), ("dp", "tp"))
    with pytest.raises(RankMismatch, match=text):
        mesh["tp"] if comm.rank < 3 else other(comm, mesh)


MORE = [pytest.param(each, marks=pytest.mark.thorough) for each in ((1, 2), (2, 1), (1, 4), (4, 1))]


@pytest.mark.parametrize("shape", [(2, 2), *MORE])
def test_the_example_finds_what_one_rank_finds(shape: tuple[int, int]) -> None:
    (alone,) = run_ranks(1, train_mesh.train, (1, 1))
    assert alone[-1] < 0.8 * alone[0]
    for losses in run_ranks(prod(shape), train_mesh.train, shape):
        np.testing.assert_allclose(losses, alone, rtol=1e-12)
