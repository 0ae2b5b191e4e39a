"""Reading a results file: its runs, their facts, rows and samples, and what of it is damaged.

A sealed file is read without HDF5, by plain reads of the places that its seal names. What the seal does not
cover, rows and samples, have checksums of their own. HDF5 reads the others: files without checksums, and
those that another program has changed; in a process of its own, as it may crash on a damaged file.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccomm import __version__
from hpccomm.errors import ResultsError, SchemaMismatch
from hpccomm.files import apart, seal
from hpccomm.results import coding, contents, liveness, sealed, unsealed
from hpccomm.results.refusals import DamagedFile, ForeignFile, damaged, reported
from hpccomm.results.run import Run
from hpccomm.results.schema import FORMAT, SCHEMA_VERSION, UNSEALED, RunInfo

_HDF5 = b"\x89HDF\r\n\x1a\n"
_RESTORE = "restore it from a copy"


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
        If the file cannot be read or is damaged. `examine` gives what is whole.
    SchemaMismatch
        If it is of another schema version; a ``ForeignFile`` if it is not HDF5 or another program's.
    """
    examined = examine(path)
    if examined.damage:
        raise in_part(Path(path), examined.damage)
    return examined.runs


def in_part(path: Path, damage: list[str]) -> ResultsError:
    """Return the error for a file of which something is damaged and the rest can be shown."""
    more = f", and {len(damage) - 1} more (hpccomm show --verify)" if len(damage) > 1 else ""
    remedy = "hpccomm show prints the rest; choose another path to write to"
    return damaged(path, f"{damage[0]}{more}", remedy)


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
        _isolated=sealed.Numbers(source, name, "isolated", content["isolated"], measured.timings)
        if "isolated" in content
        else None,
    )


def _unended(facts: Mapping[str, Any], held: bool | None, last: bool) -> str:
    """Return the status of a run if it has no end. Only the last one of a file may get more rows."""
    info = coding.run_info(facts)
    host = "" if info.simulation else info.ranks[0].host  # whose hosts are none
    return liveness.without_end(held, host) if last else liveness.INTERRUPTED


def _end(info: RunInfo, ended: float, status: str, unended: str) -> tuple[str, datetime | None]:
    if not ended:
        return status or unended, None
    return status, datetime.fromtimestamp(ended, UTC).astimezone(info.started.tzinfo)


def _through_hdf5(path: Path, source: sealed.Source) -> dict[str, Any]:
    """Return what `hpccomm.results.unsealed.read` does.

    Raises
    ------
    ResultsError
        If HDF5 cannot read the file, or it is none of hpccomm's or of this version.
    """
    if not any(source.read(at, 8) == _HDF5 for at in (0, *(512 << n for n in range(12)))):
        if FORMAT.encode() in source.read(0, 1 << 16):  # the root
            raise damaged(path, "it does not begin as HDF5 does", _RESTORE)
        raise ForeignFile(f"{path} is not an HDF5 file; name a results file of hpccomm")
    try:
        size = os.fstat(source.descriptor).st_size
        found: dict[str, Any] | ResultsError = apart.call(unsealed.PLACE, str(path), size=size)
    except apart.Failed as error:
        raise damaged(path, error, _RESTORE) from None
    if isinstance(found, ResultsError):
        raise found
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
    try:
        found = _through_hdf5(path, source)
    except ResultsError as error:
        if isinstance(error, SchemaMismatch) and not isinstance(error, ForeignFile):
            raise
        return {}, [f"structure: {error.why if isinstance(error, DamagedFile) else error}"]
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
    if found["version"] != UNSEALED:
        why = "both copies of its seal are damaged, so that nothing in it can be shown to be as it was stored"
        raise damaged(path, why, _RESTORE)
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
