"""Writes a training: lines are kept in memory, and added to the file every few seconds.

A training makes a line a step, which may take less than a millisecond. A killed process loses the
lines since the last plain writes. The file is never replaced within a step: when its capacity ends,
a thread builds the next version, and lines stay in memory until then.

`hpccomm.gradients.log` calls it on rank 0.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results import facts as json_facts
from hpccomm.results import lines, reader
from hpccomm.results.store import Section
from hpccomm.results.training import (
    EVENTS,
    STEPS,
    TRAINING,
    Training,
    TrainingBucket,
    TrainingFacts,
    TrainingNote,
    TrainingStep,
)

EVERY_SECONDS = 5.0
"""How often lines are written."""

MOST_KEPT = 500
"""Steps in memory that are written earlier, so that writing takes a few milliseconds."""

CAPACITY = {"steps": 1 << 13, "bucket_seconds": 1 << 17, "events": 1 << 6, "texts": 1 << 16}
"""Entries of each table and array that are laid out at first: two megabytes."""


class TrainingWriter:
    """Adds one training to a results file. Only for rank 0; blocks only for the file system.

    Parameters
    ----------
    path : path-like
        The file. One that holds runs and trainings keeps them.
    facts : TrainingFacts
        Of this training.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The training's name in it, such as ``"training0001"``.

    Raises
    ------
    ResultsError
        If the file cannot be written, is in use or is damaged. It is then left as it was.
    SchemaMismatch
        If it is another program's HDF5 file or of another schema version.
    """

    def __init__(self, path: str | os.PathLike[str], facts: TrainingFacts) -> None:
        self.path = Path(path)
        self._section = Section(path, TRAINING, json_facts.as_json(facts), CAPACITY)
        self.name = self._section.name
        self._new: dict[str, list[lines.Line]] = {"steps": [], "events": []}
        self._enlarging: Thread | None = None
        self._refusal: Exception | None = None
        self._due = perf_counter() + EVERY_SECONDS

    def add_layout(self, buckets: Sequence[TrainingBucket]) -> None:
        """Add the buckets of another layout. They replace a layout without steps."""
        self._add_event({"buckets": [asdict(each) for each in buckets]})

    def add_note(self, note: TrainingNote) -> None:
        """Add what happened."""
        self._add_event(asdict(note))

    def add_step(self, step: TrainingStep, seconds: Sequence[float]) -> None:
        """Add a step and the seconds of its buckets; write to the file if that is due.

        Raises
        ------
        ResultsError
            If it cannot be written, or was removed or replaced. The file has what was written before.
        """
        self._new["steps"].append(
            ([getattr(step, each.name) for each in STEPS.own], (np.array(seconds, "<f8"),))
        )
        if perf_counter() > self._due or len(self._new["steps"]) >= MOST_KEPT:
            self.flush()

    def flush(self) -> None:
        """Write all that there is; or have a thread lay out more capacity for it, where that is needed.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        enlarging = self._enlarging is not None and self._enlarging.is_alive()
        if enlarging or not self._section.is_open:
            return
        self._due = perf_counter() + EVERY_SECONDS
        self._wait()
        self._section.check_there()
        wanted = self._wanted()
        if self._section.fits(wanted):
            self._write()
        else:
            self._enlarging = Thread(target=self._enlarge, args=(wanted,), daemon=True)
            self._enlarging.start()

    def end(self, status: str) -> None:
        """Write all that there is, and how the training ended. Does nothing if it has ended.

        Parameters
        ----------
        status : str
            ``"completed"``, or ``"failed: "`` and why; empty leaves it without an end.

        Raises
        ------
        ResultsError
            As in `add_step`. The file has what fits of the rest, and the end says that it failed.
        """
        if not self._section.is_open:
            return
        try:
            try:
                self._wait()
                self._section.check_there()
                if not self._section.fits(wanted := self._wanted()):
                    self._section.enlarge(wanted)
            except ResultsError as error:
                while not self._section.fits(self._wanted()):
                    (self._new["steps"] or self._new["events"]).pop()
                self._write()
                self._section.note_end(f"failed: {error}")
                raise
            self._write()
            if status:
                self._section.note_end(status)
            self._section.finish()
        finally:
            self.close()

    def discard(self) -> None:
        """Take the training out of the file again; remove a file that this writer made, if it has nothing else.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        if self._section.is_open:
            self._wait()
            self._section.remove()

    def close(self) -> None:
        """Close the file, which keeps the lines written before. Idempotent."""
        if self._enlarging is not None and self._section.is_open:
            self._enlarging.join()
        self._section.close()

    def _add_event(self, event: dict[str, Any]) -> None:
        text = json.dumps(json_facts.as_json(event)).encode()
        self._new["events"].append(((), (np.frombuffer(text, "u1"),)))

    def _wanted(self) -> dict[str, int]:
        """Return how many entries of each table and array are in memory."""
        wanted = {}
        for form in TRAINING.forms:
            added = self._new[form.name]
            wanted[form.name] = len(added)
            wanted[form.beside[0].name] = sum(len(part) for _, (part,) in added)
        return wanted

    def _write(self) -> None:
        for form in (EVENTS, STEPS):  # a step is of a layout that is there
            before = self._section.used[form.name]
            try:
                self._section.append(form, self._new[form.name])
            finally:
                if self._section.used[form.name] != before:  # also where a signal's handler raises
                    self._new[form.name] = []

    def _enlarge(self, wanted: dict[str, int]) -> None:
        """Lay out more capacity, in a thread: only it touches the section until it ends."""
        try:
            self._section.enlarge(wanted)
        except Exception as error:  # noqa: BLE001 (`_wait` raises it)
            self._refusal = error

    def _wait(self) -> None:
        """Wait for the thread, and raise its exception."""
        if self._enlarging is not None:
            self._enlarging.join()
            self._enlarging = None
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal


def read(path: str | os.PathLike[str]) -> list[Training]:
    """Read the trainings of a results file, oldest first, also while they are written.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ResultsError
        If the file cannot be read, is not a results file, or is damaged.
        `hpccomm.results.reader.examine` returns the whole parts.
    SchemaMismatch
        If it is of another schema version.
    """
    return reader.whole(Path(path)).trainings
