"""The ground of results files: opened by HDF5 with care, and JSON records with checksums.

HDF5 checks its own structures: a file is written in the form in which all of them carry checksums.
hpccomm reads nothing from structures without a checksum, such as the heap of strings of variable
length. So a damaged file gives an error, not a crash in HDF5.

`hpccomm.results` reads and writes by it, and tuning tables are stored in the same form.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from hpccomm.errors import SchemaMismatch
from hpccomm.results.regular import ForeignFile, damaged, open_regular, os_errors_as

FORMAT = "hpccomm results"
"""Value of the root attribute ``format``, which identifies a results file among HDF5 files."""

SCHEMA_VERSION = 1
"""Value of ``schema_version``: incremented when older readers would misread the file."""

RUNS = "runs"
"""The group that holds one group a run."""

FACTS = "facts"
"""The dataset with the JSON record of a run or a recording, and its attribute with the checksum."""

CHECKSUM = "crc32"

DIFFERS = "stored checksum differs: not shown"
"""The words of messages on damage."""

HDF5_ERRORS = (
    AttributeError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors of h5py, NumPy and json on a file with foreign contents."""

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""

_HEAD = 1 << 16
"""Bytes that hold the root of a results file, which is written first."""


def why(error: Exception) -> str:
    """Return what one of `HDF5_ERRORS` says of a damaged file, without what h5py puts around it.

    What the operating system refuses says nothing of the file's content, and is raised.
    """
    # A damaged file may point to an impossible place.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise error
    said = str(getattr(error, "strerror", None) or (error.args[0] if error.args else error))
    return re.sub(r"^Unable to (?:synchronously )?(.*?) \((.*)\)$", r"HDF5 cannot \1: \2", said)


def checksum(data: bytes | memoryview, *place: object) -> int:
    """Return the CRC-32 of bytes after the words of their place, joined by spaces.

    What stands in the place of something else is then found damaged too.
    """
    return crc32(data, crc32(" ".join(map(str, place)).encode()))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[Any, int]]:
    """Open a results file for reading, after checks that it is one.

    A file that is being written can be read as well.

    Yields
    ------
    hdf5 : h5py.File
        The file.
    descriptor : int
        The same file, for plain reads.

    Raises
    ------
    ResultsError
        If the file cannot be opened; a ``DamagedFile`` if HDF5 cannot read it.
    SchemaMismatch
        If it is of another schema version; a ``ForeignFile`` if it is not HDF5 or another program's.
    """
    import h5py  # takes long, and a job without results files or tuning files does not need it

    with contextlib.ExitStack() as stack:
        with os_errors_as(path, "read"):
            file = stack.enter_context(open_regular(path))
            head = os.pread(file.fileno(), _HEAD, 0)
        if not head.startswith(SIGNATURE):
            if FORMAT.encode() in head and b"schema_version" in head:
                raise damaged(path, "it does not begin as HDF5 does", "restore it from a copy")
            raise ForeignFile(f"{path} is not an HDF5 file; name a results file of hpccomm")
        try:
            # As a file of Python's: HDF5 refuses one that the program has open already, or that a
            # writer has locked. Lines that a writer has counted are whole.
            hdf5 = stack.enter_context(h5py.File(file, "r"))
            format_, version = (hdf5.attrs.get(name) for name in ("format", "schema_version"))
            ours = np.ndim(format_) == 0 and format_ == FORMAT.encode()
            known = np.ndim(version) == 0 and version == SCHEMA_VERSION
        except HDF5_ERRORS as error:
            with os_errors_as(path, "read"):
                reason = why(error)
            if FORMAT.encode() in head:
                raise damaged(path, reason, "restore it from a copy") from error
            ours = known = False
        if not ours:
            raise ForeignFile(
                f"{path} is an HDF5 file of another program (its root has no attribute "
                f"format = {FORMAT!r}); choose another path"
            )
        if not known:
            raise SchemaMismatch(
                f"{path} has schema version {version}; this hpccomm reads and writes version "
                f"{SCHEMA_VERSION}: use the hpccomm that wrote it, or choose another path"
            )
        yield hdf5, file.fileno()


def names(parent: Any, prefix: str) -> list[str]:
    """Return the names of the runs or recordings in a group, oldest first: prefix and number."""
    numbered = re.compile(rf"{prefix}\d+")
    names = [name for name in parent if numbered.fullmatch(name)]
    return sorted(names, key=lambda name: int(name[len(prefix) :]))


def write_record(group: Any, record: Any) -> None:
    """Store the JSON record of a run or recording in its group (h5py)."""
    text = json.dumps(record).encode()
    group[FACTS] = np.bytes_(text)
    name = group.name.rpartition("/")[2]
    group[FACTS].attrs[CHECKSUM] = np.uint32(checksum(text, name))


def read_record(group: Any) -> Any:
    """Return the JSON record of a run or recording from its group (h5py).

    Raises
    ------
    ValueError, or another of `HDF5_ERRORS`
        If it is damaged or is not there.
    """
    stored = group[FACTS]
    text = bytes(stored[()])
    if checksum(text, group.name.rpartition("/")[2]) != stored.attrs[CHECKSUM]:
        raise ValueError(f"{FACTS}: {DIFFERS}")
    return json.loads(text)
