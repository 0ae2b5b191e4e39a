"""`LocalSteps` on threads: against a simulation of all ranks in one process, and its errors."""

from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from hpccomm import Communicator, RankMismatch
from hpccomm.gradients import GradientSync, LocalSteps, LossScale
from hpccomm.gradients.compression import MixedPrecision, PowerSGD, TopK
from hpccomm.testing import run_ranks

SHAPES = {"a": (7, 3), "b": (), "none": (0, 4), "c": (13,)}


def start() -> dict[str, Any]:
    return {n: np.random.default_rng(ord(n[0])).normal(size=s) for n, s in SHAPES.items()}


def locally(p: Any, rank: int) -> Any:
    """Return the parameter after a local step."""
    return p - 0.1 * np.sin(p + rank)


def outer(ranks: int, steps: int, every: int, lr: float, mu: float, nesterov: bool) -> Any:
    """Train all ranks by the textbook."""
    anchor = start()
    models = [dict(anchor) for _ in range(ranks)]
    velocity = {n: np.zeros(s) for n, s in SHAPES.items()}
    for step in range(steps):
        models = [{n: locally(p, r) for n, p in m.items()} for r, m in enumerate(models)]
        if step % every == every - 1:
            for n in SHAPES:
                d = np.mean([anchor[n] - m[n] for m in models], axis=0)
                velocity[n] = mu * velocity[n] + d
                anchor[n] = anchor[n] - lr * (d + mu * velocity[n] if nesterov else velocity[n])
            models = [dict(anchor) for _ in range(ranks)]
    return models


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([0.3, 0.7, 1.0]),
    st.sampled_from([0.0, 0.9]),
    st.booleans(),
)
def test_any_training_gives_what_the_textbook_does(
    ranks: int, every: int, lr: float, mu: float, nesterov: bool
) -> None:
    expected = outer(ranks, 12, every, lr, mu, nesterov)

    def run(comm: Communicator) -> None:
        model = start()
        local = LocalSteps(
            comm, model, every=every, outer_lr=lr, outer_momentum=mu, nesterov=nesterov
        )
        for step in range(12):
            for array in model.values():
                array[...] = locally(array, comm.rank)
            assert local.step() == (step % every == every - 1)
        for name, array in model.items():
            np.testing.assert_allclose(array, expected[comm.rank][name], rtol=1e-12, atol=1e-12)
        stats = local.stats()
        assert (stats.steps, stats.synchronizations) == (12, 12 // every)
        assert stats.nbytes + stats.saved_nbytes == 12 * (stats.nbytes // (12 // every))

    run_ranks(ranks, run)


def test_rate_1_without_momentum_averages_the_parameters_of_any_dtype() -> None:
    def run(comm: Communicator) -> None:
        dtypes = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
        model = {str(dtype): np.ones((3, 5), dtype)[:, ::2] for dtype in dtypes}
        local = LocalSteps(comm, model, every=100, outer_lr=1, outer_momentum=0)
        assert not local.momentum
        for value in (8, 16):
            for array in model.values():
                array[...] = value * comm.rank
            assert not local.step()
            local.synchronize()
            for array in model.values():
                assert (array.astype(float) == value * (comm.size - 1) / 2).all()

    run_ranks(3, run)


def test_a_training_goes_on_from_what_was_saved() -> None:
    def run(comm: Communicator) -> None:
        def trained(local: LocalSteps, model: Any, steps: int) -> None:
            for _ in range(steps):
                model["a"] -= 0.1 * np.sin(model["a"] + comm.rank)
                local.step()

        model = {"a": np.ones(5)}
        local = LocalSteps(comm, model, every=2)
        trained(local, model, 4)
        copy = {"a": model["a"].copy() + comm.rank}  # only the root's count
        other = LocalSteps(comm, copy, every=2)
        other.broadcast_parameters()
        other.momentum["a"][:] = local.momentum["a"]
        trained(local, model, 4)
        trained(other, copy, 4)
        np.testing.assert_array_equal(model["a"], copy["a"])

    run_ranks(2, run)


def test_parameters_that_differ_at_the_begin_are_named() -> None:
    def run(comm: Communicator) -> None:
        model = {"w": np.full(3, float(comm.rank == 2))}
        local = LocalSteps(comm, model, every=1)
        says = "'w' on rank 2, by up to 1; call broadcast"
        with pytest.raises(RankMismatch, match=says) as caught:
            local.step()
        assert caught.value.ranks == (2,)
        local.broadcast_parameters()
        assert local.step()
        assert (model["w"] == 0).all()

    run_ranks(3, run)


def test_numbers_and_texts_of_any_type_are_the_same_settings() -> None:
    def run(comm: Communicator) -> None:
        first = comm.rank == 0
        one, half = (1, np.float64(0.5)) if first else (1.0, 0.5)
        LocalSteps(comm, {"w": np.zeros(3)}, every=1, outer_lr=one, outer_momentum=half).step()
        text: Any = np.str_ if first else str
        scale = LossScale(one)
        sync = GradientSync(comm, {"w": np.zeros(3)}, op=text("sum"), loss_scale=scale)
        sync.configure(frozen=[text("w")])
        whole, truth = (np.int64, np.bool_) if first else (int, bool)
        narrow = MixedPrecision(text("float16"))
        for compressor in (TopK(one, truth(1)), PowerSGD(whole(2)), narrow):
            GradientSync(comm, {"w": np.zeros(6)}, compressor=compressor).close()

    run_ranks(2, run)
