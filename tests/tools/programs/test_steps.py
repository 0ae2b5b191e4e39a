"""Steps and where their time goes: programs of known times, and a loop over all their nanoseconds."""

import numpy as np
import pytest
from recordings_made import MARK, MadeCall, all_reduce, made, stepped

from hpccomm.results.recording import ASYNC, DEVICE, POLLED, CallSignature, waits
from hpccomm.tools.programs.steps import (
    COMPUTE,
    EXPOSED,
    FIXED,
    HIDDEN,
    WAITING,
    fixed_costs,
    period,
    shares,
    steps,
)


def bounded(recording):
    return steps(recording, waits(recording).collectives)


def parts(recording):
    waiting = waits(recording)
    return shares(recording, steps(recording, waiting.collectives), waiting)


def program(ranks, sequence, gap=100, transfer=50):
    """Return the recording of ranks that call these sizes one after the other, later ranks a little later."""
    rows = [[] for _ in range(ranks)]
    for at, size in enumerate(sequence, 1):
        begin = (gap + transfer) * at - transfer
        for rank, row in enumerate(rows):
            call = MadeCall(all_reduce(4 * size), at, begin + rank, begin + ranks - 1 + transfer)
            row.append(call)
    return made(rows)


def test_marks_bound_steps_and_what_is_before_the_first_is_warm_up():
    recording = stepped(3, 5, lambda rank, step: 100 + step, 10)
    found = bounded(recording)
    assert found.how == "4 steps, by marks"
    assert np.diff(found.bounds, axis=0).tolist() == [[111] * 3, [112] * 3, [113] * 3, [114] * 3]
    assert found.median == 1
    assert found.typical.tolist() == [1, 2]
    assert found.calls(recording, 1, 2) == slice(23, 25)  # from the mark on


def test_one_mark_ends_the_step_that_begins_with_the_recording():
    one = all_reduce(8)
    rows = [[MadeCall(one, 1, 10 * rank, 50), MadeCall(MARK, 0, 60, 60)] for rank in range(2)]
    assert bounded(made(rows)).bounds.tolist() == [[0, 10], [60, 60]]


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
    rows = [[], []]
    for rank, row in enumerate(rows):
        for at in range(20):
            now = 1000 * at
            row.append(MadeCall(all_reduce(64, ASYNC), 3 * at + 1, now + 10 + rank, now + 90))
            for part in (2, 3):
                begin = now + 100 * part
                row.append(MadeCall(all_reduce(8), 3 * at + part, begin, begin + 9))
    found = bounded(made(rows))
    assert found.how == "19 steps, by the period of 3 calls"
    assert found.bounds[0].tolist() == [309, 309]


def test_messages_alone_have_the_period_of_each_rank():
    send, receive = (
        CallSignature(name, 0, 8, POLLED, {"dst": dst, "src": src, "tag": 0})
        for name, dst, src in (("send", 1, None), ("recv", None, 0))
    )
    rows = [[], []]
    for at in range(0, 2000, 100):
        rows[0] += [MadeCall(send, 0, at, at + 5), MadeCall(send, 0, at + 10, at + 15)]
        rows[1] += [MadeCall(receive, 0, at, at + 8), MadeCall(receive, 0, at + 10, at + 18)]
    found = bounded(made(rows))
    assert len(found) == 39  # a send is as the one before
    assert found.bounds[0].tolist() == [5, 8]


@pytest.mark.parametrize("busy", [0, 4_000_000])
@pytest.mark.parametrize(
    "sizes", [[8] * 60, [8, 16] * 30, pytest.param([8] * 1500, marks=pytest.mark.thorough)]
)
def test_a_computation_divides_steps_of_equal_calls(sizes: list[int], busy: int) -> None:
    """As a program does that was timed: 60 sums of 3 us each, then 1 ms of work; a busy system interrupts one rank."""
    random = np.random.default_rng(1)
    rows: list[list[MadeCall]] = [[], []]
    now = 0
    for at in range(20 * len(sizes)):
        one = all_reduce(sizes[at % len(sizes)])
        begins = [now + random.integers(2_000, 4_000) for _ in rows]
        if at % len(sizes) == 0:
            begins = [each + random.integers(1_000_000, 2_000_000) for each in begins]
        if random.integers(len(sizes)) == 0:
            begins[random.integers(2)] += busy
        now = int(max(begins)) + 3_000
        for row, begin in zip(rows, begins, strict=True):
            row.append(MadeCall(one, at + 1, int(begin), now))
    recording = made(rows)
    found = bounded(recording)
    assert len(found) >= 14
    assert found.how.endswith(f"by the period of {len(sizes)} calls")
    assert {found.calls(recording, at, 0).start % len(sizes) for at in range(len(found))} == {0}


def test_what_has_no_period_is_one_step():
    found = bounded(program(2, np.random.default_rng(1).integers(1, 50, 60).tolist()))
    assert (len(found), found.how) == (1, "the whole recording, in which no period was found")
    assert period(np.array([1, 1, 2, 3, 4, 5, 1, 6])) is None
    # A step of many equal calls and a rare one has both.
    sequence = np.array(([1] * 200 + [2]) * 10)
    assert period(sequence) == (201, 0, len(sequence))


def test_shares_of_a_step_are_those_that_were_made():
    # Large calls of known cost, and small ones: t = 10 us + 1 ns a byte.
    small, large = all_reduce(1_000), all_reduce(1_000_000)
    rows = [[], []]
    for rank, row in enumerate(rows):
        now = 0
        for step in range(1, 9):
            row.append(MadeCall(small, 2 * step - 1, now + 50_000, now + 61_000))
            begin = now + 161_000 - 40_000 * rank
            row.append(MadeCall(large, 2 * step, begin, now + 1_171_000))
            now += 1_171_000
            row.append(MadeCall(MARK, 0, now, now))
    found = parts(made(rows))
    cost = found.costs["all_reduce", 0]
    assert cost.alpha == pytest.approx(10e-6, rel=1e-6)
    assert cost.beta == pytest.approx(1e-9, rel=1e-6)
    assert cost.half_performance_bytes == pytest.approx(10_000, rel=1e-6)
    expected = np.zeros((2, 5))
    expected[:, COMPUTE] = 150_000, 110_000
    expected[:, WAITING] = 0, 40_000
    expected[:, FIXED] = 10_000
    expected[:, EXPOSED] = 1_000 + 1_010_000
    assert found.typical == pytest.approx(expected, abs=1)
    # POP: the mean of the ranks' useful computation over its maximum.
    assert "1.171 ms" in str(found).splitlines()[-1]


def test_a_call_on_a_device_blocks_while_the_host_puts_it_there():
    one = all_reduce(1 << 20, DEVICE)
    row = [MadeCall(MARK, 0, 0, 0), MadeCall(one, 1, 100, 900, asked=0, waited=50)]
    row.append(MadeCall(MARK, 0, 1000, 1000))
    found = parts(made([row, row]))
    assert found.parts[0, 0].tolist() == [200, 750, 0, 50, 0]


def test_calls_that_block_at_the_same_time_in_two_threads_count_once():
    one = all_reduce(1 << 20)
    first = [MadeCall(one, 1, 100, 500), MadeCall(one, 2, 300, 900), MadeCall(MARK, 0, 1000, 1000)]
    other = [MadeCall(one, 1, 200, 500), MadeCall(one, 2, 600, 900), MadeCall(MARK, 0, 1000, 1000)]
    found = parts(made([first, other]))
    # Until 200 and, behind the first call, from 500 to 600.
    assert found.parts[0, 0].tolist() == [100, 0, 200, 600, 0]


def test_random_programs_have_the_shares_of_a_loop_over_all_nanoseconds():
    for seed in range(3):
        recording = _random_program(np.random.default_rng(seed))
        waiting = waits(recording)
        found = steps(recording, waiting.collectives)
        counted = shares(recording, found, waiting)
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
    costs = fixed_costs(recording, waiting)
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
                return WAITING
            cost = costs[one.operation, one.group]
            small = one.nbytes <= cost.half_performance_bytes
            fixed = small and moment < max(since, arrival) + round(cost.alpha * 1e9)
            return FIXED if fixed else EXPOSED
        flying |= not one.blocks and calls["begin"][at] <= moment < calls["end"][at]
    return HIDDEN if flying else COMPUTE
