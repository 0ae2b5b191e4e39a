"""Opens the files that users name, opens results files by HDF5, and stores JSON records with checksums.

All of hpccomm opens the files that users name by this module. It opens only regular files: a FIFO would wait for a writer, a
device may do anything, and a directory fails only when it is read. It opens a file without waiting, and checks its kind
before it reads the first byte. Errors of the operating system become errors with advice.

A results file is written in the form in which all structures of HDF5 have checksums, which HDF5 checks. hpccomm reads
nothing from structures without a checksum, such as the heap of strings of variable length. So a damaged file gives an
error, not a crash in HDF5. Tuning tables are stored in the same form.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from zlib import crc32

import numpy as np

from hpccomm.errors import ResultsError, SchemaMismatch

MOST_TEXT = 16 << 20
"""The most bytes of a text that is read, unless a caller gives another limit."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """The path is not a regular file, or the file is too large. `strerror` says which."""


def check_regular(mode: int) -> None:
    """Raise `NotRegular` if a file of this mode (``st_mode``) is not regular."""
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "of another kind")
        raise NotRegular(None, f"it is {kind}, not a regular file")


def check_output(path: Path) -> None:
    """Raise `NotRegular` if the path of a file to write names something else than a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # it is missing, or opening it raises a better error
    check_regular(mode)


def open_regular(path: str | os.PathLike[str], access: int = os.O_RDONLY) -> FileIO:
    """Open a file without waiting: for reading, or with ``os.O_RDWR`` also for writing.

    Raises
    ------
    NotRegular
        If it is not a regular file.
    OSError
        If it cannot be opened.
    """
    try:
        descriptor = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL in the name
        raise NotRegular(None, str(error)) from None
    except OSError:
        check_regular(Path(path).stat().st_mode)  # a socket cannot be opened at all
        raise
    try:
        check_regular(os.fstat(descriptor).st_mode)
        return FileIO(descriptor, "r+" if access == os.O_RDWR else "r")
    except BaseException:
        os.close(descriptor)
        raise


def as_utf8(text: str) -> str:
    """Return a text that can be encoded in UTF-8. Other bytes of a path or a variable are escaped."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half a surrogate pair, which stands for no bytes
        return text.encode(errors="backslashreplace").decode()


def read_text(path: str | os.PathLike[str], most: int = MOST_TEXT) -> str:
    """Return the text of a file in UTF-8, which must not have more than `most` bytes.

    Raises
    ------
    NotRegular
        If it is not a regular file, or too large.
    OSError
        If it cannot be read.
    UnicodeDecodeError
        If it is not UTF-8.
    """
    data = bytearray()
    with open_regular(path) as file:  # one read of `most` bytes would allocate them
        while len(data) <= most and (more := file.read(1 << 20)):
            data += more
    if len(data) > most:
        raise NotRegular(None, f"it is larger than {most >> 20} MiB")
    return data.decode("utf-8")


_REMEDIES = {
    errno.EACCES: "make it writable, or choose another path",
    errno.EPERM: "make it writable, or choose another path",
    errno.EROFS: "the file system is read-only: choose another path",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EAGAIN: "another program has it open for writing: try again later",
    errno.EISDIR: "name a file in it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "choose another path",
    errno.ENOSPC: "free space, or choose another file system",
    errno.EDQUOT: "free space within the quota, or choose another file system",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another file system",
}


class ForeignFile(SchemaMismatch):
    """A file is not hpccomm's: it is not HDF5, or HDF5 of another program."""


class DamagedFile(ResultsError):
    """A results file is damaged, or was not written to its end."""


def damaged(path: Path, why: object, remedy: str = "choose another path") -> DamagedFile:
    """Return the error for a damaged file."""
    return DamagedFile(f"{path} is damaged or incomplete: {why}; {remedy}")


def no_folder(file: Path) -> str:
    """Return why a file cannot be made in its folder, and the remedy. It is empty if the folder exists."""
    folder = file.parent
    if folder.is_dir():
        return ""
    what = "is not a directory" if folder.exists() else "does not exist"
    return f"cannot write {file}: {folder} {what}; make the directory, or choose another path"


@contextlib.contextmanager
def os_errors_as(path: Path, doing: str) -> Iterator[None]:
    """Turn errors of the operating system into a `ResultsError` with the path and a remedy."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error.strerror or str(error)
        remedy = _REMEDIES.get(error.errno or 0)
        if isinstance(error, NotRegular):
            remedy = "name another file"
        raise ResultsError(
            f"cannot {doing} {path}: {reason}" + (f"; {remedy}" if remedy else "")
        ) from error


FORMAT = "hpccomm results"
"""Value of the root attribute ``format``, which identifies a results file among HDF5 files."""

SCHEMA_VERSION = 1
"""Value of ``schema_version``. It is incremented if older readers would misread the file."""

RUNS = "runs"
"""The group that has one group for each run."""

FACTS = "facts"
"""The dataset with the JSON record of a run or a recording. Its attribute `CHECKSUM` has the checksum."""

CHECKSUM = "crc32"

DIFFERS = "stored checksum differs: not shown"
"""The words of messages about damage."""

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

HEAD = 1 << 16
"""Number of bytes at the beginning of a results file that contain its root. The root is written first."""


def why(error: Exception) -> str:
    """Return the text of one of `HDF5_ERRORS` about a damaged file, without the words that h5py adds.

    An error of the operating system is raised again: it says nothing about the file's content.
    """
    # A damaged file may point to an impossible place.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise error
    said = str(getattr(error, "strerror", None) or (error.args[0] if error.args else error))
    return re.sub(r"^Unable to (?:synchronously )?(.*?) \((.*)\)$", r"HDF5 cannot \1: \2", said)


def checksum(data: bytes | memoryview, *place: object) -> int:
    """Return the CRC-32 of the words of a place, joined by spaces, and of the bytes in it.

    So bytes in the place of others count as damaged, too.
    """
    return crc32(data, crc32(" ".join(map(str, place)).encode()))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[Any, int]]:
    """Open a results file for reading. Check first that it is one.

    A file can be read while it is being written.

    Yields
    ------
    hdf5 : h5py.File
        The file.
    descriptor : int
        The same file, for plain reads.

    Raises
    ------
    ResultsError
        If the file cannot be opened. It is a ``DamagedFile`` if HDF5 cannot read the file.
    SchemaMismatch
        If the file has another schema version. It is a ``ForeignFile`` if the file is not HDF5, or another program's.
    """
    import h5py  # it takes long, and jobs without results files or tuning files do not need it

    with contextlib.ExitStack() as stack:
        with os_errors_as(path, "read"):
            file = stack.enter_context(open_regular(path))
            head = os.pread(file.fileno(), HEAD, 0)
        if not head.startswith(SIGNATURE):
            if FORMAT.encode() in head and b"schema_version" in head:
                raise damaged(path, "it does not begin as HDF5 does", "restore it from a copy")
            raise ForeignFile(f"{path} is not an HDF5 file; name a results file of hpccomm")
        try:
            # HDF5 gets a file of Python's: it would refuse a path that the program has open already, or that
            # a writer has locked. Lines that a writer has counted are whole.
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
    """Return the names of the runs or recordings in a group, oldest first. A name is a prefix and a number."""
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
        If it is damaged or missing.
    """
    stored = group[FACTS]
    text = bytes(stored[()])
    if checksum(text, group.name.rpartition("/")[2]) != stored.attrs[CHECKSUM]:
        raise ValueError(f"{FACTS}: {DIFFERS}")
    return json.loads(text)


def as_json(value: Any) -> Any:
    """Return a fact as JSON. A dataclass becomes an object with its fields."""
    match value:
        case str():
            return as_utf8(value)
        case datetime():
            return value.isoformat()
        case Mapping():
            return {as_utf8(key): as_json(each) for key, each in value.items()}
        case tuple() | list():
            return [as_json(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {name: as_json(getattr(value, name)) for name in _hints(type(value))}  # type: ignore[arg-type]
    return value


def of_json(kind: Any, value: Any) -> Any:
    """Return a fact of a type from the JSON that `as_json` has returned. A missing field gets its default.

    Raises
    ------
    TypeError, ValueError, AttributeError
        If it has another form.
    """
    if kind is datetime:
        return datetime.fromisoformat(value)
    if hints := _hints(kind):
        given = {name: of_json(hints[name], each) for name, each in value.items() if name in hints}
        return kind(**given)
    if get_origin(kind) is tuple:
        return tuple(of_json(get_args(kind)[0], each) for each in value)
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields. For any other type, there are none."""
    return get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
