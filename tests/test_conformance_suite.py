"""The conformance suite finds faults: some are planted here, and it must fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpccomm import CommOptions, ReduceOp, UsageError, Work, execution, hooks, paths, reductions
from hpccomm.algorithms import ALGORITHMS, linear, tree
from hpccomm.communicator import core, messages
from hpccomm.contracts.schedule import Fold
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance.check import equal, raises, same_bits
from hpccomm.testing.conformance.inputs import MOVABLE, PAIRS, poison, reduced, reduction

CASES = {case.name: case for case in conformance.cases()}

Plant = Callable[[pytest.MonkeyPatch], None]


def test_names_are_unique() -> None:
    assert len(CASES) == len(conformance.cases())


def test_a_case_that_needs_what_is_missing_says_so() -> None:
    case = conformance.Case("name", print, {}, needs=("json", "no_such_module"))
    assert case.missing() == "not installed: no_such_module"
    assert conformance.Case("name", print, {}, needs=("json",)).missing() is None


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_poison_differs_in_every_element(dtype: np.dtype[Any]) -> None:
    expected = np.zeros(9, dtype)
    assert not (poison(expected).view(np.uint8) == expected.view(np.uint8)).all()
    with pytest.raises(AssertionError):
        equal(poison(expected)[:1], expected[:1])


@pytest.mark.parametrize("size", [1, 2, 3, 8, 20])
def test_inputs_reduce_exactly_in_any_order(size: int) -> None:
    for op, dtype in PAIRS:
        arrays = reduced(op, size, (50,), dtype)
        equal(reduction(op, arrays[::-1]), reduction(op, arrays), f"{op} of {dtype}")


def test_equal_sees_dtype_shape_and_values() -> None:
    x = np.arange(3.0)
    equal(x.copy(), x)
    for other in (x.astype(np.float32), x.reshape(1, 3), x + 1e-15, list(x)):
        with pytest.raises(AssertionError):
            equal(other, x)
    equal(np.array(np.nan), np.array(np.nan))
    with pytest.raises(AssertionError):
        same_bits(np.array(0.0), np.array(-0.0))


def test_raises_sees_class_and_words() -> None:
    with raises(UsageError, "ROOT"):
        raise UsageError("root is 3")
    with pytest.raises(AssertionError, match="lacks"), raises(UsageError, "dst"):
        raise UsageError("root is 3")
    with pytest.raises(AssertionError, match="not raised"), raises(UsageError):
        pass
    with pytest.raises(ZeroDivisionError), raises(UsageError):
        raise ZeroDivisionError


def a_nan_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(reductions._UFUNC, ReduceOp.MIN, np.fmin)


def the_last_element_is_left_out(patch: pytest.MonkeyPatch) -> None:
    original = reductions.fold

    def fold(op: Any, contributions: Any, out: Any, **keywords: Any) -> None:
        original(op, [each[:-1] for each in contributions], out[:-1], **keywords)

    patch.setattr(execution, "fold", fold)


def averages_are_rounded_down(patch: pytest.MonkeyPatch) -> None:
    def finish_average(total: Any, contributions: int) -> None:
        total[:] = total // contributions

    patch.setattr(reductions, "finish_average", finish_average)


def x_is_multiplied_itself(patch: pytest.MonkeyPatch) -> None:
    original = reductions.premultiply

    def premultiply(op: Any, source: Any, target: Any) -> None:
        original(op, source, source)
        target[:] = source

    patch.setattr(paths, "premultiply", premultiply)


def the_root_is_rank_0(patch: pytest.MonkeyPatch) -> None:
    def broadcast(rank: int, size: int, call: Any) -> Any:
        return tree.broadcast(rank, size, replace(call, root=0))

    patch.setattr(paths, "ALGORITHMS", {**ALGORITHMS, "broadcast": {"tree": broadcast}})


def contributions_are_folded_backwards(patch: pytest.MonkeyPatch) -> None:
    def all_reduce(rank: int, size: int, call: Any) -> Any:
        schedule = linear.all_reduce(rank, size, call)
        (exchange,) = schedule.rounds
        (fold,) = exchange.local
        backwards = Fold(fold.sources[::-1], fold.target)
        return replace(schedule, rounds=(exchange._replace(local=(backwards,)),))

    own = dict.fromkeys(ALGORITHMS["all_reduce"], all_reduce)
    patch.setattr(paths, "ALGORITHMS", {**ALGORITHMS, "all_reduce": own})


def any_layout_is_taken(patch: pytest.MonkeyPatch) -> None:
    for module in (core, messages):
        patch.setattr(module, "check_layout", lambda *args, **keywords: None)


def hooks_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hooks.Handle, "remove", lambda self: None)


def failures_are_kept_quiet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Work, "exception", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (a_nan_is_lost, "reductions.nan_spreads[MIN]"),
        (the_last_element_is_left_out, "reductions.all_reduce[SUM-float32]"),
        (averages_are_rounded_down, "reductions.average_of_integers_rounds_towards_zero"),
        (x_is_multiplied_itself, "reductions.premultiplied_sum[all_reduce]"),
        (the_root_is_rank_0, "collectives.broadcast[float32]"),
        (contributions_are_folded_backwards, "deterministic.the_order_is_the_ranks[float32-SUM]"),
        (any_layout_is_taken, "misused_arrays.outputs[read_only]"),
        (hooks_stay, "observers.hooks_come_off"),
        (failures_are_kept_quiet, "failures.asynchronous_recv_times_out"),
    ],
)
def test_a_planted_fault_is_found(plant: Plant, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some faults would not get past the check that a new communicator makes of itself.
    unchecked = CommOptions(self_check=False)
    run_ranks(3, CASES[name].run, timeout=20, options=unchecked)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_ranks(3, CASES[name].run, timeout=20, options=unchecked)
