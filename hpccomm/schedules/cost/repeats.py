"""Skips the computation of rounds that repeat, such as a full pipeline's.

Assume that a round repeats, and everything that it reads (clocks, links, engines) is later by the same
number of seconds than the last time. Then everything that it writes is later by the same number too, and
need not be computed again. This is exact up to the rounding of the clocks.

`hpccomm.schedules.cost.rounds` asks it before each round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpccomm.schedules.cost.links import Times
from hpccomm.schedules.schedule import Column

ROUNDING = 1e-12
"""Shifts are equal if they differ by less than this fraction of the clocks."""


@dataclass(frozen=True, slots=True, eq=False)
class ClockSlice:
    """Some elements of an array of clocks, or of an array of busy seconds."""

    array: Times
    index: Column | slice

    def now(self) -> Times:
        """Return a copy of the elements."""
        times: Times = self.array[self.index]
        return times.copy() if isinstance(self.index, slice) else times


def clock_slice(array: Times, indices: Sequence[Column]) -> ClockSlice:
    """Return the elements of an array at `indices`; a slice where that is all of them, as is quicker."""
    mask = np.zeros_like(array, np.bool_)
    for index in indices:
        mask[index] = True
    return ClockSlice(array, slice(None) if mask.all() else np.flatnonzero(mask))


@dataclass(frozen=True, slots=True, eq=False)
class _WorkedOut:
    """A computed round: its clocks before and after, and its additions to totals."""

    before: tuple[Times, ...]
    after: tuple[Times, ...]
    added: tuple[Times, ...]


class Repeats:
    """A round that repeats, and its effect when it was last computed.

    Parameters
    ----------
    clocks : sequence of ClockSlice
        All clocks that it reads and writes.
    totals : sequence of ClockSlice
        The totals to which it adds.
    """

    def __init__(self, clocks: Sequence[ClockSlice], totals: Sequence[ClockSlice]) -> None:
        self._clocks = clocks
        self._totals = totals
        self._taken: _WorkedOut | None = None

    def take(self, work_out: Callable[[], None]) -> None:
        """Run the round once more; `work_out` computes it where the clocks do not determine its result."""
        now = tuple(part.now() for part in self._clocks)
        shift = None if self._taken is None else _shift(self._taken.before, now)
        if self._taken is None or shift is None:
            sums = tuple(part.now() for part in self._totals)
            work_out()
            self._taken = _WorkedOut(
                now,
                tuple(part.now() for part in self._clocks),
                tuple(part.now() - old for part, old in zip(self._totals, sums, strict=True)),
            )
            return
        for part, after in zip(self._clocks, self._taken.after, strict=True):
            part.array[part.index] = after + shift
        for part, added in zip(self._totals, self._taken.added, strict=True):
            part.array[part.index] += added


def _shift(before: tuple[Times, ...], now: tuple[Times, ...]) -> float | None:
    """Return by how much all of `now` is later than `before`; None if the differences vary."""
    shifts = [later - sooner for later, sooner in zip(now, before, strict=True) if len(later)]
    if not shifts:
        return 0.0
    least = min(float(each.min()) for each in shifts)
    most = max(float(each.max()) for each in shifts)
    latest = max(float(each.max(initial=0.0)) for each in now)
    return least if most - least <= ROUNDING * latest else None
