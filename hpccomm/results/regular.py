"""Opens regular files only, without waiting; and turns errors of the system and of contents into errors with advice.

A FIFO would wait for a writer, a device may do anything, and a directory fails only when it is
read. The file is opened without waiting, and its kind is checked before its first byte is read. All
of hpccomm opens files that users name by it.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from hpccomm.errors import ResultsError, SchemaMismatch

MOST_TEXT = 16 << 20
"""Bytes of the largest text that is read, unless its reader says otherwise."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """The path is not a regular file, or too large; `strerror` says which."""


def check_regular(mode: int) -> None:
    """Raise `NotRegular` if a file of this mode (``st_mode``) is not regular."""
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "of another kind")
        raise NotRegular(None, f"it is {kind}, not a regular file")


def check_output(path: Path) -> None:
    """Raise `NotRegular` if something else than a regular file stands where one is to be written."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # not there, or opening it says why not
    check_regular(mode)


def open_regular(path: str | os.PathLike[str], access: int = os.O_RDONLY) -> FileIO:
    """Open a file for reading, or with ``os.O_RDWR`` for writing too, without waiting.

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
    """Return a text as UTF-8 can hold it: other bytes of a path or a variable are escaped."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half a surrogate pair, which no bytes mean
        return text.encode(errors="backslashreplace").decode()


def read_text(path: str | os.PathLike[str], most: int = MOST_TEXT) -> str:
    """Return a text in UTF-8 of at most a number of bytes.

    Raises
    ------
    NotRegular
        If it is not a regular file, or larger.
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
    """Return why a file cannot be made, as its folder is not one, with the remedy; empty if it is."""
    folder = file.parent
    if folder.is_dir():
        return ""
    what = "is not a directory" if folder.exists() else "does not exist"
    return f"cannot write {file}: {folder} {what}; make the directory, or choose another path"


@contextlib.contextmanager
def os_errors_as(path: Path, doing: str) -> Iterator[None]:
    """Turn what the operating system refuses into a `ResultsError` with path and remedy."""
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
