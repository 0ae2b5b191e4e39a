"""How one run lies in an HDF5 group: the schema turned into HDF5 types, and back.

A run takes two forms with the same names and types. While it is measured, ``rows`` and ``samples``
are contiguous and have room to spare, so that a row can be added without touching anything but the
bytes of that room (see `hpccomm.results.writer`). Once it has ended they are exactly as long as what was measured, and the
samples are chunked and compressed. The rows stay as they are, so that damage takes single rows.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import h5py
import numpy as np

from hpccomm.files.regular import as_utf8
from hpccomm.results import coding
from hpccomm.results.coding import SAMPLE, Stored
from hpccomm.results.schema import (
    LOCATION,
    STATE,
    TIMING_LOCATION,
    Column,
    Config,
    DeviceInfo,
    RankInfo,
    Row,
    RunInfo,
    Timing,
    columns,
)

_Line = TypeVar("_Line", RankInfo, DeviceInfo)

INFO_BYTES = 1 << 11
"""More than the facts of one rank take."""

_LEAST_CHUNK, _MOST_CHUNK = 1 << 12, 1 << 20
_CHUNKS = 256
_BLOCK_BYTES = 64 << 20


def _hdf5_type(stored: str) -> np.dtype[Any]:
    """Turn a type of the schema into the NumPy type that h5py stores under it."""
    if stored == "str":
        kind: np.dtype[Any] = h5py.string_dtype("utf-8")
    elif stored.startswith("S"):
        kind = h5py.string_dtype("utf-8", int(stored[1:]))
    else:
        kind = np.dtype(stored)
    return kind


def table_type(stored: Iterable[Column]) -> np.dtype[Any]:
    """Return the type of a table's lines."""
    return np.dtype([(column.name, _hdf5_type(column.kind)) for column in stored])


_ROW_COLUMNS = columns(Row)

ROW = table_type((*_ROW_COLUMNS, *LOCATION))
"""Type of one stored row: the columns of `Row`, then where its samples lie."""

TIMING = table_type((*columns(Timing), *TIMING_LOCATION))
"""Type of one stored timing: the columns of `Timing`, then where its isolated repetitions lie."""

RANK = table_type(columns(RankInfo))
"""Type of one line of the table of ranks."""

DEVICE = table_type(columns(DeviceInfo))
"""Type of one line of the table of devices."""

STATE_TYPE = table_type(STATE)
"""Type of the scalar dataset ``state``."""

_OLD_ROW = table_type((*_ROW_COLUMNS, *LOCATION[:2]))
_OLD_STATE = table_type(column for column in STATE if not column.name.endswith("checksum"))


class Room(NamedTuple):
    """How much a run has, or has space for.

    Attributes
    ----------
    rows, repetitions, isolated : int
        Rows, rows of samples, and isolated repetitions.
    """

    rows: int
    repetitions: int
    isolated: int


@dataclass(frozen=True, slots=True)
class ReservedSpace:
    """The space that a run fills while it is measured, in bytes from the start of the file.

    Attributes
    ----------
    room : Room
        What fits.
    rows_at, timings_at, samples_at, isolated_at, state_at : int
        Addresses of the datasets.
    """

    room: Room
    rows_at: int
    timings_at: int
    samples_at: int
    isolated_at: int
    state_at: int


def reserved_bytes(room: Room, ranks: int) -> int:
    """Return the size of the datasets that `reserve` creates."""
    numbers = (room.repetitions + 2 * room.isolated) * ranks
    lines = room.rows * (ROW.itemsize + TIMING.itemsize)
    return lines + numbers * SAMPLE.itemsize + STATE_TYPE.itemsize


def reserve(run: h5py.Group, room: Room, ranks: int) -> ReservedSpace:
    """Create the datasets of `MEASUREMENTS` with reserved space for a run.

    The space is laid out at once and never moves: that is what makes it safe to fill while nobody has the
    file open.
    """
    rows, repetitions, isolated = max(room.rows, 1), max(room.repetitions, 1), room.isolated
    name = str(run.name).rpartition("/")[2]
    state = run.create_dataset("state", data=np.frombuffer(coding.no_rows(name), STATE_TYPE)[0])
    return ReservedSpace(
        Room(rows, repetitions, isolated),
        rows_at=contiguous(run, "rows", (rows,), ROW).id.get_offset(),
        timings_at=contiguous(run, "timings", (rows,), TIMING).id.get_offset(),
        samples_at=contiguous(run, "samples", (repetitions, ranks), SAMPLE).id.get_offset(),
        # Where there is no room it has no address.
        isolated_at=contiguous(run, "isolated", (isolated, ranks, 2), SAMPLE).id.get_offset() or 0,
        state_at=state.id.get_offset(),
    )


def group(parent: h5py.Group, name: str) -> h5py.Group:
    """Return a group of the schema.

    Raises
    ------
    KeyError, ValueError
        If it is not there, or something else is.
    """
    member = parent[name]
    if not isinstance(member, h5py.Group):
        raise ValueError(f"{member.name} is not a group")
    return member


def dataset(run: h5py.Group, name: str) -> h5py.Dataset:
    """Return a dataset of a run.

    Raises
    ------
    KeyError, ValueError
        If it is not there, or something else is.
    """
    member = run[name]
    kinds, dimensions = _DATASETS[name]
    if (
        not isinstance(member, h5py.Dataset)
        or member.dtype not in kinds
        or member.ndim != dimensions
    ):
        raise ValueError(f"{member.name} is not what hpccomm writes there")
    return member


_DATASETS = {
    "rows": ((ROW, _OLD_ROW), 1),
    "timings": ((TIMING,), 1),
    "samples": ((SAMPLE,), 2),
    "isolated": ((SAMPLE,), 3),
    "ranks": ((RANK,), 1),
    "devices": ((DEVICE,), 1),
    "state": ((STATE_TYPE, _OLD_STATE), 0),
}


MEASUREMENTS = ("state", "rows", "timings", "samples", "isolated")
"""Members of a run that are not known before it measures."""


def is_open(run: h5py.Group) -> bool:
    """Say whether a run still has the form of one that is being measured."""
    return dataset(run, "samples").chunks is None


def is_old(run: h5py.Group) -> bool:
    """Say whether a run was written before there were checksums."""
    return bool(dataset(run, "rows").dtype == _OLD_ROW)


def written(run: h5py.Group) -> Room:
    """Return how much a run holds."""
    rows = int(dataset(run, "state")[()]["rows"])
    if not rows:
        return Room(0, 0, 0)
    last = dataset(run, "rows")[rows - 1]
    isolated = 0
    if "timings" in run:
        timing = dataset(run, "timings")[rows - 1]
        isolated = int(timing["first_isolated"] + timing["isolated_repetitions"])
    return Room(rows, int(last["first_sample"] + last["repetitions"]), isolated)


def _copy_numbers(source: h5py.Group, target: h5py.Group, name: str, length: int) -> None:
    numbers = dataset(source, name)
    block = max(1, _BLOCK_BYTES // (SAMPLE.itemsize * math.prod(numbers.shape[1:])))
    for begin in range(0, length, block):
        end = min(begin + block, length)
        target[name][begin:end] = numbers[begin:end]


def copy_measurements(source: h5py.Group, target: h5py.Group) -> None:
    """Copy `MEASUREMENTS` into datasets of `target` that have at least their length."""
    there = written(source)
    target["state"][()] = source["state"][()]
    for name in ("rows", "timings"):
        target[name][: there.rows] = source[name][: there.rows]
    _copy_numbers(source, target, "samples", there.repetitions)
    _copy_numbers(source, target, "isolated", there.isolated)


def compress(source: h5py.Group, target: h5py.Group, name: str) -> None:
    """Write into `target` the measurements of run `name` in the form of one that has ended.

    Those of before there were checksums get them.
    """
    there = written(source)
    rows = there.rows
    ranks = dataset(source, "samples").shape[1]
    old = is_old(source)
    # Its status may be changed in place, as that of a run that is measured.
    state = _checked_state(source, name) if old else source["state"][()]
    target.create_dataset("state", data=np.array(state, STATE_TYPE))
    contiguous(target, "rows", (rows,), ROW)
    target["rows"][:] = _checked_rows(source, name) if old else source["rows"][:rows]
    _compress_numbers(source, target, "samples", (there.repetitions, ranks))
    if "timings" in source:  # runs of before there were timings lack them
        contiguous(target, "timings", (rows,), TIMING)
        target["timings"][:] = source["timings"][:rows]
        _compress_numbers(source, target, "isolated", (there.isolated, ranks, 2))


def _compress_numbers(
    source: h5py.Group, target: h5py.Group, name: str, shape: tuple[int, ...]
) -> None:
    # A reader wants a row's numbers of all ranks, and damage takes a chunk: it is as wide as the ranks, and
    # one of some hundred.
    length, *wide = shape
    width = SAMPLE.itemsize * math.prod(wide)
    size = min(max(length * width // _CHUNKS, _LEAST_CHUNK), _MOST_CHUNK)
    tall = max(1, min(math.ceil(size / width), length))
    target.create_dataset(
        name,
        shape=shape,
        maxshape=(None, *wide),
        dtype=SAMPLE,
        chunks=(tall, *wide),
        compression="gzip",
        compression_opts=1,
        shuffle=True,
    )
    _copy_numbers(source, target, name, length)


def _checked_state(run: h5py.Group, name: str) -> np.ndarray:
    state = dataset(run, "state")[()]
    rows, ended, status = int(state["rows"]), float(state["ended"]), bytes(state["status"])
    encoded = coding.encode_count(name, rows) + coding.encode_end(name, ended, status)
    checked: np.ndarray = np.frombuffer(
        encoded + status.ljust(coding.STATUS_BYTES, b"\0"), STATE_TYPE
    )[0]
    return checked


def _checked_rows(run: h5py.Group, name: str) -> np.ndarray:
    samples = dataset(run, "samples")
    encoded = []
    for number, row in enumerate(stored_rows(run)):
        times = samples[row.first_sample : row.first_sample + row.repetitions]
        sums = coding.samples_checksum(name, "samples", number, times)
        encoded.append(coding.encode_row(name, number, row._replace(samples_checksum=sums)))
    return np.frombuffer(b"".join(encoded), ROW)


def stored_rows(run: h5py.Group) -> list[Stored]:
    """Return the rows of a run that has no checksums."""
    rows = written(run).rows
    return [
        Stored(coding.decode_values(Row, values[:-2]), values[-2], values[-1], 0)
        for values in dataset(run, "rows")[:rows].tolist()
    ]


def contiguous(
    run: h5py.Group, name: str, shape: tuple[int, ...], kind: np.dtype[Any]
) -> h5py.Dataset:
    """Create a dataset whose space is allocated at once and has no index that could grow."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return run.create_dataset(name, shape=shape, dtype=kind, dcpl=creation)


def write_info(run: h5py.Group, info: Any) -> None:
    """Store the facts of a run, a dataclass of the schema, in its group."""
    text = h5py.string_dtype("utf-8")
    for name, kind, *_ in columns(type(info)):
        value = getattr(info, name)
        match kind:
            case "str":
                run.attrs[name] = (
                    value.isoformat() if isinstance(value, datetime) else as_utf8(value)
                )
            case "str[]":
                run.attrs.create(name, list(map(as_utf8, value)), shape=(len(value),), dtype=text)
            case "group":
                attributes = run.create_group(name).attrs
                if isinstance(value, Config):
                    for setting in columns(Config):
                        entry = getattr(value, setting.name)
                        attributes.create(setting.name, entry, dtype=_hdf5_type(setting.kind))
                else:
                    for key, entry in value.items():
                        attributes[as_utf8(key)] = as_utf8(entry)
            case "table":
                table = [
                    tuple(
                        as_utf8(each) if isinstance(each, str) else each
                        for each in dataclasses.astuple(line)
                    )
                    for line in value
                ]
                run.create_dataset(name, data=np.array(table, dtype=_DATASETS[name][0][0]))
            case _:
                run.attrs.create(name, value, dtype=_hdf5_type(kind))


def copy_info(source: h5py.Group, target: h5py.Group) -> None:
    """Copy everything of a run but its measurements, unknown members included."""
    for name, value in source.attrs.items():
        target.attrs[name] = value
    for name in source:
        if name not in MEASUREMENTS:
            source.copy(source[name], target, name)


def read_info(run: h5py.Group) -> RunInfo:
    """Return the facts of a run from its group."""
    config = group(run, "config").attrs
    optional = {
        each.name for each in dataclasses.fields(Config) if each.default is not dataclasses.MISSING
    }
    settings = {}
    for name, kind, *_ in columns(Config):
        if name in config:
            settings[name] = coding.decoded(config[name].item(), kind)
        elif name not in optional:  # of before there was such a setting, which had its default
            raise KeyError(f"{run.name}/config has no attribute {name}")
    return RunInfo(
        started=datetime.fromisoformat(run.attrs["started"]),
        user=str(run.attrs["user"]),
        launcher=str(run.attrs["launcher"]),
        arguments=tuple(map(str, run.attrs["arguments"])),
        skipped=tuple(map(str, run.attrs["skipped"])),
        config=Config(**settings),
        ranks=_lines(run, "ranks", RankInfo),
        versions=_texts(run, "versions"),
        environment=_texts(run, "environment"),
        slurm=_texts(run, "slurm"),
        # Runs of before there were simulations lack it.
        simulation=_texts(run, "simulation") if "simulation" in run else {},
        # Likewise, before there were devices.
        devices=_lines(run, "devices", DeviceInfo) if "devices" in run else (),
        machine=_texts(run, "machine") if "machine" in run else {},
        series=_texts(run, "series") if "series" in run else {},
    )


def _lines(run: h5py.Group, name: str, kind: type[_Line]) -> tuple[_Line, ...]:
    """Return the lines of a table of facts."""
    kinds = [column.kind for column in columns(kind)]
    lines = dataset(run, name)[()].tolist()
    return tuple(kind(*map(coding.decoded, line, kinds)) for line in lines)


def _texts(run: h5py.Group, name: str) -> Mapping[str, str]:
    return {key: str(value) for key, value in group(run, name).attrs.items()}
