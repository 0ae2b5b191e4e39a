"""What cannot be trained by is refused in words on every rank: the documented limits of arguments, and ranks that differ."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from hpccomm import Communicator, HpccommError, RankMismatch, UnsupportedDtype, UsageError
from hpccomm.gradients import (
    GradientSync,
    LocalSteps,
    LossScale,
    MixedPrecision,
    PowerSGD,
    ReductionSettings,
    ShardedOptimizer,
    TopK,
    sgd,
)
from hpccomm.testing import run_ranks


def one(**other: Any) -> dict[str, Any]:
    return {"a": np.zeros((2, 3)), "b": np.zeros(4), **other}


def raised(comm: Communicator, function: Callable[[], object]) -> HpccommError:
    with pytest.raises(HpccommError) as caught:
        function()
    comm.all_reduce(np.ones(1))  # the communicator can still be used
    return caught.value


def sync(comm: Communicator, model: Any = None, **options: Any) -> GradientSync:
    return GradientSync(comm, one() if model is None else model, **options)


def sharded(comm: Communicator, model: Any = None, **options: Any) -> ShardedOptimizer:
    options.setdefault("update", sgd(0.1))
    return ShardedOptimizer(comm, one() if model is None else model, **options)


def local(comm: Communicator, model: Any = None, every: int = 3) -> LocalSteps:
    return LocalSteps(comm, one() if model is None else model, every=every)


WRONG: list[tuple[Callable[[Communicator], object], str]] = [
    (lambda comm: sync(comm, [("a", np.ones(1)), ("a", np.ones(2))]), "'a' is used twice"),
    (lambda comm: sync(comm, {"": np.ones(1)}), "non-empty"),
    (lambda comm: sync(comm, {"n": np.ones(1, int)}), "'n' has dtype int64"),
    (lambda comm: sync(comm, {"n": np.ones(1, complex)}), "complex128"),
    (lambda comm: sync(comm, {"n": [1.0]}), r"'n' is \[1.0\]; give a NumPy"),
    (lambda comm: sync(comm, ["n"]), "not a pair"),
    (lambda comm: sync(comm, []), "no parameters"),
    (lambda comm: sync(comm, {"x": np.float64(3)}), "cannot be written"),
    (lambda comm: sync(comm, {"x": bytes(8)}), "cannot be written"),
    (lambda comm: sync(comm, initial="brodcast"), "'brodcast'.*did you mean broadcast"),
    (lambda comm: sync(comm, compressor=TopK), "give an object"),
    (lambda comm: sync(comm, compressor=TopK(), deterministic=True), "leave one out"),
    (lambda comm: sync(comm, hierarchical=True), "give one"),
    (lambda comm: sync(comm, loss_scale=8.0), "LossScale"),
    (lambda comm: sync(comm, log=17), "give the path of a file"),
    (lambda comm: sharded(comm, op="mean"), "op is 'mean'"),
    (lambda comm: sharded(comm, op="weighted"), "op is 'weighted'"),
    (lambda comm: sharded(comm, initial=None), "initial is None.*check, broadcast, ignore"),
    (lambda comm: ReductionSettings(order="revers"), "order"),  # type: ignore[arg-type]
    (lambda comm: ReductionSettings(bucket_bytes=0), "bucket_bytes"),
    (lambda comm: ReductionSettings(min_bucket_bytes=-1), "min_bucket_bytes"),
    (lambda comm: ReductionSettings(bucketing=1), "bucketing"),  # type: ignore[arg-type]
    (lambda comm: LossScale(0), "initial"),
    (lambda comm: LossScale("1"), "initial"),  # type: ignore[arg-type]
    (lambda comm: LossScale(growth=0.5), "growth"),
    (lambda comm: LossScale(backoff=1), "backoff"),
    (lambda comm: LossScale(interval=0), "interval"),
    (lambda comm: TopK(0), "above 0 and at most 1"),
    (lambda comm: TopK(10**400), "finite"),
    (lambda comm: PowerSGD(0), "at least 1"),
    (lambda comm: MixedPrecision("float"), "float16"),  # type: ignore[arg-type]
]


def test_what_is_wrong_on_all_ranks_is_a_usage_error_on_each() -> None:
    def body(comm: Communicator) -> None:
        for make, text in WRONG:
            error = raised(comm, partial(make, comm))
            assert isinstance(error, UsageError), error
            assert re.search(text, str(error)), error
            assert isinstance(error, UnsupportedDtype) == ("has dtype" in str(error)), error

    run_ranks(2, body)


DIFFERING: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    # What the last rank gives, while the others give nothing but the default.
    (sync, {"model": one(c=np.zeros(1))}, "'c' is missing on rank 0"),
    (sync, {"model": one(b=np.zeros(5))}, r"'b' is float64 \(4,\).*\(5,\)"),
    (sync, {"model": one(b=np.zeros(4, "f"))}, "'b'.*float32"),
    (sync, {"model": dict(reversed(one().items()))}, "order differs: number 0"),
    (sync, {"bucket_bytes": 9}, "bucket_bytes is 26214400"),
    (sync, {"op": "sum"}, "op is 'average' on rank 0"),
    (sync, {"accumulate": 2}, "accumulate is 1"),
    (sync, {"frozen": "b"}, r"frozen is \(\) on rank 0 and \('b',\)"),
    (sync, {"initial": "ignore"}, "initial is 'check' on rank 0 and 'ignore' on rank 2"),
    (sync, {"order": "revers"}, "did you mean reverse"),
    (sync, {"bucket_byte": 1}, "did you mean bucket_bytes"),
    (sync, {"model": []}, "no parameters"),
    (sharded, {"model": one(b=np.zeros(5))}, r"'b' is float64 \(4,\) on rank 0.*rank 2"),
    (sharded, {"update": sgd(0.2)}, r"update is .*lr=0\.1.*on rank 0.*lr=0\.2.*rank 2"),
    (sharded, {"op": "mean"}, "op is 'mean'"),
    (local, {"every": 4}, "every is 3 on rank 0 and 4 on rank 2"),
    (local, {"model": one(b=np.zeros(5))}, r"'b' is float64 \(4,\) on rank 0.*rank 2"),
]


def test_ranks_that_differ_learn_it_together_and_hear_of_whom() -> None:
    def body(comm: Communicator) -> None:
        last = comm.rank == 2
        for make, options, text in DIFFERING:
            error = raised(comm, partial(make, comm, **(options if last else {})))
            assert re.search(text, str(error)), error
            if isinstance(error, RankMismatch):
                assert error.ranks == (2,)
                assert "rank 2" in str(error)
            else:
                assert isinstance(error, UsageError)
                assert last

    run_ranks(3, body)


ARGUMENTS: list[tuple[Callable[[GradientSync], object], str]] = [
    (lambda sync: sync.ready("bb"), "did you mean b"),
    (lambda sync: sync.ready("a", np.ones(6)), r"'a' is float64 \(6,\), and its parameter"),
    (lambda sync: sync.ready("a", sync.gradients["a"][::-1]), "overlaps its place"),
    (lambda sync: sync.sync({"a": np.ones((2, 3), "f")}), "'a' is float32"),
    (lambda sync: sync.sync({"b": np.broadcast_to(1.0, 4)}), "read-only"),
    (lambda sync: sync.sync({"x": np.float64(3)}), "'x' is a float64, which cannot"),
    (lambda sync: sync.sync({"x": bytes(8)}), "'x' is a bytes, which cannot"),
    (lambda sync: sync.configure(bucket_byte=1), "did you mean bucket_bytes"),
    (lambda sync: sync.configure(compressor="powersgd"), "did you mean PowerSGD"),
    (lambda sync: sync.remove("c"), "unknown parameter 'c'"),
    (lambda sync: sync.add("a", np.ones(1)), "'a' is used twice"),
    (lambda sync: sync.clip_by_global_norm(1.0), "not reduced"),
    (lambda sync: sync.weigh(3), "op is 'average'"),
    (lambda sync: sync.has_gradients("c"), "unknown gradient 'c'"),
]


def test_a_wrong_argument_changes_nothing() -> None:
    def body(comm: Communicator) -> None:
        sync = GradientSync(comm, one(x=np.zeros(())))
        for call, text in ARGUMENTS:
            with pytest.raises(UsageError, match=text):
                call(sync)
        assert sync.sync({"a": np.full((2, 3), 1.0 * comm.rank), "b": np.ones(4)})
        assert (sync.gradients["a"] == 0.5).all()
        sync.ready("a")
        for call, text in (
            (lambda: sync.ready("a"), "given before"),
            (sync.zero, "under way"),
            (sync.sync, "end it by wait"),
        ):
            with pytest.raises(UsageError, match=text):
                call()
        sync.wait_for("a")
        with pytest.raises(UsageError, match="'b' is ready too late"):
            sync.ready("b")
        assert sync.wait()
        sync.ready("b")
        assert sync.wait()

    run_ranks(2, body)


def test_a_step_of_a_divided_optimizer_takes_its_own_names_and_state() -> None:
    def body(comm: Communicator) -> None:
        last = comm.rank == 2
        optimizer = ShardedOptimizer(comm, {"w": np.zeros(3)}, sgd(0.1, momentum=0.5))
        mine = {} if last else {"velocity": np.ones(3)}
        with pytest.raises(UsageError if last else RankMismatch, match="no 'velocity' of 'w'"):
            optimizer.load_state({"steps": 1, "state": {"w": mine}})
        with pytest.raises(UsageError, match="unknown gradient 'v'"):
            optimizer.step({"v": np.zeros(3)})
        optimizer.step({"w": np.ones(3)})

    run_ranks(3, body)
