"""Builds the rows of a table from measured times.

`measuring` calls it for each collective.
"""

import math
from collections.abc import Mapping, Sequence

from hpccomm.dispatch.policy import NATIVE, Pick, TableRow, TableRows

CHANGE = math.log(1.1)
"""Least gain over all sizes for which the pick changes: the logarithm of a time ratio."""

LIMIT = math.log(1.05)
"""A pick that is further from the fastest at a size than this counts `WEIGHT` times more."""

WEIGHT = 10.0
"""The factor for the part of a loss that is beyond `LIMIT`."""

OWN = math.log(1.02)
"""Least gain at a size for which an algorithm of hpccomm's replaces the library's own call, which
lets other threads run Python while it waits."""

Times = Sequence[tuple[int, Mapping[Pick, float]]]
"""Pairs of a size in bytes and the seconds of each pick that was measured there, in ascending order."""


def rows(times: Times) -> TableRows:
    """Return rows whose picks are close to the fastest at every size, with few changes.

    The rows are the sequence of picks with the least cost. The cost is the sum of the logarithmic losses
    against the fastest pick of each size, and of a constant for each change. Because of this constant,
    noise between picks of about the same speed causes no change. The sequence is found by dynamic
    programming (A. J. Viterbi, "Error bounds for convolutional codes and an asymptotically optimum
    decoding algorithm", 1967).

    Where two neighboring sizes have different picks, the switch point is their geometric mean.
    """
    picks = sorted({pick for _, measured in times for pick in measured})
    cost = dict.fromkeys(picks, 0.0)
    before: list[dict[Pick, Pick]] = []
    for position, (_, measured) in enumerate(times):
        cheapest = min(picks, key=lambda pick: cost[pick])
        came = {
            pick: pick if not position or cost[pick] <= cost[cheapest] + CHANGE else cheapest
            for pick in picks
        }
        fastest = min(measured.values())
        cost = {
            pick: cost[came[pick]]
            + (CHANGE if came[pick] != pick else 0.0)
            + _loss(measured.get(pick, math.inf), fastest)
            + (0.0 if pick.algorithm == NATIVE else OWN)
            for pick in picks
        }
        before.append(came)
    pick = min(picks, key=lambda each: cost[each])
    chosen = []
    for came in reversed(before):
        chosen.append(pick)
        pick = came[pick]
    chosen.reverse()
    result = [TableRow(0, chosen[0])]
    for index in range(1, len(times)):
        if chosen[index] != chosen[index - 1]:
            start = round(math.sqrt(times[index - 1][0] * times[index][0]))
            result.append(TableRow(start, chosen[index]))
    return tuple(result)


def _loss(seconds: float, fastest: float) -> float:
    """Return the logarithmic loss of a pick at a size; the part beyond `LIMIT` counts more."""
    lost = math.log(seconds / fastest)
    return lost + WEIGHT * max(0.0, lost - LIMIT)


def changes(rows: TableRows, sizes: Sequence[int]) -> list[int]:
    """Return further sizes to measure: one between each two sizes that have different picks.

    Neighbors that differ by a factor of at most two need no size between them.
    """
    between = []
    for row in rows[1:]:
        below = max((size for size in sizes if size < row.start), default=0)
        above = min(size for size in sizes if size >= row.start)
        if below and above > 2 * below:
            between.append(round(math.sqrt(below * above)))
    return between
