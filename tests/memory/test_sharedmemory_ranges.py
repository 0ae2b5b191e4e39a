"""Which parts of a segment are free, against a model that knows each byte."""

from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.memory.shared.heap import FreeRanges, IdlePages

SIZE = 1000

ALIGNMENTS = st.sampled_from((1, 8, 64))


def gaps(taken: np.ndarray) -> list[tuple[int, int]]:
    """Start and end of each run of bytes that are not taken."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], taken, [True])).astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


@given(st.data())
def test_what_is_taken_overlaps_nothing_and_is_found_wherever_it_fits(data: st.DataObject) -> None:
    free = FreeRanges(SIZE)
    taken = np.zeros(SIZE, bool)
    live: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        if live and data.draw(st.booleans()):
            start, size = live.pop(data.draw(st.integers(0, len(live) - 1)))
            free.give(start, size)
            taken[start : start + size] = False
            continue
        size, alignment = data.draw(st.integers(1, SIZE // 2)), data.draw(ALIGNMENTS)
        start = free.take(size, alignment)
        fits = [
            (end - begin, begin)
            for begin, end in gaps(taken)
            if -(-begin // alignment) * alignment + size <= end
        ]
        if start is None:
            assert not fits
            continue
        assert start % alignment == 0
        assert start + size <= SIZE
        assert not taken[start : start + size].any()
        best = min(fits)[1]
        assert best <= start < best + alignment
        taken[start : start + size] = True
        live.append((start, size))
    for start, size in live:
        free.give(start, size)
    assert free.take(SIZE, 1) == 0


@given(st.data())
def test_idle_parts_are_those_that_became_free_and_were_not_used_since(data: st.DataObject) -> None:
    idle = IdlePages()
    since = np.full(SIZE, inf)
    for now in range(data.draw(st.integers(1, 20))):
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, SIZE)] * 2)))
        if data.draw(st.booleans()):
            idle.take(start, end)
            since[start:end] = inf
        elif start < end and (since[start:end] == inf).all():
            idle.add(start, end, now)
            since[start:end] = now
        assert idle.oldest() == since.min()
    before = data.draw(st.integers(0, now + 1))
    found = np.zeros(SIZE, bool)
    for start, end in idle.expired(before):
        assert not found[start:end].any()
        found[start:end] = True
    assert np.array_equal(found, since < before)
    assert not idle.expired(before)
    assert idle.oldest() == since[~found].min(initial=inf)
