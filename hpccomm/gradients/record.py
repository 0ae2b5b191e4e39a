"""The cost of a training's steps: counted, returned as `Statistics`, and written by rank 0 to a results file."""

import logging
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.errors import UsageError
from hpccomm.gradients.buckets import Buckets
from hpccomm.gradients.parameters import Bucket
from hpccomm.gradients.reducer import Reducer
from hpccomm.results import facts as origin
from hpccomm.results.recording import (
    COMPLETED,
    RecordingFacts,
    TrainingBucket,
    TrainingNote,
    TrainingStep,
)

if TYPE_CHECKING:
    from hpccomm.results.recording_file import RecordingWriter


Span = tuple[float, float]
"""When something began and ended, as ``time.perf_counter`` counts."""


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """Counts of one bucket since its layout was made.

    Attributes
    ----------
    index : int
        The bucket's number.
    calls : int
        How often it was reduced.
    nbytes : int
        Bytes of gradients that were reduced, with the padding between them.
    wire_nbytes : int
        Bytes that this rank gave to collectives for it: less than ``nbytes`` with a compressor.
    seconds : float
        Time in which its reductions were under way.
    hidden_seconds : float
        The part of it in which this rank did not wait.
    """

    index: int
    calls: int = 0
    nbytes: int = 0
    wire_nbytes: int = 0
    seconds: float = 0.0
    hidden_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"bucket {self.index}: {self.calls} times, {self.nbytes} bytes, {self.wire_nbytes} sent, "
            f"{self.seconds:.3f} s, {self.hidden_seconds:.3f} s hidden"
        )


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one rank since its `GradientSync` was made. Prints as some lines.

    Attributes
    ----------
    steps : int
        Reduced steps.
    micro_steps : int
        Calls of ``sync`` and ``wait`` that ended, also if they reduced nothing.
    skipped : int
        Reduced steps that were left out because of NaN or infinities.
    with_gradients : int
        Parameters that had a gradient on this rank in the last reduced step.
    nbytes, wire_nbytes, seconds, hidden_seconds
        As in `BucketStatistics`, over all buckets and all layouts. Seconds are of host arrays: what goes on on a
        device is not measured.
    calls : int
        Reductions: one a bucket by ``ready`` and ``wait``, one for all buckets of a dtype by ``sync``.
    blocked_seconds : float
        Time that this rank waited in ``sync``, ``wait`` and ``wait_for`` for reductions, and for ranks that were late.
    memory_bytes : int
        State that the compressor keeps from step to step on this rank, in bytes.
    buckets : tuple of BucketStatistics
        Of the present layout. The seconds of ``sync``, which reduces buckets together, are divided by their bytes.
    """

    steps: int = 0
    micro_steps: int = 0
    skipped: int = 0
    with_gradients: int = 0
    nbytes: int = 0
    wire_nbytes: int = 0
    calls: int = 0
    seconds: float = 0.0
    hidden_seconds: float = 0.0
    blocked_seconds: float = 0.0
    memory_bytes: int = 0
    buckets: tuple[BucketStatistics, ...] = ()

    def __str__(self) -> str:
        share = f" ({self.hidden_seconds / self.seconds:.0%})" if self.seconds else ""
        lines = [
            f"{self.steps} steps reduced of {self.micro_steps} micro-steps, {self.skipped} skipped",
            f"{self.nbytes} bytes in {self.calls} calls, {self.wire_nbytes} bytes sent, "
            f"{self.memory_bytes} bytes kept by the compressor",
            f"{self.seconds:.3f} s in communication, {self.hidden_seconds:.3f} s{share} of it hidden; "
            f"{self.blocked_seconds:.3f} s blocked",
        ]
        return "\n".join([*lines, *map(str, self.buckets)])


TOTALS = ("nbytes", "wire_nbytes", "calls", "seconds", "hidden_seconds", "blocked_seconds")
"""Sums in `Statistics`."""


def common(span: Span, others: Sequence[Span]) -> float:
    """Return for how many seconds a span lies in others, which do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in others)


class Record:
    """Counts of one rank, see `Statistics`; and when it waited in the present step."""

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
        self._bucket_steps = 0
        self._bucket_seconds = [(0.0, 0.0)] * len(buckets.flats)  # all, and the hidden part

    def step(self) -> None:
        """Take note of a step whose buckets were reduced, one after the other or together."""
        totals, spans = self._totals, [each for each in self._reducer.spans if each is not None]
        self._last = [end - begin for begin, end in spans]
        blocked = sum([end - begin for begin, end in self.waited])
        hidden = [end - begin - common((begin, end), self.waited) for begin, end in spans]
        new = list(zip(self._last, hidden, strict=True))
        if not spans:
            share = blocked / max(self._buckets.nbytes, 1)
            new = [(share * flat.bucket.nbytes, 0.0) for flat in self._buckets.flats]
        pairs = zip(self._bucket_seconds, new, strict=True)
        self._bucket_seconds = [(a + seconds, b + unseen) for (a, b), (seconds, unseen) in pairs]
        totals["seconds"] += sum(self._last) if spans else blocked
        totals["hidden_seconds"] += sum(hidden)
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
            buckets=tuple(
                BucketStatistics(
                    number,
                    self._bucket_steps,
                    self._bucket_steps * self._buckets.flats[number].bucket.nbytes,
                    self._reducer.each[number].wire_nbytes,
                    *seconds,
                )
                for number, seconds in enumerate(self._bucket_seconds)
            ),
        )

    def last(self, *, skipped: bool) -> tuple[TrainingStep, Sequence[float]]:
        """Return the record since the last call: a reduced step, and its buckets' seconds."""
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


_log = logging.getLogger("hpccomm")


def log_path(path: object) -> Path | None:
    """Return where a log lies; None without one.

    Raises
    ------
    UsageError
        If that is not a path.
    """
    if path is None:
        return None
    text = str(os.fspath(path)) if isinstance(path, str | os.PathLike) else ""
    if not text or "\0" in text:
        raise UsageError(f"log is {path!r}; give the path of a file")
    return Path(text)


class Log:
    """Writes the buckets, each step, and events between steps.

    A file that cannot be written any more ends the log with a warning, and not the training. A program that ends
    without `close` leaves a log without an end.

    Parameters
    ----------
    path : Path
        A results file, which may hold runs and recordings.
    ranks : int
        How many train together.
    settings : mapping of str to object
        The settings of the gradients, by name.

    Raises
    ------
    ResultsError, SchemaMismatch
        If the file cannot be written.
    """

    def __init__(self, path: Path, ranks: int, settings: Mapping[str, object]) -> None:
        from hpccomm.results.recording_file import RecordingWriter  # loads h5py

        facts = RecordingFacts(
            started=datetime.now().astimezone(),
            user=origin.user(),
            arguments=tuple(sys.argv),
            hosts=(origin.host(), *[""] * (ranks - 1)),
            settings={name: str(value) for name, value in settings.items()},
        )
        self._writer = RecordingWriter(path, facts)
        self._at_exit = weakref.finalize(self, _end, self._writer, "")

    def layout(self, since: int, buckets: Sequence[Bucket]) -> None:
        """Note what lies where from a step on."""
        self._writer.add_layout(
            [
                TrainingBucket(
                    since=since,
                    index=bucket.index,
                    dtype=str(bucket.dtype),
                    nbytes=bucket.nbytes,
                    gradients="\n".join(each.name for each in bucket.parameters),
                )
                for bucket in buckets
            ]
        )

    def note(self, step: int, text: str) -> None:
        """Note what happened before a step."""
        self._writer.add_note(TrainingNote(step, text))

    def step(self, step: TrainingStep, seconds: Sequence[float]) -> None:
        """Note a step and the seconds of its buckets."""
        if self._at_exit.alive:
            try:
                self._writer.add_step(step, seconds)
            except Exception as error:  # noqa: BLE001 (in any case, the training goes on)
                _log.warning("the log of the training ends at step %d: %s", step.step, error)
                self._at_exit.detach()
                _end(self._writer, f"failed: {error}")

    def discard(self) -> None:
        """Leave no log: the training does not begin."""
        if self._at_exit.detach() is not None:
            self._writer.discard()

    def close(self, status: str = COMPLETED) -> None:
        """Write all there is, and how the training ended. Idempotent."""
        if self._at_exit.detach() is not None:
            _end(self._writer, status)


def _end(writer: "RecordingWriter", status: str) -> None:
    try:
        writer.end(status)
    except Exception as error:  # noqa: BLE001 (it must not hide another error)
        _log.warning("the training's log is not whole: %s", error)
