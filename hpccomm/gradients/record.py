"""What the steps of a training cost. It is counted, returned as `Statistics`, and written by rank 0 to a results file."""

import logging
import os
import sys
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.errors import UsageError
from hpccomm.gradients.buckets import Buckets, Span
from hpccomm.results import facts as origin
from hpccomm.results import recording

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.results.recording_file import RecordingWriter

_log = logging.getLogger("hpccomm")


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """Counts of one bucket since its layout was made.

    Attributes
    ----------
    index : int
        The bucket's number.
    calls : int
        Number of its reductions.
    nbytes : int
        Reduced bytes: gradients, and the padding between them.
    wire_nbytes : int
        Bytes that this rank gave to collectives. With a compressor, they are less than ``nbytes``.
    seconds : float
        Time during which its reductions were under way.
    hidden_seconds : float
        The part of this time in which this rank did not wait.
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
    """Counts of one rank since its `GradientSync` was made. Prints as a few lines.

    Attributes
    ----------
    steps : int
        Reduced steps.
    micro_steps : int
        Completed calls of ``sync`` and ``wait``, with those that reduced nothing.
    skipped : int
        Reduced steps that were left out because of NaN or infinities.
    with_gradients : int
        Parameters that had a gradient on this rank in the last reduced step.
    nbytes, wire_nbytes, seconds, hidden_seconds
        As in `BucketStatistics`, summed over all buckets and all layouts. Work on a device is not measured: seconds are
        those of arrays in host memory.
    calls : int
        Number of reductions. ``ready`` and ``wait`` make one for each bucket, and ``sync`` one for all buckets of a dtype.
    blocked_seconds : float
        Time during which this rank waited in ``sync``, ``wait`` and ``wait_for``, for reductions and for late ranks.
    memory_bytes : int
        Bytes that the compressor keeps from step to step on this rank.
    buckets : tuple of BucketStatistics
        The buckets of the present layout. ``sync`` reduces them together: its seconds are divided among them by bytes.
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


def common(span: Span, others: Sequence[Span]) -> float:
    """Return the seconds that a span has in common with others. These do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in others)


class Record:
    """The counts of one rank for `Statistics`, its waiting in the present step, and the log, which rank 0 may write.

    If the file cannot be written any more, the log ends with a warning, and the training goes on. If a program ends
    without `close`, the log has no end.
    """

    def __init__(self) -> None:
        self._made = perf_counter()
        self.steps = self.micro_steps = self.skipped = self._with_gradients = 0
        self.waited: list[Span] = []
        self._totals: Counter[str] = Counter()  # the sums for `Statistics`
        self._writer: RecordingWriter | None = None

    def open_log(self, path: object, comm: "Communicator", settings: Mapping[str, object]) -> None:
        """Begin a log on rank 0. Local.

        Parameters
        ----------
        path : path-like or None
            A results file, which may already hold runs and recordings. None makes no log.
        comm : Communicator
            Over the ranks that train together.
        settings : mapping of str to object
            The settings of the gradients, by name.

        Raises
        ------
        UsageError
            If it is not a path.
        ResultsError, SchemaMismatch
            If the file cannot be written.
        """
        if path is None:
            return
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(text, str) or not text or "\0" in text:
            raise UsageError(f"log is {path!r}; give the path of a file")
        if comm.rank == 0:
            from hpccomm.results.recording_file import RecordingWriter  # loads h5py

            facts = recording.RecordingFacts(
                started=datetime.now().astimezone(),
                user=origin.user(),
                arguments=tuple(sys.argv),
                hosts=(origin.host(), *[""] * (comm.size - 1)),
                settings={name: str(value) for name, value in settings.items()},
            )
            self._writer = RecordingWriter(text, facts)
            weakref.finalize(self, _end, self._writer, "")

    def lay_out(self, buckets: Buckets, num_joint_calls: int, changes: Sequence[str]) -> None:
        """Begin the counts of a new layout's buckets, and write the layout and the changes of the model to the log."""
        self._buckets, self._num_joint_calls = buckets, num_joint_calls
        self._since, self._sent = self.steps, 0
        if self._writer is not None:
            for change in changes:
                self._writer.add_note(recording.TrainingNote(self.steps, change))
            names = ["\n".join(x.name for x in each.parameters) for each in buckets.layout]
            self._writer.add_layout(
                [
                    recording.TrainingBucket(
                        self.steps, each.index, str(each.dtype), each.nbytes, inside
                    )
                    for each, inside in zip(buckets.layout, names, strict=True)
                ]
            )

    def step(self, with_gradients: int, *, skipped: bool) -> None:
        """Count a reduced step, and write it to the log.

        Parameters
        ----------
        with_gradients : int
            Parameters that had a gradient on this rank.
        skipped : bool
            Whether the step has no results.
        """
        each, blocked = self._buckets.each, sum([end - begin for begin, end in self.waited])
        spans = [reduction.span for reduction in each if reduction.span is not None]
        if spans:
            seconds = [end - begin for begin, end in spans]
            hidden = [end - begin - common((begin, end), self.waited) for begin, end in spans]
        else:  # buckets that were reduced together share the time by their bytes
            share = blocked / max(self._buckets.nbytes, 1)
            seconds = [share * reduction.nbytes for reduction in each]
            hidden = [0.0] * len(seconds)
        for reduction, all_seconds, unseen in zip(each, seconds, hidden, strict=True):
            reduction.seconds += all_seconds
            reduction.hidden_seconds += unseen
        sent = sum([reduction.wire_nbytes for reduction in each])
        counts: dict[str, Any] = {
            "nbytes": self._buckets.nbytes,
            "wire_nbytes": sent - self._sent,
            "calls": len(spans) or self._num_joint_calls,
            "seconds": sum(seconds),
            "hidden_seconds": sum(hidden),
            "blocked_seconds": blocked,
        }
        self._totals.update(counts)
        self._sent, self._with_gradients = sent, with_gradients
        self.steps += 1
        self.waited.clear()
        if self._writer is None:
            return
        step = recording.TrainingStep(
            step=self.steps - 1,
            finished=perf_counter() - self._made,
            **counts,
            with_gradients=with_gradients,
            skipped=skipped,
            buckets=len(spans),
        )
        try:
            self._writer.add_step(step, seconds if spans else [])
        except Exception as error:  # noqa: BLE001 (in any case, the training goes on)
            _log.warning("the log of the training ends at step %d: %s", step.step, error)
            self.close(error)

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        steps, each = self.steps - self._since, self._buckets.each
        return Statistics(
            steps=self.steps,
            micro_steps=self.micro_steps,
            skipped=self.skipped,
            with_gradients=self._with_gradients,
            **self._totals,
            memory_bytes=sum(x.memory_bytes for x in each),
            buckets=tuple(
                BucketStatistics(
                    n, steps, steps * x.nbytes, x.wire_nbytes, x.seconds, x.hidden_seconds
                )
                for n, x in enumerate(each)
            ),
        )

    def close(self, error: BaseException | None = None) -> None:
        """End the log with how the training ended. Idempotent."""
        writer, self._writer, status = self._writer, None, recording.COMPLETED
        if error is not None:
            status = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        if writer is not None:
            _end(writer, status)

    def discard(self) -> None:
        """Remove the log: the training does not begin."""
        if self._writer is not None:
            self._writer.discard()


def _end(writer: "RecordingWriter", status: str) -> None:
    try:
        writer.end(status)
    except Exception as error:  # noqa: BLE001 (it must not hide another error)
        _log.warning("the training's log is not whole: %s", error)
