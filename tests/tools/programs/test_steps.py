"""Steps and where their time goes: programs of known times, and a loop over all their nanoseconds."""

import numpy as np
import pytest
from programs_made import message
from recordings_made import MARK, MadeCall, all_reduce, in_turn, made, repeated, stepped

from hpccomm.results.recording import ASYNC, DEVICE, POLLED, waits
from hpccomm.tools.programs import steps


def bounded(recording):
    return steps.steps(recording, waits(recording).collectives)


def parts(recording):
    waiting = waits(recording)
    return steps.shares(recording, steps.steps(recording, waiting.collectives), waiting)


def program(ranks, sequence, gap=100, transfer=50):
    """Return the recording of ranks that call these sizes one after the other, later ranks a little later."""
    calls = [all_reduce(4 * size) for size in sequence]

    def compute(rank, at):
        return gap + rank - (ranks - 1) * bool(at)

    return in_turn(ranks, len(calls), compute, lambda _: transfer, calls.__getitem__, marks=0)


def test_marks_bound_steps_and_what_is_before_the_first_is_warm_up():
    recording = stepped(3, 5, lambda rank, step: 100 + step, 10)
    found = bounded(recording)
    assert found.how == "4 steps, by marks"
    assert np.diff(found.bounds, axis=0).tolist() == [[111] * 3, [112] * 3, [113] * 3, [114] * 3]
    assert found.median == 1
    assert found.typical.tolist() == [1, 2]
    assert found.calls(recording, 1, 2) == slice(23, 25)  # from the mark on


def test_one_mark_ends_the_step_that_begins_with_the_recording():
    recording = repeated(
        *([(all_reduce(8), rank, 50)] for rank in (0, 10)), steps=1, mark=60, unit=1
    )
    assert bounded(recording).bounds.tolist() == [[0, 10], [60, 60]]


@pytest.mark.parametrize("ranks", [1, 4])
def test_without_marks_the_period_of_the_calls_bounds_them(ranks):
    warm_up, step, rest = [9, 8, 7, 7, 1], [1, 1, 2, 1, 3], [1, 1, 9, 9]
    irregular = [*step[:3], 5, *step[3:]]  # one more call now and then
    sequence = warm_up + step * 20 + irregular + step * 19 + rest
    recording = program(ranks, sequence)
    found = bounded(recording)
    assert found.how == "39 steps, by the period of 5 calls"
    lengths = np.diff(found.bounds, axis=0)
    assert (lengths == lengths[:, :1]).all()
    assert sorted(lengths[:, 0].tolist()) == [750] * 38 + [900]


def test_steps_end_with_a_collective_that_blocks_all_ranks_where_there_is_one():
    blocking = [(all_reduce(8), begin, begin + 9) for begin in (200, 300)]
    ranks = ([(all_reduce(64, ASYNC), begin, 90), *blocking] for begin in (10, 11))
    found = bounded(repeated(*ranks, steps=20, every=1000, unit=1))
    assert found.how == "19 steps, by the period of 3 calls"
    assert found.bounds[0].tolist() == [309, 309]


def test_messages_alone_have_the_period_of_each_rank():
    ranks = (
        [(message(*peer), 0, took), (message(*peer), 10, 10 + took)]
        for peer, took in ((("dst", 1), 5), (("src", 0), 8))
    )
    found = bounded(repeated(*ranks, steps=20, unit=1))
    assert len(found) == 38  # a send is as the one before, and none follows the last one
    assert found.bounds[0].tolist() == [5, 8]


@pytest.mark.parametrize("busy", [0, 4_000_000])
@pytest.mark.parametrize(
    "sizes", [[8] * 60, [8, 16] * 30, pytest.param([8] * 1500, marks=pytest.mark.thorough)]
)
def test_a_computation_divides_steps_of_equal_calls(sizes: list[int], busy: int) -> None:
    """As a program does that was timed: 60 sums of 3 us each, then 1 ms of work; a busy system interrupts one rank."""
    random, count = np.random.default_rng(1), len(sizes)
    took = random.integers(2_000, 4_000, (2, 20 * count))
    took[:, ::count] += random.integers(1_000_000, 2_000_000, (2, 20))
    (interrupted,) = np.nonzero(random.integers(count, size=20 * count) == 0)
    took[random.integers(2, size=len(interrupted)), interrupted] += busy
    signatures = [all_reduce(size) for size in sizes]
    recording = in_turn(
        *took.shape,
        lambda *call: int(took[call]),
        lambda _: 3_000,
        lambda at: signatures[at % count],
        marks=0,
    )
    found = bounded(recording)
    assert len(found) >= 14
    assert found.how.endswith(f"by the period of {len(sizes)} calls")
    assert {found.calls(recording, at, 0).start % len(sizes) for at in range(len(found))} == {0}


def test_what_has_no_period_is_one_step():
    found = bounded(program(2, np.random.default_rng(1).integers(1, 50, 60).tolist()))
    assert (len(found), found.how) == (1, "the whole recording, in which no period was found")
    assert steps.period(np.array([1, 1, 2, 3, 4, 5, 1, 6])) is None
    # A step of many equal calls and a rare one has both.
    sequence = np.array(([1] * 200 + [2]) * 10)
    assert steps.period(sequence) == (201, 0, len(sequence))


def test_shares_of_a_step_are_those_that_were_made():
    # Large calls of known cost, and small ones: t = 10 us + 1 ns a byte.
    small, large = all_reduce(1_000), all_reduce(1_000_000)
    ranks = ([(small, 50, 61), (large, begin, 1171)] for begin in (161, 121))
    found = parts(repeated(*ranks, steps=8, every=1171, mark=1171))
    cost = found.costs["all_reduce", 0]
    assert cost.alpha == pytest.approx(10e-6, rel=1e-6)
    assert cost.beta == pytest.approx(1e-9, rel=1e-6)
    assert cost.half_performance_bytes == pytest.approx(10_000, rel=1e-6)
    expected = np.zeros((2, 5))
    expected[:, steps.COMPUTE] = 150_000, 110_000
    expected[:, steps.WAITING] = 0, 40_000
    expected[:, steps.FIXED] = 10_000
    expected[:, steps.EXPOSED] = 1_000 + 1_010_000
    assert found.typical == pytest.approx(expected, abs=1)
    # POP: the mean of the ranks' useful computation over its maximum.
    assert str(found).splitlines()[-1].split() == ["step", "1.171"]


def test_a_call_on_a_device_blocks_while_the_host_puts_it_there():
    one = all_reduce(1 << 20, DEVICE)
    calls = [(one, 100, 900, 0, 50)]
    found = parts(repeated(calls, calls, every=1000, mark=1000, unit=1))
    assert found.parts[0, 0].tolist() == [200, 750, 0, 50, 0]


def test_calls_that_block_at_the_same_time_in_two_threads_count_once():
    one = all_reduce(1 << 20)
    ranks = [(one, 100, 500), (one, 300, 900)], [(one, 200, 500), (one, 600, 900)]
    found = parts(repeated(*ranks, steps=1, mark=1000, unit=1))
    # Until 200 and, behind the first call, from 500 to 600.
    assert found.parts[0, 0].tolist() == [100, 0, 200, 600, 0]


def test_random_programs_have_the_shares_of_a_loop_over_all_nanoseconds():
    for seed in range(3):
        recording = _random_program(np.random.default_rng(seed))
        waiting = waits(recording)
        found = steps.steps(recording, waiting.collectives)
        counted = steps.shares(recording, found, waiting)
        assert (counted.parts.sum(axis=2) == np.diff(found.bounds, axis=0)).all()
        assert counted.parts.tolist() == _by_loop(recording, found, waiting)


def _random_program(random):
    ranks, number = 3, 40
    rows = [[] for _ in range(ranks)]
    now, free = [0] * ranks, 0
    for at in range(1, number + 1):
        asynchronous = bool(random.integers(2))
        one = all_reduce(int(4 ** random.integers(1, 8)), ASYNC if asynchronous else POLLED)
        begins = [each + int(random.integers(1, 40)) for each in now]
        # Calls of a communicator end in their order.
        free = end = max(*begins, free) + int(random.integers(1, 30))
        for rank, begin in enumerate(begins):
            if asynchronous:
                asked = begin + int(random.integers(1, 60))
                waited = max(0, end - asked)
                rows[rank].append(MadeCall(one, at, begin, end, asked, waited))
                now[rank] = asked + waited
            else:
                rows[rank].append(MadeCall(one, at, begin, end))
                now[rank] = end
        if at % 8 == 0:
            for rank, row in enumerate(rows):
                row.append(MadeCall(MARK, 0, now[rank], now[rank]))
    return made(rows)


def _by_loop(recording, found, waiting):
    costs = steps.fixed_costs(recording, waiting)
    calls, result = recording.calls, []
    for step in range(len(found)):
        result.append([])
        for rank in range(recording.ranks):
            sums = [0] * 5
            for moment in range(*found.bounds[step : step + 2, rank].tolist()):
                sums[_what(recording, waiting, costs, calls.of_rank(rank), moment)] += 1
            result[-1].append(sums)
    return result


def _what(recording, waiting, costs, of_rank, moment):
    calls, flying = recording.calls, False
    for at in range(of_rank.start, of_rank.stop):
        one = recording.signatures[calls["signature"][at]]
        since = int(calls["begin"][at] if one.blocks else calls["asked"][at])
        if since <= moment < since + calls["waited"][at]:
            arrival = int(calls["begin"][waiting.awaited[at]])
            if moment < arrival:
                return steps.WAITING
            cost = costs[one.operation, one.group]
            small = one.nbytes <= cost.half_performance_bytes
            fixed = small and moment < max(since, arrival) + round(cost.alpha * 1e9)
            return steps.FIXED if fixed else steps.EXPOSED
        flying |= not one.blocks and calls["begin"][at] <= moment < calls["end"][at]
    return steps.HIDDEN if flying else steps.COMPUTE
