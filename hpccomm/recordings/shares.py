"""Where the time of a step goes: five numbers that sum to it exactly.

The fixed cost of a call is the part that does not depend on its bytes: ``alpha`` of ``t = alpha + beta * bytes``
(R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994). Below the half-performance
size ``alpha / beta`` it is the greater part, and such calls are small.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.recordings.steps import ProgramSteps
from hpccomm.results.lateness import CallWaits
from hpccomm.results.matching import Indices
from hpccomm.results.recording import STEP, Calls, Recording

COMPUTE, HIDDEN, WAITING, EXPOSED, FIXED = range(5)
"""Places of the five numbers."""

PARTS = (
    "compute",
    "hidden transfer",
    "waiting for others",
    "exposed transfer",
    "fixed cost of small calls",
)
"""Their names. Hidden transfer is computation while an asynchronous call is under way; the other three block."""

SMALL = 4096
"""Bytes of a call that is small in any network, where its operation was called with one size alone."""

_SAMPLES = 4096
"""Calls of one signature that a line is fitted to."""


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FixedCost:
    """The line of an operation's transfers over their bytes.

    Attributes
    ----------
    alpha : float
        Seconds of a call that do not depend on its bytes.
    beta : float
        Seconds of a byte.
    """

    alpha: float
    beta: float

    @property
    def half_performance_bytes(self) -> float:
        """The size at which half of the time is `alpha`."""
        return self.alpha / self.beta if self.beta else np.inf


@dataclass(frozen=True, slots=True)
class StepShares:
    """Where the time of each step of each rank goes.

    Attributes
    ----------
    parts : ndarray of int64, shape (steps, ranks, 5)
        By the names of `PARTS`, in ns. They sum to the step of the rank.
    typical : ndarray of float64, shape (ranks, 5)
        Their mean over the typical steps: the half that is nearest to the median.
    costs : mapping of (str, int) to FixedCost
        By operation and number of the communicator.
    """

    parts: NDArray[np.int64]
    typical: NDArray[np.float64]
    costs: Mapping[tuple[str, int], FixedCost]

    @property
    def mean(self) -> NDArray[np.float64]:
        """The five numbers of a typical step, as the mean over the ranks, in ns."""
        mean: NDArray[np.float64] = self.typical.mean(axis=0)
        return mean

    def __str__(self) -> str:
        """Return the five numbers as a table."""
        step = self.mean.sum()
        lines = [
            f"{name:>26}  {value / 1e6:>12.3f} ms  {value / step if step else 0:>6.1%}"
            for name, value in zip(PARTS, self.mean.tolist(), strict=True)
        ]
        return "\n".join([*lines, f"{'step':>26}  {step / 1e6:>12.3f} ms"])


def shares(recording: Recording, steps: ProgramSteps, waits: CallWaits) -> StepShares:
    """Return where the time of each step goes.

    Parameters
    ----------
    recording : Recording
        The recording.
    steps : ProgramSteps
        Its steps.
    waits : CallWaits
        What its calls wait for.
    """
    costs = fixed_costs(recording, waits)
    alphas = _alphas(recording, costs)
    blocks = np.array([each.blocks for each in recording.signatures], bool)
    # Rank by rank: the processor's caches hold what the passes go over.
    each = [
        _of_rank(recording.calls, rank, steps.bounds[:, rank], waits, alphas, blocks)
        for rank in range(recording.ranks)
    ]
    parts = np.stack(each, axis=1)
    return StepShares(parts, parts[steps.typical].mean(axis=0), costs)


def _of_rank(
    calls: Calls, rank: int, bounds: Indices, waits: CallWaits, alphas: Indices, blocks: Bools
) -> Indices:
    """Return the five numbers of each step of a rank, shape ``(steps, 5)``."""
    where = calls.of_rank(rank)
    signature, taken, since = calls["signature"][where], calls["waited"][where], waits.since[where]
    chosen = np.flatnonzero(taken)
    since, until, order = _apart(since[chosen], (since + taken)[chosen])
    chosen = chosen[order]
    arrived = np.clip((waits.since[where] + waits.blocked[where])[chosen], since, until)
    small = np.minimum(arrived + alphas[signature[chosen]], until)
    waiting, fixed = _within(since, arrived, bounds), _within(arrived, small, bounds)
    exposed = _within(small, until, bounds)
    flying = np.flatnonzero(~blocks[signature])
    begin = np.concatenate([since, calls["begin"][where][flying]])
    end = np.concatenate([until, calls["end"][where][flying]])
    busy = _within(*_apart(begin, end)[:2], bounds)
    hidden = busy - waiting - fixed - exposed
    return np.stack([np.diff(bounds) - busy, hidden, waiting, exposed, fixed], axis=1)


def _apart(begin: Indices, end: Indices) -> tuple[Indices, Indices, Indices]:
    """Return intervals by their begin, each without what lies in an earlier one, and their former places."""
    order = np.arange(len(begin))
    if np.any(begin[1:] < begin[:-1]):
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    begin = np.maximum(begin, np.concatenate([begin[:1], reach[:-1]]))
    return begin, np.maximum(begin, end), order


def _within(begin: Indices, end: Indices, bounds: Indices) -> Indices:
    """Return how much of disjoint ordered intervals lies between each bound and the next."""
    before = np.concatenate([[0], np.cumsum(end - begin)])
    place = np.searchsorted(begin, bounds, "right")
    cut = np.concatenate([[0], end])[place] - bounds
    return np.diff(before[place] - np.maximum(cut, 0))


def fixed_costs(recording: Recording, waits: CallWaits) -> dict[tuple[str, int], FixedCost]:
    """Return the fixed cost of each operation of each communicator, from the transfers that were recorded.

    The least squares of the relative errors fit the medians of each size. An operation that was called with one size
    alone has a half-performance size of `SMALL` bytes.
    """
    calls, signature = recording.calls, recording.calls["signature"]
    small = len(recording.signatures) < 1 << 16  # which sorts ten times as fast
    order = np.argsort(signature.astype(np.uint16) if small else signature, kind="stable")
    counts = np.bincount(signature, minlength=len(recording.signatures))
    points: dict[tuple[str, int], list[tuple[int, float, int]]] = {}
    for one, count, stop in zip(recording.signatures, counts, np.cumsum(counts), strict=True):
        if not count or one.operation == STEP:
            continue
        some = order[stop - count : stop : -(-count // _SAMPLES)]
        # What they took after the awaited arrival.
        transfer = float(np.median(calls["end"][some] - calls["begin"][some] - waits.wait[some]))
        if transfer:
            point = one.nbytes, transfer * 1e-9, int(count)
            points.setdefault((one.operation, one.group), []).append(point)
    return {key: _line(*np.array(each, float).T) for key, each in points.items()}


def _line(nbytes: Floats, seconds: Floats, number: Floats) -> FixedCost:
    """Return the line through points of bytes, seconds and number of calls."""
    if len(set(nbytes.tolist())) < 2:
        cost = np.average(seconds, weights=number) / (SMALL + nbytes[0])
        return FixedCost(float(SMALL * cost), float(cost))
    weight = np.sqrt(number) / seconds
    matrix = np.stack([weight, nbytes * weight], axis=1)
    scale = matrix.max(axis=0)
    alpha, beta = np.linalg.lstsq(matrix / scale, np.sqrt(number), rcond=None)[0] / scale
    if beta <= 0:
        return FixedCost(float(np.average(seconds, weights=number)), 0.0)
    return FixedCost(float(max(alpha, 0.0)), float(beta))


def _alphas(recording: Recording, costs: Mapping[tuple[str, int], FixedCost]) -> Indices:
    """Return the fixed ns of a call of each signature; 0 of one that is not small."""
    alphas = np.zeros(len(recording.signatures), np.int64)
    for at, one in enumerate(recording.signatures):
        cost = costs.get((one.operation, one.group))
        if cost is not None and one.nbytes <= cost.half_performance_bytes:
            alphas[at] = round(cost.alpha * 1e9)
    return alphas
