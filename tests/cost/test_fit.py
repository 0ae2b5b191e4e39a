"""Fits parameters to times with known parameters."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cost.calls import call_of

from hpccomm.bench.fit.parameters import Measurement, _fitted, fit
from hpccomm.errors import ResultsError
from hpccomm.schedules.cost.model import price
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.schedule import Tuning, whole

TRUTH = Network(
    "truth",
    16,
    8,
    reduce=20e9,
    inner=Level(1.5e-6, 80e9, 8),
    across=Level(6e-6, 12e9, 8),
    copy=30e9,
    overhead=3e-6,
)
UNKNOWN = replace(
    TRUTH,
    reduce=math.inf,
    copy=math.inf,
    overhead=0.0,
    inner=Level(1e-6, 5e9, 8),
    across=Level(1e-6, 5e9, 8),
)
EVERYTHING = [
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_gather", "ring"),
    ("all_gather", "hierarchical"),
    ("broadcast", "binomial"),
    ("barrier", "dissemination"),
]


@cache
def priced(network, algorithms):
    found = []
    for collective, algorithm in algorithms:
        for size in (8,) if collective == "barrier" else (8, 4 << 10, 256 << 10, 16 << 20, 1 << 28):
            call = call_of(collective, network.ranks, size)
            tuning = Tuning(whole, 1, network.topology())
            found.append(
                Measurement(call, algorithm, tuning, price(network, call, algorithm, tuning))
            )
    return found


def measurements(network, algorithms, noise=0.0):
    rng = np.random.default_rng(1)
    return [
        replace(each, seconds=each.seconds * (1 + noise * rng.standard_normal()))
        for each in priced(network, tuple(algorithms))
    ]


def values(found):
    return {each.name: each.value for each in found.parameters if not each.blank}


def close(tolerance):
    return pytest.approx(
        {
            "inner latency": 1.5e-6,
            "inner bandwidth": 80e9,
            "across latency": 6e-6,
            "across bandwidth": 12e9,
            "reduce": 20e9,
            "overhead": 3e-6,
            "copy": 30e9,
        },
        rel=tolerance,
    )


def test_known_parameters_are_found():
    found = fit(UNKNOWN, measurements(TRUTH, EVERYTHING))
    assert values(found) == close(1e-6)
    assert found.residuals == pytest.approx(0, abs=1e-9)
    assert found.network.across == replace(TRUTH.across, **levels(found, "across"))


def levels(found, kind):
    shown = values(found)
    return {"latency": shown[f"{kind} latency"], "bandwidth": shown[f"{kind} bandwidth"]}


def test_noise_moves_them_by_about_their_errors():
    found = fit(UNKNOWN, measurements(TRUTH, EVERYTHING, noise=0.02))
    shown = values(found)
    assert shown["across bandwidth"] == pytest.approx(12e9, rel=0.05)
    assert shown["across latency"] == pytest.approx(6e-6, rel=0.2)
    errors = {each.name: each.error for each in found.parameters}
    assert 0.001 < errors["across bandwidth"] < 0.1


def test_what_one_algorithm_does_not_tell_is_said():
    node = replace(TRUTH, ranks=2, across=None)
    known = replace(UNKNOWN, ranks=2, across=None)
    found = fit(known, measurements(node, [("all_reduce", "ring")]))
    blank = {each.name: each.blank for each in found.parameters}
    # Two ranks: a call's overhead is as constant as two latencies, folds are as many as bytes.
    assert blank["overhead"] == blank["reduce"] == "indistinguishable from those above"
    assert blank["copy"] == "no row depends on it"
    assert not blank["inner latency"]
    assert not blank["inner bandwidth"]
    assert "across latency" not in blank
    assert found.residuals == pytest.approx(0, abs=1e-9)


def test_what_is_not_told_stays_as_described():
    node = replace(TRUTH, ranks=2, across=None)
    known = replace(UNKNOWN, ranks=2, across=None, reduce=20e9, overhead=3e-6)
    found = fit(known, measurements(node, [("all_reduce", "ring")]))
    assert found.network.inner.latency == pytest.approx(1.5e-6)
    assert found.network.inner.bandwidth == pytest.approx(80e9)


NODE = replace(TRUTH, ranks=8, across=None)
NODE_UNKNOWN = replace(UNKNOWN, ranks=8, across=None)
WOULD_TAKE_NO_TIME = "with it, a message or its bytes would take no time"


def test_what_leaves_no_time_to_messages_is_not_fitted():
    truth = replace(NODE, inner=replace(NODE.inner, latency=0.0))
    # Rings send more messages than others, and are a little quicker.
    rows = [
        replace(row, seconds=row.seconds * (0.95 if row.algorithm == "ring" else 1.0))
        for row in measurements(truth, EVERYTHING)
    ]
    found = fit(NODE_UNKNOWN, rows)
    assert {each.name: each.blank for each in found.parameters if each.blank} == {
        "overhead": WOULD_TAKE_NO_TIME
    }
    assert found.network.inner.latency > 0


def test_nothing_is_left_out_where_that_does_not_help():
    names = ["inner latency", "inner bandwidth", "reduce", "overhead"]
    # Bytes would take less than no time, whatever folds and calls take.
    found, told = _fitted(np.eye(5)[:, :4], np.array([1.0, -1.0, 2.0, 3.0, 0.0]), names, NODE)
    assert told == names
    assert found == pytest.approx([1, 0, 2, 3])


def test_one_row_is_too_few():
    with pytest.raises(ResultsError, match="at least 2"):
        fit(UNKNOWN, measurements(TRUTH, [("barrier", "dissemination")]))


@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 4, 5))]
)
def test_nothing_is_negative_and_what_was_not_fitted_is_as_described(seed):
    rng = np.random.default_rng(seed)
    noisy = [
        replace(each, seconds=each.seconds * math.exp(rng.normal(0, 0.5)))
        for each in measurements(TRUTH, EVERYTHING)
    ]
    fitted = fit(UNKNOWN, noisy)
    assert all(each.value >= 0 for each in fitted.parameters)
    described = {"reduce": UNKNOWN.reduce, "copy": UNKNOWN.copy, "overhead": UNKNOWN.overhead}
    kept = {each.name: each.value for each in fitted.parameters if each.blank}
    assert kept == {name: value for name, value in described.items() if name in kept}
