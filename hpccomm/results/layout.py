"""Runs and recordings as HDF5 groups: tables and arrays with capacity for more lines; and blocks of recorded calls.

Tables and arrays are contiguous and have their bytes from the start. So a line is added by plain writes that touch nothing
else.

A block has thousands of calls of one rank, packed column by column. It begins with three numbers of each of
`CALL_COLUMNS`: its first value, the bytes of a number, and the bytes that it takes. The columns follow, each as a stream of
zlib. What is stored of a call are small numbers: the difference to the call before; of ``end``, to its begin; of ``asked``,
one more than that, or 0 if it is 0; of ``waited``, one more, or 0 if that is the whole call. Of all numbers of a column, the
lowest bytes come first, then the next ones: the upper ones are mostly equal.
"""

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from hpccomm.results import files, lines
from hpccomm.results.lines import DataPlace, StoredLines
from hpccomm.results.recording import BLOCKS, CALL_COLUMNS, RECORDING
from hpccomm.results.schema import RANKS, RUN, SectionKind

STATE = "state"

KINDS = (RUN, RECORDING)


class ByteCopy(NamedTuple):
    """Bytes of the old file that the new one gets, once HDF5 has closed it."""

    source: int
    target: int
    size: int


def types(kind: SectionKind) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return type and shape of an entry of each table and array; `RANKS` stands for their number."""
    parts: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for form in kind.forms:
        parts[form.name] = lines.line_type(form), ()
        parts |= {each.name: (np.dtype(each.kind), each.wide) for each in form.beside}
    return parts


def nbytes(kind: SectionKind, capacity: Mapping[str, int], ranks: int) -> int:
    """Return the bytes that tables and arrays of a capacity take."""
    return sum(
        capacity[name] * form.itemsize * math.prod(ranks if n == RANKS else n for n in wide)
        for name, (form, wide) in types(kind).items()
    )


def lay_out(
    group: h5py.Group, kind: SectionKind, capacity: Mapping[str, int], ranks: int
) -> dict[str, DataPlace]:
    """Create the tables, arrays and the state of a run or recording; return where they lie."""
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
    """Return a type whose texts HDF5 knows to be UTF-8."""
    if form.names is None:
        return form
    texts = {
        name: h5py.string_dtype("utf-8", form[name].itemsize)
        for name in form.names
        if form[name].kind == "S"
    }
    return np.dtype([(name, texts.get(name, form[name])) for name in form.names])


def places(group: h5py.Group, kind: SectionKind) -> dict[str, DataPlace]:
    """Return where the tables, arrays and the state of a run or recording lie.

    Raises
    ------
    KeyError, ValueError, AttributeError
        If one is not there, or something else is. See `hpccomm.results.files.HDF5_ERRORS`.
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
    """Return how many entries of each table and array are written."""
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
) -> tuple[dict[str, DataPlace], list[ByteCopy]]:
    """Lay out a run or recording again.

    Parameters
    ----------
    source, target : h5py.Group
        The old one, and the new one, which is empty.
    kind : SectionKind
        The kind.
    capacity : mapping of str to int, optional
        Entries of each table and array; by default the written ones.
    record : optional
        Its facts, if changed.

    Returns
    -------
    tuple
        Where it lies, and the bytes that are still to be copied.
    """
    written = used(source, kind)
    renewed = set() if record is None else {files.FACTS}
    copy_members(source, target, {*written, STATE, *renewed})
    if record is not None:
        files.write_record(target, record)
    old = places(source, kind)
    ranks = next((old[name].shape[1] for name, (_, wide) in types(kind).items() if wide), 0)
    # The lines in the file count, in case the writer missed its last line.
    room = {name: max(count, (capacity or written)[name]) for name, count in written.items()}
    new = lay_out(target, kind, room, ranks)
    sizes = {name: count * old[name].width for name, count in written.items()}
    sizes[STATE] = old[STATE].width
    return new, [ByteCopy(old[name].at, new[name].at, size) for name, size in sizes.items()]


def copy_members(source: h5py.Group, target: h5py.Group, leave_out: set[str]) -> None:
    """Copy attributes and members of a group that people may have added."""
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


CALLS = 1 << 14
"""Calls of a block. A damaged one loses all of them."""

(PACKED,) = BLOCKS.beside

_LEVEL = 1

_HEAD = 3 * 8 * len(CALL_COLUMNS)

_KINDS = {each.name: np.dtype(each.kind) for each in CALL_COLUMNS}

_APART = {"end", "asked", "waited"}  # not from the call before


def pack(calls: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the bytes of a block of at least one call, by the names of `CALL_COLUMNS`."""
    head = np.zeros((len(_KINDS), 3), "<i8")
    given = {name: np.asarray(calls[name]).astype(np.int64) for name in _KINDS}
    seconds = given["end"] - given["begin"]
    streams = []
    for line, (name, values) in zip(head, given.items(), strict=True):
        match name:
            case "end":
                numbers = seconds
            case "asked":
                numbers = np.where(values == 0, 0, values - given["begin"] + 1)
            case "waited":
                numbers = np.where(values == seconds, 0, values + 1)
            case _:
                line[0] = values[0]
                numbers = np.diff(values, prepend=values[:1])
        least, most = numbers.min(), numbers.max()
        line[1] = next(n for n in (1, 2, 4, 8) if -least - 1 >> 8 * n - 1 <= 0 >= most >> 8 * n - 1)
        planes = numbers.astype(f"<i{line[1]}").view("u1").reshape(len(numbers), -1).T
        streams.append(zlib.compress(planes.tobytes(), _LEVEL))
        line[2] = len(streams[-1])
    return np.frombuffer(head.tobytes() + b"".join(streams), "u1")


class StoredColumns(Mapping[str, NDArray[Any]]):
    """The columns of stored calls, each unpacked when it is first asked for.

    Parameters
    ----------
    blocks : StoredLines
        The table of blocks. Damaged ones are added to its damage.
    ranks : int
        Number of ranks.

    Attributes
    ----------
    starts : ndarray of int64
        As `hpccomm.results.recording.Calls.starts`.
    """

    def __init__(self, blocks: StoredLines, ranks: int) -> None:
        self._blocks = blocks
        self._columns: dict[str, NDArray[Any]] = {}
        heads = {index: packed[:_HEAD].view("<i8") for index, packed in blocks.parts(PACKED.name)}
        lines = blocks.lines[list(heads)]
        by_rank = np.argsort(lines["rank"], kind="stable")
        table = np.array([*heads.values()], np.int64).reshape(-1, len(_KINDS), 3)[by_rank]
        self._firsts, self._widths, self._sizes = table.T
        self._at = lines[PACKED.first][by_rank] + _HEAD + np.cumsum(self._sizes, 0) - self._sizes
        self._ends = np.cumsum(lines["calls"][by_rank])
        calls = np.bincount(lines["rank"], lines["calls"], ranks).astype(np.int64)
        self.starts = np.concatenate(([0], np.cumsum(calls)))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Raises
        ------
        ResultsError
            If the file cannot be read any more.
        """
        if name not in self._columns:
            numbers = self._numbers(name)
            match name:
                case "end":
                    numbers += self["begin"]
                case "asked":
                    np.add(numbers, self["begin"] - 1, out=numbers, where=numbers != 0)
                case "waited":
                    numbers -= 1
                    np.subtract(self["end"], self["begin"], out=numbers, where=numbers < 0)
            self._columns[name] = numbers.astype(_KINDS[name], copy=False)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(_KINDS)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(_KINDS)

    def _numbers(self, name: str) -> NDArray[np.int64]:
        """Return what is stored of a column; of differences to the call before, their sums."""
        place, out = [*_KINDS].index(name), np.empty(int(self.starts[-1]), np.int64)

        def unpack(blocks: NDArray[np.intp]) -> None:
            for block in blocks.tolist():
                end, width = int(self._ends[block]), int(self._widths[place, block])
                begin = int(self._ends[block - 1]) if block else 0
                at, size = int(self._at[place, block]), int(self._sizes[place, block])
                data = zlib.decompress(self._blocks.read(PACKED.name, at, size))
                planes = np.frombuffer(data, "u1").reshape(width, end - begin)
                numbers = np.stack([*planes], -1).view(f"<i{width}").reshape(-1)
                if name in _APART:
                    out[begin:end] = numbers
                else:
                    np.cumsum(numbers, dtype=np.int64, out=out[begin:end])
                    out[begin:end] += self._firsts[place, block]

        workers = min(8, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:  # zlib leaves the interpreter to others
            list(pool.map(unpack, np.array_split(np.arange(len(self._ends)), workers)))
        return out
