"""Cutting arrays into blocks."""

from collections.abc import Sequence
from itertools import accumulate

from hpccomm.contracts.schedule import Slice


def even(count: int, parts: int) -> tuple[int, ...]:
    """Return the sizes of `parts` blocks of `count` elements that differ by at most one."""
    return tuple((i + 1) * count // parts - i * count // parts for i in range(parts))


def slices(buffer: str, counts: Sequence[int]) -> tuple[Slice, ...]:
    """Return blocks of `counts` elements that lie one after the other in `buffer`."""
    starts = (0, *accumulate(counts))
    return tuple(Slice(buffer, start, count) for start, count in zip(starts, counts, strict=False))


def offsets(counts: Sequence[int]) -> tuple[int, ...]:
    """Return where blocks of `counts` elements begin that lie one after the other."""
    return (0, *accumulate(counts))[: len(counts)]
