"""What steps cost, as it is counted."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from hpccomm.gradients.buckets import Buckets
from hpccomm.gradients.reducer import Reducer
from hpccomm.gradients.statistics import BucketStatistics, Statistics
from hpccomm.results.training import TrainingStep

Span = tuple[float, float]
"""When something began and ended, as ``time.perf_counter`` counts."""


def common(span: Span, others: Sequence[Span]) -> float:
    """Return for how many seconds a span lies in others, which do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in others)


TOTALS = ("nbytes", "wire_nbytes", "calls", "seconds", "hidden_seconds", "blocked_seconds")
"""Sums in `Statistics`."""


class Record:
    """Counts of one rank.

    Attributes
    ----------
    steps : int
        Reduced steps.
    micro_steps : int
        Steps that ended, those that reduced nothing included.
    skipped : int
        Reduced steps that were left out.
    waited : list of (float, float)
        When this rank waited in the present step.
    """

    def __init__(self) -> None:
        self._made = perf_counter()
        self.steps = self.micro_steps = self.skipped = self._with_gradients = 0
        self.waited: list[Span] = []
        self._totals: dict[str, Any] = dict.fromkeys(TOTALS, 0)
        self._logged = self._totals.copy()
        self._wire_before = 0

    def lay_out(self, buckets: Buckets, reducer: Reducer) -> None:
        """Take note of another layout, whose buckets are counted anew."""
        if self.steps:
            self._wire_before = self._now()["wire_nbytes"]
        self._buckets, self._reducer = buckets, reducer
        self._together_seconds = 0.0
        self._bucket_steps = 0
        self._bucket_seconds = [0.0] * len(buckets.flats)
        self._bucket_hidden = [0.0] * len(buckets.flats)

    def step(self) -> None:
        """Take note of a step whose buckets were reduced, one after the other or together."""
        totals, spans = self._totals, [each for each in self._reducer.spans if each is not None]
        self._last = [end - begin for begin, end in spans]
        blocked = sum([end - begin for begin, end in self.waited])
        for number, (seconds, span) in enumerate(zip(self._last, spans, strict=True)):
            hidden = seconds - common(span, self.waited)
            self._bucket_seconds[number] += seconds
            self._bucket_hidden[number] += hidden
            totals["seconds"] += seconds
            totals["hidden_seconds"] += hidden
        if not spans:
            self._together_seconds += blocked
            totals["seconds"] += blocked
        totals["blocked_seconds"] += blocked
        totals["calls"] += len(spans) or self._reducer.together
        totals["nbytes"] += self._buckets.nbytes
        self._with_gradients = sum(self._buckets.present.values())
        self._bucket_steps += 1
        self.steps += 1
        self.waited.clear()

    def _now(self) -> dict[str, Any]:
        self._totals["wire_nbytes"] = self._wire_before + self._reducer.wire_nbytes
        return self._totals

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        return Statistics(
            steps=self.steps,
            micro_steps=self.micro_steps,
            skipped=self.skipped,
            with_gradients=self._with_gradients,
            **self._now(),
            memory_bytes=sum(each.memory_bytes for each in self._reducer.each),
            buckets=tuple(map(self._bucket, range(len(self._bucket_seconds)))),
        )

    def _bucket(self, number: int) -> BucketStatistics:
        nbytes, all_nbytes = self._buckets.flats[number].bucket.nbytes, self._buckets.nbytes
        together = self._together_seconds * nbytes / all_nbytes if all_nbytes else 0.0
        return BucketStatistics(
            number,
            self._bucket_steps,
            self._bucket_steps * nbytes,
            self._reducer.each[number].wire_nbytes,
            self._bucket_seconds[number] + together,
            self._bucket_hidden[number],
        )

    def last(self, *, skipped: bool) -> tuple[TrainingStep, Sequence[float]]:
        """Return what came since the last call, a reduced step, and the seconds of its buckets."""
        before, self._logged = self._logged, self._now().copy()
        step = TrainingStep(
            step=self.steps - 1,
            finished=perf_counter() - self._made,
            **{name: total - before[name] for name, total in self._logged.items()},
            with_gradients=self._with_gradients,
            skipped=skipped,
            buckets=len(self._last),
        )
        return step, self._last
