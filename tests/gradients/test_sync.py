"""`GradientSync` on threads: against NumPy, and its errors."""

from hashlib import sha256
from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from random_trainings import DTYPES, random_trainings, train

from hpccomm import Communicator, RankMismatch, UsageError
from hpccomm.gradients import GradientSync
from hpccomm.testing import run_ranks


@given(st.integers(1, 6).flatmap(random_trainings))
def test_any_training_gives_what_numpy_does(case: dict[str, Any]) -> None:
    run_ranks(case["ranks"], train, case, ranks_per_node=2)


LAYOUTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "small buckets": {"bucket_bytes": 700, "first_bucket_bytes": 100, "min_bucket_bytes": 0},
    "as ready": {"order": "ready", "first_bucket_bytes": 600, "bucket_bytes": 3000},
    "largest, no bucketing": {"order": "largest", "bucketing": False},
}


@pytest.mark.parametrize("ranks", [3, 4])
def test_deterministic_results_have_the_same_bits_in_every_way(ranks: int) -> None:
    # One is so large that `auto` takes another algorithm for it, which folds in another order.
    shapes = {"a": (64, 1600), "b": (1600,), "c": (1600, 10), "d": (10,)}

    def steps(comm: Communicator, way: str, layout: str) -> str:
        model = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        sync = GradientSync(comm, model, deterministic=True, **LAYOUTS[layout])
        draw, order = (np.random.default_rng([comm.rank, seed]) for seed in (1, 2))
        found = sha256()
        for _ in range(2):
            grads = {name: draw.normal(size=x.shape).astype("f") for name, x in model.items()}
            if way == "sync":
                sync.sync(grads)
            elif way == "views":
                for name, grad in grads.items():
                    sync.gradients[name][...] = grad
                sync.sync()
            else:
                for name in order.permutation(list(grads)):  # each rank has an order of its own
                    sync.ready(name, grads[name])
                sync.wait()
            for name in model:
                found.update(sync.gradients[name])
        return found.hexdigest()

    def body(comm: Communicator) -> set[str]:
        ways = [*product(["sync", "ready"], LAYOUTS), ("views", "defaults"), ("sync", "defaults")]
        return {steps(comm, *each) for each in ways}

    assert len(set.union(*run_ranks(ranks, body))) == 1


def one(**other: Any) -> dict[str, Any]:
    return {"a": np.zeros((2, 3)), "b": np.zeros(4), **other}


def step(sync: GradientSync, grads: dict[str, Any], overlapped: bool) -> bool:
    if not overlapped:
        return sync.sync(grads)
    for name, grad in grads.items():
        sync.ready(name, grad)
    return sync.wait()


def test_a_missing_gradient_is_an_error_on_every_rank_if_asked_for() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, one(), unused="error")
        sync.sync({name: np.ones_like(x) for name, x in one().items()})
        sync.ready("a", np.ones((2, 3)))
        if comm.rank != 1:
            sync.ready("b", np.ones(4))
        with pytest.raises(RankMismatch, match="'b' on rank 1;") as caught:
            sync.wait()
        assert caught.value.ranks == (1,)
        grads = {name: np.full_like(x, comm.rank) for name, x in one().items()}
        sync.sync(grads)  # the step after it is as any other
        assert grads["b"][0] == 1

    run_ranks(3, body)


def test_gradients_are_views_of_the_buckets_and_nothing_is_copied() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, one())
        (bucket,) = sync.buckets()
        assert [each.name for each in bucket.parameters] == ["b", "a"]
        a, b = sync.gradients["a"], sync.gradients["b"]
        assert a.ctypes.data - b.ctypes.data == 64  # behind b, at the next cache line
        a[:], b[:] = comm.rank, 2 * comm.rank
        sync.sync()
        assert (a == 0.5).all()
        assert (b == 1.0).all()
        sync.sync({"a": a, "b": np.full(4, 3.0)})
        assert sync.gradients["a"] is a
        # Another array of the same memory adds nothing to itself, and Python's own memory takes results, too.
        sync.configure(op="sum", accumulate=2)
        sync.gradients["a"][:] = 2
        sync.sync({"a": sync.gradients["a"][:]})
        given = memoryview(np.arange(4.0) + comm.rank)
        sync.sync({"a": sync.gradients["a"][:], "b": given})
        assert (sync.gradients["a"] == 4).all()
        assert given.tolist() == [1, 3, 5, 7]

    run_ranks(2, body)


def test_the_norm_is_clipped_in_the_given_arrays_as_well() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(
            comm,
            {"a": np.zeros(1), "b": np.zeros(1, "f"), "frozen": np.zeros(1)},
            frozen=["frozen"],
            order="ready",  # another layout after the first step
        )
        grads = {"a": np.array([3.0]), "b": np.array([4.0], "f"), "frozen": np.array([9.0])}
        sync.sync(grads)
        assert sync.clip_by_global_norm(10) == 5
        assert sync.clip_by_global_norm(1) == 5
        assert [float(x[0]) for x in grads.values()] == pytest.approx([3 / 5, 4 / 5, 9.0])
        sync.sync({"a": np.array([np.nan]), "b": np.array([4.0], "f")})
        assert np.isnan(sync.clip_by_global_norm(1))
        assert sync.gradients["b"][0] == 4

    run_ranks(2, body)


def test_no_sync_adds_up_and_the_model_changes_between_steps() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, one(), op="sum")
        ones = {name: np.ones_like(x) for name, x in one().items()}
        with sync.no_sync():
            assert not sync.sync(ones)
            assert (ones["a"] == 1).all()
        assert sync.sync(ones)
        assert (ones["b"] == 4).all()
        sync.add("c", np.zeros(2))
        sync.remove("b")
        assert list(sync.gradients) == ["c", "a"]
        assert (sync.gradients["a"] == 4).all()  # kept
        sync.configure(frozen=["a"], op="average")
        sync.sync({"c": np.full(2, float(comm.rank))})
        assert (sync.gradients["c"] == 0.5).all()
        assert not sync.has_gradients("a")
        sync.zero()
        assert not sync.has_gradients()
        assert not sync.gradients["c"].any()
        with pytest.raises(RankMismatch):
            sync.configure(bucket_bytes=1 + comm.rank)
        assert sync.sync({"c": np.ones(2)})  # as it was before

    run_ranks(2, body)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_and_gradients_that_drift_apart_are_found(dtype: Any) -> None:
    def body(comm: Communicator) -> None:
        parameters = {"a": np.zeros((2, 3), dtype), "b": np.ones(4, dtype), "c": np.ones((), dtype)}
        sync = GradientSync(comm, parameters, check_every=3)
        sync.sync({"c": np.asarray(comm.rank, dtype)})
        sync.check_consistency()
        parameters["b"][2] += comm.rank == 1
        sync.gradients["a"][0, 0] = np.nan if comm.rank == 2 else 0
        text = "parameter 'b' on rank 1, by up to 1; gradient 'a' on rank 2, by up to nan"
        with pytest.raises(RankMismatch, match=text) as caught:
            sync.check_consistency()
        assert caught.value.ranks == (1, 2)
        sync.sync({"a": np.ones((2, 3), dtype)})
        with pytest.raises(RankMismatch, match="parameter 'b' on rank 1"):
            sync.sync({"a": np.ones((2, 3), dtype)})  # the third step looks by itself
        sync.broadcast_parameters(root=1)
        sync.zero()
        sync.check_consistency()
        assert parameters["b"][2] == 2

    run_ranks(3, body)


@pytest.mark.parametrize("overlapped", [False, True])
def test_nan_and_infinity_are_skipped_or_raised_on_every_rank(overlapped: bool) -> None:
    def body(comm: Communicator) -> None:
        good = {"a": np.ones(3), "b": np.ones(2, "f2")}
        sync = GradientSync(comm, good, nonfinite="skip", op="sum")
        bad = {"a": np.array([1, np.nan if comm.rank == 1 else 1, 1.0]), "b": np.full(2, 6e4, "f2")}
        skipped = {name: grad.copy() for name, grad in bad.items()}
        with np.errstate(over="ignore"):
            assert not step(sync, skipped, overlapped)
            # What is given to ready() is copied.
            assert any(grad.any() for grad in skipped.values()) == overlapped
            assert not sync.has_gradients()
            assert not sync.gradients["a"].any()
            assert step(sync, good, overlapped)
            assert sync.gradients["a"][0] == comm.size
            sync.configure(nonfinite="raise")
            with pytest.raises(UsageError, match="'b' in the result alone; 'a' on rank 1;"):
                step(sync, bad, overlapped)
        assert step(sync, good, overlapped)

    run_ranks(3, body)


@pytest.mark.parametrize("overlapped", [False, True])
def test_weights_of_0_take_no_part_and_not_all_may_be_0(overlapped: bool) -> None:
    """A rank without samples may have NaN: the mean over no samples is 0 / 0."""

    def body(comm: Communicator) -> None:
        for nonfinite in ("keep", "skip", "raise"):
            sync = GradientSync(comm, one(), op="weighted", nonfinite=nonfinite)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="no weight"):
                sync.ready("a")
            mine = np.nan if comm.rank == 0 else np.inf if comm.rank == 1 else 6.0
            sync.weigh(0 if comm.rank < 2 else comm.rank)
            assert step(sync, {n: np.full_like(x, mine) for n, x in one().items()}, overlapped)
            for view in sync.gradients.values():
                np.testing.assert_allclose(view, 6, rtol=1e-6)
            with pytest.raises(UsageError, match="all ranks are 0"):
                sync.sync({}, weight=0)

    run_ranks(4, body)
