"""A results file as a whole: recognised, locked, and replaced by its next version.

The structure of a file on disk never changes. Whatever needs another structure (a further run, more
room, the compressed form) is built in ``FILE.partial`` beside it, flushed to the disk, and renamed
over the file: at every moment the path names a complete file, whenever a process is killed and
wherever HDF5 was in its work.

A writer holds `flock` on the file for as long as it lives, so that a second one is refused, and
other programs' HDF5 libraries may read but not change it. The kernel drops the lock with the
process. A lock of another kind tells readers that it lives (`hpccomm.results.liveness`).
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from hpccomm import __version__
from hpccomm.errors import ResultsError, SchemaMismatch
from hpccomm.files import seal
from hpccomm.files.regular import open_regular
from hpccomm.results import contents, layout, liveness
from hpccomm.results.refusals import ForeignFile, damaged, mentioned, reported
from hpccomm.results.schema import FORMAT, RUNS, SCHEMA_VERSION, SEAL, UNSEALED

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_ROOM = 1 << 13
"""Bytes for the seal at first; a file of many ranks or runs is built again with as many as it takes."""

_LOOKED_AT = 1 << 16
"""Bytes of a partial file that tell whose it is: the root of a results file is written first."""

_NO_RESERVATION = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FORMAT = ("v110", "v110")  # all metadata has checksums


@contextlib.contextmanager
def opened(path: Path, *, locking: bool | None = None) -> Iterator[h5py.File]:
    """Open a results file for reading, after checking that it is one.

    Parameters
    ----------
    path : Path
        The file.
    locking : bool or None
        Whether HDF5 locks it against writers; None is HDF5's own default.

    Raises
    ------
    ResultsError
        If the file cannot be read.
    SchemaMismatch
        If it is of another schema version; a ``ForeignFile`` if it is not HDF5 or another program's.
    """
    with reported(path, "read"), open_regular(path) as tried:
        tried.read(8)
    if not h5py.is_hdf5(path):
        raise ForeignFile(f"{path} is not an HDF5 file; name a results file of hpccomm")
    with reported(path, "read"):
        file = h5py.File(path, "r", locking=locking)
    with file:
        with reported(path, "read"), intact(path):
            _check_schema(path, file)
        yield file


@contextlib.contextmanager
def intact(path: Path) -> Iterator[None]:
    """Turn what reading meets in a file that is not as the schema says into a `ResultsError`.

    Whatever may stand in an HDF5 file, h5py and NumPy answer to it with these.
    """
    try:
        yield
    except (
        AttributeError,
        LookupError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise damaged(path, error) from error


def runs(file: h5py.File) -> dict[str, h5py.Group]:
    """Return the runs of a results file by their names, oldest first.

    Raises
    ------
    KeyError, ValueError
        If they are not there, or something else is. See `intact`.
    """
    group = layout.group(file, RUNS)
    return {
        name: layout.group(group, name)
        for name in sorted(group, key=lambda name: (len(name), name))
    }


def _check_schema(path: Path, file: h5py.File) -> None:
    found = file.attrs.get("format")
    if not isinstance(found, str) or found != FORMAT:
        raise ForeignFile(
            f"{path} is an HDF5 file of another program (its root has no attribute "
            f"format = {FORMAT!r}); choose another path"
        )
    version = file.attrs.get("schema_version")
    if np.ndim(version) or version not in (UNSEALED, SCHEMA_VERSION):
        raise SchemaMismatch(
            f"{path} has schema version {version}; hpccomm {__version__} reads up to {SCHEMA_VERSION} "
            f"and writes that: use the hpccomm that wrote it, or choose another path"
        )


def claim(path: Path) -> FileIO | None:
    """Open and lock the file to write to; return None if there is none yet.

    Raises
    ------
    ResultsError
        If the path cannot be written to, is no regular file, or is in use.
    """
    parent = path.parent
    if not parent.is_dir():
        what = "is not a directory" if parent.exists() else "does not exist"
        raise ResultsError(
            f"cannot write {path}: {parent} {what}; make the directory, or choose another path"
        )
    while True:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found.st_mode):
            raise ResultsError(f"cannot write {path}: it is a directory; name a file in it")
        if not stat.S_ISREG(found.st_mode):
            raise ResultsError(
                f"cannot write {path}: it is not a regular file; choose another path"
            )
        with contextlib.suppress(FileNotFoundError):
            file = FileIO(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), "r+")
            if _lock_same(file, path):
                return file


def _lock_same(file: FileIO, path: Path) -> bool:
    """Lock an open file; close it and return False if the path names another one by now."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(file)
        lock(file, path, fcntl.LOCK_EX)
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return False
        stack.pop_all()
    return True


def lock(file: FileIO, path: Path, kind: int) -> None:
    """Take a lock on an open file, without waiting.

    Raises
    ------
    ResultsError
        If another process holds one that excludes it.
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
    build: Callable[[h5py.File | None, h5py.File], _Result],
    *,
    before: FileIO | None,
    extra: int = 0,
) -> tuple[FileIO, _Result]:
    """Build the next version of a results file and put it in its place, all or nothing.

    Parameters
    ----------
    path : Path
        The file; it may be absent or empty.
    build : callable
        Called with the old file (None if there is none) and the new one, which has the root's
        attributes and everything that is not a run; writes the runs.
    before : FileIO or None
        The file that is replaced, as `claim` opened it; None if there was none.
    extra : int
        Bytes that the new file is larger by, apart from the small change of its structure.

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
        If the file cannot be written; it is then as it was. See `reported`.
    ResultsError
        If the path names another file by now, or the one beside it is not hpccomm's.
    """
    partial = path.with_name(path.name + ".partial")
    size = path.stat().st_size if path.exists() else 0
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(opened(path, locking=False)) if size else None
        file = _claim_partial(partial)
        try:
            # Only who holds the partial file replaces the path. Another run may have just done so.
            if not _same(path, before):
                raise ResultsError(
                    f"{path} is in use: another run has just made it; wait for that, or choose another path"
                )
            room = _ROOM if old is None or SEAL not in old else len(old[SEAL])
            while True:
                # An eighth and half a megabyte: chunk indices and heaps never take as much.
                _start(file, size + size // 8 + extra + 2 * room + (1 << 19))
                result, content, holes, at = _build(old, partial, build, room)
                needed = seal.needed(content, [*holes, (at, at + room)])
                if needed <= room:
                    break
                room = 2 * needed
            seal.write(file.fileno(), content, holes, (at, at + room))
            _adopt(path, file.fileno())
            os.fsync(file.fileno())
            liveness.hold(file.fileno())  # before anybody finds the file
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            file.close()
            raise
    _sync_directory(path.parent)
    return file, result


def _claim_partial(partial: Path) -> FileIO:
    """Open and lock the file in which the next version is built; a killed run may have left one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        file = FileIO(os.open(partial, flags, 0o666), "r+")
        with contextlib.suppress(FileNotFoundError):
            if not _lock_same(file, partial):
                continue
            if _is_ours(file):
                return file
            file.close()
            raise ResultsError(
                f"{partial} is not a file that hpccomm has left, and would be overwritten; move it, or "
                "choose another path for the results"
            )


def _is_ours(file: FileIO) -> bool:
    """Whether a partial file is empty, as `_start` leaves it, or has got the root of a results file."""
    head, image = os.pread(file.fileno(), _LOOKED_AT, 0), _empty()
    if not head:
        return True
    superblock = 48  # bytes, of which those after the version change with the size of the file
    same_root = head[superblock : len(image)] == image[superblock:]
    return head[:9] == image[:9] and (same_root or b"schema_version" in head)


def _same(path: Path, file: FileIO | None) -> bool:
    """Whether the path names this open file; nothing, if there is none."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return file is None
    return file is not None and os.path.samestat(there, os.fstat(file.fileno()))


def _empty() -> bytes:
    """Return an HDF5 file that holds nothing."""
    with h5py.File("empty", "w", driver="core", backing_store=False, libver=_FORMAT) as empty:
        empty.flush()
        image: bytes = empty.id.get_file_image()
    return image


def _start(file: FileIO, size: int) -> None:
    """Write an empty HDF5 file and have the file system allocate `size` bytes for it.

    HDF5 does not survive a full disk: it complains at every later step and may crash at exit. So
    the operating system allocates the space before HDF5 writes, and reports a full disk plainly.
    """
    file.truncate(0)
    os.pwrite(file.fileno(), _empty(), 0)
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in _NO_RESERVATION:
            raise


def _build(
    old: h5py.File | None,
    partial: Path,
    build: Callable[[h5py.File | None, h5py.File], _Result],
    room: int,
) -> tuple[_Result, dict[str, Any], list[seal.Hole], int]:
    """Build the new file, with room for its seal; return what the seal says as well, and where it goes."""
    try:
        # Alignment: the count of rows in `state` and its checksum must not straddle two pages.
        with h5py.File(
            partial,
            "r+",
            libver=_FORMAT,
            locking=False,
            alignment_threshold=1,
            alignment_interval=16,
        ) as new:
            new.attrs["format"] = FORMAT
            new.attrs["schema_version"] = SCHEMA_VERSION
            place = layout.contiguous(new, SEAL, (room,), np.dtype("u1"))
            place[:] = 0
            new.create_group(RUNS)
            if old is not None:
                _copy_foreign(old, new)
            result = build(old, new)
            new.flush()
            content, holes = contents.described(runs(new))
            content["schema_version"] = SCHEMA_VERSION
            return result, content, holes, place.id.get_offset()
    except RuntimeError as error:
        # h5py reports a failed write as RuntimeError when it only shows as the file is closed.
        raise OSError(mentioned(str(error)), str(error)) from error


def _copy_foreign(old: h5py.File, new: h5py.File) -> None:
    """Keep what people have added to the root of their file."""
    for name, value in old.attrs.items():
        if name != "schema_version":
            new.attrs[name] = value
    for name in old:
        if name not in (RUNS, SEAL):
            old.copy(old[name], new, name)


def copy_runs(old: h5py.File | None, new: h5py.File, *, without: str | None = None) -> None:
    """Copy the runs of a file, those that were interrupted in the form of ended ones."""
    if old is None:
        return
    with intact(Path(old.filename)):
        for name, run in runs(old).items():
            if name == without:
                continue
            if layout.is_open(run) or layout.is_old(run):
                target = new[RUNS].create_group(name)
                layout.copy_info(run, target)
                layout.compress(run, target, name)
            else:
                old.copy(run, new[RUNS], name)


def _adopt(path: Path, descriptor: int) -> None:
    """Give the next version of a file the owner and mode of the one that it replaces."""
    if not path.exists():
        return
    before, now = path.stat(), os.fstat(descriptor)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        # Only root may give files away; for others the file becomes theirs, as if copied.
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
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
