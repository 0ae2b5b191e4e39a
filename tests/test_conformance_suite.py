"""The conformance suite, and the cases of the front end, find faults: some are planted here, and they must fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import front
from hpccomm import CommOptions, ReduceOp, UsageError, Work
from hpccomm.backends.loopback import LoopbackExposure, LoopbackMemory
from hpccomm.communicator import counts, prepared_calls
from hpccomm.communicator.lanes import host as host_lane
from hpccomm.dispatch import algorithms as own
from hpccomm.dispatch import host
from hpccomm.dispatch.execution import program, runner
from hpccomm.dispatch.execution.variants import Variants
from hpccomm.dispatch.policy import choosing
from hpccomm.memory import folding
from hpccomm.memory.folding import Folder
from hpccomm.runtime import reports
from hpccomm.runtime.inquiry import Inquiry
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.schedules.schedule import Channel, Copies, Folds, Round, Schedule, Transfers
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance.algorithms import METHODS, Method
from hpccomm.testing.conformance.check import equal, raises, same_bits
from hpccomm.testing.conformance.deterministic import order_matters
from hpccomm.testing.conformance.inputs import MOVABLE, PAIRS, poison, reduced, reduction

CASES = {case.name: case for case in (*conformance.cases(), *front.cases())}

Plant = Callable[[pytest.MonkeyPatch], None]


def test_names_are_unique() -> None:
    assert len(CASES) == len(conformance.cases()) + len(front.cases())


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
    patch.setitem(folding.UFUNC, ReduceOp.MIN, np.fmin)


def the_last_element_is_left_out(patch: pytest.MonkeyPatch) -> None:
    class Shorter(Folder):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.pair = None

        def __call__(self, sources: Any, out: Any, final: bool = True) -> None:
            super().__call__([each[:-1] for each in sources], out[:-1], final)

    patch.setattr(own, "Folder", Shorter)


def each_fold_divides(patch: pytest.MonkeyPatch) -> None:
    class Hasty(Folder):
        def __call__(self, sources: Any, out: Any, final: bool = True) -> None:
            super().__call__(sources, out, True)

    patch.setattr(own, "Folder", Hasty)


def nothing_is_copied(patch: pytest.MonkeyPatch) -> None:
    for module in (runner, program):
        patch.setattr(module, "copy", lambda source, target: None)


def averages_are_rounded_down(patch: pytest.MonkeyPatch) -> None:
    class Downwards:
        def __init__(self, dtype: Any, contributions: int) -> None:
            self._contributions = contributions

        def __call__(self, total: Any) -> None:
            total[:] = total // self._contributions

    patch.setattr(folding, "Average", Downwards)


def x_is_multiplied_itself(patch: pytest.MonkeyPatch) -> None:
    original = folding.premultiply

    def premultiply(op: Any, source: Any, target: Any) -> None:
        original(op, source, source)
        target[:] = source

    patch.setattr(host, "premultiply", premultiply)


def replaced(patch: pytest.MonkeyPatch, collective: str, each: dict[str, Algorithm]) -> None:
    for module in (own, choosing):
        patch.setattr(module, "ALGORITHMS", {**ALGORITHMS, collective: each})


def the_root_is_rank_0(patch: pytest.MonkeyPatch) -> None:
    def misled(algorithm: Algorithm) -> Algorithm:
        def build(group: Any, call: Any, tuning: Any) -> Schedule:
            return algorithm.build(group, replace(call, root=0), tuning)

        return replace(algorithm, build=build)

    each = {name: misled(algorithm) for name, algorithm in ALGORITHMS["broadcast"].items()}
    replaced(patch, "broadcast", each)


def contributions_are_folded_backwards(patch: pytest.MonkeyPatch) -> None:
    def backwards(each: Round) -> Round:
        local = [
            replace(step, sources=step.sources[::-1]) if isinstance(step, Folds) else step
            for step in each.local
        ]
        return each._replace(local=tuple(local))

    spoil(patch, "all_reduce", backwards)


def spoil(patch: pytest.MonkeyPatch, collective: str, fault: Callable[[Round], Round]) -> None:
    """Plant a fault in each round of every algorithm of a collective."""

    def spoilt(build: Any) -> Any:
        def channel(rounds: Channel) -> Channel:
            return lambda: map(fault, rounds())

        def build_spoilt(*arguments: Any) -> Schedule:
            schedule = build(*arguments)
            return replace(schedule, channels=tuple(map(channel, schedule.channels)))

        return None if build is None else build_spoilt

    each = {
        name: replace(
            algorithm,
            build=spoilt(algorithm.build),
            ordered=spoilt(algorithm.ordered),
            direct=spoilt(algorithm.direct),
            staged=spoilt(algorithm.staged),
        )
        for name, algorithm in ALGORITHMS[collective].items()
    }
    replaced(patch, collective, each)


def off_by_one(each: Round) -> Round:
    """Let messages begin one element early where they can, and local steps end one early."""

    def early(tables: tuple[Transfers, ...]) -> tuple[Transfers, ...]:
        return tuple(replace(table, start=np.maximum(table.start - 1, 0)) for table in tables)

    def short(step: Copies | Folds) -> Copies | Folds:
        return replace(step, count=step.count - 1)

    local = tuple(map(short, each.local))
    return each._replace(receives=early(each.receives), sends=early(each.sends), local=local)


def a_barrier_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    each = {
        name: replace(algorithm, build=lambda *_: Schedule(()))
        for name, algorithm in ALGORITHMS["barrier"].items()
    }
    replaced(patch, "barrier", each)


def the_next_ones_array_is_reached(patch: pytest.MonkeyPatch) -> None:
    original = LoopbackExposure.peer_buffer

    def reach(self: Any, peer: int, buffer: int, dtype: Any) -> Any:
        ranks = sorted(self._exposed)
        return original(self, ranks[(ranks.index(peer) + 1) % len(ranks)], buffer, dtype)

    patch.setattr(LoopbackExposure, "peer_buffer", reach)


def calls_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Variants, "_check", lambda *_: None)
    # What else would find it: the check of first calls, and the ranks that ask each other.
    patch.setenv("HPCCOMM_CHECK", "off")
    patch.setattr(Inquiry, "look", lambda *_: None)


def all_arrays_have_the_same_memory(patch: pytest.MonkeyPatch) -> None:
    memory = np.empty(1 << 22, np.uint8)
    patch.setattr(LoopbackMemory, "empty", lambda self, nbytes: memory[:nbytes])


def any_layout_is_taken(patch: pytest.MonkeyPatch) -> None:
    for module in (host_lane, prepared_calls, counts):
        patch.setattr(module, "check_layout", lambda *args, **keywords: None)


def hooks_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports.Handle, "remove", lambda self: None)


def failures_are_kept_quiet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Work, "exception", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (a_nan_is_lost, "reductions.nan_spreads[MIN]"),
        (the_last_element_is_left_out, "reductions.all_reduce[SUM-float32]"),
        (averages_are_rounded_down, "reductions.average_of_integers_rounds_towards_zero"),
        (each_fold_divides, "algorithms.reductions[all_reduce-ring]"),
        (nothing_is_copied, "algorithms.counts[all_gather-ring]"),
        (a_barrier_waits_for_nobody, "algorithms.barriers[dissemination-call]"),
        (x_is_multiplied_itself, "reductions.premultiplied_sum[all_reduce]"),
        (the_root_is_rank_0, "collectives.broadcast[float32]"),
        (contributions_are_folded_backwards, "deterministic.the_order_is_the_ranks[float32-SUM]"),
        (the_next_ones_array_is_reached, "shared_memory.arrays_lie_anywhere[reduce-shm-auto]"),
        (the_next_ones_array_is_reached, "shared_memory.groups[auto]"),
        (calls_are_not_compared, "shared_memory.calls_that_differ[op-auto]"),
        (all_arrays_have_the_same_memory, "registered.arrays_are_apart"),
        (any_layout_is_taken, "misused_arrays.outputs[read_only]"),
        (hooks_stay, "observers.hooks_come_off"),
        (failures_are_kept_quiet, "failures.asynchronous_recv_times_out"),
    ],
)
def test_a_planted_fault_is_found(plant: Plant, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some faults would not get past the check that a new communicator makes of itself, others not past that
    # of each first call.
    unchecked = CommOptions(self_check=False, check="off")
    run_ranks(3, CASES[name].run, timeout=60, options=unchecked)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_ranks(3, CASES[name].run, timeout=60, options=unchecked)


@pytest.mark.parametrize("method", METHODS, ids="-".join)
def test_a_fault_in_any_algorithm_is_found(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, method[0], off_by_one)
    case = CASES[f"algorithms.counts[{'-'.join(method)}]"]
    with pytest.raises(AssertionError, match=method[0]):
        run_ranks(3, case.run, timeout=60, options=CommOptions(self_check=False))


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "recursive_doubling"),
        ("all_reduce", "halving_doubling"),
        ("all_reduce", "tree"),
        ("all_reduce", "binomial"),
        ("reduce", "halving_doubling"),
        ("reduce", "tree"),
        ("reduce_scatter", "ring"),
        ("reduce_scatter", "halving_doubling"),
    ],
)
def test_an_algorithm_that_does_not_keep_the_order_is_found(
    collective: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ALGORITHMS[collective][algorithm]
    faulty = {**ALGORITHMS[collective], algorithm: replace(known, ordered=known.build)}
    replaced(monkeypatch, collective, faulty)
    name = f"deterministic.neither_algorithm_nor_segment_matters[12-{collective}-{algorithm}]"
    with pytest.raises(AssertionError, match="SUM of float32"):
        run_ranks(5, CASES[name].run, timeout=60)


@pytest.mark.parametrize("size", range(3, 9))
def test_cancelling_numbers_tell_orders_apart(size: int) -> None:
    arrays = order_matters(size, 60)
    left = reduction(ReduceOp.SUM, arrays)
    for first in range(1, size):
        turned = reduction(ReduceOp.SUM, arrays[first:] + arrays[:first])
        assert (turned != left).mean() > 0.1, f"from rank {first} on"
    halves = [reduction(ReduceOp.SUM, half) for half in (arrays[:2], arrays[2:])]
    if size > 3:
        assert (reduction(ReduceOp.SUM, halves) != left).mean() > 0.1, "in two halves"
