"""One clock for all ranks: the true offset lies within the bounds and on the lines."""

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.runtime.clocks import ClockLine, CommonClock, Offset, bounded
from hpccomm.testing.threads import run_ranks

delays = st.lists(st.tuples(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2)), min_size=1, max_size=30)


@given(delays, st.floats(-1e6, 1e6))
def test_bounds_hold_the_offset_whatever_messages_take(delays, offset):
    now, exchanges = 100.0, []
    for there, back in delays:
        exchanges.append((now, now + there + offset, now + there + back))
        now += there + back
    found = bounded(np.array(exchanges))
    rounding = 1e-9
    assert found.low - rounding <= offset <= found.high + rounding
    assert found.error <= min(there + back for there, back in delays) / 2 + rounding


@given(st.floats(-1e-4, 1e-4), st.floats(-1e3, 1e3), st.floats(0, 1))
def test_a_line_knows_drift_between_its_ends_and_back(drift, offset, share):
    def ahead(mine):
        return offset + drift * mine

    before, after = 50.0, 52.0
    errors = 1e-6, 3e-6
    line = ClockLine(
        *(
            Offset(at, ahead(at) - error, ahead(at) + error)
            for at, error in zip((before, after), errors, strict=True)
        )
    )
    mine = before + share * (after - before)
    assert line.error == pytest.approx(3e-6, rel=1e-3)
    assert line.other(np.array(mine)) == pytest.approx(mine + ahead(mine), abs=1e-9)
    assert line.mine(float(line.other(np.array(mine)))) == pytest.approx(mine, abs=1e-9)


@given(
    st.floats(-1e-5, 1e-5), st.floats(1e-3, 10), st.floats(0, 1), st.floats(0, 1), st.floats(0, 60)
)
def test_readings_soon_after_each_other_say_little_of_later_times(drift, apart, early, late, later):
    error = 2e-6

    def read(at, share):  # the truth is somewhere within the bounds
        low = drift * at - 2 * error * share
        return Offset(at, low, low + 2 * error)

    line = ClockLine(read(50.0, early), read(50.0 + apart, late))
    mine = 50.0 + apart + later
    truth = mine + drift * mine
    # What it is wrong by is the reading's error, and what clocks drift; not errors times the distance.
    allowed = error + abs(drift) * later + 1e-9
    assert abs(float(line.other(np.array(mine))) - truth) <= allowed
    assert line.mine(float(line.other(np.array(mine)))) == pytest.approx(mine, abs=1e-9)


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(6, marks=pytest.mark.thorough)])
def test_ranks_with_clocks_of_their_own_agree_on_the_first_rank_s(ranks):
    def skewed(rank):
        return lambda: perf_counter() * (1 + 1e-5 * rank) + 1000.0 * rank

    def judged(comm):
        own = skewed(comm.rank)
        common = CommonClock(comm, own, name="")
        instants = [(own(), perf_counter(), own()) for _ in range(100)]
        common.read()
        before, true, after = np.array(instants).T
        # The truth was read between the two.
        assert np.all(common.common(before) - common.error <= true)
        assert np.all(true <= common.common(after) + common.error)
        assert common.common(np.array(common.local(true[0]))) == pytest.approx(true[0], abs=1e-9)
        return common.error

    assert max(run_ranks(ranks, judged)) < 0.02


def test_ranks_of_one_kernel_need_no_messages():
    assert run_ranks(3, lambda comm: CommonClock(comm).error) == [0.0] * 3
