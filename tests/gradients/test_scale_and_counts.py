"""The loss scale against its rule, the counts against what was done, and bucket sizes that adapt."""

import time
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hpccomm import Communicator, UsageError
from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import MixedPrecision, PowerSGD, TopK
from hpccomm.gradients.record import common
from hpccomm.gradients.settings import LossScale
from hpccomm.testing import run_ranks

# The loss scale.


def test_the_rule_of_the_loss_scale() -> None:
    rule = LossScale(8.0, growth=4.0, backoff=0.25, interval=2)
    state, seen = (8.0, 0), []
    for finite in (True, True, True, False, True, True, False, False):
        state = rule.after(*state, finite)
        seen.append(state)
    assert seen == [(8, 1), (32, 0), (32, 1), (8, 0), (8, 1), (32, 0), (8, 0), (2, 0)]
    assert LossScale(2.0**1023, interval=1).after(2.0**1023, 0, True) == (2.0**1023, 0)
    scale = 1.0
    for _ in range(2000):
        scale, _ = rule.after(scale, 0, False)
    assert scale == 2.0**-40


NARROW = [MixedPrecision(each, error_feedback=True) for each in ("float16", "float8_e5m2")]


@pytest.mark.parametrize("compressor", [TopK(0.01), PowerSGD(1), *NARROW], ids=repr)
def test_what_is_kept_is_in_units_that_do_not_change(compressor: Any) -> None:
    # The scale doubles after each step. What is not sent at first arrives later, and not as a part of it.
    first = np.arange(16, dtype="f").reshape(4, 4)

    def body(comm: Communicator) -> None:
        rule, model = LossScale(1.0, interval=1), {"w": np.zeros((4, 4), "f")}
        sync = GradientSync(comm, model, op="sum", compressor=compressor, loss_scale=rule)
        total = np.zeros((4, 4))
        for step in range(20):
            sync.sync({"w": first * np.float32(sync.loss_scale * (step == 0))})
            total += sync.gradients["w"]
        np.testing.assert_allclose(total, 2 * first, atol=0.01)

    run_ranks(2, body)


@pytest.mark.parametrize("compressor", [None, MixedPrecision("float16")], ids=["plain", "float16"])
def test_an_overflow_on_one_rank_is_left_out_on_all(compressor: Any) -> None:
    def body(comm: Communicator) -> list[float]:
        rule = LossScale(1024.0, interval=2)
        sync = GradientSync(comm, {"a": np.zeros(50, "f")}, compressor=compressor, loss_scale=rule)
        scales = []
        for step in range(5):
            scale = sync.loss_scale
            scales.append(scale)
            mine = np.full(50, 1e-6 * (comm.rank + 1) * scale, "f")
            if step == 1 and comm.rank == 1:
                mine[7] = np.inf
            if step % 2:
                sync.ready("a", mine)
                good = sync.wait()
            else:
                good = sync.sync({"a": mine})
            assert good == (step != 1)
            wanted = 1.5e-6 if good else 0
            np.testing.assert_allclose(sync.gradients["a"], wanted, rtol=2e-3)
        assert sync.stats().skipped == 1
        return scales

    assert run_ranks(2, body) == [[1024, 1024, 512, 512, 1024]] * 2


# What is counted.

SMALL: dict[str, Any] = {"first_bucket_bytes": 1, "min_bucket_bytes": 0}
spans = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)


@given(spans, st.lists(st.integers(0, 40), max_size=8).map(sorted))
def test_common_time_is_counted_once(span: Any, edges: list[int]) -> None:
    others = list(zip(edges[::2], edges[1::2], strict=False))
    ticks = sum(1 for tick in range(*span) if any(first <= tick < last for first, last in others))
    assert common(span, others) == ticks


def test_steps_are_counted_by_bucket() -> None:
    def body(comm: Communicator) -> None:
        model = {f"p{n}": np.zeros(100) for n in range(4)}
        sync = GradientSync(comm, model, **SMALL, bucket_bytes=1700)
        sizes = [bucket.nbytes for bucket in sync.buckets()]
        assert len(sizes) == 3
        sync.sync()
        sync.ready("p3", np.ones(100))
        time.sleep(0.05)  # while its bucket is reduced: this time is what is counted
        sync.wait()
        stats = sync.stats()
        assert (stats.steps, stats.micro_steps, stats.calls) == (2, 2, 1 + 3)
        assert stats.with_gradients == 1
        assert stats.nbytes == 2 * sum(sizes)
        assert [each.nbytes for each in stats.buckets] == [2 * size for size in sizes]
        assert stats.wire_nbytes == sum(each.wire_nbytes for each in stats.buckets) >= stats.nbytes
        for what in ("seconds", "hidden_seconds"):
            total = sum(getattr(each, what) for each in stats.buckets)
            assert getattr(stats, what) == pytest.approx(total)
        assert 0 < stats.hidden_seconds < stats.seconds
        assert stats.buckets[0].hidden_seconds > 0
        assert stats.blocked_seconds > 0
        assert f"skipped\n{stats.nbytes} bytes in {stats.calls} calls" in str(stats)
        sync.configure(bucketing=False)
        again = sync.stats()
        assert (again.nbytes, again.wire_nbytes) == (stats.nbytes, stats.wire_nbytes)
        assert [each.calls for each in again.buckets] == [0] * 4

    run_ranks(2, body)


# Sizes that adapt.


def test_sizes_of_buckets_follow_from_what_was_measured() -> None:
    def body(comm: Communicator) -> Any:
        model = {f"p{n}": np.zeros(40_000) for n in range(8)}
        sizes = {"first_bucket_bytes": 300_000, "bucket_bytes": 900_000}
        sync = GradientSync(comm, model, **sizes, adaptive=3)
        for step in range(5):
            if step == 1:
                sync.sync()  # is not counted
                assert sync.choice is None
                continue
            for name in reversed(model):
                sync.gradients[name][:] = comm.rank + step
                sync.ready(name)
            sync.wait()
            for view in sync.gradients.values():
                assert (view == step + 0.5).all()
            assert (sync.choice is None) == (step < 3)
        layout = tuple(map(str, sync.buckets()))
        sync.configure(adaptive=1)
        sync.wait()
        return layout, sync.choice.bucket_bytes

    first, *others = run_ranks(2, body)
    assert others == [first]


def test_what_came_before_a_step_that_raised_is_not_measured() -> None:
    def body(comm: Communicator) -> None:
        model = {"a": np.zeros(8), "b": np.zeros(100_000)}
        sync = GradientSync(comm, model, **SMALL, adaptive=1, nonfinite="raise")
        sync.ready("b", np.full(100_000, np.nan))
        with pytest.raises(UsageError, match="NaN"):
            sync.wait()
        time.sleep(2)  # what must not be counted
        sync.ready("a", np.zeros(8))
        sync.wait()
        assert sync.choice.seconds_now < 1

    run_ranks(1, body)
