"""Tables in a results file: the group ``policy`` of a run of ``hpccomm tune``.

===============  ======  ===========================================================
attribute        type    meaning
===============  ======  ===========================================================
``version``      int     of this form
``measured``     str     date, ISO 8601
others           str or  the shape that the table holds for, an attribute for each of
                 int     `hpccomm.dispatch.policy.Shape`
===============  ======  ===========================================================

Its dataset ``table`` has a line for each row: ``collective``, ``case``, ``start`` in bytes,
``algorithm``, ``segment`` in bytes and ``channels``, 0 for the default.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from hpccomm.dispatch.policy.choosing import NATIVE
from hpccomm.dispatch.policy.table import Pick, Shape, Table, TableRow
from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.files import apart, groups, seal
from hpccomm.files.regular import open_regular
from hpccomm.schedules.registry import KNOWN

GROUP = "policy"
"""Name of the group in a run."""

VERSION = 1

_RUNS = "runs"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_TEXT = 64
_COLUMNS = ("collective", "case", "start", "algorithm", "segment", "channels")


def write(group: Any, table: Table) -> None:
    """Write a table into an empty HDF5 group (h5py)."""
    import h5py

    group.attrs["version"] = VERSION
    group.attrs["measured"] = table.measured
    for field in dataclasses.fields(Shape):
        group.attrs[field.name] = getattr(table.shape, field.name)
    name = h5py.string_dtype("utf-8", _TEXT)
    kinds = (name, name, np.dtype("<i8"), name, np.dtype("<i8"), np.dtype("<i8"))
    lines = [
        (collective.encode(), case.encode(), row.start, row.pick.algorithm.encode(), *row.pick[1:])
        for (collective, case), rows in table.rows.items()
        for row in rows
    ]
    group["table"] = np.array(lines, dtype=list(zip(_COLUMNS, kinds, strict=True)))


def read(path: str) -> tuple[Table, ...]:
    """Return the tables of a results file, oldest first. For one rank; blocks for the file alone.

    The seal of the file holds them. HDF5 is asked, in a process of its own, where there is no seal, or the
    file was changed since: what it finds has to be the same.

    Raises
    ------
    ConfigurationError
        If it cannot be read, is no results file, has no table, or one that cannot be understood.
    """
    try:
        with open_regular(path) as file:
            start = file.read(len(_HDF5))
            sealed = seal.find(file.fileno())
            whole = sealed is not None and seal.unchanged(file.fileno(), sealed)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    kept = None
    if sealed is not None:
        runs = sealed.content[_RUNS]
        kept = [run[GROUP] for run in runs.values() if GROUP in run]
    elif start != _HDF5:
        raise _refused(path, "is not an HDF5 file")
    if not whole:
        try:
            there = apart.call("hpccomm.files.groups:of_runs", path, size=size)
        except apart.Failed as error:
            raise _refused(path, f"is damaged: {error}") from None
        if kept is not None and there != kept:
            raise _refused(path, "was changed since it was written, or is damaged")
        kept = there
    try:
        found = tuple(_loaded(group) for group in kept or ())
    # Whatever may stand there.
    except (LookupError, TypeError, ValueError) as error:
        raise _refused(path, f"is damaged: {error}") from error
    if not found:
        raise _refused(path, "holds no table")
    return found


def _refused(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"tuning file {path!r} (options.tuning_file or HPCCOMM_TUNING_FILE) {why}; "
        "give a file that `hpccomm tune` wrote, or leave it out"
    )


def load(group: Any) -> Table:
    """Return the table of an HDF5 group (h5py).

    Raises
    ------
    ValueError
        If it is none. `UsageError` is one.
    """
    return _loaded(groups.dumped(group))


def _loaded(group: Mapping[str, Any]) -> Table:
    attributes = group["attributes"]
    version = attributes["version"]
    if version != VERSION:
        raise ValueError(f"its table has version {version}, and this hpccomm reads {VERSION}")
    shape = Shape(
        **{
            field.name: _plain(attributes[field.name], field.type)
            for field in dataclasses.fields(Shape)
        }
    )
    rows = {
        key: tuple(row for _, row in lines)
        for key, lines in groupby(_lines(group["tables"]["table"]), key=lambda line: line[0])
    }
    return Table(shape, str(attributes["measured"]), rows)


def _plain(value: Any, kind: object) -> Any:
    if kind is int:
        return int(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _lines(table: Iterable[Any]) -> Iterator[tuple[tuple[str, str], TableRow]]:
    for line in table:
        collective, case, algorithm = (line[name] for name in ("collective", "case", "algorithm"))
        if collective not in KNOWN:
            raise UsageError(f"{collective!r} is not a collective")
        if algorithm != NATIVE and algorithm not in KNOWN[collective]:
            raise UsageError(f"{algorithm!r} is no algorithm of {collective} that is installed")
        start, segment, channels = (int(line[name]) for name in ("start", "segment", "channels"))
        if min(start, segment, channels) < 0:
            raise UsageError(f"{collective} has a row of less than 0 bytes, segments or channels")
        yield (collective, case), TableRow(start, Pick(algorithm, segment, channels))
