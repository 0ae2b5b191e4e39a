"""Rounds that repeat one another, as those of a pipeline that is full.

Time has no zero: where a round comes again, and everything that it looks at (clocks, links, engines)
stands later by the same number of seconds than the last time, everything that it moves is also later
by that. So it need not be worked out again. That is exact but for the rounding of the clocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpccomm.schedules.cost.links import Times
from hpccomm.schedules.schedule import Column, Mask

ROUNDING = 1e-12
"""Shifts that differ by less than this part of the clocks are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class ClockSlice:
    """Some elements of one array of clocks, or of seconds that something has been busy for."""

    array: Times
    index: Column | slice

    def now(self) -> Times:
        """Return a copy of the elements."""
        found: Times = self.array[self.index]
        return found.copy() if isinstance(self.index, slice) else found


def rows(mask: Mask) -> Column | slice:
    """Return an index of the elements in `mask`; a slice where that is all of them, as is quicker."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


@dataclass(frozen=True, slots=True, eq=False)
class _WorkedOut:
    """A round that was worked out: what it looked at, before and after, and what it added."""

    before: tuple[Times, ...]
    after: tuple[Times, ...]
    added: tuple[Times, ...]


class Repeats:
    """A round that comes again and again, and what came of it when it was last worked out.

    Parameters
    ----------
    clocks : sequence of Part
        All that it looks at, and moves.
    totals : sequence of Part
        What it adds to.
    """

    def __init__(self, clocks: Sequence[ClockSlice], totals: Sequence[ClockSlice]) -> None:
        self._clocks = clocks
        self._totals = totals
        self._taken: _WorkedOut | None = None

    def take(self, work_out: Callable[[], None]) -> None:
        """Take the round once more; `work_out` does it where the clocks do not tell its result."""
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
    """Return by how much all of `now` is later than `before`; None if that differs."""
    shifts = [later - sooner for later, sooner in zip(now, before, strict=True) if len(later)]
    if not shifts:
        return 0.0
    least = min(float(each.min()) for each in shifts)
    most = max(float(each.max()) for each in shifts)
    latest = max(float(each.max(initial=0.0)) for each in now)
    return least if most - least <= ROUNDING * latest else None
