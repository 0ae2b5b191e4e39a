"""A results file while it is written: it is replaced as a whole, and extended by plain writes.

To add a line, HDF5 changes several places of a file. If a process is killed between two changes, the file may no longer
open. So HDF5 never changes a file on disk. To change the structure (another run, more capacity), a new file is written to
``FILE.partial`` beside the file, flushed to the disk, and renamed over the file. At every moment, the path names a complete
file.

A `Section` is a run or a recording in the file. Its tables and arrays have capacity. Plain writes add a line: first its
parts of the arrays, then the line, and last the number of lines with its checksum. This last write is one aligned write of
sixteen bytes. Before it, the line does not exist. After it, the line is whole.

Written lines are in the kernel's page cache. They survive the process, but not a power cut. The file is flushed to the disk
when it is made and when the run ends. A flush after each line would take longer than many measurements.

A writer holds `flock` on the file while it lives. A second writer is refused. HDF5 libraries of other programs may read the
file, but not change it. The kernel drops the lock with the process. A lock of another kind tells readers that the writer
lives (`hpccomm.results.facts`).
"""

import errno
import fcntl
import logging
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import facts, files, layout, lines, reader
from hpccomm.results.files import (
    FORMAT,
    RUNS,
    SCHEMA_VERSION,
    as_utf8,
    damaged,
    no_folder,
    open_regular,
    os_errors_as,
)
from hpccomm.results.lines import Line
from hpccomm.results.schema import STATUS, SectionKind, TableForm

_log = logging.getLogger(__name__)

_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
"""The errors of file systems without locks, reservations or flushes of folders."""

_BLOCK = 1 << 20
"""Number of bytes of a partial file that are read at once."""

_ALIGNED = {"alignment_threshold": 1, "alignment_interval": 16}

_FORMAT = ("v110", "v110")  # all metadata has checksums

_STATUS_BYTES = int(STATUS.kind[1:])

_STRUCTURE = 1 << 14  # the most bytes of HDF5's description of a section


def lock(file: FileIO, path: Path, kind: int) -> None:
    """Lock an open file, without waiting.

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
        if error.errno not in _UNSUPPORTED:
            raise
        _log.warning("%s is on a file system without locks: do not write two runs to it", path)


def _claimed(path: Path, opened: Callable[[], FileIO]) -> FileIO:
    """Open and lock the file that a path names. Try again if the path names another file afterwards."""
    while True:
        with ExitStack() as stack:
            file = stack.enter_context(opened())
            lock(file, path, fcntl.LOCK_EX)
            if same(path, file):
                stack.pop_all()
                return file


def _claim_partial(partial: Path, mode: int) -> FileIO:
    """Open and lock the partial file for the next version. It may be one that a killed run left."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = _claimed(partial, lambda: FileIO(os.open(partial, flags, mode), "r+"))
    if _is_ours(file):
        return file
    file.close()
    raise ResultsError(
        f"{partial} is not a file that hpccomm has left, and would be overwritten; move it, or "
        "choose another path for the results"
    )


def _is_ours(file: FileIO) -> bool:
    """Return whether a partial file has the root of a results file, or no content yet."""
    descriptor = file.fileno()
    head = os.pread(descriptor, files.HEAD, 0)
    if head.startswith(files.SIGNATURE) and FORMAT.encode() in head:
        return True
    # It may have HDF5's superblock, of 48 bytes.
    begun = head[:8].strip(b"\0") in (b"", files.SIGNATURE) and not head[48:].strip(b"\0")
    behind = range(files.HEAD, os.fstat(descriptor).st_size, _BLOCK)
    return begun and not any(os.pread(descriptor, _BLOCK, at).strip(b"\0") for at in behind)


def same(path: Path, file: FileIO | None) -> bool:
    """Return whether the path names this open file. If there is none, return whether the path names nothing."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return file is None
    return file is not None and os.path.samestat(status, os.fstat(file.fileno()))


@contextmanager
def _empty(file: FileIO, partial: Path, size: int) -> Iterator[h5py.File]:
    """Make an open file an empty results file, with space for a number of bytes."""
    file.truncate(0)
    # HDF5 opens it by path: with a file of Python's, an interrupt within HDF5 would leave it broken.
    # Alignment: the number of lines in `state` and its checksum must lie in one page.
    with h5py.File(partial, "w", libver=_FORMAT, locking=False, **_ALIGNED) as new:
        # After a full disk, HDF5 raises in every later step and may crash at exit. So the file system
        # allocates the space before HDF5 writes, and reports a full disk.
        with _if_supported():
            os.posix_fallocate(file.fileno(), 0, size)
        new.attrs["format"] = np.bytes_(FORMAT)  # of fixed length: not in the heap
        new.attrs["schema_version"] = SCHEMA_VERSION
        new.flush()  # before all else, so that a partial file is known as hpccomm's
        new.create_group(RUNS)
        yield new


@contextmanager
def _if_supported() -> Iterator[None]:
    """Ignore errors of operations that the file system does not have."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _adopt(before: os.stat_result, descriptor: int) -> None:
    """Give the next version of a file the owner and mode of its predecessor."""
    # Only root may change the owner. For others, the file becomes theirs, as if copied.
    for owner in (-1, before.st_uid):
        with suppress(OSError):
            os.fchown(descriptor, owner, before.st_gid)
    with suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _sync_directory(directory: Path) -> None:
    """Flush a folder to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _if_supported():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Section:
    """One run or recording of a results file, for one process of a job. `begin` makes it and opens it for writing.

    Parameters
    ----------
    path : path-like
        The file. If it has runs and recordings, it keeps them.
    kind : SectionKind
        A run or a recording.
    record : object
        Its facts, of JSON types.
    capacity : mapping of str to int
        Number of entries of each table and array for which there is room at first.
    ranks : int
        Number of ranks.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The section's name in the file, such as ``"run0001"``.
    used : dict of str to int
        Number of written entries of each table and array.
    nbytes : int
        The most bytes that it takes in the file at first.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: SectionKind,
        record: Any,
        capacity: Mapping[str, int],
        ranks: int = 0,
    ) -> None:
        self.path = Path(path)
        self._kind, self._record, self._ranks = kind, record, ranks
        self._capacity = dict(capacity)
        self._file = Path(os.path.realpath(path))  # the file itself is replaced, not a link to it
        self._open: FileIO | None = None
        self._process = os.getpid()  # a forked child must not write
        self.name = ""
        self.used = dict.fromkeys(capacity, 0)
        self.nbytes = layout.nbytes(kind, capacity, ranks) + 2 * len(str(record)) + _STRUCTURE

    def begin(
        self, others: "Sequence[Section]" = (), fill: Callable[[FileIO], None] = lambda _file: None
    ) -> None:
        """Put this section into the file, and open it for writing.

        Parameters
        ----------
        others : sequence of Section
            Other sections of the same kind. The same replacement of the file puts them behind this one.
        fill : callable
            Called with the new file before it takes its name. It may write lines and ends of all sections to it. If it
            raises, or the process is killed, the file has none of these sections.

        Raises
        ------
        ResultsError
            If the file cannot be written, is in use or is damaged. It then stays as it was.
        SchemaMismatch
            If it is another program's HDF5 file or of another schema version.
        """
        sections = (self, *others)
        with os_errors_as(self.path, "write"), ExitStack() as stack:
            if why := no_folder(self._file):
                raise ResultsError(why)
            before, opened = None, partial(open_regular, self._file, os.O_RDWR)
            with suppress(FileNotFoundError):
                before = stack.enter_context(_claimed(self._file, opened))
            if before is not None and self._file.stat().st_size:
                reader.read(self._file)  # nothing is added to a damaged file
            self._made = before is None
            stack.enter_context(_without_interrupts())
            extra = sum(each.nbytes for each in sections)
            with self._next_version(before, extra, fill) as (_, new):
                for each in sections:
                    each.lay_out(new)

    def lay_out(self, new: h5py.File) -> None:
        """Create this section in the next version of the file, under the next free name."""
        parent = new.require_group(self._kind.group)
        names = files.names(parent, self._kind.prefix)
        last = int(names[-1][len(self._kind.prefix) :]) if names else 0
        self.name = f"{self._kind.prefix}{last + 1:04d}"
        group = parent.create_group(self.name)
        files.write_record(group, self._record)
        self._places = layout.lay_out(group, self._kind, self._capacity, self._ranks)

    def write_to(self, file: FileIO) -> None:
        """Write to this open file from now on."""
        self._open = file

    @property
    def is_open(self) -> bool:
        """Whether this process can still write to it."""
        return self._open is not None and os.getpid() == self._process

    def check_open(self) -> FileIO:
        """Return the open file. Raise `UsageError` if this section has ended, or another process writes it."""
        if self._open is None or not self.is_open:
            why = "is written by the process that forked this one" if self._open else "has ended"
            raise UsageError(f"{self.name} of {self.path} {why}")
        return self._open

    def fits(self, wanted: Mapping[str, int]) -> bool:
        """Return whether tables and arrays have capacity for this number of further entries."""
        return all(self.used[name] + more <= self._capacity[name] for name, more in wanted.items())

    def append(self, form: TableForm, added: Sequence[Line]) -> None:
        """Add lines to a table, after `fits` has returned True. They are in the file when this returns.

        Raises
        ------
        ResultsError
            If they cannot be written. The lines before them stay.
        UsageError
            If a text is too long for its column.
        """
        if not added:
            return
        data, used = lines.encode(form, self.name, self.used, added)
        writes = [(each, self._places[name].entry(self.used[name])) for name, each in data.items()]
        count = lines.encode_count(self.name, form, used[form.name])
        counted = self._places[layout.STATE].at + lines.offset(self._kind, form.name)
        try:
            self._write([*writes, (count, counted)])
            self.used |= used
        except BaseException:
            # The lines may be in the file: the handler of a signal may raise at any time.
            if self._open and os.pread(self._open.fileno(), len(count), counted) == count:
                self.used |= used
            raise

    def note_end(self, status: str, ended: datetime | None = None) -> None:
        """Write how the run or recording ended. Any thread may call it, even while another thread adds a line.

        Parameters
        ----------
        status : str
            ``"completed"``, or ``"failed: "`` and the reason. A text that is too long is cut.
        ended : datetime, optional
            The time of the end. Default is now.

        Raises
        ------
        ResultsError
            If this cannot be written.
        """
        text = (
            as_utf8(status).encode()[:_STATUS_BYTES].decode(errors="ignore").rstrip("\0").encode()
        )
        seconds = time.time() if ended is None else ended.timestamp()
        end, state = lines.encode_end(self.name, seconds, text), self._places[layout.STATE].at
        fields = (STATUS.name, text.ljust(_STATUS_BYTES, b"\0")), ("ended", end)
        self._write([(data, state + lines.offset(self._kind, name)) for name, data in fields])

    def enlarge(self, wanted: Mapping[str, int]) -> None:
        """Replace the file by one with capacity for twice the number of written and further entries.

        Raises
        ------
        ResultsError
            If the new file cannot be written, or the path now names another file. The lines stay.
        """
        capacity = dict(self._capacity)
        for name, more in wanted.items():
            if self.used[name] + more > capacity[name]:
                capacity[name] = 2 * (self.used[name] + more)
        self.rewrite(capacity)

    def rewrite(self, capacity: Mapping[str, int] | None = None, record: Any = None) -> None:
        """Replace the file by one in which this section has another capacity or other facts. Raises as `enlarge` does."""
        wanted, kind = capacity or self._capacity, self._kind
        self.check_there()
        extra = layout.nbytes(kind, wanted, self._ranks) + 2 * len(str(record))
        with self._refusals(), _without_interrupts():
            with self._next_version(self._open, extra) as (old, new):
                assert old is not None, "it has this section"
                source, target = old[kind.group][self.name], new[kind.group].create_group(self.name)
                places = layout.copy(source, target, kind, wanted, record)
            self._places = places
            self._capacity = {name: places[name].shape[0] for name in wanted}

    def remove(self) -> None:
        """Remove this section from the file. If `begin` made the file and it has nothing else, remove the file.

        Raises
        ------
        ResultsError
            As `enlarge` does.
        """
        self.check_there()
        with self._refusals(), _without_interrupts():
            with self._next_version(self._open) as (_, new):
                groups = [new[kind.group] for kind in layout.KINDS if kind.group in new]
                # Each file has the format and the version.
                left = len(new) > len(groups) or any(map(len, groups)) or len(new.attrs) > 2
            if self._made and not left:
                self._file.unlink()
            self.close()

    @contextmanager
    def _next_version(
        self,
        before: FileIO | None,
        extra: int = 0,
        fill: Callable[[FileIO], None] = lambda _file: None,
    ) -> Iterator[tuple[h5py.File | None, h5py.File]]:
        """Build the next version of the file in a ``with`` block. At the end of the block, it replaces the file.

        After an error, the file is as it was. Else this section writes to the new file from then on. The new file is
        locked, and has its space allocated if the file system can do this.

        Parameters
        ----------
        before : FileIO or None
            The file that is replaced, locked. It is closed at the end. None if there is no file yet.
        extra : int
            Growth of the file in bytes, without the small change of its structure.
        fill : callable
            Called with the new file after HDF5 has closed it, before it takes its name. It writes the first content.

        Yields
        ------
        old : h5py.File or None
            The old file. None if there is none, or it is empty.
        new : h5py.File
            The new file. It has all of the old one but this section.

        Raises
        ------
        OSError
            If the new file cannot be written. The old file is then as it was. See `os_errors_as`.
        ResultsError
            If the path now names another file, or the partial file is not hpccomm's.
        """
        path, partial = self._file, self._file.with_name(self._file.name + ".partial")
        size = 0 if before is None else os.fstat(before.fileno()).st_size
        with ExitStack() as stack:
            old = stack.enter_context(files.opened(path))[0] if size else None
            # `_adopt` sets its mode later.
            file = _claim_partial(partial, 0o666 if before is None else 0o600)
            try:
                # Only the holder of the partial file replaces the path. Another run may have just done so.
                if not same(path, before):
                    raise ResultsError(
                        f"{path} is in use: another run has just made it; wait for that, or choose another path"
                    )
                try:
                    # An eighth and half a megabyte are spare: objects that users added may take more than before.
                    with _empty(file, partial, size + size // 8 + extra + (1 << 19)) as new:
                        if old is not None:
                            self._copy_others(old, new)
                        yield old, new
                except files.HDF5_ERRORS as error:
                    # For some errors of the operating system, h5py gives the number only in the text.
                    if number := re.search(r"errno = (\d+)", str(error)):
                        raise OSError(int(number[1]), str(error)) from error
                    if isinstance(error, OSError):
                        raise
                    raise damaged(path, files.why(error)) from error
                # HDF5 has given back the space that it did not write.
                with _if_supported():
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
                if before is not None:
                    _adopt(path.stat(), file.fileno())
                fill(file)
                os.fsync(file.fileno())
                facts.hold(file.fileno())  # before another process can find the file
                partial.replace(path)
            except BaseException:
                if not same(path, file):  # else the handler of a signal raised after the rename
                    with suppress(OSError):
                        partial.unlink()
                file.close()
                raise
        _sync_directory(path.parent)
        lock(file, self.path, fcntl.LOCK_SH)  # others may read it
        self._open = file
        if before is not None:
            before.close()

    def finish(self) -> None:
        """Flush the file to the disk, give back unused capacity, and close."""
        with self._refusals():
            os.fsync(self.check_open().fileno())
        self.check_there()
        spare = {name: self._capacity[name] - used for name, used in self.used.items()}
        size = self._file.stat().st_size
        try:
            if layout.nbytes(self._kind, spare, self._ranks) > size // 8:
                self.rewrite(self.used)
        except ResultsError as error:
            # Nothing is lost: the section is whole in the present file.
            _log.warning("%s keeps the space that it did not use: %s", self.name, error)
        self.close()

    def close(self) -> None:
        """Close the file. The written lines stay in it. Idempotent."""
        if self._open is not None:
            if self.is_open:  # else a forked child that has the file open keeps the locks
                facts.hold(self._open.fileno(), fcntl.F_UNLCK)
                with suppress(OSError):
                    fcntl.flock(self._open, fcntl.LOCK_UN)
            self._open.close()
        self._open = None

    def check_there(self) -> None:
        """Raise `ResultsError` if the path now names another file, or none."""
        if not same(self._file, self.check_open()):
            raise ResultsError(
                f"{self.path} was removed, moved or replaced while {self.name} was written to it: "
                "its lines are in the previous file"
            )

    def _write(self, writes: Iterable[tuple[bytes | bytearray, int]]) -> None:
        """Write bytes to their places, in this order."""
        descriptor = self.check_open().fileno()
        with self._refusals():
            for data, at in writes:
                done = os.pwrite(descriptor, data, at)
                while done < len(data):
                    done += os.pwrite(descriptor, memoryview(data)[done:], at + done)

    def _copy_others(self, old: h5py.File, new: h5py.File) -> None:
        """Copy all but this section to the new file. Other runs and recordings lose their unused capacity."""
        kinds = [each for each in layout.KINDS if isinstance(old.get(each.group), h5py.Group)]
        if self._kind.group in old and self._kind not in kinds:
            raise ResultsError(
                f"{self.path} has something else by the name {self._kind.group!r}; choose another path"
            )
        layout.copy_members(old, new, {each.group for each in kinds})
        for kind in kinds:
            source, target = old[kind.group], new.require_group(kind.group)
            names = files.names(source, kind.prefix)
            layout.copy_members(source, target, {*names})
            for name in names:
                if kind is not self._kind or name != self.name:
                    layout.copy(source[name], target.create_group(name), kind)

    def _refusals(self) -> AbstractContextManager[None]:
        written = ", ".join(f"{self.used[form.name]} {form.name}" for form in self._kind.forms)
        doing = f"write to {self.name} (its {written} so far are kept) of"
        return os_errors_as(self.path, doing)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay Ctrl-C during a block: for a moment, the path names the new file and the section has the old one.

    Python raises it in the main thread, whichever thread gets the signal.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held_back: list[Any] = []
    signal.signal(signal.SIGINT, lambda *of: held_back.append(of))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held_back:
            handler(*held_back[0])
