"""Writes a recording: lines are kept in memory, and added to the file every few seconds.

A training makes a line a step, which may take less than a millisecond. A killed process loses the
lines since the last plain writes. The program never waits while the file is replaced: when its
capacity ends, a thread builds the next version, and lines stay in memory until then.

The ranks of a program write at the same time, each to a file beside the named one: a part.

`hpccomm.gradients.record` calls it on rank 0, and `hpccomm.communicator.recording` on all ranks.
"""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import RLock, Thread
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import CallFingerprint, recorded
from hpccomm.errors import ResultsError
from hpccomm.results import blocks, files, lines, reader
from hpccomm.results.recording import (
    BLOCKS,
    COMPLETED,
    EVENTS,
    PART,
    RECORDING,
    STEPS,
    CallSignature,
    RecordedGroup,
    Recording,
    RecordingFacts,
    TrainingBucket,
    TrainingNote,
    TrainingStep,
)
from hpccomm.results.store import Section
from hpccomm.units import few

EVERY_SECONDS = 5.0
"""How often lines are written."""

MOST_KEPT = 500
"""Lines of a table in memory that are written earlier, so that writing takes a few milliseconds."""

CAPACITY = {
    "steps": 1 << 13,
    "bucket_seconds": 1 << 17,
    "events": 1 << 6,
    "texts": 1 << 16,
    "blocks": 1 << 8,
    "packed": 1 << 20,
}
"""Entries of each table and array that are laid out at first: three megabytes."""


class RecordingWriter:
    """Adds one recording to a results file. From any threads of one process; waits only for the file system.

    Parameters
    ----------
    path : path-like
        The file. One that holds runs and recordings keeps them.
    facts : RecordingFacts
        The recording's facts.

    Attributes
    ----------
    name : str
        The recording's name in the file, such as ``"recording0001"``.

    Raises
    ------
    ResultsError
        If the file cannot be written, is in use or is damaged. It is then left as it was.
    SchemaMismatch
        If it is another program's HDF5 file or of another schema version.
    """

    def __init__(self, path: str | os.PathLike[str], facts: RecordingFacts) -> None:
        self._section = Section(path, RECORDING, files.as_json(facts), CAPACITY)
        self._section.begin()
        self.name = self._section.name
        self._new: dict[str, list[lines.Line]] = {form.name: [] for form in RECORDING.forms}
        self._numbers = {"group": count(), "signature": count()}
        self._writing = RLock()
        self._enlarging: Thread | None = None
        self._refusal: Exception | None = None
        self._due = perf_counter() + EVERY_SECONDS

    def add_group(self, group: RecordedGroup) -> int:
        """Add a communicator; return its number."""
        return self._add_numbered("group", group)

    def add_signature(self, signature: CallSignature) -> int:
        """Add a signature of calls; return its number. Its group was added before."""
        return self._add_numbered("signature", signature)

    def add_calls(self, calls: Mapping[str, NDArray[Any]], rank: int) -> None:
        """Add calls of a rank; write to the file if that is due.

        Give some thousand at once: they are packed together. The reader sorts them by their begins.

        Parameters
        ----------
        calls : mapping of str to ndarray
            By the names of `hpccomm.results.recording.CALL_COLUMNS`. Their signatures were added before.
        rank : int
            The rank in the program.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        for first in range(0, len(calls["begin"]), blocks.CALLS):
            part = {name: each[first : first + blocks.CALLS] for name, each in calls.items()}
            self._add_block(rank, len(part["begin"]), blocks.pack(part))

    def add_packed(self, calls: blocks.RankCalls, rank: int) -> None:
        """Copy the packed calls of a rank, with the readings of its clock and the common numbers of its signatures.

        Raises
        ------
        ResultsError
            As in `add_step`, or if they cannot be read any more.
        """
        self._add_event({"rank": rank, "clock": calls.clock, "numbers": calls.numbers})
        for number, packed in calls.packed():
            self._add_block(rank, number, packed)

    def add_clock(self, local_ns: int, ahead_ns: int, error_ns: int) -> None:
        """Add a reading of this rank's clock, how much it is ahead of the common clock, and a bound of the error."""
        self._add_event({"clock": (local_ns, ahead_ns, error_ns)})

    def add_layout(self, buckets: Sequence[TrainingBucket]) -> None:
        """Add the buckets of another layout. They replace a layout without steps."""
        self._add_event({"buckets": buckets})

    def add_note(self, note: TrainingNote) -> None:
        """Add a note."""
        self._add_event(note)

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
        self._flush_if_due("steps")

    def flush(self) -> None:
        """Write the lines in memory. If the file lacks capacity for them, start a thread that enlarges it instead.

        Does nothing while another thread writes.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        if not self._section.is_open or not self._writing.acquire(blocking=False):
            return
        try:
            if self._enlarging is not None and self._enlarging.is_alive():
                return
            self._due = perf_counter() + EVERY_SECONDS
            self._wait()
            self._section.check_there()
            added = self._added()
            if self._section.fits(wanted := _wanted(added)):
                self._write(added)
            else:
                self._enlarging = Thread(target=self._enlarge, args=(wanted,), daemon=True)
                self._enlarging.start()
        finally:
            self._writing.release()

    def end(self, status: str) -> None:
        """Write the lines in memory, and how the recording ended. Does nothing if it has ended.

        Parameters
        ----------
        status : str
            ``"completed"``, or ``"failed: "`` and why; empty leaves it without an end.

        Raises
        ------
        ResultsError
            As in `add_step`. The file then has the lines that it has capacity for, and its end says why it failed.
        """
        if not self._section.is_open:
            return
        with self._writing:
            try:
                self._end(status)
            finally:
                self.close()

    def discard(self) -> None:
        """Take the recording out of the file again; remove a file that this writer made, if it has nothing else.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        if self._section.is_open:
            with self._writing:
                self._wait()
                self._section.remove()

    def close(self) -> None:
        """Close the file, which keeps the lines written before. Idempotent."""
        if self._enlarging is not None and self._section.is_open:
            self._enlarging.join()
        self._section.close()

    def _end(self, status: str) -> None:
        added = self._added()
        try:
            self._wait()
            self._section.check_there()
            if not self._section.fits(wanted := _wanted(added)):
                self._section.enlarge(wanted)
        except ResultsError as error:
            while not self._section.fits(_wanted(added)):
                next(added[name] for name in ("steps", "blocks", "events") if added[name]).pop()
            self._write(added)
            self._section.note_end(f"failed: {error}")
            raise
        self._write(added)
        if status:
            self._section.note_end(status)
        self._section.finish()

    def _add_block(self, rank: int, count: int, packed: NDArray[np.uint8]) -> None:
        self._new["blocks"].append(((rank, count), (packed,)))
        self._flush_if_due("blocks")

    def _add_event(self, event: Any) -> None:
        text = json.dumps(files.as_json(event)).encode()
        self._new["events"].append(((), (np.frombuffer(text, "u1"),)))

    def _add_numbered(self, kind: str, value: RecordedGroup | CallSignature) -> int:
        number = next(self._numbers[kind])
        self._add_event({"number": number, kind: value})
        return number

    def _flush_if_due(self, table: str) -> None:
        if perf_counter() > self._due or len(self._new[table]) >= MOST_KEPT:
            self.flush()

    def _added(self) -> dict[str, list[lines.Line]]:
        """Return the lines in memory. Events are taken last: they include those that the other lines refer to."""
        return {form.name: list(self._new[form.name]) for form in (STEPS, BLOCKS, EVENTS)}

    def _write(self, added: Mapping[str, list[lines.Line]]) -> None:
        for form in (EVENTS, STEPS, BLOCKS):  # a step is of a layout that is there
            before = self._section.used[form.name]
            try:
                self._section.append(form, added[form.name])
            finally:
                if self._section.used[form.name] != before:  # also where a signal's handler raises
                    del self._new[form.name][: len(added[form.name])]

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


class PartWriter(RecordingWriter):
    """Writes the part of a rank: its calls, and each communicator and signature before the first call of it.

    Parameters
    ----------
    path : path-like
        Its file.
    facts : RecordingFacts
        The recording's facts.
    rank : int
        The rank in the program.

    Attributes
    ----------
    numbers : dict of object to int
        The number of each signature.
    """

    def __init__(self, path: str | os.PathLike[str], facts: RecordingFacts, rank: int) -> None:
        super().__init__(path, facts)
        self._rank = rank
        self._groups: dict[str, int] = {}
        self.numbers: dict[object, int] = {}

    def number(
        self, origin: tuple[str, str, int, int] | None, label: CallFingerprint, mode: str, site: str
    ) -> int:
        """Return the number of the signature of calls, which is written when it is new.

        Parameters
        ----------
        origin : tuple or None
            Their communicator, as `hpccomm.runtime.recorder.Origin`; None of a mark.
        label : CallFingerprint
            What is called.
        mode, site : str
            As of `CallSignature`.
        """
        # The fingerprint stands for the label's values.
        values = label.fingerprint, label.individual
        key = (origin, label.name, label.nbytes, values, mode, site)
        if key not in self.numbers:
            group = -1 if origin is None else self._group(*origin)
            signature = CallSignature(label.name, group, label.nbytes, mode, recorded(label), site)
            self.numbers[key] = self.add_signature(signature)
        return self.numbers[key]

    def _group(self, uid: str, name: str, rank: int, size: int) -> int:
        if uid not in self._groups:
            # The parts of the other ranks have their places.
            ranks = tuple(self._rank if each == rank else -1 for each in range(size))
            self._groups[uid] = self.add_group(RecordedGroup(uid, name, ranks))
        return self._groups[uid]


def _wanted(added: Mapping[str, list[lines.Line]]) -> dict[str, int]:
    """Return the number of entries that lines take in each table and array."""
    of_forms = (lines.entries(form, added[form.name]) for form in RECORDING.forms)
    return {name: count for entries in of_forms for name, count in entries.items()}


def part_path(path: str | os.PathLike[str], rank: int) -> Path:
    """Return the file beside `path` that a rank writes its calls to."""
    return Path(f"{os.fspath(path)}{PART}{rank}")


def joined(path: str | os.PathLike[str]) -> Recording:
    """Join the parts beside `path` into one recording on the common clock. Damage is left out.

    Raises
    ------
    ResultsError
        If none can be read.
    """
    recordings, damage = reader.beside(Path(path))
    if not recordings:
        raise ResultsError(f"{path}.rank* hold no recording ({few(damage, 1)}); remove these files")
    return recordings[0]


def write(path: str | os.PathLike[str], recording: Recording) -> str:
    """Add a recording to a results file; return its name there. The blocks of joined parts are copied as they are.

    Raises
    ------
    ResultsError, SchemaMismatch
        As `RecordingWriter`.
    """
    writer = RecordingWriter(path, recording.facts)
    try:
        for group in recording.groups:
            writer.add_group(group)
        for signature in recording.signatures:
            writer.add_signature(signature)
        for note in recording.notes:
            writer.add_note(note)
        columns = recording.calls.columns
        stored = columns.ranks if isinstance(columns, blocks.StoredColumns) else {}
        for rank in range(recording.ranks):
            if rank in stored and stored[rank].numbers is not None:
                writer.add_packed(stored[rank], rank)
            else:
                where = recording.calls.of_rank(rank)
                writer.add_calls({name: each[where] for name, each in columns.items()}, rank)
        ended = recording.status == COMPLETED or recording.status.startswith("failed")
        writer.end(recording.status if ended else "")
    except BaseException:
        writer.discard()
        raise
    return writer.name


def read_recordings(path: str | os.PathLike[str]) -> list[Recording]:
    """Read the recordings of a results file, oldest first, also while they are written.

    Parts beside it, whose program still goes on or was killed, are joined to the last one.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ResultsError
        If the file cannot be read, is not a results file, or is damaged.
        `hpccomm.results.examine` returns the whole parts.
    SchemaMismatch
        If it is of another schema version.
    """
    return reader.whole(Path(path), reader.examine_all(path)).recordings
