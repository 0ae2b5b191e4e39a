"""Chooses the bucket size that ends a step soonest, from measurements of the first steps.

A call takes a latency, and a time for each byte (Hockney 1994, "The communication challenge for MPP"). A step is a
pipeline, as in Li et al. 2020, section 5.2.3: a bucket starts when its gradients are ready and the bucket before it is
done. Large buckets save latencies. Small buckets start sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from hpccomm.gradients.buckets import Buckets
from hpccomm.gradients.layout import fill, ordered, padded
from hpccomm.gradients.settings import KIB, Model, ReductionSettings
from hpccomm.units import grouped, size_text

SMALLEST = 64 * KIB
"""The smallest size of buckets that is tried, in bytes."""

APART = 2.0
"""Latency and bandwidth can be separated only if the largest measured size is this many times the smallest."""

CLOCK = 1e-9
"""The shortest call that is used, in seconds."""

SAME = 1e-9
"""Predictions whose relative difference is at most this are equal."""


Sized = Sequence[tuple[int, float]]
"""Pairs of bytes and seconds. There is a pair for each gradient, in the order in which buckets are filled: its seconds go
from the first gradient of a step until this one was ready. Or there is a pair for each call that reduced a bucket, in
the order of calls: its seconds are the time of the call."""


class CallTime(NamedTuple):
    """The seconds of a call: ``latency + nbytes * seconds_per_byte``, both at least 0."""

    latency: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """The chosen sizes of buckets. Prints as the reason.

    Attributes
    ----------
    bucket_bytes, first_bucket_bytes : int
        For `ReductionSettings`.
    seconds : float or None
        The predicted time from the first gradient to the end of the last reduction. None if nothing can be predicted.
    seconds_now : float or None
        The same with the present settings.
    latency : float or None
        Seconds for each call. None if it is not known.
    bandwidth : float or None
        Bytes of a bucket per second, which may be infinite. None if it is not known.
    reason : str
        A sentence.
    """

    bucket_bytes: int
    first_bucket_bytes: int
    seconds: float | None
    seconds_now: float | None
    latency: float | None
    bandwidth: float | None
    reason: str

    def __str__(self) -> str:
        return self.reason


def merge(ranks: Sequence[tuple[Sized, Sized]]) -> tuple[Sized, Sized]:
    """Return one measurement for all ranks, from the gradients and the calls of each rank.

    A bucket can start when the slowest rank is ready. So the latest time of a gradient counts. A call is shortest on the
    rank that begins it last, because the others wait for this rank. So the least time of a call counts.

    Parameters
    ----------
    ranks : sequence of (sequence, sequence)
        The measurements of each rank, with the same gradients and the same calls. There is at least one.
    """
    ready, wire = zip(*ranks, strict=True)
    return [max(x) for x in zip(*ready, strict=True)], [min(x) for x in zip(*wire, strict=True)]


def fit(wire: Sized) -> CallTime | None:
    """Fit the latency and the time for a byte by least squares of relative errors. Both are at least 0.

    Parameters
    ----------
    wire : sequence of (int, float)
        Bytes and seconds of calls. Calls of one size count by their median.

    Returns
    -------
    CallTime or None
        None if the sizes are not far enough apart, see `APART`.
    """
    points = _medians(wire)
    if not points or max(points) < APART * min(points):
        return None
    x, y = np.array([*points.items()], np.float64).T
    # Division by y makes errors relative: times differ by powers of ten, and so does their noise.
    columns, one = np.stack([1 / y, x / y], axis=1), np.ones(len(y))
    solutions = [np.linalg.lstsq(columns / columns.max(axis=0), one)[0] / columns.max(axis=0)]
    if solutions[0].min() < 0:
        # The optimum lies on the boundary: one of the two is 0.
        a, b = columns.T
        solutions = [np.array([a.sum() / (a @ a), 0.0]), np.array([0.0, b.sum() / (b @ b)])]
    best = min(solutions, key=lambda each: float(np.square(columns @ each - one).sum()))
    return CallTime(*best.tolist())


def end_of_step(gradients: Sized, settings: ReductionSettings, time: CallTime) -> float:
    """Return when the last bucket is reduced, in seconds from the first gradient, if all gradients have one dtype.

    Parameters
    ----------
    gradients : sequence of (int, float)
        The bytes that each takes in a bucket, and when it is ready.
    settings : ReductionSettings
        The sizes of buckets.
    time : CallTime
        The time of a call.
    """
    end = 0.0
    for inside in fill([nbytes for nbytes, _ in gradients], settings):
        nbytes, ready = zip(*(gradients[number] for number in inside), strict=True)
        end = max(end, *ready) + time.latency + sum(nbytes) * time.seconds_per_byte
    return end


def candidates(total: int) -> list[int]:
    """Return the sizes that are tried: powers of 2 from `SMALLEST` bytes to the first that takes `total` bytes."""
    sizes = [SMALLEST]
    while sizes[-1] < total:
        sizes.append(2 * sizes[-1])
    return sizes


def choose(measured: tuple[Sized, Sized], settings: ReductionSettings) -> BucketChoice:
    """Choose the sizes of buckets that are predicted to end a step soonest. Local.

    The present sizes are tried as well, so that the prediction never gets worse. Of sizes with equal predictions, the
    largest is chosen.

    Parameters
    ----------
    measured : (sequence, sequence)
        The gradients and the calls, see `merge`.
    settings : ReductionSettings
        The present settings. All but the sizes stay.
    """
    gradients, wire = measured
    total = sum(nbytes for nbytes, _ in gradients)
    now = (settings.bucket_bytes, settings.first_bucket_bytes)
    time = fit(wire)
    if time is None or not settings.bucketing or not total:
        reason = f"{_why_not(total, wire, settings)}; buckets of {size_text(now[0])} are kept"
        return BucketChoice(*now, None, None, None, None, reason)
    tried = candidates(total)
    pairs = {(most, first) for most in tried for first in tried if first <= most}
    seconds = {}
    for most, first in sorted(pairs | {now}, reverse=True):
        changed = replace(settings, bucket_bytes=most, first_bucket_bytes=first)
        seconds[most, first] = end_of_step(gradients, changed, time)
    least = min(seconds.values())
    best = next(pair for pair, end in seconds.items() if end <= least * (1 + SAME))  # the largest
    speed = 1 / time.seconds_per_byte if time.seconds_per_byte else float("inf")
    rate = f"{speed / 1e9:.3g} GB/s" if time.seconds_per_byte else "no time a byte"
    return BucketChoice(
        *best,
        seconds[best],
        seconds[now],
        time.latency,
        speed,
        f"with {time.latency * 1e6:.3g} us a call and {rate} (measured), buckets of {size_text(best[0])}, "
        f"the first of {size_text(best[1])}, end a step after {seconds[best] * 1e3:.3g} ms; buckets of {size_text(now[0])}, "
        f"the first of {size_text(now[1])}, after {seconds[now] * 1e3:.3g} ms",
    )


def _why_not(total: int, wire: Sized, settings: ReductionSettings) -> str:
    if not settings.bucketing:
        return "each gradient has a bucket of its own by bucketing=False"
    if not total:
        return "the model has no gradients"
    sizes = [size_text(nbytes) for nbytes in _medians(wire)]
    if not sizes:
        return "no call was measured"
    measured = f"buckets of {sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"only {measured} were measured, too close to separate latency from bandwidth"


def _medians(wire: Sized) -> dict[int, float]:
    """Return the median of the seconds of each size, the smallest size first."""
    of_size = grouped((nbytes, seconds) for nbytes, seconds in wire if nbytes and seconds >= CLOCK)
    return {nbytes: median(of_size[nbytes]) for nbytes in sorted(of_size)}


class WarmUp:
    """Measures the first ``adaptive=`` steps of one layout on one rank.

    Parameters
    ----------
    model : Model
        The model that is laid out.
    readiness : sequence of str or None
        As in `ordered`.
    """

    def __init__(self, model: Model, readiness: Sequence[str] | None) -> None:
        self._model, self._left = model, model.settings.adaptive
        self._filled = ordered(model.trained, model.settings.order, readiness)
        self._ready: list[list[float]] = []
        self._wire: list[tuple[int, float]] = []

    def step(self, buckets: Buckets) -> bool:
        """Measure a step by ``ready()`` and ``wait()`` at its end. Return whether all steps are measured."""
        now, marked = perf_counter(), buckets.marked
        first = min(marked.values(), default=now)
        self._ready.append([marked.get(each.name, now) - first for each in self._filled])
        spans = [(each.nbytes, *each.span) for each in buckets.each if each.span is not None]
        self._wire += [(nbytes, end - begin) for nbytes, begin, end in spans]
        self._left -= 1
        return not self._left

    def choose(self) -> BucketChoice:
        """Choose the sizes of buckets from the measurements of all ranks. Collective; blocks."""
        group = self._model.group
        sizes = [padded(each) for each in self._filled]
        typical = [median(seconds) for seconds in zip(*self._ready, strict=True)]
        gradients = list(zip(sizes, typical, strict=True))
        measured = merge(group.all_gather_object((gradients, self._wire)))
        # All ranks take the choice of rank 0, because other processors may round differently.
        choice: BucketChoice = group.all_gather_object(choose(measured, self._model.settings))[0]
        return choice
