"""The steps of a recorded program, and where their time goes.

Steps are found by the program's marks, else by the period of its calls; else the whole recording is one. The time of a
step is divided into five numbers, which sum to it exactly.

The fixed cost of a call is the part that does not depend on its bytes: ``alpha`` of ``t = alpha + beta * bytes``
(R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994). Below the half-performance
size ``alpha / beta`` it is the greater part, and such calls are small.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.recording import (
    STEP,
    Calls,
    CallWaits,
    Indices,
    MatchedCollectives,
    Recording,
    span,
)
from hpccomm.units import counted

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Sequence = NDArray[np.integer]

ALIKE = 0.95
"""The least part of the calls that equal the call one period before."""

BETWEEN = 10e-6
"""Seconds. A shorter gap between two calls is no computation: the second most likely does not need the first one's values."""

ALMOST, LIKE, LONG = 0.9, 0.3, 4
"""Least values for a period of the computations between calls: its autocorrelation as a part of the greatest one, and of
that at distance 0; and its longest computation in medians of all."""

_LOOKED_AT = 1 << 17
"""Calls in the middle of the program in which a period is looked for."""


@dataclass(frozen=True, slots=True)
class ProgramSteps:
    """The steps of a program.

    Attributes
    ----------
    how : str
        How they were found, in words.
    bounds : ndarray of int64, shape (steps + 1, ranks)
        When each rank began each step, and when it ended the last one, in ns of the common clock.
    """

    how: str
    bounds: Indices

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.bounds) - 1

    @property
    def durations(self) -> Floats:
        """How long each step took, as the mean over the ranks, in ns."""
        taken: Floats = np.diff(self.bounds, axis=0).mean(axis=1)
        return taken

    @property
    def typical(self) -> Indices:
        """The half of the steps that is nearest to the median, in their order."""
        order = np.argsort(self.durations, kind="stable")
        quarter = len(order) // 4
        return np.sort(order[quarter : len(order) - quarter])

    @property
    def median(self) -> int:
        """The step of median duration."""
        return int(np.argsort(self.durations, kind="stable")[(len(self) - 1) // 2])

    def calls(self, recording: Recording, step: int, rank: int) -> slice:
        """Return the slice of the calls that a rank began in a step."""
        whole = recording.calls.of_rank(rank)
        begin = recording.calls["begin"][whole]
        first, stop = np.searchsorted(begin, self.bounds[step : step + 2, rank]).tolist()
        return slice(whole.start + first, whole.start + stop)


class Period(NamedTuple):
    """The period of a sequence, and begin and end of the part that has it."""

    length: int
    first: int
    stop: int


def steps(recording: Recording, collectives: MatchedCollectives) -> ProgramSteps:
    """Return the steps of a program.

    Calls before the first mark or period, such as a warm-up, and after the last one belong to no step.

    Parameters
    ----------
    recording : Recording
        The recording.
    collectives : MatchedCollectives
        Its collectives.
    """
    marks = _at_marks(recording)
    if marks is not None:
        return ProgramSteps(f"{counted(len(marks) - 1, 'step')}, by marks", marks)
    periodic = _periodic(recording, collectives)
    if periodic is not None:
        length, bounds = periodic
        how = f"{counted(len(bounds) - 1, 'step')}, by the period of {counted(length, 'call')}"
        return ProgramSteps(how, bounds)
    first, last = span(recording)
    bounds = np.repeat(np.array([[first], [last]], np.int64), recording.ranks, axis=1)
    return ProgramSteps("the whole recording, in which no period was found", bounds)


def _at_marks(recording: Recording) -> Indices | None:
    calls = recording.calls
    marked = recording.of_signature("marks")
    ends = [calls["end"][each][marked[each]] for each in map(calls.of_rank, range(recording.ranks))]
    number = min(map(len, ends))
    if number == 1:  # then the one step begins with the recording
        firsts = [calls["begin"][calls.of_rank(rank)][0] for rank in range(recording.ranks)]
        return np.array([firsts, [each[0] for each in ends]], np.int64)
    return np.stack([each[:number] for each in ends], axis=1) if number else None


def _periodic(recording: Recording, matched: MatchedCollectives) -> tuple[int, Indices] | None:
    """Return the period in calls of the rank with most calls, and the bounds of steps; None without."""
    calls, signature = recording.calls, recording.calls["signature"]
    rank = int(np.argmax(np.diff(calls.starts)))
    of_rank = calls.of_rank(rank)
    part = period(signature[of_rank])
    if part is None:
        return None
    # At the end of a collective of all ranks, the ranks are nearest to each other.
    whole = np.flatnonzero(matched.sizes == recording.ranks)
    together = matched.calls[matched.starts[whole][:, None] + np.arange(recording.ranks)]
    place = np.full(calls.count, -1)
    place[together[:, rank]] = np.arange(len(whole))
    place = place[of_rank]
    blocks = recording.of_signature("blocks")
    # An interruption is on one rank, and a computation on most: the geometric mean tells them apart.
    computed = _computed(recording)
    computed[together[:, rank]] = np.exp(np.log1p(computed[together]).mean(axis=1))
    for allowed in ((place >= 0) & blocks[of_rank], place >= 0):
        cut = _longest(signature[of_rank], computed[of_rank], allowed, part)
        if cut is not None:
            return cut[0], _returned(recording, together[place[cut[1]]])
    # Thousands of equal messages hide the collectives between them.
    rare = np.flatnonzero(place >= 0)
    between = period(signature[of_rank][rare])
    ends = between and _cuts(signature[of_rank][rare], np.ones(len(rare), bool), between)
    if ends is not None:
        length = int(np.median(np.diff(rare[ends])))
        return length, _returned(recording, together[place[rare[ends]]])
    cuts: list[Indices] = []
    for one in map(calls.of_rank, range(recording.ranks)):
        own = period(signature[one])
        following = computed[one][1:]
        ends = own and _cuts(signature[one][:-1], _before_longest(signature[one], following), own)
        if ends is None or (cuts and len(cuts[0]) != len(ends)):
            return None
        cuts.append(calls["begin"][one][ends + 1] - following[ends])
    return part[0], np.stack(cuts, axis=1)


def _before_longest(sequence: Sequence, following: Indices) -> Bools:
    """Return the calls, but for the last one, of the signature that the longest computation follows, in the median."""
    kinds, which = np.unique(sequence[:-1], return_inverse=True)
    usual = [np.median(following[which == each]) for each in range(len(kinds))]
    before: Bools = which == np.argmax(usual)
    return before


def _returned(recording: Recording, call: Indices) -> Indices:
    """Return when the program went on after calls."""
    calls = recording.calls
    blocks = recording.of_signature("blocks")[call]
    return np.where(blocks, calls["end"][call], calls["begin"][call])


def _computed(recording: Recording) -> Indices:
    """Return the computation before each call, in ns: the time since its rank went on after the calls before."""
    calls, gaps = recording.calls, np.zeros(recording.calls.count, np.int64)
    back = _returned(recording, np.arange(calls.count))
    for one in map(calls.of_rank, range(recording.ranks)):
        begin, asked = calls["begin"][one], calls["asked"][one]
        waits = (asked + calls["waited"][one])[asked > 0]
        went_on = np.sort(np.concatenate([begin[:1], back[one], waits]))
        itself = back[one] == begin  # which is no time that it went on before
        gaps[one] = begin - went_on[np.searchsorted(went_on, begin, "right") - 1 - itself]
    return gaps


def _longest(
    sequence: Sequence, computed: Indices, allowed: Bools, part: Period
) -> tuple[int, Indices] | None:
    """Return the longer of two periods with its cuts: that of the signatures, as `period` has it, and that of long computations.

    Equal calls, with a computation after every sixtieth, have a period of one call by their signatures. That of
    computations is the least distance at which they are nearly as alike as they get, and one call of the period has a
    much longer one in front of it than most. Medians leave interruptions out.
    """
    cuts = _cuts(sequence, allowed, part)
    number = len(computed)
    if cuts is None or number < 9:
        return None if cuts is None else (part[0], cuts)
    logs = np.log(np.maximum(computed, BETWEEN * 1e9))
    power = np.abs(np.fft.rfft(logs - logs.mean(), 2 * number)) ** 2
    likeness = np.fft.irfft(power)[: number // 3]
    length = int(np.argmax(likeness[1:] >= ALMOST * likeness[1:].max())) + 1
    usual = np.median(computed[: number // length * length].reshape(-1, length), axis=0)
    ends = np.arange(int(np.argmax(usual)) - 1, number, length)
    ends = ends[ends >= 0]
    longest = max(LONG * np.median(usual), BETWEEN * 1e9)
    regular = likeness[length] > LIKE * likeness[0] and usual.max() > longest
    divides = length > part[0] and length % part[0] == 0 and len(ends) > 2
    longer = regular and divides and allowed[ends].all()
    return (length, ends) if longer else (part[0], cuts)


def _cuts(sequence: Sequence, allowed: Bools, part: Period) -> Indices | None:
    """Return the calls between the steps of a sequence of signatures with a period; None without.

    They are of the rarest signature of a period, of the `allowed` calls. Calls of other signatures may come in
    between now and then, and move no bound.
    """
    length, first, stop = part
    middle = (first + stop - length) // 2
    one = slice(middle, middle + length)
    chosen = sequence[one][allowed[one]]
    if not len(chosen):
        return None
    kinds, counts = np.unique(chosen, return_counts=True)
    where = (sequence[first:stop] == kinds[np.argmin(counts)]) & allowed[first:stop]
    positions = first + np.flatnonzero(where)[counts.min() - 1 :: counts.min()]
    return positions if len(positions) > 2 else None


def period(sequence: Sequence) -> Period | None:
    """Return the period of a sequence; None without.

    `ALIKE` of the items of the part are as those a period before. The part is at least half the sequence.
    """
    number = len(sequence)
    middle = sequence[max(0, number - _LOOKED_AT) // 2 :][:_LOOKED_AT]
    scores = {length: _part(middle, length)[0] for length in _distances(middle)}
    best = max(scores.values(), default=-1)
    if best < 0:
        return None
    length = min(length for length, score in scores.items() if score >= ALIKE * best)
    score, first, stop = _part(sequence, length)
    return Period(length, first, stop) if score >= 0 and stop - first >= number / 2 else None


def _part(sequence: Sequence, length: int) -> tuple[float, int, int]:
    """Return the part of a sequence that has a period, and a score: below 0 if it is too short, or too few are alike."""
    alike = sequence[:-length] == sequence[length:]
    # The part of the greatest sum, in which an item that differs undoes the gain of four alike ones.
    sums = np.concatenate([[0], np.cumsum(np.where(alike, 1, -4))])
    stop = int(np.argmax(sums - np.minimum.accumulate(sums)))
    first = stop - int(np.argmin(sums[: stop + 1][::-1]))
    differ = (stop - first - sums[stop] + sums[first]) / 5
    score = stop - first - differ / (1 - ALIKE) if stop - first >= length else -1
    return float(score), first, stop + length


def _distances(sequence: Sequence) -> set[int]:
    """Return distances between the calls of a signature, of rare and of frequent ones."""
    kinds, counts = np.unique(sequence, return_counts=True)
    kinds = kinds[np.argsort(counts, kind="stable")][np.sort(counts) > 2]
    distances: set[int] = set()
    for kind in kinds[np.linspace(0, len(kinds) - 1, min(len(kinds), 8)).astype(int)]:
        places = np.flatnonzero(sequence == kind)
        third = len(places) // 3
        distances.update((places[third + 1 : third + 26] - places[third]).tolist())
    return {each for each in distances if each <= len(sequence) // 2}


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

    parts: Indices
    typical: Floats
    costs: Mapping[tuple[str, int], FixedCost]

    @property
    def mean(self) -> Floats:
        """The five numbers of a typical step, as the mean over the ranks, in ns."""
        mean: Floats = self.typical.mean(axis=0)
        return mean

    def __str__(self) -> str:
        """Return the five numbers as a table, with the ranks that have least and most of each."""
        total = self.mean.sum()
        lines = [f"{'a step, in ms':>26}{'mean':>12}{'share':>8}{'least rank':>12}{'most':>12}"]
        for name, mean, ranks in zip(PARTS, self.mean, self.typical.T, strict=True):
            figures = f"{mean / 1e6:12.3f}{mean / total if total else 0:8.1%}"
            lines.append(f"{name:>26}{figures}{ranks.min() / 1e6:12.3f}{ranks.max() / 1e6:12.3f}")
        return "\n".join([*lines, f"{'step':>26}{total / 1e6:12.3f}"])


def shares(recording: Recording, steps: ProgramSteps, waits: CallWaits) -> StepShares:
    """Return where the time of each step goes.

    Parameters
    ----------
    recording : Recording
        The recording.
    steps : ProgramSteps
        Its steps.
    waits : CallWaits
        The waits of its calls.
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
    chosen, flying = np.flatnonzero(taken), np.flatnonzero(~blocks[signature])
    blocked = since, since + taken, since + waits.blocked[where], alphas[signature]
    flights = calls["begin"][where][flying], calls["end"][where][flying]
    return step_parts(bounds, tuple(each[chosen] for each in blocked), flights)


def step_parts(
    bounds: NDArray[Any], blocked: tuple[NDArray[Any], ...], flights: tuple[NDArray[Any], ...]
) -> NDArray[Any]:
    """Return the five numbers of each step of a rank, shape ``(steps, 5)``, in the unit of all arguments.

    Parameters
    ----------
    bounds : ndarray, shape (steps + 1,)
        When each step began, and the last one ended.
    blocked : tuple of four ndarray, shape (times,)
        When the program began to be blocked and when it went on, when the awaited rank arrived, and the fixed cost of
        what blocked it; 0 unless that is small.
    flights : tuple of two ndarray
        When each asynchronous transfer began and ended.
    """
    since, until, order = disjoint(*blocked[:2])
    arrived, fixed_cost = (each[order] for each in blocked[2:])
    arrived = np.clip(arrived, since, until)
    small = np.minimum(arrived + fixed_cost, until)
    waiting, fixed = within(since, arrived, bounds), within(arrived, small, bounds)
    exposed = within(small, until, bounds)
    both = [np.concatenate(each) for each in zip((since, until), flights, strict=True)]
    busy = within(*disjoint(*both)[:2], bounds)
    hidden = busy - waiting - fixed - exposed
    return np.stack([np.diff(bounds) - busy, hidden, waiting, exposed, fixed], axis=1)


def disjoint(
    begin: NDArray[Any], end: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.intp]]:
    """Return intervals in the order of their begins, without the parts that earlier ones cover, and their former places."""
    order = np.arange(len(begin))
    if np.any(begin[1:] < begin[:-1]):
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    begin = np.maximum(begin, np.concatenate([begin[:1], reach[:-1]]))
    return begin, np.maximum(begin, end), order


def within(begin: NDArray[Any], end: NDArray[Any], bounds: NDArray[Any]) -> NDArray[Any]:
    """Return the length of disjoint ordered intervals between each bound and the next."""
    before = np.concatenate([[0], np.cumsum(end - begin)])
    place = np.searchsorted(begin, bounds, "right")
    cut = np.concatenate([[0], end])[place] - bounds
    within: NDArray[Any] = np.diff(before[place] - np.maximum(cut, 0))
    return within


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
        # Their time after the awaited arrival.
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
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=np.sqrt(number) / seconds)
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
