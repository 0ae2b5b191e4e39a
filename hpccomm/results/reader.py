"""Reads a results file: its runs and trainings, and which of its parts are damaged.

HDF5 says where things lie; plain reads fetch them. Each line, its parts of arrays, and the facts
are compared with their checksums. Every verb that reads a file, and every writer that continues
one, calls it.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import h5py
import numpy as np
from numpy.lib.recfunctions import repack_fields

from hpccomm.files import records
from hpccomm.files.records import DIFFERS
from hpccomm.files.refusals import DamagedFile, damaged, os_errors_as
from hpccomm.results import facts, layout, lines, liveness
from hpccomm.results.lines import UNKNOWN_END, DamagedPart, Source, StoredLines
from hpccomm.results.run import Run
from hpccomm.results.schema import RUN, Row, RunInfo, SectionKind, Timing, columns
from hpccomm.results.training import (
    STEPS,
    TRAINING,
    Training,
    TrainingBucket,
    TrainingFacts,
    TrainingNote,
)

_Stored = TypeVar("_Stored", Run, Training)

_REST = "hpccomm show prints the rest; choose another path to write to"


class Examined(NamedTuple):
    """The contents of a results file, and its damaged parts.

    Attributes
    ----------
    runs : list of Run
        Oldest first, without damaged parts.
    trainings : list of Training
        Likewise.
    damage : list of str
        Damaged parts, with the name of the run or training.
    """

    runs: list[Run]
    trainings: list[Training]
    damage: list[str]


class _Section(NamedTuple):
    """A run or training as it is stored."""

    name: str
    position: int
    record: Any
    tables: tuple[StoredLines, ...]
    ended: float
    status: str
    damage: list[str]


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Read the runs of a results file, oldest first. Samples are read only by `hpccomm.results.run.Run.samples`.

    A file whose run was killed, or is being written, can be read as well.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    list of Run
        Interrupted runs too.

    Raises
    ------
    ResultsError
        If the file cannot be read or is damaged. `examine` returns the whole parts.
    SchemaMismatch
        If it is of another schema version; a ``ForeignFile`` if it is not HDF5 or another program's.
    """
    return whole(Path(path)).runs


def whole(path: Path) -> Examined:
    """Return the contents of a results file; raise as `read` does for damage."""
    examined = examine(path)
    if examined.damage:
        raise in_part(path, examined.damage)
    return examined


def in_part(path: Path, damage: list[str]) -> DamagedFile:
    """Return the error for a damaged file whose rest can be shown."""
    more = f", and {len(damage) - 1} more (hpccomm show --verify)" if len(damage) > 1 else ""
    return damaged(path, f"{damage[0]}{more}", _REST)


def examine(path: str | os.PathLike[str], *, keep_open: bool = True) -> Examined:
    """Read the whole parts of a results file, and name the damaged ones.

    Parameters
    ----------
    path : path-like
        The file.
    keep_open : bool
        Whether it stays open for the samples, also where another takes its place. Not for many files:
        a process may open some thousand.

    Raises
    ------
    ResultsError, SchemaMismatch
        As `read`, if nothing of it can be read.
    """
    file = Path(path)
    with records.opened(file) as (hdf5, descriptor), os_errors_as(file, "read"):
        source = Source(file, os.dup(descriptor))
        held = liveness.held(source.descriptor, file)
        runs, damage = _each(file, hdf5, source, RUN, _run)
        trainings, lost = _each(file, hdf5, source, TRAINING, _training)
        if not keep_open:
            source.close()
    # Only the last run or training of a file may still be written.
    ends = [(run.info.started, run.name) for run in runs[-1:]]
    ends += [(training.facts.started, training.name) for training in trainings[-1:]]
    _, newest = max(ends, default=("", ""))

    def with_status(each: _Stored, host: str) -> _Stored:
        last = each.name == newest
        unended = liveness.without_end(held, host) if last else liveness.INTERRUPTED
        return each if each.status else replace(each, status=unended)

    return Examined(
        # A simulation's hosts do not exist.
        [
            with_status(each, "" if each.info.simulation else each.info.ranks[0].host)
            for each in runs
        ],
        [with_status(each, each.facts.host) for each in trainings],
        damage + lost,
    )


def _each(
    path: Path,
    hdf5: h5py.File,
    source: Source,
    kind: SectionKind,
    make: Callable[[Path, _Section], _Stored],
) -> tuple[list[_Stored], list[str]]:
    """Return the runs or trainings of a file, and what of them is damaged."""
    sections, damage = [], []
    try:
        # `get` returns None for an unreadable attribute.
        parent = hdf5[kind.group] if kind.group in list(hdf5) else None
        if not isinstance(parent, h5py.Group):
            if kind is RUN:
                raise ValueError(f"it has no group {kind.group}")
            return [], []  # none, or something of a user's own
        names = records.names(parent, kind.prefix)
    except records.HDF5_ERRORS as error:
        if kind is RUN:
            raise damaged(path, records.why(error), "restore it from a copy") from error
        return [], [f"{kind.group}: {records.why(error)}"]
    for position, name in enumerate(names, 1):
        try:
            section = _section(parent[name], source, kind, name, position)
            sections.append(make(path, section))
        except records.HDF5_ERRORS as error:
            damage.append(f"{name}: {records.why(error)}")
        else:
            damage += [f"{name}: {each}" for each in section.damage]
    return sections, damage


def _section(
    group: h5py.Group, source: Source, kind: SectionKind, name: str, position: int
) -> _Section:
    record = records.read_record(group)
    places = layout.places(group, kind)
    size = lines.state_type(kind).itemsize
    for _ in range(3):  # it may be written just now
        state = source.read(places[layout.STATE].at, size).ljust(size, b"\0")
        counts = [lines.decode_count(kind, name, form, state) for form in kind.forms]
        end = lines.decode_end(kind, name, state)
        if end is not None and None not in counts:
            break
    tables = tuple(
        StoredLines(source, name, form, places, count)
        for form, count in zip(kind.forms, counts, strict=True)
    )
    damage = [each for table in tables for each in table.damage]
    if end is None:
        damage.append(f"end of the run: {DIFFERS}")
    return _Section(name, position, record, tables, *(end or (0.0, UNKNOWN_END)), damage)


def _run(path: Path, section: _Section) -> Run:
    info = facts.of_json(RunInfo, section.record)
    (table,) = section.tables
    ended = None
    if section.ended:
        ended = datetime.fromtimestamp(section.ended, UTC).astimezone(info.started.tzinfo)
    return Run(
        path=path,
        name=section.name,
        info=info,
        rows=_decoded(Row, table.lines),
        status=section.status,
        ended=ended,
        numbers=tuple(table.numbers),
        damage=tuple(section.damage),
        position=section.position,
        timings=_decoded(Timing, table.lines),
        entries=section.record["entries"],
        _lines=table,
    )


def _decoded(kind: Any, stored: np.ndarray) -> tuple[Any, ...]:
    """Return the `Row` or `Timing` of each stored line."""
    values = [_values(stored[each.name].tolist(), each.kind) for each in columns(kind)]
    return tuple(map(kind, *values))


def _values(stored: list[Any], kind: str) -> list[Any]:
    if kind == "<f8":  # one NaN, which equals itself inside of lines that are compared
        return [math.nan if math.isnan(each) else each for each in stored]
    if kind == "u1":
        return list(map(bool, stored))
    return [each.decode() for each in stored] if kind.startswith("S") else stored


def _training(path: Path, section: _Section) -> Training:
    steps, events = section.tables
    layouts: dict[int, list[TrainingBucket]] = {}
    notes = []
    for number in events.numbers:
        try:
            event = json.loads(events.part(number, "texts").tobytes())
        except DamagedPart as error:
            section.damage.append(str(error))
            continue
        if "text" in event:
            notes.append(TrainingNote(**event))
        elif buckets := [TrainingBucket(**each) for each in event["buckets"]]:
            layouts[buckets[0].since] = buckets
    return Training(
        path=path,
        name=section.name,
        facts=facts.of_json(TrainingFacts, section.record),
        steps=repack_fields(steps.lines[[each.name for each in STEPS.own]]),
        buckets=tuple(bucket for buckets in layouts.values() for bucket in buckets),
        notes=tuple(notes),
        status=section.status,
        damage=tuple(section.damage),
        _lines=steps,
    )
