"""`ShardedOptimizer` on threads: against a loop of one process, and its errors."""

from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from chosen import everything
from hypothesis import given
from numpy.random import default_rng
from random_trainings import DTYPES, shapes

from hpccomm import Communicator
from hpccomm.gradients import GradientSync, ShardedOptimizer, adam, sgd
from hpccomm.testing import run_ranks

SHAPES = {"a": (7, 3), "b": (), "none": (0, 4), "c": (13,), "d": (2, 3, 5)}
STEPS = 50 if everything() else 20


def start(dtype: Any = np.float64) -> dict[str, Any]:
    return {n: default_rng(ord(n[0])).normal(size=s).astype(dtype) for n, s in SHAPES.items()}


def gradient(model: dict[str, Any], name: str, rank: int, ranks: int) -> Any:
    """Of the rank's part of a loss whose mean over the ranks does not depend on their number."""
    uneven = (rank - (ranks - 1) / 2) * np.cos(model[name])
    return np.asarray(np.sin(3 * model[name]) + model[name] + uneven).astype(model[name].dtype)


def textbook_adam(p: Any, g: Any, s: dict[str, Any], t: int, decay: float) -> Any:
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.99 * s["v"] + 0.01 * g**2
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.99**t)
    return p - 0.05 * decay * p - 0.05 * m / (np.sqrt(v) + 1e-8)


def textbook_sgd(p: Any, g: Any, s: dict[str, Any], t: int, decay: float) -> Any:
    g = g + decay * p
    s["v"] = 0.9 * s["v"] + g
    return p - 0.05 / t * (g + 0.9 * s["v"])


def falling(step: int) -> float:
    return 0.05 / step


RULES = {
    "adam": (adam(0.05, betas=(0.9, 0.99)), textbook_adam, 0.0),
    "adamw": (adam(0.05, betas=(0.9, 0.99), weight_decay=0.1), textbook_adam, 0.1),
    "sgd": (sgd(falling, momentum=0.9, nesterov=True, weight_decay=0.1), textbook_sgd, 0.1),
}


def alone(rule: Any, decay: float, steps: int = STEPS) -> dict[str, Any]:
    model = start()
    state = {n: {"m": np.zeros(s), "v": np.zeros(s)} for n, s in SHAPES.items()}
    for t in range(1, steps + 1):
        grads = {name: gradient(model, name, 0, 1) for name in model}
        model = {n: rule(model[n], grads[n], state[n], t, decay) for n in model}
    return model


def train(comm: Communicator, update: Any, settings: dict[str, Any], views: bool) -> dict[str, Any]:
    model = start()
    optimizer = ShardedOptimizer(comm, model, update, write_back=not views, **settings)
    if views:
        model = dict(optimizer.parameters)
    for _ in range(STEPS):
        grads = {name: gradient(model, name, comm.rank, comm.size) for name in model}
        if views:
            for name, grad in grads.items():
                optimizer.gradients[name][...] = grad
            optimizer.step()
        else:
            optimizer.step(grads)
    assert optimizer.steps == STEPS
    return model


@pytest.mark.values
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("rule", "bucket_bytes"), [("adam", 1 << 20), ("adamw", 100), ("sgd", 100), ("sgd", 1 << 20)]
)
def test_any_number_of_ranks_trains_as_one_does(rule: str, ranks: int, bucket_bytes: int) -> None:
    update, textbook, decay = RULES[rule]
    settings = {"bucket_bytes": bucket_bytes, "min_bucket_bytes": 0}
    expected = alone(textbook, decay)
    for model in run_ranks(ranks, train, update, settings, bucket_bytes == 100):
        for name in SHAPES:
            np.testing.assert_allclose(model[name], expected[name], rtol=1e-12, atol=1e-12)


def whole(view: Any) -> Any:
    """Return the memory of a bucket, which ends with its padding."""
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


models = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=6)


@given(st.integers(1, 4), models, st.integers(1, 800))
def test_models_are_updated_and_padding_stays_0(ranks: int, model: Any, bucket_bytes: int) -> None:
    def divided(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        # Where there is no padding, and where there is.
        assert (state["half"] == parameter / 2).all()
        with np.errstate(invalid="ignore"):
            parameter += gradient / gradient  # NaN in the padding
        state["half"][:] = parameter / 2

    def run(comm: Communicator) -> None:
        parameters = {f"p{n}": np.ones(*of) for n, of in enumerate(model)}
        settings: Any = {"state": lambda shard: {"half": shard / 2}, "bucket_bytes": bucket_bytes}
        optimizer = ShardedOptimizer(comm, parameters, divided, op="sum", **settings)
        for _ in range(2):
            optimizer.step({name: np.full_like(p, comm.rank + 1) for name, p in parameters.items()})
        for name, array in parameters.items():
            assert (array == 3).all()
            assert (optimizer.parameters[name] == 3).all()
        views = [each for each in optimizer.parameters.values() if each.size]
        for memory in {id(whole(each)): whole(each) for each in views}.values():
            inside = [each for each in views if whole(each) is memory]
            total = memory.view(inside[0].dtype).sum(dtype=float)
            assert total == 3 * sum(each.size for each in inside)

    run_ranks(ranks, run)


def test_missing_gradients_count_as_0_and_the_root_gives_its_parameters() -> None:
    def run(comm: Communicator) -> None:
        model = {"w": np.zeros(3), "v": np.zeros(3)}
        optimizer = ShardedOptimizer(comm, model, sgd(1.0, momentum=0.5), op="average")
        optimizer.step({"w": np.ones(3), "v": np.ones(3)})
        optimizer.step({"w": np.ones(3) if comm.rank else None})
        assert (model["w"] == -2).all()
        assert (model["v"] == -1.5).all()
        model["w"][:] = comm.rank
        optimizer.broadcast_parameters(root=1)
        assert (model["w"] == 1).all()
        optimizer.step({"w": np.ones(3)})
        assert (model["w"] == -0.5).all()

    run_ranks(2, run)


def test_state_is_divided_and_moves_to_another_number_of_ranks() -> None:
    def first(comm: Communicator) -> Any:
        model = start(ml_dtypes.bfloat16)
        optimizer = ShardedOptimizer(comm, model, adam(0.01), masters=True, bucket_bytes=100)
        for _ in range(5):
            optimizer.step({name: gradient(model, name, 0, 1) for name in model})
        saved = optimizer.gather_state(root=1 % comm.size)
        everywhere = optimizer.gather_state()
        assert (saved is None) == (comm.rank != 1 % comm.size)
        return {n: p.copy() for n, p in model.items()}, everywhere, optimizer.memory_bytes

    def more(comm: Communicator, model: Any, saved: Any, root: int | None) -> Any:
        model = {name: array.copy() for name, array in model.items()}
        optimizer = ShardedOptimizer(comm, model, adam(0.01), masters=True)
        optimizer.load_state(saved if root is None or comm.rank == root else None, root)
        for _ in range(5):
            optimizer.step({name: gradient(model, name, 0, 1) for name in model})
        assert optimizer.steps == 10
        state = optimizer.gather_state()
        return model, state["state"]

    model, saved, _ = run_ranks(3, first)[2]
    assert saved["state"]["a"]["master"].dtype == np.float32
    assert saved["state"]["a"]["m"].shape == SHAPES["a"]
    ways = ((1, None), (2, 1), (4, None))
    results = [run_ranks(n, more, model, saved, root)[n - 1] for n, root in ways]
    for other, state in results[1:]:
        for name in SHAPES:
            np.testing.assert_array_equal(other[name], results[0][0][name])
            for what in ("m", "v", "master"):
                np.testing.assert_allclose(state[name][what], results[0][1][name][what], rtol=1e-6)

    def size(comm: Communicator) -> int:
        return ShardedOptimizer(comm, {"w": np.zeros(4096)}, adam()).memory_bytes

    assert [sum(run_ranks(n, size)) for n in (1, 2, 4)] == [2 * 8 * 4096] * 3


def test_masters_keep_what_narrow_parameters_would_lose() -> None:
    def run(comm: Communicator) -> None:
        for masters, value in ((False, 1.0), (True, 2.0)):
            model = {"w": np.ones(5, np.float16)}
            optimizer = ShardedOptimizer(comm, model, tiny, masters=masters)
            optimizer.broadcast_parameters()
            for _ in range(1 << 12):
                optimizer.step({"w": np.ones(5, np.float16)})
            assert (model["w"] == value).all()

    def tiny(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        parameter += gradient * 2.0**-12

    run_ranks(1, run)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_parameters_are_rounded_once(dtype: Any) -> None:
    def run(comm: Communicator) -> None:
        first = np.linspace(-2, 2, 9, dtype=np.float32).astype(dtype)
        grad = np.array([0, 0, 1e-4, 1e-3, 0.01, 0.1, 1, 2, 3], np.float32).astype(dtype)
        model = {"w": first.copy()}
        ShardedOptimizer(comm, model, adam(0.1)).step({"w": grad})
        wide = grad.astype(np.float64)
        exact = first.astype(np.float64) - 0.1 * wide / (np.abs(wide) + 1e-8)
        np.testing.assert_array_equal(model["w"], exact.astype(np.float32).astype(dtype))

    run_ranks(2, run)


def test_a_deterministic_step_takes_the_sums_that_gradients_have_elsewhere():
    def body(comm: Communicator) -> bool:
        shape = 20_000  # for which `auto` takes an algorithm that folds in another order
        grads = {"a": default_rng(comm.rank).normal(size=shape).astype("f")}
        model, given = {"a": np.zeros(shape, "f")}, {"a": grads["a"].copy()}
        sync = GradientSync(comm, model, deterministic=True)
        sync.sync(given)
        optimizer = ShardedOptimizer(comm, model, sgd(1.0), deterministic=True)
        optimizer.step(grads)
        return bool((optimizer.parameters["a"] == -given["a"]).all())

    assert all(run_ranks(4, body))
