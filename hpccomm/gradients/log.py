"""The log of a training's gradients, which rank 0 writes to a results file. For `GradientSync`."""

import logging
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hpccomm.errors import UsageError
from hpccomm.gradients.parameters import Bucket
from hpccomm.results import origin
from hpccomm.results.recording import COMPLETED, RecordingFacts
from hpccomm.results.training import TrainingBucket, TrainingNote, TrainingStep

if TYPE_CHECKING:
    from hpccomm.results.recording_file import RecordingWriter

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
        That train together.
    settings : mapping of str to object
        Of the gradients.

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
