"""The steps of a recorded program: by its marks, else by the period of its calls, else the whole recording."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.lateness import span
from hpccomm.results.matching import Indices, MatchedCollectives
from hpccomm.results.recording import Recording
from hpccomm.units import counted

ALIKE = 0.95
"""The least part of the calls that are as those a period before."""

BETWEEN = 10e-6
"""Seconds between two calls that are less than a computation: most likely the second does not need the first one's values."""

ALMOST, LIKE, LONG = 0.9, 0.3, 4
"""Of the computations between calls: how near to the greatest autocorrelation, how great at least, and how many times as long
as most."""

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
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.bounds) - 1

    @property
    def durations(self) -> NDArray[np.float64]:
        """How long each step took, as the mean over the ranks, in ns."""
        taken: NDArray[np.float64] = np.diff(self.bounds, axis=0).mean(axis=1)
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
        """Return where the calls are that a rank began in a step."""
        whole = recording.calls.of_rank(rank)
        begin = recording.calls["begin"][whole]
        first, stop = np.searchsorted(begin, self.bounds[step : step + 2, rank]).tolist()
        return slice(whole.start + first, whole.start + stop)


def steps(recording: Recording, collectives: MatchedCollectives) -> ProgramSteps:
    """Return the steps of a program.

    What is before the first mark or period, such as a warm-up, and after the last one, belongs to no step.

    Parameters
    ----------
    recording : Recording
        The recording.
    collectives : MatchedCollectives
        Which of its calls are one collective.
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


def _at_marks(recording: Recording) -> NDArray[np.int64] | None:
    calls = recording.calls
    marked = recording.of_signature("marks")
    ends = [calls["end"][each][marked[each]] for each in map(calls.of_rank, range(recording.ranks))]
    number = min(map(len, ends))
    if number == 1:  # then the one step begins with the recording
        firsts = [calls["begin"][calls.of_rank(rank)][0] for rank in range(recording.ranks)]
        return np.array([firsts, [each[0] for each in ends]], np.int64)
    return np.stack([each[:number] for each in ends], axis=1) if number else None


def _periodic(
    recording: Recording, matched: MatchedCollectives
) -> tuple[int, NDArray[np.int64]] | None:
    """Return the period in calls of the rank with most calls, and the bounds of steps; None without."""
    calls = recording.calls
    # Where a collective of all ranks ends, they are nearest to each other.
    whole = np.flatnonzero(matched.sizes == recording.ranks)
    together = matched.calls[matched.starts[whole][:, None] + np.arange(recording.ranks)]
    rank = int(np.argmax(np.diff(calls.starts)))
    of_rank = calls.of_rank(rank)
    place = np.full(calls.count, -1)
    place[together[:, rank]] = np.arange(len(whole))
    place = place[of_rank]
    signature, blocks = calls["signature"], recording.of_signature("blocks")
    # An interruption is on one rank, and a computation on most: the geometric mean tells them apart.
    computed = _computed(recording)
    computed[together[:, rank]] = np.exp(np.log1p(computed[together]).mean(axis=1))
    for allowed in ((place >= 0) & blocks[of_rank], place >= 0):
        if (cut := _longest(signature[of_rank], computed[of_rank], allowed)) is not None:
            return cut[0], _returned(recording, together[place[cut[1]]])
    whose = map(calls.of_rank, range(recording.ranks))
    each = [_cuts(signature[one], np.ones(one.stop - one.start, bool)) for one in whose]
    cuts = [one for one in each if one is not None]
    if len(cuts) < recording.ranks or len({len(positions) for _, positions in cuts}) > 1:
        return None
    every = np.stack([one + start for (_, one), start in zip(cuts, calls.starts, strict=False)], 1)
    return cuts[rank][0], _returned(recording, every)


def _returned(recording: Recording, call: Indices) -> NDArray[np.int64]:
    """Return when the program went on after calls."""
    calls = recording.calls
    blocks = recording.of_signature("blocks")[call]
    return np.where(blocks, calls["end"][call], calls["begin"][call])


def _computed(recording: Recording) -> NDArray[np.int64]:
    """Return how long each rank computed in front of each call, in ns: since it went on after what came before."""
    calls, gaps = recording.calls, np.zeros(recording.calls.count, np.int64)
    back = _returned(recording, np.arange(calls.count))
    for one in map(calls.of_rank, range(recording.ranks)):
        begin, asked = calls["begin"][one], calls["asked"][one]
        waits = (asked + calls["waited"][one])[asked > 0]
        went_on = np.sort(np.concatenate([begin[:1], back[one], waits]))
        gaps[one] = begin - went_on[np.searchsorted(went_on, begin, "right") - 1]
    return gaps


def _longest(
    sequence: NDArray[np.int32], computed: NDArray[np.int64], allowed: NDArray[np.bool_]
) -> tuple[int, Indices] | None:
    """Return the longer of two periods with its cuts: that of the signatures, and that of long computations.

    Equal calls, with a computation after every sixtieth, have a period of one call by their signatures. That of
    computations is the least distance at which they are nearly as alike as they get, and one call of the period has a
    much longer one in front of it than most. Medians leave interruptions out.
    """
    alike = _cuts(sequence, allowed)
    number = len(computed)
    if alike is None or number < 9:
        return alike
    logs = np.log(np.maximum(computed, BETWEEN * 1e9))
    power = np.abs(np.fft.rfft(logs - logs.mean(), 2 * number)) ** 2
    likeness = np.fft.irfft(power)[: number // 3]
    length = int(np.argmax(likeness[1:] >= ALMOST * likeness[1:].max())) + 1
    usual = np.median(computed[: number // length * length].reshape(-1, length), axis=0)
    ends = np.arange(int(np.argmax(usual)) - 1, number, length)
    ends = ends[ends >= 0]
    longest = max(LONG * np.median(usual), BETWEEN * 1e9)
    regular = likeness[length] > LIKE * likeness[0] and usual.max() > longest
    divides = length > alike[0] and length % alike[0] == 0 and len(ends) > 2
    return (length, ends) if regular and divides and allowed[ends].all() else alike


def _cuts(sequence: NDArray[np.integer], allowed: NDArray[np.bool_]) -> tuple[int, Indices] | None:
    """Return the period of a sequence of signatures, and the calls between its steps; None without.

    The calls are of the rarest signature of a period, of the `allowed` calls. Calls of other signatures may come in
    between now and then, and move no bound.
    """
    part = period(sequence)
    if part is None:
        return None
    length, first, stop = part
    middle = (first + stop - length) // 2
    one = slice(middle, middle + length)
    chosen = sequence[one][allowed[one]]
    if not len(chosen):
        return None
    kinds, counts = np.unique(chosen, return_counts=True)
    where = (sequence[first:stop] == kinds[np.argmin(counts)]) & allowed[first:stop]
    positions = first + np.flatnonzero(where)[counts.min() - 1 :: counts.min()]
    return (length, positions) if len(positions) > 2 else None


def period(sequence: NDArray[np.integer]) -> tuple[int, int, int] | None:
    """Return the period of a sequence, and where the part of it begins and ends that has it; None without.

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
    return (length, first, stop) if score >= 0 and stop - first >= number / 2 else None


def _part(sequence: NDArray[np.integer], length: int) -> tuple[float, int, int]:
    """Return the part of a sequence that has a period, and a score: below 0 if it is too short, or too few are alike."""
    alike = sequence[:-length] == sequence[length:]
    # The part of the greatest sum, in which an item that differs undoes the gain of four alike ones.
    sums = np.concatenate([[0], np.cumsum(np.where(alike, 1, -4))])
    stop = int(np.argmax(sums - np.minimum.accumulate(sums)))
    first = stop - int(np.argmin(sums[: stop + 1][::-1]))
    differ = (stop - first - sums[stop] + sums[first]) / 5
    score = stop - first - differ / (1 - ALIKE) if stop - first >= length else -1
    return float(score), first, stop + length


def _distances(sequence: NDArray[np.integer]) -> set[int]:
    """Return distances between the calls of a signature, of rare and of frequent ones."""
    kinds, counts = np.unique(sequence, return_counts=True)
    kinds = kinds[np.argsort(counts, kind="stable")][np.sort(counts) > 2]
    distances: set[int] = set()
    for kind in kinds[np.linspace(0, len(kinds) - 1, min(len(kinds), 8)).astype(int)]:
        places = np.flatnonzero(sequence == kind)
        third = len(places) // 3
        distances.update((places[third + 1 : third + 26] - places[third]).tolist())
    return {each for each in distances if each <= len(sequence) // 2}
