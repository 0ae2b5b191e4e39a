"""`GradientSync` on threads: against NumPy, and its errors."""

import threading
from hashlib import sha256
from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from random_trainings import DTYPES, random_trainings, train

import hpccomm
from hpccomm import Communicator, HpccommError, RankMismatch, UsageError
from hpccomm.gradients import GradientSync
from hpccomm.testing import run_ranks


def raised(comm: Communicator, function: Any) -> HpccommError:
    with pytest.raises(HpccommError) as caught:
        function(comm)
    comm.all_reduce(np.ones(1))  # the communicator can still be used
    return caught.value


# Against NumPy.


@given(st.integers(1, 6).flatmap(random_trainings))
def test_any_training_gives_what_numpy_does(case: dict[str, Any]) -> None:
    run_ranks(case["ranks"], train, case)


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


# What is raised, and where.


def one(**other: Any) -> dict[str, Any]:
    return {"a": np.zeros((2, 3)), "b": np.zeros(4), **other}


DIFFERING: dict[str, tuple[Any, dict[str, Any], str]] = {
    # What one rank gives, and what is said.
    "names": (one(c=np.zeros(1)), {}, "'c' is missing on rank 0"),
    "shapes": (one(b=np.zeros(5)), {}, r"'b' is float64 \(4,\).*\(5,\)"),
    "dtypes": (one(b=np.zeros(4, "f")), {}, "'b'.*float32"),
    "order": (dict(reversed(one().items())), {}, "order differs: number 0"),
    "buckets": (one(), {"bucket_bytes": 9}, "bucket_bytes is 26214400"),
    "op": (one(), {"op": "sum"}, "op is 'average' on rank 0"),
    "accumulate": (one(), {"accumulate": 2}, "accumulate is 1"),
    "frozen": (one(), {"frozen": "b"}, r"frozen is \(\) on rank 0 and \('b',\)"),
    "wrong": (one(), {"order": "revers"}, "did you mean reverse"),
    "unknown": (one(), {"bucket_byte": 1}, "did you mean bucket_bytes"),
    "empty": ([], {}, "no parameters"),
}


@pytest.mark.parametrize("what", DIFFERING)
def test_models_that_differ_are_refused_on_every_rank(what: str) -> None:
    model, options, text = DIFFERING[what]

    def body(comm: Communicator) -> HpccommError:
        given = (model, options) if comm.rank == 2 else (one(), {})
        return raised(comm, lambda comm: GradientSync(comm, given[0], **given[1]))

    for rank, error in enumerate(run_ranks(3, body)):
        with pytest.raises(type(error), match=text):
            raise error
        if isinstance(error, RankMismatch):
            assert error.ranks == (2,)
            assert "rank 2" in str(error)
        else:
            assert rank == 2


def test_a_missing_gradient_is_an_error_on_every_rank_if_asked_for() -> None:
    def body(comm: Communicator) -> tuple[HpccommError, Any]:
        sync = GradientSync(comm, one(), unused="error")
        sync.sync({name: np.ones_like(x) for name, x in one().items()})
        sync.ready("a", np.ones((2, 3)))
        if comm.rank != 1:
            sync.ready("b", np.ones(4))
        error = raised(comm, lambda _: sync.wait())
        grads = {name: np.full_like(x, comm.rank) for name, x in one().items()}
        sync.sync(grads)  # the step after it is as any other
        return error, grads["b"][0]

    for error, after in run_ranks(3, body):
        assert isinstance(error, RankMismatch)
        assert "'b' on rank 1;" in str(error)
        assert error.ranks == (1,)
        assert after == 1


def test_a_rank_that_does_not_come_is_missed_by_the_deadline() -> None:
    left = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            left.wait(30)
            return
        try:
            GradientSync(comm, one(), timeout=0.3)
        finally:
            left.set()

    with pytest.raises(hpccomm.CommunicationError):
        run_ranks(2, body)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda sync: sync.ready("bb"), "did you mean b"),
        (lambda sync: sync.ready("a", np.ones(6)), r"'a' is float64 \(6,\), and its parameter"),
        (lambda sync: sync.sync({"a": np.ones((2, 3), "f")}), "'a' is float32"),
        (lambda sync: sync.configure(bucket_byte=1), "did you mean bucket_bytes"),
        (lambda sync: sync.configure(compressor="powersgd"), "did you mean PowerSGD"),
        (lambda sync: sync.remove("c"), "unknown parameter 'c'"),
        (lambda sync: sync.add("a", np.ones(1)), "'a' is used twice"),
        (lambda sync: sync.clip_by_global_norm(1.0), "not reduced"),
        (lambda sync: sync.weigh(3), "op is 'average'"),
        (lambda sync: sync.has_gradients("c"), "unknown gradient 'c'"),
    ],
)
def test_a_wrong_argument_changes_nothing(call: Any, text: str) -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, one())
        with pytest.raises(UsageError, match=text):
            call(sync)
        sync.sync({name: np.ones_like(x) for name, x in one().items()})
        sync.ready("a")
        with pytest.raises(UsageError, match="given before"):
            sync.ready("a")
        with pytest.raises(UsageError, match="under way"):
            sync.zero()
        with pytest.raises(UsageError, match="end it by wait"):
            sync.sync()
        assert sync.wait()

    run_ranks(2, body)


# What users rely on.


def test_gradients_are_views_of_the_buckets_and_nothing_is_copied() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, one())
        (bucket,) = sync.buckets()
        assert [each.name for each in bucket.parameters] == ["b", "a"]
        a, b = sync.gradients["a"], sync.gradients["b"]
        assert a.base is not None
        assert a.ctypes.data - b.ctypes.data == 64  # behind b, at the next cache line
        a[:], b[:] = comm.rank, 2 * comm.rank
        sync.sync()
        assert (a == 0.5).all()
        assert (b == 1.0).all()
        before = a
        sync.sync({"a": a, "b": np.full(4, 3.0)})
        assert sync.gradients["a"] is before
        assert np.shares_memory(sync.gradients["a"], before)

    run_ranks(2, body)


def test_memory_of_python_is_an_array() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, {"w": np.zeros(4, np.float32)}, op="sum")
        given = memoryview(np.arange(4, dtype=np.float32) + comm.rank)
        sync.sync({"w": given})
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
        error = raised(comm, lambda _: sync.configure(bucket_bytes=1 + comm.rank))
        assert isinstance(error, RankMismatch)
        assert sync.sync({"c": np.ones(2)})  # as it was before

    run_ranks(2, body)


def test_weights_that_are_all_0_are_refused_on_every_rank() -> None:
    def body(comm: Communicator) -> str:
        sync = GradientSync(comm, one(), op="weighted")
        with pytest.raises(UsageError, match="no weight"):
            sync.ready("a")
        return str(raised(comm, lambda _: sync.sync({}, weight=0)))

    assert all("all ranks are 0" in text for text in run_ranks(2, body))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_and_gradients_that_drift_apart_are_found(dtype: Any) -> None:
    def body(comm: Communicator) -> HpccommError:
        parameters = {"a": np.zeros((2, 3), dtype), "b": np.ones(4, dtype), "c": np.ones((), dtype)}
        sync = GradientSync(comm, parameters)
        sync.sync({"c": np.asarray(comm.rank, dtype)})
        sync.check_consistency()
        parameters["b"][2] += comm.rank == 1
        sync.gradients["a"][0, 0] = np.nan if comm.rank == 2 else 0
        error = raised(comm, lambda _: sync.check_consistency())
        sync.broadcast_parameters(root=1)
        sync.zero()
        sync.check_consistency()
        assert parameters["b"][2] == 2
        return error

    for error in run_ranks(3, body):
        assert isinstance(error, RankMismatch)
        assert "parameter 'b' on rank 1, by up to 1; gradient 'a' on rank 2, by up to nan" in str(
            error
        )
        assert error.ranks == (1, 2)


@pytest.mark.parametrize("overlapped", [False, True])
def test_nan_and_infinity_are_skipped_or_raised_on_every_rank(overlapped: bool) -> None:
    def step(sync: GradientSync, grads: dict[str, Any]) -> bool:
        if not overlapped:
            return sync.sync(grads)
        for name, grad in grads.items():
            sync.ready(name, grad)
        return sync.wait()

    def body(comm: Communicator) -> HpccommError:
        sync = GradientSync(
            comm, {"a": np.zeros(3), "b": np.zeros(2, "f2")}, nonfinite="skip", op="sum"
        )
        good = {"a": np.ones(3), "b": np.ones(2, "f2")}
        bad = {"a": np.array([1, np.nan if comm.rank == 1 else 1, 1.0]), "b": np.full(2, 6e4, "f2")}
        skipped = {name: grad.copy() for name, grad in bad.items()}
        with np.errstate(over="ignore"):
            assert not step(sync, skipped)
            assert overlapped or not any(grad.any() for grad in skipped.values())
            assert not sync.has_gradients()
            assert not sync.gradients["a"].any()
            assert step(sync, good)
            assert sync.gradients["a"][0] == comm.size
            sync.configure(nonfinite="raise")
            error = raised(comm, lambda _: step(sync, bad))
        assert step(sync, good)
        return error

    for error in run_ranks(3, body):
        assert isinstance(error, UsageError)
        assert "'a' on rank 1" in str(error)
        assert "'b' in the result alone" in str(error)


def test_arrays_over_the_buckets_memory_and_arrays_that_cannot_take_results() -> None:
    def rank(comm: hpccomm.Communicator) -> None:
        sync = GradientSync(comm, {"a": np.zeros(4), "b": np.zeros(4)}, op="sum", accumulate=2)
        sync.gradients["a"][:] = 2
        sync.sync({"a": sync.gradients["a"][:]})  # another array, the same memory
        sync.sync({"a": sync.gradients["a"][:]})
        assert (sync.gradients["a"] == 2 * comm.size).all()
        with pytest.raises(UsageError, match="overlaps its place"):
            sync.ready("a", sync.gradients["a"][::-1])
        fixed = np.ones(4)
        fixed.flags.writeable = False
        with pytest.raises(UsageError, match="read-only"):
            sync.sync({"b": fixed})
        scalar = GradientSync(comm, {"x": np.zeros(())})
        for value in (np.float64(3), bytes(8)):
            with pytest.raises(UsageError, match=f"'x' is a {type(value).__name__}, which cannot"):
                scalar.sync({"x": value})
            with pytest.raises(UsageError, match="cannot be written"):
                GradientSync(comm, {"x": value})

    run_ranks(2, rank)
