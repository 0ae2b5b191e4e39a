"""From times to rows: near to the fastest at every size, and steady under noise."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from hpccomm.calls.tuning_table import Pick
from hpccomm.tools.tune import measuring

A, B, NATIVE = Pick("a"), Pick("b"), Pick("native")
SIZES = [8 << 2 * step for step in range(10)]


def taken(rows, size):
    return [row.pick for row in rows if row.start <= size][-1]


def test_the_faster_one_is_taken_and_the_change_lies_between():
    times = [(size, {A: 1.0, B: 2.0 if size < 1024 else 0.5}) for size in SIZES]
    first, second = measuring.rows(times)
    assert (first.start, first.pick, second.pick) == (0, A, B)
    assert 512 < second.start < 2048
    assert 512 < measuring.changes((first, second), SIZES)[0] < 2048
    assert measuring.changes((first, second), [*SIZES, 1024]) == []


@given(st.integers(0, 1 << 32))
def test_noise_changes_nothing(seed):
    noise = random.Random(seed)
    times = [(size, {p: noise.uniform(1.0, 1.03) for p in (A, B)}) for size in SIZES]
    assert len(measuring.rows(times)) == 1


def test_the_librarys_own_is_taken_of_two_as_fast():
    times = [(size, {A: 1.0, NATIVE: 1.01}) for size in SIZES]
    assert measuring.rows(times)[0].pick == NATIVE
    times = [(size, {A: 1.0, NATIVE: 1.06}) for size in SIZES]
    assert measuring.rows(times)[0].pick == A


@given(
    st.lists(
        st.fixed_dictionaries({pick: st.floats(1e-6, 1.0) for pick in (A, B, NATIVE)}),
        min_size=1,
        max_size=6,
    )
)
def test_no_other_sequence_costs_less(measured):
    times = list(zip(SIZES, measured, strict=False))

    def cost(picks):
        total = sum(
            measuring.loss(took[pick], min(took.values())) + (pick != NATIVE) * measuring.OWN
            for pick, (_, took) in zip(picks, times, strict=True)
        )
        return total + measuring.CHANGE * sum(a != b for a, b in itertools.pairwise(picks))

    rows = measuring.rows(times)
    found = [taken(rows, size) for size, _ in times]
    least = min(map(cost, itertools.product((A, B, NATIVE), repeat=len(times))))
    assert cost(found) <= least + 1e-9


def test_what_was_not_measured_at_a_size_is_not_taken_there():
    times = [(8, {A: 1.0}), (32, {B: 1.0}), (128, {A: 1.0, B: 0.9})]
    rows = measuring.rows(times)
    assert [taken(rows, size) for size, _ in times] == [A, B, B]
