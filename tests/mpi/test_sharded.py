"""Sharded optimisers and local steps over MPI."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from one_size import by_default_on

from hpccomm.errors import RankMismatch
from hpccomm.gradients import LocalSteps, ShardedOptimizer, adam

if TYPE_CHECKING:
    import hpccomm

SHAPES = {"a": (300, 41), "b": (7,), "c": (), "d": (5001,)}


def start() -> dict[str, Any]:
    return {n: np.random.default_rng(ord(n)).normal(size=s) for n, s in SHAPES.items()}


def gradient(array: Any, rank: int, ranks: int) -> Any:
    """Of a loss whose mean over the ranks does not depend on their number."""
    return np.asarray(np.sin(3 * array) + array + (rank - (ranks - 1) / 2) * np.cos(array))


@by_default_on(2)
@pytest.mark.parametrize("bucket_bytes", [20000, 1 << 20])
def test_any_number_of_ranks_gives_the_parameters_of_one(
    comm: "hpccomm.Communicator", bucket_bytes: int
) -> None:
    expected = start()
    moments = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in SHAPES.items()}
    for step in range(1, 51):
        for name, p in expected.items():
            g, (m, v) = gradient(p, 0, 1), moments[name]
            m[...] = 0.9 * m + 0.1 * g
            v[...] = 0.999 * v + 0.001 * g**2
            root = np.sqrt(v / (1 - 0.999**step)) + 1e-8
            expected[name] = p - 0.01 * (m / (1 - 0.9**step)) / root
    model = start()
    optimizer = ShardedOptimizer(comm, model, adam(0.01), bucket_bytes=bucket_bytes)
    for _ in range(50):
        optimizer.step({name: gradient(p, comm.rank, comm.size) for name, p in model.items()})
    for name, array in model.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12, atol=1e-12)
    saved = optimizer.gather_state(root=comm.size - 1)
    other = ShardedOptimizer(comm, model, adam(0.01))
    other.load_state(saved, root=comm.size - 1)
    first, second = optimizer.gather_state(), other.gather_state()
    assert first is not None
    assert second is not None
    for name, (m, v) in moments.items():
        for state in (first, second):
            assert state["steps"] == 50
            np.testing.assert_allclose(state["state"][name]["m"], m, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(state["state"][name]["v"], v, rtol=1e-9, atol=1e-12)


@pytest.mark.mpi(min_size=2)
def test_both_lie_in_registered_memory(comm: "hpccomm.Communicator") -> None:
    optimizer = ShardedOptimizer(comm, {"a": np.zeros((300, 40))}, adam())
    assert comm.explain("all_reduce", optimizer.gradients["a"]).registered
    assert comm.explain("all_reduce", optimizer.parameters["a"]).registered


@pytest.mark.mpi(min_size=2)
def test_ranks_that_differ_learn_it_together(comm: "hpccomm.Communicator") -> None:
    last = comm.size - 1
    wide = {"w": np.zeros(4 if comm.rank == last else 3)}
    with pytest.raises(RankMismatch, match=rf"'w' is float64 \(3,\) on rank 0.*rank {last}"):
        ShardedOptimizer(comm, wide, adam())
    with pytest.raises(RankMismatch, match=f"every is 1 on rank 0 and 2 on rank {last}"):
        LocalSteps(comm, {"w": np.zeros(3)}, every=2 if comm.rank == last else 1)


def test_local_steps_average_the_parameters(comm: "hpccomm.Communicator") -> None:
    model = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    local = LocalSteps(comm, model, every=3, outer_lr=1, outer_momentum=0)
    for step in range(1, 7):
        for array in model.values():
            array += comm.rank
        assert local.step() == (step % 3 == 0)
    for array in model.values():
        np.testing.assert_allclose(array, 6 * (comm.size - 1) / 2, rtol=1e-6)
