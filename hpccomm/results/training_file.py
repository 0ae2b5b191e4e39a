"""Trainings in a results file: written as a whole every few seconds, and read.

A training makes a line a step, which may take less than a millisecond. So lines are kept in memory, and the file
is replaced by one that has them (`hpccomm.results.storage.replace`) so seldom that it takes little of the time. A
process that is killed loses the lines since then.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import astuple, replace
from datetime import datetime
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py
import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.files import apart
from hpccomm.files.regular import as_utf8
from hpccomm.results import layout, liveness, reader, storage
from hpccomm.results.refusals import reported
from hpccomm.results.run import Run
from hpccomm.results.run import choose as choose_run
from hpccomm.results.schema import RUNS, columns
from hpccomm.results.training import (
    TRAININGS,
    Training,
    TrainingBucket,
    TrainingFacts,
    TrainingNote,
    TrainingStep,
)

EVERY_SECONDS = 5.0
"""How often the file is written."""

SHARE = 0.02
"""Part of the time that writing may take; it is done less often where it takes long."""

STEP = layout.table_type(columns(TrainingStep))
BUCKET = layout.table_type(columns(TrainingBucket))
NOTE = layout.table_type(columns(TrainingNote))

_SECONDS = np.dtype("<f8")
_COMPRESSED_FROM = 1000  # lines
_DAMAGED = (
    AttributeError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What h5py and NumPy answer with to a group that is not as it was written."""

_PLACE = f"{__name__}:stored"


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
        self.name = ""
        self._file = Path(os.path.realpath(path))
        self._facts = replace(
            facts,
            user=_storable(facts.user),
            host=_storable(facts.host),
            arguments=tuple(map(_storable, facts.arguments)),
            settings={_storable(k): _storable(v) for k, v in facts.settings.items()},
        )
        self._steps = np.empty(0, STEP)
        self._seconds = np.empty(0, _SECONDS)
        self._new_steps: list[tuple[Any, ...]] = []
        self._new_seconds: list[float] = []
        self._buckets: list[TrainingBucket] = []
        self._notes: list[TrainingNote] = []
        self._open: FileIO | None = None
        self._process = os.getpid()  # a forked child must not write
        with reported(self.path, "write"):
            before = storage.claim(self._file)
            self._made = before is None  # the path named nothing
            with before or contextlib.nullcontext():
                if before is not None and self._file.stat().st_size:
                    reader.read(self._file)  # what is damaged must not get a new seal
                self._replace(before, "")

    def add_layout(self, buckets: Sequence[TrainingBucket]) -> None:
        """Add the buckets of another layout. They take the place of one that no step had."""
        since = {bucket.since for bucket in buckets}
        self._buckets = [each for each in self._buckets if each.since not in since]
        self._buckets += buckets

    def add_note(self, note: TrainingNote) -> None:
        """Add what happened."""
        self._notes.append(note)

    def add_step(self, step: TrainingStep, seconds: Sequence[float]) -> None:
        """Add a step and the seconds of its buckets; write the file if that is due.

        Raises
        ------
        ResultsError
            If it cannot be written, or was removed or replaced. The file has what was written before.
        """
        self._new_steps.append(astuple(step))
        self._new_seconds += seconds
        if perf_counter() > self._due:
            self.flush()

    def flush(self, status: str = "") -> None:
        """Write all that there is, and the status if the training has ended.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        if self._open is None or os.getpid() != self._process:
            return
        there = False
        with contextlib.suppress(FileNotFoundError):
            there = os.path.samestat(os.fstat(self._open.fileno()), self._file.stat())
        if not there:
            raise ResultsError(
                f"{self.path} was removed, moved or replaced while {self.name} was written to it"
            )
        with reported(self.path, "write to"):
            self._replace(self._open, status)

    def end(self, status: str) -> None:
        """Write all that there is, and how the training ended. Does nothing if it has ended.

        Parameters
        ----------
        status : str
            ``"completed"``, or ``"failed: "`` and why; empty leaves it without an end.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        try:
            self.flush(status)
        finally:
            self.close()

    def discard(self) -> None:
        """Take the training out of the file again; remove a file that this writer made, if it has nothing else.

        Raises
        ------
        ResultsError
            As in `add_step`.
        """
        if self._open is None or os.getpid() != self._process:
            return

        def build(old: h5py.File | None, new: h5py.File) -> bool:
            storage.copy_runs(old, new)
            del new[TRAININGS][self.name]
            # Each has the seal and the two groups, the format and the version.
            return bool(len(new[RUNS]) or len(new[TRAININGS])) or len(new) > 3 or len(new.attrs) > 2

        with reported(self.path, "write to"):
            file, left = storage.replace(self._file, build, before=self._open)
            if self._made and not left:
                self._file.unlink()
        file.close()
        self.close()

    def close(self) -> None:
        """Let go of the file, which keeps what was written before. Idempotent."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _replace(self, before: FileIO | None, status: str) -> None:
        begun = perf_counter()
        self._steps = np.concatenate([self._steps, np.array(self._new_steps, STEP)])
        self._seconds = np.concatenate([self._seconds, np.array(self._new_seconds, _SECONDS)])
        self._new_steps, self._new_seconds = [], []

        def build(old: h5py.File | None, new: h5py.File) -> None:
            storage.copy_runs(old, new)
            # The others have been copied.
            if not isinstance(new.get(TRAININGS), h5py.Group | None):
                raise ResultsError(
                    f"{self.path} has something else by the name {TRAININGS!r}; choose another path"
                )
            trainings = new.require_group(TRAININGS)
            self.name = self.name or _next_name(trainings)
            if self.name in trainings:
                del trainings[self.name]
            self._write(trainings.create_group(self.name), status)

        extra = self._steps.nbytes + self._seconds.nbytes
        extra += sum(len(each.gradients) + 64 for each in self._buckets) + 64 * len(self._notes)
        file, _ = storage.replace(self._file, build, before=before, extra=2 * extra)
        if self._open is not None:
            self._open.close()
        self._open = file
        storage.lock(file, self.path, fcntl.LOCK_SH)
        now = perf_counter()
        self._due = now + max(EVERY_SECONDS, (now - begun) / SHARE)

    def _write(self, group: h5py.Group, status: str) -> None:
        layout.write_info(group, self._facts)
        group.attrs["status"] = _storable(status)
        for name, lines, kind in (
            ("steps", self._steps, STEP),
            ("bucket_seconds", self._seconds, _SECONDS),
            ("buckets", list(map(_line, self._buckets)), BUCKET),
            ("notes", list(map(_line, self._notes)), NOTE),
        ):
            packed = len(lines) > _COMPRESSED_FROM and isinstance(lines, np.ndarray)
            how = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if packed else {}
            group.create_dataset(name, data=np.array(lines, kind), **how)
        group.attrs["checksum"] = _checksum(_stored(group))


def _storable(text: str) -> str:
    """Return a text that HDF5 can store: without zero bytes, and what is no UTF-8 is escaped."""
    return as_utf8(text).replace("\0", "\\0")


def _line(entry: TrainingBucket | TrainingNote) -> tuple[Any, ...]:
    return tuple(_storable(each) if isinstance(each, str) else each for each in astuple(entry))


def _next_name(trainings: h5py.Group) -> str:
    numbers = [int(name[8:]) for name in trainings if name[8:].isdecimal()]
    return f"training{max(numbers, default=0) + 1:04d}"


def stored(name: str) -> dict[str, dict[str, Any]]:
    """Return what lies in the groups of trainings, by their names. HDF5 may crash on a damaged file."""
    found: dict[str, dict[str, Any]] = {}
    # Whoever writes to it has it locked; what it has written is whole.
    with h5py.File(name, "r", locking=False) as file:
        trainings = file.get(TRAININGS)
        if not isinstance(trainings, h5py.Group):  # none, or something of a user's own
            return {}
        for each in sorted(trainings, key=lambda name: (len(name), name)):
            try:
                found[each] = _stored(layout.group(trainings, each))
            except _DAMAGED as error:
                found[each] = {"damaged": str(error)}
    return found


def _stored(group: h5py.Group) -> dict[str, Any]:
    found: dict[str, Any] = {"status": str(group.attrs["status"])}
    for name, kind, *_ in columns(TrainingFacts):
        match kind:
            case "str":
                found[name] = str(group.attrs[name])
            case "str[]":
                found[name] = list(map(str, group.attrs[name]))
            case "group":
                attributes = layout.group(group, name).attrs
                found[name] = {key: str(value) for key, value in sorted(attributes.items())}
            case _:
                found[name] = int(group.attrs[name])
    for name, table in (("buckets", TrainingBucket), ("notes", TrainingNote)):
        lines = group[name][()].tolist()
        kinds = [each.kind for each in columns(table)]
        found[name] = [[_plain(*each) for each in zip(line, kinds, strict=True)] for line in lines]
    found["steps"] = group["steps"][()]
    found["bucket_seconds"] = group["bucket_seconds"][()]
    found["checksum"] = str(group.attrs.get("checksum", ""))
    return found


def _plain(value: Any, kind: str) -> Any:
    return value.decode() if kind == "str" else value


def _checksum(found: dict[str, Any]) -> str:
    """Return the checksum of what was stored, whatever bytes HDF5 stores for it."""
    arrays = ("steps", "bucket_seconds")
    sums = blake2b(digest_size=16)
    plain = {key: value for key, value in found.items() if key not in (*arrays, "checksum")}
    sums.update(json.dumps(plain, sort_keys=True).encode())
    for name in arrays:
        sums.update(np.ascontiguousarray(found[name]).tobytes())
    return sums.hexdigest()


def read(path: str | os.PathLike[str]) -> list[Training]:
    """Read the trainings of a results file, oldest first. One that is being written can be read as well.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ResultsError
        If the file cannot be read, is no results file or is damaged. ``examine`` gives what is whole.
    SchemaMismatch
        If it is of another schema version.
    """
    file = Path(path)
    trainings, damage = examine(file, reader.examine(file))
    if damage:
        raise reader.in_part(file, damage)
    return trainings


def examine(path: Path, examined: reader.Examined) -> tuple[list[Training], list[str]]:
    """Return the trainings of a file that was examined, and what of them is damaged."""
    with reported(path, "read"), path.open("rb") as file:
        held = liveness.held(file.fileno(), path)
        size = os.fstat(file.fileno()).st_size
    if not examined.changed and examined.checked and not examined.damage:
        with reported(path, "read"):
            found = stored(str(path))
    else:
        try:
            found = apart.call(_PLACE, str(path), size=size)
        except apart.Failed as error:
            return [], [f"{TRAININGS}: {error}"]
    trainings, damage = [], []
    # Only the last of a file may get more.
    newest = max((run.info.started for run in examined.runs), default=None)
    for name, content in found.items():
        if "damaged" in content:
            damage.append(f"{name}: {content['damaged']}: not shown")
            continue
        if content["checksum"] != _checksum(content):
            damage.append(f"{name}: its checksum differs: not shown")
            continue
        facts = TrainingFacts(
            started=datetime.fromisoformat(content["started"]),
            user=content["user"],
            host=content["host"],
            arguments=tuple(content["arguments"]),
            ranks=content["ranks"],
            settings=content["settings"],
        )
        last = name == list(found)[-1] and (newest is None or facts.started > newest)
        unended = liveness.without_end(held, facts.host) if last else liveness.INTERRUPTED
        trainings.append(
            Training(
                path=path,
                name=name,
                facts=facts,
                steps=content["steps"],
                bucket_seconds=content["bucket_seconds"],
                buckets=tuple(TrainingBucket(*each) for each in content["buckets"]),
                notes=tuple(TrainingNote(*each) for each in content["notes"]),
                status=content["status"] or unended,
            )
        )
    return trainings, damage


def choose(
    runs: Sequence[Run], trainings: Sequence[Training], wanted: str | None
) -> Run | Training:
    """Choose a run or training of a file.

    Parameters
    ----------
    runs, trainings : sequences
        Of one file.
    wanted : str or None
        A name; the number of a run, as in `hpccomm.results.run.choose`; None is the last run, or the last
        training of a file without runs.

    Raises
    ------
    ResultsError
        If there is no such one; the message lists those that there are.
    """
    names = {each.name: each for each in trainings}
    if wanted in names:
        return names[wanted]
    if not trainings:
        return choose_run(runs, wanted)
    if not runs and wanted is None:
        return trainings[-1]
    try:
        return choose_run(runs, wanted)
    except ResultsError:
        there = ", ".join([*(run.name for run in runs), *names])
        raise ResultsError(
            f"{trainings[0].path} has no run or training {wanted!r}; it has {there}"
        ) from None
