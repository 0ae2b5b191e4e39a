"""Compressors against NumPy: sent bytes, kept state, and the same bits on all ranks."""

from functools import partial
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from random_trainings import random_trainings, train

from hpccomm import Communicator, RankMismatch, UsageError
from hpccomm.gradients import GradientSync, LossScale
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.compression import (
    Channel,
    Compressor,
    Exchange,
    MixedPrecision,
    PowerSGD,
    TopK,
    largest,
)
from hpccomm.gradients.layout import layout
from hpccomm.gradients.parameters import Bucket, Parameter
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.testing import run_ranks

COMPRESSORS: list[Compressor] = [
    MixedPrecision("float16"),
    MixedPrecision("bfloat16"),
    MixedPrecision("float8_e4m3", error_feedback=True),
    MixedPrecision("float8_e5m2", error_feedback=True),
    TopK(0.1),
    PowerSGD(2),
]


def bucket(*shapes: tuple[int, ...], dtype: Any = np.float32) -> Bucket:
    parameters = [Parameter(f"p{n}", shape, np.dtype(dtype)) for n, shape in enumerate(shapes)]
    settings = ReductionSettings(bucket_bytes=1 << 30, first_bucket_bytes=1 << 30)
    (made,) = layout(parameters, settings)
    return made


def filled(of: Bucket, *seed: int) -> Any:
    """Draw gradients; the padding between them is 0."""
    x, draw = np.zeros(of.length, of.dtype), np.random.default_rng(seed)
    for parameter, offset in zip(of.parameters, of.offsets, strict=True):
        x[offset : offset + parameter.size] = draw.normal(size=parameter.size)
    return x


def channel_sum(comm: Communicator, compressor: Compressor, of: Bucket, steps: int) -> Any:
    """Return the results of steps, the gradients of this rank, the bytes it sent, and its channel."""
    channel, ranks = compressor.channel(of), Exchange(RankGroup(comm, None))
    given = [filled(of, comm.rank, step) for step in range(steps)]
    results = [each.copy() for each in given]
    for x in results:
        channel.reduce(x, ranks)
    return results, given, ranks.wire_nbytes, channel


# What comes out.


def test_narrow_floats_are_summed_up_in_float32() -> None:
    of = bucket((37,), (5, 3))
    for wire in ("float16", "bfloat16"):
        narrow = np.float16 if wire == "float16" else ml_dtypes.bfloat16
        ranks = run_ranks(3, channel_sum, MixedPrecision(wire), of, 1)
        rounded = [each[1][0].astype(narrow).astype(np.float32) for each in ranks]
        right = (rounded[0] + rounded[1] + rounded[2]).astype(narrow).astype(np.float32)
        for results, *_ in ranks:
            np.testing.assert_array_equal(results[0], right)


def test_the_largest_are_sent_with_their_places() -> None:
    of = bucket((60,))
    ranks = run_ranks(2, channel_sum, TopK(0.1), of, 1)
    right = np.zeros(of.length, np.float32)
    for _, (x,), sent, _ in ranks:
        where = np.argsort(-np.abs(x))[:7]  # 64 elements with the padding
        right[where] += x[where]
        assert sent == 7 * (4 + 4)
    np.testing.assert_array_equal(ranks[0][0][0], right)


def test_a_guessed_threshold_finds_nearly_all_of_the_largest() -> None:
    columns = np.ones((8192, 64), "f")  # which must not hide from the sample
    columns[:, 0] = np.arange(8192) + 10
    for x, count, least in (
        (np.random.default_rng(5).normal(size=1_000_000).astype("f"), 10_000, 9_000),
        (columns.reshape(-1), 5242, 4700),
    ):
        where = largest(x, count)
        assert least < len(set(where)) == len(where) <= count
        assert np.abs(x[where]).min() >= np.sort(np.abs(x))[-count]
    assert len(largest(np.zeros(1_000_000), 10)) == 0


def test_power_sgd_is_exact_for_matrices_of_its_rank() -> None:
    of = bucket((40, 30), (7,), (5, 4, 12))

    def body(comm: Communicator) -> Any:
        channel, ranks = PowerSGD(2).channel(of), Exchange(RankGroup(comm, None))
        pairs = zip(of.parameters, of.offsets, strict=True)
        place = {p.name: slice(offset, offset + p.size) for p, offset in pairs}
        for step in range(4):
            x, draw = filled(of, comm.rank, step), np.random.default_rng([9, step])
            right = draw.normal(size=(30, 2))  # one space of columns on all ranks
            left = draw.normal(size=(40, 2)) + comm.rank
            x[place["p0"]] = (left @ right.T).reshape(-1)
            total = sum(comm.all_gather_object(x))
            channel.reduce(x, ranks)
            for part in (place["p1"], *[place["p0"]] * (step == 0)):
                np.testing.assert_allclose(x[part], total[part], rtol=2e-3, atol=2e-3)
        return ranks.wire_nbytes

    # Thin matrices of p0 and of p2 (5 x 48), and p1 as it is, with the padding.
    thin = 2 * (40 + 30) + 2 * (5 + 48)
    padding = of.length - 1200 - 240
    assert run_ranks(2, body) == [4 * 4 * (thin + padding)] * 2


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_what_is_not_sent_comes_later_and_nan_spoils_no_other_step(compressor: Compressor) -> None:
    """The sum of the results follows that of the gradients; nothing is lost for good."""
    of, steps = bucket((40, 20), (9,)), 60

    def body(comm: Communicator) -> Any:
        channel, ranks, result = compressor.channel(of), Exchange(RankGroup(comm, None)), 0
        mine = filled(of, comm.rank)
        for bad in (np.nan, np.inf, -np.inf):
            x = mine.copy()
            x[3] = bad if comm.rank == 1 else x[3]
            channel.reduce(x, ranks)
            assert not np.isfinite(x).all()
        for _ in range(steps):
            x = mine.copy()
            channel.reduce(x, ranks)
            assert np.isfinite(x).all()
            result = result + x
        return result, mine, x.tobytes()

    ranks = run_ranks(3, body)
    right = steps * sum(mine for _, mine, _ in ranks)
    assert len({bits for *_, bits in ranks}) == 1
    wrong = np.abs(ranks[0][0] - right).max() / np.abs(right).max()
    assert wrong < (0.005 if isinstance(compressor, MixedPrecision) else 0.25)


@given(st.integers(1, 5).flatmap(random_trainings), st.sampled_from(COMPRESSORS), st.booleans())
def test_any_model_gets_the_same_bits_on_all_ranks(
    case: dict[str, Any], compressor: Compressor, hierarchical: bool
) -> None:
    settings = {"compressor": compressor, "hierarchical": hierarchical, "deterministic": False}
    case["settings"] |= settings
    bits = run_ranks(case["ranks"], partial(train, exact=False), case, ranks_per_node=2)
    assert len(set(bits)) == 1


# In `GradientSync`.


def test_on_two_levels_the_sum_of_each_node_is_compressed() -> None:
    def body(comm: Communicator) -> list[float]:
        model, most = {"a": np.zeros(16, "f")}, TopK(1 / 16)
        sync = GradientSync(comm, model, op="sum", compressor=most, hierarchical=True)
        sync.sync({"a": np.eye(16, dtype="f")[comm.rank] * (comm.rank + 1)})
        return sync.gradients["a"][:4].tolist()

    assert run_ranks(4, body, ranks_per_node=2) == [[0, 2, 0, 4]] * 4


class Halves:
    """A user's own: sends every second element, and twice its value."""

    def __repr__(self) -> str:
        return "Halves()"

    def channel(self, bucket: Bucket) -> Channel:
        if bucket.dtype != np.float32:
            raise UsageError(f"Halves takes float32, not {bucket.dtype}")
        return self

    memory_bytes = 0

    def reduce(self, x: Any, exchange: Exchange) -> None:
        half = 2 * x[::2]
        exchange.sum(half)
        x[:] = 0
        x[::2] = half


def test_a_users_own_compressor_may_send_another_number_on_each_rank() -> None:
    class Positive(Halves):
        def reduce(self, x: Any, exchange: Exchange) -> None:
            where, most = np.flatnonzero(x > 0), x[2:3].copy()
            exchange.max(most)
            assert most == 3
            every = exchange.gather_uneven(np.stack([where, x[where]], axis=1).reshape(-1))
            x[:] = 0
            for each in every:
                x[each[::2].astype(int)] += each[1::2]

    def body(comm: Communicator) -> Any:
        sync = GradientSync(comm, {"a": np.zeros(3, "f")}, op="sum", compressor=Positive())
        sync.sync({"a": np.array([1, 2, 3], "f") - comm.rank})
        return sync.gradients["a"].tolist(), sync.stats().wire_nbytes

    results = run_ranks(3, body)
    assert [gradients for gradients, _ in results] == [[1, 3, 6]] * 3
    # Two float64 for each positive element; and as much on each rank.
    sent = [nbytes for _, nbytes in results]
    assert [sent[0] - sent[1], sent[1] - sent[2]] == [16, 16]


def test_a_compressor_that_raises_on_one_rank_ends_no_other_ranks_wait() -> None:
    class Refusing(Halves):
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def channel(self, bucket: Bucket) -> Channel:
            if self.rank == 1:
                raise MemoryError("no room for errors")
            return super().channel(bucket)

    def body(comm: Communicator) -> None:
        error, text = RankMismatch, "rank 1 raised an error: MemoryError: no room for errors"
        if comm.rank == 1:
            error, text = UsageError, "^MemoryError: no room for errors"
        model = {"a": np.full(6, comm.rank, "f")}
        sync = GradientSync(comm, model, initial="ignore")
        for make in (partial(GradientSync, comm, model, initial="ignore"), sync.configure):
            with pytest.raises(error, match=text):
                make(compressor=Refusing(comm.rank))
        sync.sync({"a": np.full(6, comm.rank, "f")})
        assert (sync.gradients["a"] == 1).all()

    run_ranks(3, body)


def test_a_compressor_that_is_refused_changes_nothing() -> None:
    def body(comm: Communicator) -> None:
        model = {"a": np.zeros(6, "f"), "b": np.zeros(6)}
        for hierarchical in (False, True):
            with pytest.raises(UsageError, match="not float64"):
                GradientSync(comm, model, compressor=Halves(), hierarchical=hierarchical)
        sync = GradientSync(comm, {"a": np.zeros(6)}, loss_scale=LossScale(4.0))
        view = sync.gradients["a"]
        with pytest.raises(UsageError, match="not float64"):
            sync.configure(compressor=Halves(), op="sum", loss_scale=None)
        assert (sync.loss_scale, sync.gradients["a"] is view) == (4.0, True)
        view[:] = 4.0 * comm.rank
        assert sync.sync()
        assert (view == 0.5).all()
        sync.configure(check_every=1)  # op is as before here, too
        sync.sync({"a": np.full(6, 4.0 * comm.rank)})
        assert (sync.gradients["a"] == 0.5).all()

    run_ranks(2, body)


def test_what_overflows_the_dtype_is_sent_over_several_steps() -> None:
    def body(comm: Communicator) -> list[list[float]]:
        one = TopK(0.001)
        sync = GradientSync(comm, {"v": np.zeros(2, "f2")}, op="sum", compressor=one)
        seen = []
        for _ in range(4):
            sync.sync({"v": np.array([44992, 40000], "f2")})
            seen.append(sync.gradients["v"].tolist())
        return seen

    most = float(np.finfo("f2").max)
    # The second is at 80,000 in the second step, and the first at 90,000 in the third.
    assert run_ranks(1, body)[0] == [[44992, 0], [0, most], [most, 0], [0, most]]
