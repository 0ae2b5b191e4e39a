"""Blocks of arrays lie one after the other, cover all of it and differ by little."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Even,
    Listed,
    clipped,
    even,
    offsets,
    ranges,
)

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def blocks_of(blocks: Blocks, parts: int) -> list[tuple[int, int]]:
    starts, counts = blocks.at(np.arange(parts))
    return list(zip(starts.tolist(), counts.tolist(), strict=True))


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_even_blocks(count: int, parts: int) -> None:
    blocks = even(count, parts)
    assert len(blocks) == parts
    assert sum(blocks) == count
    assert max(blocks) - min(blocks) <= 1


@given(COUNTS)
def test_offsets(counts: list[int]) -> None:
    assert [sum(counts[:i]) for i in range(len(counts))] == list(offsets(counts))


@given(st.integers(0, 50), st.integers(0, 500), st.integers(1, 40))
def test_even_blocks_as_columns(start: int, count: int, parts: int) -> None:
    blocks = Even(start, count, parts)
    expected = zip(offsets(even(count, parts)), even(count, parts), strict=True)
    assert blocks_of(blocks, parts) == [(start + at, size) for at, size in expected]
    assert blocks.largest == max(even(count, parts))


@given(COUNTS, st.integers(0, 50))
def test_listed_blocks(counts: list[int], start: int) -> None:
    blocks = Listed(counts, start)
    expected = zip(offsets(counts), counts, strict=True)
    assert blocks_of(blocks, len(counts)) == [(start + at, size) for at, size in expected]
    assert blocks.largest == max(counts)


@given(COUNTS, st.integers(1, 12))
def test_clipped_blocks_cover_each_block_in_order(counts: list[int], segment: int) -> None:
    whole = blocks_of(Listed(counts), len(counts))
    pieces = clipped(Listed(counts), segment)
    for rank, (start, count) in enumerate(whole):
        covered: list[int] = []
        for piece in pieces:
            first, some = blocks_of(piece, len(counts))[rank]
            assert some <= min(segment, piece.largest)
            covered.extend(range(first, first + some))
        assert covered == list(range(start, start + count))


@given(st.integers(0, 500), st.integers(1, 600))
def test_ranges_cover_the_array(count: int, segment: int) -> None:
    cut = ranges(count, segment)
    assert cut
    assert all(each.count == segment for each in cut[:-1])
    covered = [i for each in cut for i in range(each.start, each.start + each.count)]
    assert covered == list(range(count))
