"""Gradients over MPI: results, registered memory, and readiness that differs between ranks."""

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from one_size import by_default_on
from random_trainings import random_trainings, train

from hpccomm.errors import RankMismatch
from hpccomm.gradients import GradientSync

if TYPE_CHECKING:
    import hpccomm

SHAPES = {"a": (300, 40), "b": (7,), "c": (), "d": (64, 64), "e": (5000,)}


def gradient(name: str, rank: int, step: int) -> Any:
    draw = np.random.default_rng([ord(name), rank, step])
    return np.asarray(draw.integers(-50, 50, SHAPES[name])).astype(np.float32)


@by_default_on(2)
@pytest.mark.parametrize("order", ["reverse", "ready", "largest"])
def test_steps_give_the_sum_of_all_ranks(comm: "hpccomm.Communicator", order: Any) -> None:
    parameters = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    sync = GradientSync(
        comm,
        parameters,
        op="sum",
        order=order,
        bucket_bytes=20000,
        first_bucket_bytes=5000,
        min_bucket_bytes=0,
    )
    assert len(sync.buckets()) > 2
    for step in range(12):
        names = list(SHAPES)
        np.random.default_rng([step, comm.rank]).shuffle(names)  # each rank has an order of its own
        grads = {name: gradient(name, comm.rank, step) for name in names}
        if step % 2:
            sync.sync(grads)
        else:
            for name, grad in grads.items():
                sync.ready(name, grad)
            sync.wait_for("a")
            sync.wait()
        for name in names:
            total = sum(gradient(name, rank, step) for rank in range(comm.size))
            np.testing.assert_array_equal(sync.gradients[name], total)
            if step % 2:
                np.testing.assert_array_equal(grads[name], total)


# All ranks draw the same cases. Where one rank fails, another case on it would confuse the others: nothing is shrunk.
@by_default_on(3)
@settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_training_gives_what_numpy_does(
    comm: "hpccomm.Communicator", data: st.DataObject
) -> None:
    train(comm, data.draw(random_trainings(comm.size)))


@pytest.mark.mpi(min_size=2)
def test_buckets_lie_in_registered_memory(comm: "hpccomm.Communicator") -> None:
    sync = GradientSync(comm, {"a": np.zeros((300, 40))})
    assert comm.explain("all_reduce", sync.gradients["a"]).registered


@pytest.mark.mpi(min_size=2)
def test_ranks_with_other_models_or_gradients_learn_it_together(
    comm: "hpccomm.Communicator",
) -> None:
    last = comm.size - 1
    shape = (3, 5) if comm.rank == last else (5, 3)
    with pytest.raises(RankMismatch, match=rf"'w' is float64 \(5, 3\) on rank 0.*on rank {last}"):
        GradientSync(comm, {"w": np.zeros(shape)})
    sync = GradientSync(comm, {"w": np.zeros(3), "v": np.zeros(3)}, unused="error")
    sync.ready("v", np.ones(3))
    if comm.rank != last:
        sync.ready("w", np.ones(3))
    with pytest.raises(RankMismatch, match=f"'w' on rank {last};") as caught:
        sync.wait()
    assert caught.value.ranks == (last,)
    assert sync.sync({"w": np.ones(3), "v": np.ones(3)})


def test_parameters_of_the_root(comm: "hpccomm.Communicator") -> None:
    parameters = {name: np.full(shape, comm.rank + 1.0) for name, shape in SHAPES.items()}
    if comm.size > 1:
        with pytest.raises(RankMismatch, match="the ranks begin with different values"):
            GradientSync(comm, parameters)
    GradientSync(comm, parameters, initial="ignore").broadcast_parameters(root=comm.size - 1)
    assert all((array == comm.size).all() for array in parameters.values())
