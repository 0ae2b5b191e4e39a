"""Runs and recordings as HDF5 groups: tables and arrays with capacity for more lines.

Tables and arrays are contiguous, and all their bytes are allocated at the start. So plain writes can add a line, and touch
nothing else.
"""

import math
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from hpccomm.results import files, lines
from hpccomm.results.lines import DataPlace
from hpccomm.results.recording import RECORDING
from hpccomm.results.schema import RANKS, RUN, SectionKind

STATE = "state"

KINDS = (RUN, RECORDING)

_BLOCK = 1 << 20
"""Number of bytes that are copied at once. Other threads can run between two such copies."""


def types(kind: SectionKind) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the type and shape of an entry of each table and array. `RANKS` stands for the number of ranks."""
    parts: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for form in kind.forms:
        parts[form.name] = lines.line_type(form), ()
        parts |= {each.name: (np.dtype(each.kind), each.wide) for each in form.beside}
    return parts


def widths(kind: SectionKind, ranks: int) -> dict[str, int]:
    """Return the bytes of an entry of each table and array."""
    return {
        name: form.itemsize * math.prod(ranks if each == RANKS else each for each in wide)
        for name, (form, wide) in types(kind).items()
    }


def nbytes(kind: SectionKind, capacity: Mapping[str, int], ranks: int) -> int:
    """Return the bytes that tables and arrays of a capacity take."""
    return sum(capacity[name] * width for name, width in widths(kind, ranks).items())


def lay_out(
    group: h5py.Group, kind: SectionKind, capacity: Mapping[str, int], ranks: int
) -> dict[str, DataPlace]:
    """Create the tables, arrays and the state of a run or recording. Return their places."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    for name, (form, wide) in types(kind).items():
        shape = capacity[name], *(ranks if each == RANKS else each for each in wide)
        group.create_dataset(name, shape=shape, dtype=_with_text(form), dcpl=creation)
    section = group.name.rpartition("/")[2]
    state = np.frombuffer(lines.no_lines(kind, section), lines.state_type(kind))[0]
    group.create_dataset(STATE, data=np.array(state, _with_text(state.dtype)))
    return places(group, kind)


def _with_text(form: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type with its texts marked for HDF5 as UTF-8."""
    if form.names is None:
        return form
    texts = {
        name: h5py.string_dtype("utf-8", form[name].itemsize)
        for name in form.names
        if form[name].kind == "S"
    }
    return np.dtype([(name, texts.get(name, form[name])) for name in form.names])


def places(group: h5py.Group, kind: SectionKind) -> dict[str, DataPlace]:
    """Return the places of the tables, arrays and the state of a run or recording.

    Raises
    ------
    KeyError, ValueError, AttributeError
        If one is missing, or another object has its name. See `hpccomm.results.files.HDF5_ERRORS`.
    """
    tables = {}
    expected = {**types(kind), STATE: (lines.state_type(kind), None)}
    for name, (form, wide) in expected.items():
        dataset = group[name]
        at = dataset.id.get_offset()
        dimensions = 0 if wide is None else 1 + len(wide)
        if dataset.dtype != form or dataset.ndim != dimensions or (at is None and dataset.size):
            raise ValueError(f"{dataset.name} is not what hpccomm writes there")
        width = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
        tables[name] = DataPlace(at or 0, width, dataset.shape)
    return tables


def used(group: h5py.Group, kind: SectionKind) -> dict[str, int]:
    """Return the number of written entries of each table and array."""
    arrays = {}
    state = group[STATE][()]
    for form in kind.forms:
        count = arrays[form.name] = int(state[form.name])
        table = group[form.name][:count]
        for array in form.beside:
            ends = table[array.first] + table[array.many]
            arrays[array.name] = int(ends.max(initial=0))
    return arrays


def copy(
    source: h5py.Group,
    target: h5py.Group,
    kind: SectionKind,
    capacity: Mapping[str, int] | None = None,
    record: Any = None,
) -> dict[str, DataPlace]:
    """Copy a run or recording. Return its places.

    Parameters
    ----------
    source, target : h5py.Group
        The old group, and the new one, which is empty.
    kind : SectionKind
        The kind.
    capacity : mapping of str to int, optional
        Number of entries of each table and array. By default, it is the number of written ones.
    record : optional
        New facts. By default, the facts stay.
    """
    written, old = used(source, kind), places(source, kind)
    renewed = set() if record is None else {files.FACTS}
    copy_members(source, target, {*written, STATE, *renewed})
    if record is not None:
        files.write_record(target, record)
    ranks = next((old[name].shape[1] for name, (_, wide) in types(kind).items() if wide), 0)
    # The file may have one line more than the writer has counted.
    room = {name: max(count, (capacity or written)[name]) for name, count in written.items()}
    new = lay_out(target, kind, room, ranks)
    for name, count in written.items():
        step = max(1, _BLOCK // max(1, old[name].width))
        for first in range(0, count, step):
            part = slice(first, min(first + step, count))
            target[name][part] = source[name][part]
    target[STATE][()] = source[STATE][()]
    return new


def copy_members(source: h5py.Group, target: h5py.Group, leave_out: set[str]) -> None:
    """Copy all other attributes and members of a group: users may have added some."""
    for name, value in source.attrs.items():
        if name not in target.attrs:
            target.attrs[name] = value
    for name in source:
        if name in leave_out:
            continue
        link = source.get(name, getlink=True)
        if isinstance(link, h5py.HardLink):
            source.copy(source[name], target, name)
        else:
            target[name] = link
