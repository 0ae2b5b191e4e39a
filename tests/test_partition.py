"""Blocks of arrays lie one after the other, cover all of it and differ by little."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Listed,
    clipped,
    even,
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
