"""Reading a results file: its runs, their facts, rows and samples, and what of it is damaged.

A sealed file is read without HDF5, by plain reads of the places that its seal names. What the seal does not
cover, rows and samples, have checksums of their own. HDF5 reads the others: files without checksums, and
those that another program has changed; in a process of its own, as it may crash on a damaged file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpccomm import __version__
from hpccomm.errors import ResultsError, SchemaMismatch
from hpccomm.files import apart, seal
from hpccomm.results import coding, contents, liveness, sealed, unsealed
from hpccomm.results.refusals import reported
from hpccomm.results.schema import SCHEMA_VERSION, UNSEALED, Row, RunInfo, Timing

_HDF5 = b"\x89HDF\r\n\x1a\n"

UNKNOWN = "unknown: the end of the run is damaged"
"""Status of a run whose end is damaged."""


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
        Who, where and with what.
    rows : tuple of Row
        The measurements in the order in which they were made.
    status : str
        ``"completed"``, ``"failed: "`` and why, or for a run without an end ``"running"``,
        ``"interrupted"``, or ``"interrupted or running"`` where that cannot be seen.
    ended : datetime or None
        When it ended, in the time zone in which it started.
    numbers : tuple of int
        The number of each row in the file, from 0: 0, 1, 2, ... unless some are damaged.
    damage : tuple of str
        What of its rows, timings and its end is damaged, and left out here.
    timings : tuple of Timing or None
        Of each row; None where it is damaged, and in runs of before there were timings.
    groups : mapping of str to dict
        Further data: what ``hpccomm.files.groups.dumped`` gives of each group in
        ``hpccomm.results.contents.GROUPS`` that the run has.
    """

    path: Path
    name: str
    info: RunInfo
    rows: tuple[Row, ...]
    status: str
    ended: datetime | None
    numbers: tuple[int, ...]
    damage: tuple[str, ...]
    _samples: Callable[[int], np.ndarray] = field(repr=False, compare=False)
    _spare: Callable[[], str] = field(repr=False, compare=False, default=lambda: sealed.EMPTY)
    timings: tuple[Timing | None, ...] = ()
    groups: Mapping[str, Any] = field(default_factory=dict)
    _alone: Callable[[int], np.ndarray] | None = field(repr=False, compare=False, default=None)

    def variant(self, index: int) -> str:
        """Return the variant that row `index` is of; empty if it is of none."""
        timing = self.timings[index] if self.timings else None
        own = "" if timing is None else timing.variant
        return own or self.info.series.get("variant", "")

    def by_variant(self) -> dict[str, list[int]]:
        """Return the numbers of the rows of each variant; all under an empty name if there are none."""
        series = self.info.series
        found: dict[str, list[int]] = {
            series[name]: [] for name in ("base", "new") if name in series
        }
        for index in range(len(self.rows)):
            found.setdefault(self.variant(index), []).append(index)
        return {name: rows for name, rows in found.items() if rows} or {"": []}

    def samples(self, index: int) -> np.ndarray:
        """Read the samples of row `index` from the file.

        Returns
        -------
        ndarray
            Seconds of each repetition on each rank, float64 ``(repetitions, ranks)``; no
            repetitions if none were kept.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        return self._read(self._samples, index)

    def alone(self, index: int) -> np.ndarray:
        """Read the repetitions alone of row `index` from the file.

        Returns
        -------
        ndarray
            When each rank started and ended each repetition: seconds on the clock that the ranks agreed on,
            float64 ``(repetitions, ranks, 2)``; no repetitions if the row was not measured so.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        if self._alone is None:
            return np.empty((0, len(self.info.ranks), 2))
        return self._read(self._alone, index)

    def _read(self, read: Callable[[int], np.ndarray], index: int) -> np.ndarray:
        try:
            with reported(self.path, "read"):
                return read(self.numbers[index])
        except ResultsError as error:
            raise type(error)(f"{self.path}: {self.name}: {error}") from error

    def spare(self) -> str:
        """Return what is in the space for more rows and samples, and for an end: see `sealed.spare`."""
        with reported(self.path, "read"):
            return self._spare()


class Examined(NamedTuple):
    """What a results file holds, and what of it is damaged.

    Attributes
    ----------
    runs : list of Run
        Oldest first, without what is damaged.
    damage : list of str
        What is damaged, with the name of the run.
    checked : bool
        Whether the file has checksums; those of before schema version 2 have none.
    changed : bool
        Whether another program has changed it, or what nobody reads is damaged: all that is in ``runs`` is
        as it was stored.
    """

    runs: list[Run]
    damage: list[str]
    checked: bool
    changed: bool


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Read the runs of a results file, oldest first. Samples are read only by `Run.samples`.

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
        If the file cannot be read, is not HDF5 or is damaged. `examine` gives what is whole.
    SchemaMismatch
        If it is another program's HDF5 file or of another schema version.
    """
    examined = examine(path)
    if examined.damage:
        raise damaged(Path(path), examined.damage)
    return examined.runs


class Steps(Protocol):
    """Who shows how far something is."""

    def advance(self, count: int = 1) -> None:
        """Say that some more is done."""
        ...

    def remain(self, count: int) -> None:
        """Say how much there is left to do."""
        ...


class WholeSamples:
    """The samples of a run's rows that are whole.

    Parameters
    ----------
    run : Run
        The run.
    progress : Steps, optional
        Advances by one for each row.

    Attributes
    ----------
    lost, lost_alone : list of int
        Numbers of rows whose samples, or repetitions alone, were asked for and are damaged.
    """

    def __init__(self, run: Run, progress: "Steps | None" = None) -> None:
        self._run = run
        self._progress = progress
        self.lost: list[int] = []
        self.lost_alone: list[int] = []

    def __call__(self, index: int) -> np.ndarray | None:
        """Return the samples of row `index`; None if they are damaged.

        Raises
        ------
        ResultsError
            If the file cannot be read.
        """
        if self._progress is not None:
            self._progress.advance()
        try:
            return self._run.samples(index)
        except sealed.Damaged:
            self.lost.append(self._run.numbers[index])
            return None

    def alone(self, index: int) -> np.ndarray | None:
        """Return the repetitions alone of row `index`; None if they are damaged.

        Raises
        ------
        ResultsError
            If the file cannot be read.
        """
        try:
            return self._run.alone(index)
        except sealed.Damaged:
            self.lost_alone.append(self._run.numbers[index])
            return None

    def damage(self) -> list[str]:
        """Return what was found damaged, with the name of the run."""
        return [
            f"{self._run.name}: {what} of {rows}: {sealed.DIFFERS}"
            for what, lost in (("samples", self.lost), ("repetitions alone", self.lost_alone))
            for rows in sealed.spans("row", sorted(set(lost)))
        ]


def damaged(path: Path, damage: list[str]) -> ResultsError:
    """Return the error for a file of which something is damaged."""
    more = f", and {len(damage) - 1} more (hpccomm show --verify)" if len(damage) > 1 else ""
    return ResultsError(
        f"{path} is damaged or incomplete: {damage[0]}{more}; hpccomm show prints the rest; "
        "choose another path to write to"
    )


def examine(path: str | os.PathLike[str]) -> Examined:
    """Read what is whole of a results file, and say what is not.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ResultsError, SchemaMismatch
        As `read`, if nothing of it can be trusted.
    """
    file = Path(path)
    with reported(file, "read"):
        source = sealed.Source(file)
        source.read(0, 1)
        held = liveness.held(source.descriptor, file)
        found = seal.find(source.descriptor)
        if found is None:
            return _unsealed(file, source, held)
        if found.content["schema_version"] > SCHEMA_VERSION:
            raise _of_version(file, found.content["schema_version"])
        whole = seal.unchanged(source.descriptor, found)
        last = next(reversed(found.content["runs"]), None)
        runs = [
            _sealed(file, source, name, content, _unended(content["facts"], held, name == last))
            for name, content in found.content["runs"].items()
        ]
    damage = [f"{run.name}: {what}" for run in runs for what in run.damage]
    if not whole:
        infos, differences = _differences(file, source, found.content["runs"])
        runs = [_with(run, infos.get(run.name)) for run in runs]
        damage = differences + damage
    return Examined(runs, damage, checked=True, changed=not whole or found.copies < 2)


def _of_version(path: Path, version: object) -> SchemaMismatch:
    return SchemaMismatch(
        f"{path} has schema version {version}; hpccomm {__version__} reads up to {SCHEMA_VERSION}: "
        "use the hpccomm that wrote it, or choose another path"
    )


def _sealed(
    path: Path, source: sealed.Source, name: str, content: Mapping[str, Any], unended: str
) -> Run:
    measured = sealed.measured(source, name, content)
    info = coding.run_info(content["facts"])
    status, ended = _end(info, measured.ended, measured.status, unended)
    if any(what.startswith("end") for what in measured.damage):
        status = UNKNOWN
    return Run(
        path=path,
        name=name,
        info=info,
        rows=tuple(stored.row for stored in measured.rows.values()),
        status=status,
        ended=ended,
        numbers=tuple(measured.rows),
        damage=tuple(measured.damage),
        _samples=sealed.Numbers(source, name, "samples", content["samples"], measured.rows),
        _spare=partial(sealed.spare, source, name, content),
        timings=tuple(
            measured.timings[number].timing if number in measured.timings else None
            for number in measured.rows
        ),
        groups={group: content[group] for group in contents.GROUPS if group in content},
        _alone=sealed.Numbers(source, name, "alone", content["alone"], measured.timings)
        if "alone" in content
        else None,
    )


def _unended(facts: Mapping[str, Any], held: bool | None, last: bool) -> str:
    """Return the status of a run if it has no end. Only the last one of a file may get more rows."""
    info = coding.run_info(facts)
    host = "" if info.simulation else info.ranks[0].host  # whose hosts are none
    return liveness.without_end(held, host) if last else liveness.INTERRUPTED


def _end(info: RunInfo, ended: float, status: str, unended: str) -> tuple[str, datetime | None]:
    if not ended:
        return unended, None
    return status, datetime.fromtimestamp(ended, UTC).astimezone(info.started.tzinfo)


def _through_hdf5(path: Path, source: sealed.Source) -> dict[str, Any]:
    """Return what `hpccomm.results.unsealed.read` does, or that HDF5 cannot read the file."""
    if not any(source.read(at, 8) == _HDF5 for at in (0, *(512 << n for n in range(12)))):
        why = f"{path} is not an HDF5 file; name a results file of hpccomm"
        return {"refused": why, "foreign": False}
    try:
        size = os.fstat(source.descriptor).st_size
        found: dict[str, Any] = apart.call(unsealed.PLACE, str(path), size=size)
    except apart.Failed as error:
        return {"refused": f"{path} is damaged or incomplete: {error}", "foreign": False}
    return found


def _differences(
    path: Path, source: sealed.Source, runs: Mapping[str, Any]
) -> tuple[dict[str, RunInfo], list[str]]:
    """Return what HDF5 finds in a sealed file that was changed: the facts of runs, and how they differ.

    Raises
    ------
    SchemaMismatch
        If it says that it is of another version.
    """
    found = _through_hdf5(path, source)
    if "refused" in found:
        why = found["refused"]
        if found["foreign"] and "schema version" in why:
            raise SchemaMismatch(why)
        why = why.removeprefix(f"{path} is damaged or incomplete: ").partition("; choose")[0]
        return {}, [f"structure: {why}"]
    infos, differences = {}, []
    for name, stated in runs.items():
        there = found["runs"].get(name)
        if there is None:
            differences.append(f"{name}: HDF5 does not find it any more")
            continue
        lacking = [key for key in coding.OPTIONAL if not there["facts"].get(key)]
        infos[name] = coding.run_info(there["facts"])
        for key, value in stated["facts"].items():
            if there["facts"][key] != value and key not in lacking:
                differences.append(f"{name}: {key}: HDF5 finds something else than was stored")
        differences += [
            f"{name}: {group}: HDF5 finds something else than was stored"
            for group in contents.GROUPS
            if there.get(group) != stated.get(group)
        ]
    new = [name for name in found["runs"] if name not in runs]
    differences += [f"{name}: was not there when the file was written" for name in new]
    return {} if differences else infos, differences


def _with(run: Run, info: RunInfo | None) -> Run:
    return run if info is None else replace(run, info=info)


def _unsealed(path: Path, source: sealed.Source, held: bool | None) -> Examined:
    """Read a file that has no seal, as those of before there were checksums."""
    found = _through_hdf5(path, source)
    if "refused" in found:
        raise (SchemaMismatch if found["foreign"] else ResultsError)(found["refused"])
    if found["version"] != UNSEALED:
        raise ResultsError(
            f"{path} is damaged: both copies of its seal are, so that nothing in it can be told to be as it "
            "was stored; restore it from a copy"
        )
    runs = []
    for name, stated in found["runs"].items():
        info = coding.run_info(stated["facts"])
        unended = _unended(stated["facts"], held, name == next(reversed(found["runs"])))
        status, ended = _end(info, stated["ended"], stated["status"], unended)
        rows = stated["rows"]
        runs.append(
            Run(
                path=path,
                name=name,
                info=info,
                rows=tuple(stored.row for stored in rows),
                status=status,
                ended=ended,
                numbers=tuple(range(len(rows))),
                damage=(),
                timings=(None,) * len(rows),
                _samples=_kept(rows, stated["samples"]),
            )
        )
    return Examined(runs, [], checked=False, changed=False)


def _kept(rows: list[coding.Stored], samples: np.ndarray) -> Callable[[int], np.ndarray]:
    """Return what gives the samples of a row, from those that were read with the file."""

    def of_row(number: int) -> np.ndarray:
        row = rows[number]
        return samples[row.first_sample : row.first_sample + row.repetitions]

    return of_row


def choose(runs: Sequence[Run], wanted: str | None) -> Run:
    """Choose a run by its name or number.

    Parameters
    ----------
    runs : sequence of Run
        As `read` gives them.
    wanted : str or None
        A name; a number from 1, or from -1 backwards; None is the last.

    Returns
    -------
    Run
        One of ``runs``.

    Raises
    ------
    ResultsError
        If there is no such run; the message lists those that there are.
    """
    if not runs:
        raise ResultsError("the file holds no run")
    if wanted is None:
        return runs[-1]
    for run in runs:
        if run.name == wanted:
            return run
    try:
        number = int(wanted)
    except ValueError:
        number = 0
    if 1 <= abs(number) <= len(runs):
        return runs[number - 1 if number > 0 else number]
    raise ResultsError(
        f"{runs[0].path} has no run {wanted!r}; it has {', '.join(run.name for run in runs)}, "
        f"or by number 1 to {len(runs)}"
    )
