"""What the operating system, HDF5 or a file's content refuses, as errors that say what to do."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hpccomm.errors import ResultsError, SchemaMismatch

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

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
    """A file is none of hpccomm's: it is not HDF5, or HDF5 of another program."""


class DamagedFile(ResultsError):
    """A results file is damaged, or was not written to its end.

    Attributes
    ----------
    why : str
        What is damaged, without the name of the file.
    """

    why = ""


def damaged(path: Path, why: object, remedy: str = "choose another path") -> DamagedFile:
    """Return the error for a file of which something is damaged."""
    error = DamagedFile(f"{path} is damaged or incomplete: {why}; {remedy}")
    error.why = str(why)
    return error


@contextlib.contextmanager
def os_errors_as(path: Path, doing: str) -> Iterator[None]:
    """Turn what the operating system or HDF5 refuses into a `ResultsError` with path and remedy."""
    try:
        yield
    except OSError as error:
        number = error.errno or mentioned(str(error))
        reason = os.strerror(number) if number else error.strerror or str(error)
        remedy = _REMEDIES.get(number or 0)
        raise ResultsError(
            f"cannot {doing} {path}: {reason}" + (f"; {remedy}" if remedy else "")
        ) from error


def mentioned(message: str) -> int | None:
    """Find the error number in a message of HDF5, which h5py does not always carry over."""
    for number in (*_FULL, *_REMEDIES):
        if f"errno = {number}," in message:
            return number
    return None
