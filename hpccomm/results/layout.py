"""How one run lies in an HDF5 group: the schema turned into HDF5 types, and back.

A run takes two forms with the same names and types. While it is measured, ``rows`` and ``samples``
are contiguous and have room to spare, so that a row can be added without touching anything but the
bytes of that room (see `hpccomm.results.writer`). Once it has ended they are chunked, compressed
and exactly as long as what was measured.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import h5py
import numpy as np

from hpccomm.errors import UsageError
from hpccomm.results.schema import (
    LOCATION,
    STATE,
    Column,
    Config,
    DeviceInfo,
    RankInfo,
    Row,
    RunInfo,
    columns,
)

_Line = TypeVar("_Line", RankInfo, DeviceInfo)

SAMPLE = np.dtype("<f8")
"""Type of the samples: seconds."""

INFO_BYTES = 1 << 11
"""More than the facts of one rank take."""

_CHUNK_BYTES = 1 << 20
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


def _type(stored: Iterable[Column]) -> np.dtype[Any]:
    return np.dtype([(column.name, _hdf5_type(column.kind)) for column in stored])


_ROW_COLUMNS = columns(Row)

ROW = _type((*_ROW_COLUMNS, *LOCATION))
"""Type of one stored row: the columns of `Row`, then where its samples lie."""

RANK = _type(columns(RankInfo))
"""Type of one line of the table of ranks."""

DEVICE = _type(columns(DeviceInfo))
"""Type of one line of the table of devices."""

STATE_TYPE = _type(STATE)
"""Type of the scalar dataset ``state``."""


@dataclass(frozen=True, slots=True)
class ReservedSpace:
    """The space that a run fills while it is measured, in bytes from the start of the file.

    Attributes
    ----------
    rows, repetitions : int
        How many rows, and rows of samples, fit.
    rows_at, samples_at, state_at : int
        Addresses of the three datasets.
    """

    rows: int
    repetitions: int
    rows_at: int
    samples_at: int
    state_at: int


def encode_text(value: str, size: int, what: str) -> bytes:
    """Encode a string for a field of `size` bytes; one that does not fit is refused, never cut."""
    encoded = value.encode()
    if len(encoded) > size:
        raise UsageError(f"{what} {value!r} has {len(encoded)} bytes; a results file holds {size}")
    return encoded


def encode_row(row: Row, first_sample: int, repetitions: int) -> bytes:
    """Return the bytes of one stored row.

    Raises
    ------
    UsageError
        If a string is too long for its column.
    """
    values: list[object] = []
    for name, *_ in _ROW_COLUMNS:
        value = getattr(row, name)
        if isinstance(value, str):
            value = encode_text(value, ROW[name].itemsize, name)
        values.append(value)
    return np.array((*values, first_sample, repetitions), dtype=ROW).tobytes()


def decode_row(stored: np.void) -> Row:
    """Return the `Row` of one stored row."""
    return Row(*(_decoded(stored[name].item(), kind) for name, kind, *_ in _ROW_COLUMNS))


def _decoded(value: Any, kind: str) -> Any:
    """Return a stored number or text as the schema's dataclasses hold it."""
    if isinstance(value, bytes):
        return value.decode()
    return bool(value) if kind == "u1" else value


def reserved_bytes(rows: int, repetitions: int, ranks: int) -> int:
    """Return the size of the datasets that `reserve` creates."""
    return rows * ROW.itemsize + repetitions * ranks * SAMPLE.itemsize + STATE_TYPE.itemsize


def reserve(run: h5py.Group, rows: int, repetitions: int, ranks: int) -> ReservedSpace:
    """Create ``rows``, ``samples`` and ``state`` with reserved space for a run.

    The space is allocated at once and has no index that could grow: that is what makes it safe to
    fill while nobody has the file open.
    """

    def contiguous(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> int:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_layout(h5py.h5d.CONTIGUOUS)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        created = run.create_dataset(name, shape=shape, dtype=kind, dcpl=creation)
        return int(created.id.get_offset())

    rows, repetitions = max(rows, 1), max(repetitions, 1)
    state = run.create_dataset("state", data=np.zeros((), STATE_TYPE))
    rows_at = contiguous("rows", (rows,), ROW)
    samples_at = contiguous("samples", (repetitions, ranks), SAMPLE)
    return ReservedSpace(rows, repetitions, rows_at, samples_at, int(state.id.get_offset()))


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
    kind, dimensions = _DATASETS[name]
    if not isinstance(member, h5py.Dataset) or (member.dtype, member.ndim) != (kind, dimensions):
        raise ValueError(f"{member.name} is not what hpccomm writes there")
    return member


_DATASETS = {
    "rows": (ROW, 1),
    "samples": (SAMPLE, 2),
    "ranks": (RANK, 1),
    "devices": (DEVICE, 1),
    "state": (STATE_TYPE, 0),
}


def is_open(run: h5py.Group) -> bool:
    """Say whether a run still has the form of one that is being measured."""
    return dataset(run, "rows").chunks is None


def written(run: h5py.Group) -> tuple[int, int]:
    """Return how many rows, and rows of samples, a run holds."""
    rows = int(dataset(run, "state")[()]["rows"])
    if not rows:
        return 0, 0
    last = dataset(run, "rows")[rows - 1]
    return rows, int(last["first_sample"] + last["repetitions"])


def copy_measurements(source: h5py.Group, target: h5py.Group) -> None:
    """Copy state, rows and samples into datasets of `target` that have at least their length."""
    rows, repetitions = written(source)
    target["state"][()] = source["state"][()]
    target["rows"][:rows] = source["rows"][:rows]
    samples = dataset(source, "samples")
    block = max(1, _BLOCK_BYTES // (SAMPLE.itemsize * samples.shape[1]))
    for begin in range(0, repetitions, block):
        end = min(begin + block, repetitions)
        target["samples"][begin:end] = samples[begin:end]


def seal(source: h5py.Group, target: h5py.Group) -> None:
    """Write into `target` the measurements of `source` in the form of a run that has ended."""
    rows, repetitions = written(source)
    ranks = dataset(source, "samples").shape[1]
    compressed = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
    target.create_dataset("state", shape=(), dtype=STATE_TYPE)
    target.create_dataset(
        "rows",
        shape=(rows,),
        maxshape=(None,),
        dtype=ROW,
        chunks=(max(1, min(rows, _CHUNK_BYTES // ROW.itemsize)),),
        **compressed,
    )
    # A reader wants a row's samples of all ranks: a chunk is as wide as the ranks, about 1 MiB.
    tall = math.ceil(_CHUNK_BYTES / (SAMPLE.itemsize * ranks))
    target.create_dataset(
        "samples",
        shape=(repetitions, ranks),
        maxshape=(None, ranks),
        dtype=SAMPLE,
        chunks=(max(1, min(tall, repetitions)), ranks),
        **compressed,
    )
    copy_measurements(source, target)


def write_info(run: h5py.Group, info: RunInfo) -> None:
    """Store the facts of a run in its run."""
    text = h5py.string_dtype("utf-8")
    for name, kind, *_ in columns(RunInfo):
        value = getattr(info, name)
        match kind:
            case "str":
                run.attrs[name] = value.isoformat() if isinstance(value, datetime) else value
            case "str[]":
                run.attrs.create(name, list(value), shape=(len(value),), dtype=text)
            case "group":
                attributes = run.create_group(name).attrs
                if isinstance(value, Config):
                    for setting in columns(Config):
                        entry = getattr(value, setting.name)
                        attributes.create(setting.name, entry, dtype=_hdf5_type(setting.kind))
                else:
                    for key, entry in value.items():
                        attributes[key] = entry
            case "table":
                table = [dataclasses.astuple(line) for line in value]
                run.create_dataset(name, data=np.array(table, dtype=_DATASETS[name][0]))


def copy_info(source: h5py.Group, target: h5py.Group) -> None:
    """Copy everything of a run but its measurements, unknown members included."""
    for name, value in source.attrs.items():
        target.attrs[name] = value
    for name in source:
        if name not in ("state", "rows", "samples"):
            source.copy(source[name], target, name)


def read_info(run: h5py.Group) -> RunInfo:
    """Return the facts of a run from its group."""
    config = group(run, "config").attrs
    optional = {
        each.name for each in dataclasses.fields(Config) if each.default is not dataclasses.MISSING
    }
    settings = {
        name: _decoded(config[name].item(), kind)
        for name, kind, *_ in columns(Config)
        # A run of before there was a setting lacks it, and had its default.
        if name in config or name not in optional
    }
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
    )


def _lines(run: h5py.Group, name: str, kind: type[_Line]) -> tuple[_Line, ...]:
    """Return the lines of a table of facts."""
    kinds = [column.kind for column in columns(kind)]
    lines = dataset(run, name)[()].tolist()
    return tuple(kind(*map(_decoded, line, kinds)) for line in lines)


def _texts(run: h5py.Group, name: str) -> Mapping[str, str]:
    return {key: str(value) for key, value in group(run, name).attrs.items()}
