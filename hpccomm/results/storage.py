"""A results file as a whole: recognised, locked, and replaced by its next version.

The structure of a file on disk never changes. A change of structure (another run, more capacity) is
built in ``FILE.partial`` beside it, flushed to the disk, and renamed over the file. At every moment
the path names a complete file, even if the process is killed in the middle of HDF5's work.

A writer holds `flock` on the file for as long as it lives. A second writer is refused, and other
programs' HDF5 libraries may read but not change the file. The kernel drops the lock with the
process. A lock of another kind tells readers that the writer lives (`hpccomm.results.facts`).

`hpccomm.results.store` writes through it.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results import facts, layout, records
from hpccomm.results.layout import ByteCopy
from hpccomm.results.records import FORMAT, RUNS, SCHEMA_VERSION
from hpccomm.results.regular import damaged, no_folder, open_regular

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_LOOKED_AT = 1 << 16
"""Bytes of a partial file that tell whose it is: the root of a results file is written first."""

_BLOCK = 1 << 20
_NO_RESERVATION = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_ALIGNED = {"alignment_threshold": 1, "alignment_interval": 16}
_FORMAT = ("v110", "v110")  # all metadata has checksums


def claim(path: Path) -> FileIO | None:
    """Open and lock the file to write to; return None if it does not exist yet.

    Raises
    ------
    ResultsError
        If the path cannot be written to, is not a regular file, or is in use.
    """
    if why := no_folder(path):
        raise ResultsError(why)
    while True:
        try:
            file = open_regular(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if _lock_same(file, path):
            return file


def _lock_same(file: FileIO, path: Path) -> bool:
    """Lock an open file; close it and return False if the path names another one by now."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(file)
        lock(file, path, fcntl.LOCK_EX)
        if current := same(path, file):
            stack.pop_all()
    return current


def lock(file: FileIO, path: Path, kind: int) -> None:
    """Take a lock on an open file, without waiting.

    Raises
    ------
    ResultsError
        If another process holds a conflicting lock.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ResultsError(
            f"{path} is in use: another run writes to it, or a program has it open; "
            "wait for that, or choose another path"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s is on a file system without locks: do not write two runs to it", path)


def replace(
    path: Path,
    build: Callable[[h5py.File | None, h5py.File], tuple[_Result, list[ByteCopy]]],
    *,
    before: FileIO | None,
    extra: int = 0,
    fill: Callable[[FileIO], None] = lambda _file: None,
) -> tuple[FileIO, _Result]:
    """Build the next version of a results file and put it in its place, all or nothing.

    Parameters
    ----------
    path : Path
        The file; it may be absent or empty.
    build : callable
        Called with the old file (or None) and the new one, which has the root's attributes, an
        empty group of runs, and all other members. Writes these; returns a result, and the bytes
        that are still to be copied.
    before : FileIO or None
        The file to replace, as `claim` opened it; None without one.
    extra : int
        Growth of the file in bytes, without the small change of its structure.
    fill : callable
        Called with the new file once HDF5 has closed it, before it takes its name: writes what is
        to be in it from the start.

    Returns
    -------
    file : FileIO
        The new file, open for reading and writing, locked, with its space allocated where the
        file system can do that.
    result
        What `build` returned.

    Raises
    ------
    OSError
        If the file cannot be written; it is then as it was. See `os_errors_as`.
    ResultsError
        If the path names another file by now, or the one beside it is not hpccomm's.
    """
    partial = path.with_name(path.name + ".partial")
    size = path.stat().st_size if path.exists() else 0
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(records.opened(path))[0] if size else None
        # What others may read of it, `_adopt` says.
        file, new = _claim_partial(partial, 0o666 if before is None else 0o600)
        try:
            # Only who holds the partial file replaces the path. Another run may have just done so.
            if not same(path, before):
                raise ResultsError(
                    f"{path} is in use: another run has just made it; wait for that, or choose another path"
                )
            # An eighth and half a megabyte: what people have added may take more than it did.
            file.truncate(0)
            try:
                result, copies = _build(
                    old, file, partial, build, size + size // 8 + extra + (1 << 19)
                )
            except records.HDF5_ERRORS as error:
                # h5py says some refusals of the operating system in words alone.
                if number := re.search(r"errno = (\d+)", str(error)):
                    raise OSError(int(number[1]), str(error)) from error
                if isinstance(error, OSError):
                    raise
                raise damaged(path, records.why(error)) from error
            if before is not None:
                for each in copies:
                    _copy_bytes(before.fileno(), file.fileno(), each)
                _adopt(path.stat(), file.fileno())
            fill(file)
            os.fsync(file.fileno())
            facts.hold(file.fileno())  # before another process finds the file
            partial.replace(path)
        except BaseException:
            if not same(path, file):  # else a signal's handler has raised behind the renaming
                file.truncate(0)  # a killed run's is empty then, which the next one may take
                if new:
                    partial.unlink(missing_ok=True)
            file.close()
            raise
    _sync_directory(path.parent)
    return file, result


def _copy_bytes(source: int, target: int, copied: ByteCopy) -> None:
    """Copy bytes between open files."""
    for begin in range(0, copied.size, _BLOCK):
        length = min(_BLOCK, copied.size - begin)
        write(target, os.pread(source, length, copied.source + begin), copied.target + begin)


def write(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all bytes to their place in an open file."""
    done = os.pwrite(descriptor, data, at)
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], at + done)


def _claim_partial(partial: Path, mode: int) -> tuple[FileIO, bool]:
    """Open and lock the file for the next version; return whether it is new.

    A killed run may have left one.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        new = True
        try:
            descriptor = os.open(partial, flags | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            new = False
        with contextlib.suppress(FileNotFoundError):
            if not new:
                descriptor = os.open(partial, flags)
            file = FileIO(descriptor, "r+")
            if not _lock_same(file, partial):
                continue
            if _is_ours(file):
                return file, new
            file.close()
            raise ResultsError(
                f"{partial} is not a file that hpccomm has left, and would be overwritten; move it, or "
                "choose another path for the results"
            )


def _is_ours(file: FileIO) -> bool:
    """Whether a partial file has the root of a results file, or nothing yet."""
    descriptor = file.fileno()
    head = os.pread(descriptor, _LOOKED_AT, 0)
    if head.startswith(records.SIGNATURE) and FORMAT.encode() in head:
        return True
    # It may have HDF5's superblock, of 48 bytes.
    begun = head[:8].strip(b"\0") in (b"", records.SIGNATURE) and not head[48:].strip(b"\0")
    behind = range(_LOOKED_AT, os.fstat(descriptor).st_size, _BLOCK)
    return begun and not any(os.pread(descriptor, _BLOCK, at).strip(b"\0") for at in behind)


def same(path: Path, file: FileIO | None) -> bool:
    """Whether the path names this open file, or nothing if it is None."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return file is None
    return file is not None and os.path.samestat(status, os.fstat(file.fileno()))


def _build(
    old: h5py.File | None,
    file: FileIO,
    partial: Path,
    build: Callable[[h5py.File | None, h5py.File], _Result],
    size: int,
) -> _Result:
    """Build the structure of the new file, in an empty one."""
    # By its path, and not as a file of Python's: an interrupt within HDF5 would leave it broken.
    # Alignment: a number of lines in `state` and its checksum must not straddle two pages.
    with h5py.File(partial, "w", libver=_FORMAT, locking=False, **_ALIGNED) as new:
        # HDF5 does not survive a full disk: it complains at every later step and may crash at exit.
        # So the file system allocates the space before HDF5 writes, and reports a full disk.
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_RESERVATION:
                raise
        new.attrs["format"] = np.bytes_(FORMAT)  # of fixed length: not in the heap
        new.attrs["schema_version"] = SCHEMA_VERSION
        new.flush()  # before all else, so that a partial file is known as hpccomm's
        new.create_group(RUNS)
        if old is not None:
            groups = (kind.group for kind in layout.KINDS)
            own = {name for name in groups if isinstance(old.get(name), h5py.Group)}
            layout.copy_members(old, new, own)
        return build(old, new)


def _adopt(before: os.stat_result, descriptor: int) -> None:
    """Give the next version of a file the owner and mode of its predecessor."""
    # Only root may give files away; for others the file becomes theirs, as if copied.
    for owner in (-1, before.st_uid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, owner, before.st_gid)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _sync_directory(directory: Path) -> None:
    """Make a rename last through a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
