"""Errors of the operating system and of file contents, turned into errors with advice.

`hpccomm.results` and the verbs open files within it.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hpccomm.errors import ResultsError, SchemaMismatch
from hpccomm.files.regular import NotRegular

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
