"""Reads a results file: its runs and recordings, and which of its parts are damaged.

HDF5 gives the places of tables and arrays. Plain reads get their content. Each line, its parts of arrays, and the facts are
compared with their checksums. Every command that reads a file, and every writer that extends one, uses this module.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import h5py
import numpy as np
from numpy.lib.recfunctions import repack_fields

from hpccomm.errors import ResultsError
from hpccomm.results import facts, files, layout, lines
from hpccomm.results.blocks import RankCalls, StoredColumns, heads, of_ranks
from hpccomm.results.facts import ENTRY, INTERRUPTED, Others
from hpccomm.results.files import DIFFERS, DamagedFile, as_utf8, damaged, os_errors_as
from hpccomm.results.lines import UNKNOWN_END, DamagedPart, Source, StoredLines, spans
from hpccomm.results.recording import (
    COMPLETED,
    MISSING,
    PART,
    POLLED,
    RECORDING,
    STEPS,
    CallSignature,
    RecordedGroup,
    Recording,
    RecordingFacts,
    TrainingBucket,
    TrainingNote,
)
from hpccomm.results.schema import RUN, Row, RunInfo, SectionKind, Timing, columns
from hpccomm.units import few, grouped

_LOST = CallSignature("unknown", -1, 0, POLLED)
"""The signature that stands for a damaged one."""

_REST = "hpccomm show prints the rest; choose another path to write to"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a results file.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The run's name in it.
    info : RunInfo
        User, host, settings and versions.
    rows : tuple of Row
        The measurements in their order.
    status : str
        ``"completed"``, or ``"failed: "`` and the reason. For a run without an end, ``"running"``, ``"interrupted"``, or
        ``"interrupted or running"`` if both are possible.
    ended : datetime or None
        The time of the end, in the time zone of the start.
    numbers : tuple of int
        The number of each row in the file: 0, 1, 2, ... unless some are damaged.
    damage : tuple of str
        The damaged parts of rows, timings and end. They are left out here.
    position : int
        The run's place in its file, from 1.
    timings : tuple of Timing
        The timing of each row.
    entries : mapping of str to object
        Further facts of JSON types, such as the results of ``hpccomm tune`` and ``hpccomm perf pairs``.
    """

    path: Path
    name: str
    info: RunInfo
    rows: tuple[Row, ...]
    status: str
    ended: datetime | None
    numbers: tuple[int, ...]
    damage: tuple[str, ...]
    position: int = 1
    timings: tuple[Timing, ...] = ()
    entries: Mapping[str, Any] = field(default_factory=dict)
    _lines: StoredLines | None = field(repr=False, compare=False, default=None)

    @property
    def title(self) -> str:
        """The names of the file and of the run, as a text."""
        return as_utf8(f"{self.path.name} {self.name}")

    @property
    def host(self) -> str:
        """The host that writes it. Empty for a simulation: its hosts do not exist."""
        return "" if self.info.simulation else self.info.ranks[0].host

    @property
    def others(self) -> Others:
        """The use of the cores by other processes during the run."""
        stored = self.entries.get(ENTRY, {})
        return Others(**{name: stored[name] for name in Others._fields if name in stored})

    def variant(self, index: int) -> str:
        """Return the variant of row `index`. Empty if it has none."""
        return self.timings[index].variant or self.info.series.get("variant", "")

    def part(self, chosen: Sequence[int]) -> "Run":
        """Return the run with only the rows of these indices."""
        return replace(
            self,
            rows=tuple(self.rows[index] for index in chosen),
            timings=tuple(self.timings[index] for index in chosen),
            numbers=tuple(self.numbers[index] for index in chosen),
        )

    def by_variant(self) -> dict[str, "Run"]:
        """Return the rows of each variant as a run, by variant. Without variants, the name is empty."""
        series = self.info.series
        rows = grouped((self.variant(index), index) for index in range(len(self.rows)))
        first = [series[name] for name in ("base", "new") if name in series]
        names = dict.fromkeys([*first, *rows])
        return {name: self.part(rows[name]) for name in names if name in rows} or {"": self}

    def samples(self, index: int) -> np.ndarray:
        """Read the samples of row `index` from the file.

        Returns
        -------
        ndarray
            Seconds of each repetition on each rank, float64 ``(repetitions, ranks)``. There are no repetitions if none
            were kept.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        return self.array("samples", index)

    def isolated(self, index: int) -> np.ndarray:
        """Read the isolated repetitions of row `index` from the file.

        Returns
        -------
        ndarray
            Start and end of each repetition on each rank, in seconds on the ranks' common clock, float64
            ``(repetitions, ranks, 2)``. There are no repetitions if the row has no isolated ones.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        return self.array("isolated", index)

    def array(self, array: str, index: int) -> np.ndarray:
        """Read ``"samples"`` or ``"isolated"`` of row `index`, as these methods do."""
        assert self._lines is not None
        try:
            return self._lines.part(self.numbers[index], array)
        except ResultsError as error:
            raise type(error)(f"{self.path}: {self.name}: {error}") from error


_Stored = TypeVar("_Stored", bound=Run | Recording)


class Examined(NamedTuple):
    """The contents of a results file, and its damaged parts.

    Attributes
    ----------
    runs : list of Run
        Oldest first, without damaged parts.
    recordings : list of Recording
        Oldest first, without damaged parts.
    damage : list of str
        Damaged parts, with the name of the run or recording.
    """

    runs: list[Run]
    recordings: list[Recording]
    damage: list[str]

    @property
    def stored(self) -> list[Run | Recording]:
        """The runs, and then the recordings."""
        return [*self.runs, *self.recordings]


class _Section(NamedTuple):
    """A run or recording as it is stored."""

    name: str
    position: int
    record: Any
    tables: tuple[StoredLines, ...]
    ended: float
    status: str
    damage: list[str]


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Read the runs of a results file, oldest first. Samples are read only by `Run.samples`.

    The file can also be read if a run was killed or is being written.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    list of Run
        The runs, with interrupted ones.

    Raises
    ------
    ResultsError
        If the file cannot be read or is damaged. `examine` returns the whole parts.
    SchemaMismatch
        If the file has another schema version. It is a ``ForeignFile`` if the file is not HDF5, or another program's.
    """
    return whole(Path(path), examine(path)).runs


def whole(path: Path, examined: Examined) -> Examined:
    """Return the contents of a results file if nothing is damaged. Else raise as `read` does."""
    if examined.damage:
        raise in_part(path, examined.damage)
    return examined


def in_part(path: Path, damage: list[str]) -> DamagedFile:
    """Return the error for a damaged file. It says that the rest can be shown."""
    more = f", and {len(damage) - 1} more (hpccomm show --verify)" if len(damage) > 1 else ""
    return damaged(path, f"{damage[0]}{more}", _REST)


def examine(path: str | os.PathLike[str], *, keep_open: bool = True) -> Examined:
    """Read the whole parts of a results file, and name the damaged ones.

    Parameters
    ----------
    path : path-like
        The file.
    keep_open : bool
        Whether the file stays open, so that samples can be read even after another file has replaced it. A process can do
        this for a few thousand files at most.

    Raises
    ------
    ResultsError, SchemaMismatch
        As `read` does, if nothing can be read.
    """
    file = Path(path)
    with files.opened(file) as (hdf5, descriptor), os_errors_as(file, "read"):
        source = Source(file, os.dup(descriptor))
        held = facts.held(source.descriptor, file)
        runs, damage = _each(file, hdf5, source, RUN, _run)
        recordings, lost = _each(file, hdf5, source, RECORDING, _recording)
        if not keep_open:
            source.close()
    # Only the last run or recording of a file may still be written.
    ends = [(run.info.started, run.name) for run in runs[-1:]]
    ends += [(each.facts.started, each.name) for each in recordings[-1:]]
    _, newest = max(ends, default=("", ""))

    def with_status(each: _Stored) -> _Stored:
        last = each.name == newest
        unended = facts.without_end(held, each.host) if last else facts.INTERRUPTED
        return each if each.status else replace(each, status=unended)

    return Examined([*map(with_status, runs)], [*map(with_status, recordings)], damage + lost)


class Steps(Protocol):
    """Shows the progress of a long read."""

    def advance(self, count: int = 1) -> None:
        """Report this number of further items as done."""
        ...

    def remain(self, count: int) -> None:
        """Report the number of items that are left."""
        ...


class WholeSamples:
    """Reads the samples of a run's rows, and collects which are damaged.

    Parameters
    ----------
    run : Run
        The run.
    progress : Steps, optional
        Advances by one for each row whose ``"samples"`` are read.
    """

    def __init__(self, run: Run, progress: Steps | None = None) -> None:
        self._run, self._progress = run, progress
        self._lost: dict[str, set[int]] = {"samples": set(), "isolated": set()}

    def __call__(self, index: int, array: str = "samples") -> np.ndarray | None:
        """Return ``"samples"`` or ``"isolated"`` of row `index`. Return None if they are damaged.

        Raises
        ------
        ResultsError
            If the file cannot be read.
        """
        if self._progress is not None and array == "samples":
            self._progress.advance()
        try:
            return self._run.array(array, index)
        except DamagedPart:
            self._lost[array].add(self._run.numbers[index])
            return None

    def damage(self) -> list[str]:
        """Return the damaged parts, with the name of the run."""
        return [
            f"{self._run.name}: {array}{' repetitions' * (array == 'isolated')} of {rows}: {DIFFERS}"
            for array, lost in self._lost.items()
            for rows in spans("row", sorted(lost))
        ]


def choose(among: Sequence[_Stored], wanted: str | None) -> _Stored:
    """Choose a run or recording of a file.

    Parameters
    ----------
    among : sequence of Run or Recording
        The contents of a file, runs first.
    wanted : str or None
        A name, or the number of a run: from 1, or from -1 backwards. None is the last run. In a file without runs, it is
        the last recording.

    Returns
    -------
    Run or Recording
        One of them.

    Raises
    ------
    ResultsError
        If the name is unknown. The message lists the known names.
    """
    runs = [each for each in among if isinstance(each, Run)]
    if not among:
        raise ResultsError("the file holds no run; give one that hpccomm perf --output has written")
    if wanted is None:
        return among[len(runs) - 1]
    named = {each.name: each for each in among}
    for each in among:
        if isinstance(each, Run):  # positions also count damaged runs, which are left out
            named[str(each.position)] = named[str(each.position - runs[-1].position - 1)] = each
    if wanted in named:
        return named[wanted]
    what = "run or recording" if len(among) > len(runs) else "run"
    numbers = f", or by number 1 to {runs[-1].position}" if runs else ""
    names = ", ".join(each.name for each in among)
    raise ResultsError(f"{among[0].path} has no {what} {wanted!r}; it has {names}{numbers}")


def _each(
    path: Path,
    hdf5: h5py.File,
    source: Source,
    kind: SectionKind,
    make: Callable[[Path, _Section], _Stored],
) -> tuple[list[_Stored], list[str]]:
    """Return the runs or recordings of a file, and their damaged parts."""
    sections, damage = [], []
    try:
        # `get` returns None for an unreadable attribute.
        parent = hdf5[kind.group] if kind.group in list(hdf5) else None
        if not isinstance(parent, h5py.Group):
            if kind is RUN:
                raise ValueError(f"it has no group {kind.group}")
            return [], []  # there is none, or a user's object has the name
        names = files.names(parent, kind.prefix)
    except files.HDF5_ERRORS as error:
        if kind is RUN:
            raise damaged(path, files.why(error), "restore it from a copy") from error
        return [], [f"{kind.group}: {files.why(error)}"]
    for position, name in enumerate(names, 1):
        try:
            section = make(path, _section(parent[name], source, kind, name, position))
        except files.HDF5_ERRORS as error:
            damage.append(f"{name}: {files.why(error)}")
        else:
            sections.append(section)
            damage += [f"{name}: {each}" for each in section.damage]
    return sections, damage


def _section(
    group: h5py.Group, source: Source, kind: SectionKind, name: str, position: int
) -> _Section:
    record = files.read_record(group)
    places = layout.places(group, kind)
    size = lines.state_type(kind).itemsize
    for _ in range(3):  # the state may be written at this moment
        state = source.read(places[layout.STATE].at, size).ljust(size, b"\0")
        counts = [lines.decode_count(kind, name, form, state) for form in kind.forms]
        end = lines.decode_end(kind, name, state)
        if end is not None and None not in counts:
            break
    tables = tuple(
        StoredLines(source, name, form, places, count)
        for form, count in zip(kind.forms, counts, strict=True)
    )
    damage = [] if end else [f"end of the run: {DIFFERS}"]
    return _Section(name, position, record, tables, *(end or (0.0, UNKNOWN_END)), damage)


def _run(path: Path, section: _Section) -> Run:
    info = files.of_json(RunInfo, section.record)
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
        damage=(*table.damage, *section.damage),
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
    if kind == "<f8":  # always the same NaN, so that equal rows compare as equal
        return [math.nan if math.isnan(each) else each for each in stored]
    if kind == "u1":
        return list(map(bool, stored))
    return [each.decode() for each in stored] if kind.startswith("S") else stored


def _recording(path: Path, section: _Section) -> Recording:
    steps, blocks, events = section.tables
    layouts: dict[int, list[TrainingBucket]] = {}
    groups: dict[int, RecordedGroup] = {}
    signatures: dict[int, CallSignature] = {}
    joined: dict[int, tuple[Any, ...]] = {}
    notes, clock = [], []
    for _, text in events.parts("texts"):
        match event := json.loads(text.tobytes()):
            case {"text": _}:
                notes.append(TrainingNote(**event))
            case {"group": value}:
                groups[event["number"]] = files.of_json(RecordedGroup, value)
            case {"signature": value}:
                signatures[event["number"]] = CallSignature(**value)
            case {"rank": rank, "clock": readings, "numbers": numbers}:
                joined[rank] = readings, numbers
            case {"clock": reading}:
                clock.append(tuple(reading))
            case {"buckets": [_, *_] as values}:
                buckets = [TrainingBucket(**each) for each in values]
                layouts[buckets[0].since] = buckets
    about = files.of_json(RecordingFacts, section.record)
    ranks = len(about.hosts)
    of_blocks = heads(blocks)
    each_rank = joined or dict.fromkeys(range(ranks), ())
    calls = of_ranks(
        ranks, {n: RankCalls(blocks, of_blocks.get(n, {}), *each) for n, each in each_rank.items()}
    )
    used, member = [*signatures], [*groups, *(each.group for each in signatures.values())]
    lost = RecordedGroup("", "unknown", (-1,) * ranks)
    if events.damage:
        used.append(int(calls["signature"].max(initial=-1)))
    return Recording(
        path=path,
        name=section.name,
        facts=about,
        groups=tuple(groups.get(n, lost) for n in range(max(member, default=-1) + 1)),
        signatures=tuple(signatures.get(n, _LOST) for n in range(max(used, default=-1) + 1)),
        calls=calls,
        status=section.status,
        damage=(*(each for table in section.tables for each in table.damage), *section.damage),
        steps=repack_fields(steps.lines[[each.name for each in STEPS.own]]),
        buckets=tuple(bucket for buckets in layouts.values() for bucket in buckets),
        notes=tuple(notes),
        clock=tuple(clock),
        _lines=steps,
    )


def examine_all(path: str | os.PathLike[str], *, keep_open: bool = True) -> Examined:
    """Read a file as `examine` does, and the parts of ranks beside it as its last recording.

    There are such parts while a program records, and after it was killed. The file itself may not exist yet. Parts of
    earlier programs are left out.
    """
    file = Path(path)
    parts, lost = beside(file)
    alone = (parts or lost) and not file.exists()
    stored = Examined([], [], []) if alone else examine(file, keep_open=keep_open)
    name = f"{RECORDING.prefix}{len(stored.recordings) + 1:04d}"
    added = [replace(each, name=name) for each in parts]
    damage = stored.damage + [f"{name}: {each}" for each in lost]
    return Examined(stored.runs, stored.recordings + added, damage)


def beside(file: Path) -> tuple[list[Recording], list[str]]:
    """Return the recording that consists of the parts beside a file, if there are any; and the damaged parts."""
    start = file.name + PART
    ends = {each.name.removeprefix(start): each for each in file.parent.glob(f"*{PART}*")}
    parts: dict[int, Recording] = {}
    damage = []
    for rank, each in ((int(end), each) for end, each in ends.items() if end.isdecimal()):
        try:
            examined = examine(each)
        except ResultsError as error:
            damage.append(f"rank {rank}: {error}")
        else:
            for part in examined.recordings[-1:]:
                _stored(part, rank).read()
                parts[rank] = replace(part, _lines=None)
            damage += [f"rank {rank}: {what}" for what in examined.damage]
    newest = max((part.facts.started for part in parts.values()), default=None)
    parts = {rank: part for rank, part in parts.items() if part.facts.started == newest}
    return [joined(file, "", parts)] if parts else [], damage


def _stored(part: Recording, rank: int) -> RankCalls:
    """Return the calls of a rank's part as they are stored."""
    return cast("StoredColumns", part.calls.columns).ranks[rank]


def joined(path: Path, name: str, parts: Mapping[int, Recording]) -> Recording:
    """Return the recording of all ranks, with the times of the common clock.

    Parameters
    ----------
    path, name : Path, str
        The file and the name of the recording.
    parts : mapping of int to Recording
        The part of each rank. There is at least one. A note names the missing ones.
    """
    first = parts[min(parts)]
    ranks = first.ranks
    errors = list(first.facts.clock_error_ns) or [0] * ranks
    groups: dict[str, RecordedGroup] = {}
    signatures: dict[str, tuple[int, CallSignature]] = {}
    stored: dict[int, RankCalls] = {}
    for rank, part in sorted(parts.items()):
        for group in part.groups:
            known = groups.get(group.uid, group)
            groups[group.uid] = replace(known, ranks=tuple(map(max, known.ranks, group.ranks)))
        numbers = [list(groups).index(group.uid) for group in part.groups]
        placed = []
        for one in part.signatures:
            common = replace(one, group=numbers[one.group] if one.group >= 0 else one.group)
            placed.append(signatures.setdefault(repr(common), (len(signatures), common))[0])
        stored[rank] = replace(_stored(part, rank), clock=part.clock, numbers=placed)
        if part.clock:
            errors[rank] = max(error for _, _, error in part.clock)
    calls = of_ranks(ranks, stored)
    cast("StoredColumns", calls.columns).read()
    notes = dict.fromkeys(note for part in parts.values() for note in part.notes)
    statuses = [part.status for part in parts.values()]
    if missing := sorted({*range(ranks)} - {*parts}):
        notes[TrainingNote(0, f"{MISSING}: {few(missing, 8)}")] = None
        statuses.append(INTERRUPTED)
    return replace(
        first,
        path=path,
        name=name,
        facts=replace(first.facts, clock_error_ns=tuple(errors)),
        groups=tuple(groups.values()),
        signatures=tuple(one for _, one in signatures.values()),
        calls=calls,
        status=min(statuses, key=lambda each: (not each.startswith("failed"), each == COMPLETED)),
        damage=tuple(f"rank {rank}: {each}" for rank in parts for each in parts[rank].damage),
        notes=tuple(notes),
        clock=(),
    )
