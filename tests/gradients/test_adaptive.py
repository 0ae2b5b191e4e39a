"""Sizes of buckets from measurements: against a brute-force search with another simulation."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hpccomm.gradients import ReductionSettings
from hpccomm.gradients.adaptive import candidates, choose, fit, merge

KIB = 1024
NOW = ReductionSettings(min_bucket_bytes=0)


def end(sizes: Any, ready: Any, most: int, first: int, alpha: float, beta: float) -> float:
    """Simulate a step: fill buckets greedily, and send one after the other."""
    time, inside, latest, limit = 0.0, 0, 0.0, first
    for nbytes, seconds in zip(sizes, ready, strict=True):
        if inside and inside + nbytes > limit:
            time = max(time, latest) + alpha + beta * inside
            inside, latest, limit = 0, 0.0, most
        inside, latest = inside + nbytes, max(latest, seconds)
    return max(time, latest) + alpha + beta * inside


def measurements(sizes: Any, ready: Any, alpha: float, beta: float, noise: float = 0) -> Any:
    draw = np.random.default_rng(3)
    wire = [
        (nbytes, (alpha + beta * nbytes) * (1 + noise * draw.exponential() * (draw.random() < 0.3)))
        for nbytes in (100 * KIB, 1024 * KIB, 5000 * KIB)
        for _ in range(21)
    ]
    return list(zip(sizes, ready, strict=True)), wire


@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.floats(-6, -3).map(lambda power: 10**power),
    st.floats(-11, -8).map(lambda power: 10**power),
    st.floats(0, 0.1),
)
def test_the_best_is_chosen(seed: int, count: int, alpha: float, beta: float, span: float) -> None:
    draw = np.random.default_rng(seed)
    sizes = [64 * int(n) for n in draw.integers(1, 30000, count)]
    ready = sorted(draw.random(count) * span)
    choice = choose(measurements(sizes, ready, alpha, beta), NOW)
    assert choice.latency == pytest.approx(alpha, rel=1e-6)
    assert choice.bandwidth == pytest.approx(1 / beta, rel=1e-6)
    tried = candidates(sum(sizes))
    ends = {
        (most, first): end(sizes, ready, most, first, alpha, beta)
        for most in tried
        for first in tried
        if first <= most
    }
    now = end(sizes, ready, NOW.bucket_bytes, NOW.first_bucket_bytes, alpha, beta)
    assert choice.seconds_now == pytest.approx(now, rel=1e-6)
    assert choice.seconds == pytest.approx(min(*ends.values(), now), rel=1e-6)
    chosen = end(sizes, ready, choice.bucket_bytes, choice.first_bucket_bytes, alpha, beta)
    assert chosen == pytest.approx(choice.seconds, rel=1e-6)


def test_powers_of_2_come_near_the_best_of_all_sizes() -> None:
    sizes, ready = [256 * KIB] * 100, [0.001 * n for n in range(100)]
    alpha, beta = 1e-4, 4e-9  # the wire is a bit slower than the backward pass
    choice = choose(measurements(sizes, ready, alpha, beta), NOW)
    every = [256 * KIB * n for n in range(1, 101)]
    best = min(end(sizes, ready, most, first, alpha, beta) for most in every for first in every)
    assert best <= choice.seconds < 1.01 * best < choice.seconds_now
    assert choice.first_bucket_bytes < choice.bucket_bytes
    assert str(choice) == choice.reason
    assert "100 us a call and 0.25 GB/s (measured)" in choice.reason
    assert "buckets of 25 MiB, the first of 1 MiB, after" in choice.reason


def test_calls_that_were_held_up_do_not_spoil_the_fit() -> None:
    line = fit(measurements([], [], 2e-5, 1e-9, noise=50)[1])
    assert line.latency == pytest.approx(2e-5, rel=1e-6)
    assert line.seconds_per_byte == pytest.approx(1e-9, rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-7, 10)), min_size=2, max_size=6))
def test_the_fit_is_the_best_that_is_not_negative(wire: Any) -> None:
    line = fit(wire)
    if line is None:
        assert max(n for n, _ in wire) < 2 * min(n for n, _ in wire)
        return
    assert min(line.latency, line.seconds_per_byte) >= 0
    points = {n: np.median([s for m, s in wire if m == n]) for n, _ in wire}
    x, y = np.array(list(points), float), np.array(list(points.values()))

    def error(a: float, b: float) -> float:
        return float(np.square((a + b * x) / y - 1).sum())

    least = error(line.latency, line.seconds_per_byte)
    for factor in (0.5, 0.99, 1.01, 2):
        for plus in (0.0, y.min() / 100):
            a, b = line.latency * factor + plus, line.seconds_per_byte * factor + plus / x.max()
            for other in ((a, line.seconds_per_byte), (line.latency, b), (a, b)):
                assert least <= error(*other) + 1e-9 * (1 + least)


def test_one_size_tells_nothing_and_says_so() -> None:
    measured = [(KIB, 0.0), (10**6, 0.1)], [(10**6, 2e-3), (1024 * 1000, 2e-3)]
    choice = choose(measured, NOW)
    assert (choice.bucket_bytes, choice.first_bucket_bytes) == (25 * KIB**2, KIB**2)
    assert choice.seconds is choice.seconds_now is choice.latency is choice.bandwidth is None
    assert "only 1000000 B to 1000 KiB were measured" in choice.reason
    assert "buckets of 25 MiB are kept" in choice.reason


pairs = st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 1e3)), max_size=12).map(tuple)


@given(pairs, pairs, st.integers(1, 10**8), st.integers(1, 10**8), st.booleans())
def test_any_measurements_give_a_choice_that_is_no_worse(
    ready: Any, wire: Any, most: int, first: int, bucketing: bool
) -> None:
    now = ReductionSettings(
        bucket_bytes=most, first_bucket_bytes=first, min_bucket_bytes=0, bucketing=bucketing
    )
    choice = choose((ready, wire), now)
    tried = candidates(sum(n + 63 for n, _ in ready))
    assert choice.bucket_bytes in (*tried, most)
    assert choice.first_bucket_bytes in (*tried, first)
    if choice.seconds is None:
        assert choice.bucket_bytes == most
    else:
        assert 0 <= choice.seconds <= choice.seconds_now * (1 + 1e-8)


def test_ranks_are_merged() -> None:
    ranks = [
        ([(8, 0.1), (16, 0.5)], [(24, 0.01), (24, 0.09)]),
        ([(8, 0.3), (16, 0.4)], [(24, 0.04), (24, 0.02)]),
    ]
    assert merge(ranks) == ([(8, 0.3), (16, 0.5)], [(24, 0.01), (24, 0.02)])
