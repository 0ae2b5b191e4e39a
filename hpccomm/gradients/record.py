"""What steps cost, as it is counted."""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from hpccomm.gradients.statistics import BucketStatistics, Statistics
from hpccomm.gradients.step import Step
from hpccomm.results.training import TrainingStep

Span = tuple[float, float]
"""When something began and ended, as ``time.perf_counter`` counts."""


def common(span: Span, others: Sequence[Span]) -> float:
    """Return for how many seconds a span lies in others, which do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in others)


class _Totals(NamedTuple):
    nbytes: int = 0
    wire_nbytes: int = 0
    calls: int = 0
    seconds: float = 0.0
    hidden: float = 0.0
    blocked: float = 0.0


class Record:
    """Counts of one rank.

    Attributes
    ----------
    steps : int
        Reduced steps.
    micro_steps : int
        Steps that ended, those that reduced nothing included.
    waited : list of (float, float)
        When this rank waited in the present step.
    """

    def __init__(self) -> None:
        self._made = perf_counter()
        self.steps = self.micro_steps = 0
        self.waited: list[Span] = []
        self._skipped = self._with_gradients = 0
        self._nbytes = self._calls = self._wire_before = 0
        self._seconds = self._hidden = self._blocked = 0.0
        self._step: Step | None = None
        self._logged = _Totals()

    def lay_out(self, step: Step) -> None:
        """Take note of another layout, whose buckets are counted anew."""
        self._wire_before = self._wire()
        self._step = step
        self._together, self._together_seconds = 0, 0.0  # steps that reduced all buckets at once
        self._bucket_calls = 0
        self._bucket_seconds = [0.0] * len(step.flats)
        self._bucket_hidden = [0.0] * len(step.flats)
        self._last = (0.0,) * len(step.flats)

    def together(self, begun: float) -> None:
        """Take note of a step whose buckets were reduced together, by one call of each kind, until now."""
        seconds = perf_counter() - begun
        self._together += 1
        self._together_seconds += seconds
        self._seconds += seconds
        self._blocked += seconds
        self._last = ()
        self._calls += self._now.together

    def one_by_one(self) -> None:
        """Take note of a step whose buckets were reduced one after the other."""
        spans = [span or (0.0, 0.0) for span in self._now.reducer.spans]
        self._last = tuple(end - begin for begin, end in spans)
        hidden = [
            seconds - common(s, self.waited) for seconds, s in zip(self._last, spans, strict=True)
        ]
        for number, seconds in enumerate(self._last):
            self._bucket_seconds[number] += seconds
            self._bucket_hidden[number] += hidden[number]
        self._bucket_calls += 1
        self._calls += len(spans)
        self._seconds += sum(self._last)
        self._hidden += sum(hidden)
        self._blocked += sum(end - begin for begin, end in self.waited)

    def end(self, with_gradients: int) -> None:
        """Take note that a step was reduced."""
        self.steps += 1
        self._with_gradients = with_gradients
        self._nbytes += self._now.nbytes
        self.waited.clear()

    def skip(self) -> None:
        """Take note that the step was left out."""
        self._skipped += 1

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        step, totals = self._now, self._totals()
        return Statistics(
            steps=self.steps,
            micro_steps=self.micro_steps,
            skipped=self._skipped,
            with_gradients=self._with_gradients,
            nbytes=totals.nbytes,
            wire_nbytes=totals.wire_nbytes,
            calls=totals.calls,
            seconds=totals.seconds,
            hidden_seconds=totals.hidden,
            blocked_seconds=totals.blocked,
            memory_bytes=step.memory_bytes,
            buckets=tuple(map(self._bucket, range(len(step.flats)))),
        )

    def _bucket(self, number: int) -> BucketStatistics:
        step = self._now
        flat = step.flats[number]
        calls = self._bucket_calls + self._together
        share = flat.bucket.nbytes / step.nbytes if step.nbytes else 0.0
        wire = step.reducer.ways[number].wire_nbytes + self._together * flat.memory.nbytes
        return BucketStatistics(
            number,
            calls,
            calls * flat.bucket.nbytes,
            wire,
            self._bucket_seconds[number] + share * self._together_seconds,
            self._bucket_hidden[number],
        )

    def last(self, *, skipped: bool) -> tuple[TrainingStep, Sequence[float]]:
        """Return what came since the last call, a reduced step, and the seconds of its buckets."""
        totals, before = self._totals(), self._logged
        self._logged = totals
        step = TrainingStep(
            step=self.steps - 1,
            finished=perf_counter() - self._made,
            nbytes=totals.nbytes - before.nbytes,
            wire_nbytes=totals.wire_nbytes - before.wire_nbytes,
            calls=totals.calls - before.calls,
            seconds=totals.seconds - before.seconds,
            hidden_seconds=totals.hidden - before.hidden,
            blocked_seconds=totals.blocked - before.blocked,
            with_gradients=self._with_gradients,
            skipped=skipped,
            buckets=len(self._last),
        )
        return step, self._last

    def _totals(self) -> _Totals:
        return _Totals(
            self._nbytes, self._wire(), self._calls, self._seconds, self._hidden, self._blocked
        )

    def _wire(self) -> int:
        if self._step is None:
            return 0
        step = self._step
        ways = sum(way.wire_nbytes for way in step.reducer.ways)
        together = self._together * sum(flat.memory.nbytes for flat in step.flats)
        return self._wire_before + ways + together

    @property
    def _now(self) -> Step:
        assert self._step is not None
        return self._step
