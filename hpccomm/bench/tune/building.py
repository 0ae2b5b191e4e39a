"""From times to the rows of a table."""

import math
from collections.abc import Mapping, Sequence

from hpccomm.dispatch.policy import NATIVE, Pick, TableRow, TableRows

CHANGE = math.log(1.1)
"""What a change of the pick must gain in time, over all sizes that it holds for."""

LIMIT = math.log(1.05)
"""How far a pick may be from the fastest at a size before that weighs more."""

WEIGHT = 10.0
"""How much more."""

OWN = math.log(1.02)
"""What one of hpccomm's own algorithms must gain over the backend's at a size: that waits in the
library, and leaves the interpreter to other threads."""

Times = Sequence[tuple[int, Mapping[Pick, float]]]
"""For sizes in bytes, ascending: the seconds of what was measured there."""


def rows(times: Times) -> TableRows:
    """Return the rows that come near to the fastest pick at every size, with few changes.

    Among all sequences of picks this is the one of the least cost: the logarithm of what each size
    loses against its fastest pick, and a constant for each change, so that noise between ways that
    are about as fast changes nothing (A. J. Viterbi, "Error bounds for convolutional codes and an
    asymptotically optimum decoding algorithm", 1967).

    Two sizes with different picks are parted at their geometric mean.
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
    found = [TableRow(0, chosen[0])]
    for index in range(1, len(times)):
        if chosen[index] != chosen[index - 1]:
            start = round(math.sqrt(times[index - 1][0] * times[index][0]))
            found.append(TableRow(start, chosen[index]))
    return tuple(found)


def _loss(seconds: float, fastest: float) -> float:
    """Return what a size loses by a pick, in logarithms; beyond `LIMIT` it counts more."""
    lost = math.log(seconds / fastest)
    return lost + WEIGHT * max(0.0, lost - LIMIT)


def changes(found: TableRows, sizes: Sequence[int], factor: float = 2.0) -> list[int]:
    """Return sizes to measure as well: those between two that take different picks.

    Sizes that are within `factor` of each other need none between them.
    """
    between = []
    for row in found[1:]:
        below = max((size for size in sizes if size < row.start), default=0)
        above = min(size for size in sizes if size >= row.start)
        if below and above > factor * below:
            between.append(round(math.sqrt(below * above)))
    return between
