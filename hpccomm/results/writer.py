"""Writing a run: every row is in the file when `Writer.append` returns, even if the job is then killed.

HDF5 changes several places of a file to add one row, and a process killed between two of them can
leave a file that no longer opens. So HDF5 never changes the file while the run is measured. It lays
out datasets with room for the run, in a file that is complete and closed; a row is then added by
plain writes into that room: first its samples, then the row, and last, in one aligned write of
sixteen bytes, the number of rows with its checksum. Before that write the row does not exist; after it, it is whole.

What is written is in the kernel's page cache: it outlives the process, not a power cut. The file is
flushed to the disk when it is made and when the run ends, not after each row, which would cost more
than many a measurement.
"""

import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import h5py
import numpy as np

from hpccomm.errors import ResultsError, UsageError
from hpccomm.files.regular import as_utf8
from hpccomm.results import coding, layout, reader, repetitions, storage
from hpccomm.results.coding import Stored, StoredTiming
from hpccomm.results.refusals import reported
from hpccomm.results.schema import RUNS, Row, RunInfo, Timing

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


MOST_RESERVED = 256 << 20
"""Bytes that a run takes at first for its rows, and for its samples, however many it expects.

A run may end long before its expected rows are written, as endless runs do.
"""


class Writer:
    """Adds one run to a results file. Only for rank 0; blocks only for the file system.

    A context manager: leaving it ends the run, as failed if by an exception.

    Parameters
    ----------
    path : path-like
        The file. One that holds runs keeps them and gets one more.
    info : RunInfo
        Facts of the run.
    expected_rows : int
        Rows that the run will likely have.
    expected_repetitions : int
        Rows of samples that it will likely have: the sum of ``samples.shape[0]`` over all rows.
        Space for both is taken at once, up to `MOST_RESERVED`; going beyond it costs a copy of the
        file.
    expected_isolated : int
        Likewise, isolated repetitions.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The run's name in it, such as ``"run0001"``.

    Raises
    ------
    ResultsError
        If the file cannot be written: no permission, no such directory, no space for the expected
        rows, in use by another run, not HDF5. An existing file is then left as it was.
    SchemaMismatch
        If it is another program's HDF5 file or of another schema version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        info: RunInfo,
        *,
        expected_rows: int = 64,
        expected_repetitions: int = 64 * 20,
        expected_isolated: int = 0,
    ) -> None:
        self.path = Path(path)
        # The file itself is replaced, not a link to it.
        self._file = Path(os.path.realpath(path))
        self._ranks = len(info.ranks)
        self._skip = info.config.per_iter_skip
        self._written = layout.Room(0, 0, 0)
        self._open: FileIO | None = None
        width = self._ranks * coding.SAMPLE.itemsize
        room = layout.Room(
            min(expected_rows, MOST_RESERVED // coding.ROW_BYTES),
            min(expected_repetitions, MOST_RESERVED // width),
            min(expected_isolated, MOST_RESERVED // (2 * width)),
        )

        def build(old: h5py.File | None, new: h5py.File) -> tuple[str, layout.ReservedSpace]:
            storage.copy_runs(old, new)
            name = _next_name(new[RUNS])
            run = new[RUNS].create_group(name)
            layout.write_info(run, info)
            return name, layout.reserve(run, room, self._ranks)

        extra = layout.reserved_bytes(room, self._ranks)
        extra += layout.INFO_BYTES * self._ranks
        with reported(self.path, "write"):
            before = storage.claim(self._file)
            try:
                # What is damaged must not get a new seal.
                if before is not None and self._file.stat().st_size:
                    reader.read(self._file)
                file, (self.name, self._space) = storage.replace(
                    self._file, build, before=before, extra=extra
                )
            finally:
                if before is not None:
                    before.close()
            self._take(file)

    @property
    def rows(self) -> int:
        """Rows that are in the file."""
        return self._written.rows

    def append(
        self,
        row: Row,
        samples: np.ndarray | None,
        isolated: np.ndarray | None = None,
        *,
        timing: Timing | None = None,
    ) -> Timing:
        """Add one row; it is in the file when this returns.

        Parameters
        ----------
        row : Row
            The measurement.
        samples : ndarray or None
            Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
        isolated : ndarray, optional
            When each rank started and ended each isolated repetition: seconds on a clock that the ranks agreed
            on, shape ``(repetitions, ranks, 2)``.
        timing : Timing, optional
            How it was timed, as `hpccomm.results.repetitions.timing` says; by default computed from
            the samples.

        Returns
        -------
        Timing
            Statistics of the row, as they are stored beside it.

        Raises
        ------
        ResultsError
            If it cannot be written. The rows before it stay.
        UsageError
            If the samples do not have one column a rank, or a name is too long.
        """
        if self._open is None:
            raise UsageError(f"run {self.name} of {self.path} has ended: no row can be added")
        times = self._checked("samples", samples, (self._ranks,))
        stamps = self._checked("isolated", isolated, (self._ranks, 2))
        timing = timing or repetitions.timing(times, self._skip, stamps)
        number, first, first_isolated = self._written
        sums = coding.samples_checksum(self.name, "samples", number, times)
        encoded = coding.encode_row(self.name, number, Stored(row, first, len(times), sums))
        sums = coding.samples_checksum(self.name, "isolated", number, stamps)
        spread = StoredTiming(timing, first_isolated, len(stamps), sums)
        after = layout.Room(number + 1, first + len(times), first_isolated + len(stamps))
        room = self._space.room
        if any(used > there for used, there in zip(after, room, strict=True)):
            self._rewrite(
                layout.Room(
                    *(
                        there if used <= there else 2 * used
                        for used, there in zip(after, room, strict=True)
                    )
                )
            )
        space, width = self._space, self._ranks * coding.SAMPLE.itemsize
        self._write(
            (coding.samples_bytes(times), space.samples_at + first * width),
            (coding.samples_bytes(stamps), space.isolated_at + first_isolated * 2 * width),
            (
                coding.encode_timing(self.name, number, spread),
                space.timings_at + number * coding.TIMING_BYTES,
            ),
            (encoded, space.rows_at + number * coding.ROW_BYTES),
            (coding.encode_count(self.name, after.rows), space.state_at + coding.COUNT_AT),
        )
        self._written = after
        return timing

    def add_group(self, name: str, write: Callable[[h5py.Group], None]) -> None:
        """Add a group to the run; it is in the file when this returns.

        Parameters
        ----------
        name : str
            Of the group.
        write : callable
            Fills the group that it is given.

        Raises
        ------
        ResultsError
            If it cannot be written. The rows stay.
        """
        self._rewrite(self._space.room, lambda run: write(run.create_group(name)))

    def end(self, status: str, ended: datetime | None = None) -> None:
        """Record how the run ended, and give the file its final, compressed form.

        Parameters
        ----------
        status : str
            ``"completed"``, or ``"failed: "`` and why.
        ended : datetime, optional
            When it ended; by default now.

        Raises
        ------
        ResultsError
            If that cannot be written. The rows stay.
        UsageError
            If the run has ended already, or the status is neither of the two.
        """
        if self._open is None:
            raise UsageError(f"run {self.name} of {self.path} has ended already")
        if status != "completed" and not status.startswith("failed: "):
            raise UsageError(f"status {status!r} is neither 'completed' nor 'failed: ...'")
        self.note_end(status, ended)
        with self._reported():
            os.fsync(self._open.fileno())
        self._check_there()
        try:
            with _without_interrupts():
                self._take(self._replaced(self._compressed, 0)[0])
        except ResultsError as error:
            # Nothing is lost: the run is whole in the form that it was measured in.
            _log.warning("run %s stays uncompressed: %s", self.name, error)
        self._open.close()
        self._open = None

    def note_end(self, status: str, ended: datetime | None = None) -> None:
        """Record how the run ended, and leave the file in the form in which it was measured.

        From any thread, also while another adds a row: these bytes are of nothing else.

        Parameters
        ----------
        status, ended
            As for `end`.

        Raises
        ------
        ResultsError, UsageError
            As `end` does.
        """
        text = as_utf8(status).encode()[: coding.STATUS_BYTES].decode(errors="ignore").encode()
        seconds = time.time() if ended is None else ended.timestamp()
        end = coding.encode_end(self.name, seconds, text)
        at = self._space.state_at
        self._write((text, at + coding.STATUS_AT), (end, at + coding.END_AT))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is None:
            return
        if kind is None:
            self.end("completed")
            return
        why = "interrupted" if kind is KeyboardInterrupt else f"{kind.__name__}: {error}"
        try:
            self.end(f"failed: {why}")
        except ResultsError as second:
            # The exception on its way out matters more than this one.
            _log.warning("the end of run %s is not recorded: %s", self.name, second)

    def _checked(self, what: str, numbers: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
        if numbers is None:
            return np.empty((0, *shape), coding.SAMPLE)
        if numbers.shape[1:] != shape:
            raise UsageError(
                f"{what} of shape {numbers.shape}; a run of {self._ranks} ranks wants "
                f"(repetitions, {', '.join(map(str, shape))})"
            )
        return np.ascontiguousarray(numbers, coding.SAMPLE)

    def _write(self, *parts: tuple[bytes | memoryview, int]) -> None:
        """Write bytes to their addresses, in this order."""
        if self._open is None:
            raise UsageError(f"run {self.name} of {self.path} has ended")
        descriptor = self._open.fileno()
        with self._reported():
            for data, address in parts:
                done = os.pwrite(descriptor, data, address)
                while done < len(data):
                    done += os.pwrite(descriptor, memoryview(data)[done:], address + done)

    def _rewrite(self, room: layout.Room, add: Callable[[h5py.Group], None] | None = None) -> None:
        """Replace the file by one whose run has so much space, and what `add` adds."""

        def enlarge(source: h5py.Group, target: h5py.Group) -> layout.ReservedSpace:
            if add is not None:
                add(target)
            larger = layout.reserve(target, room, self._ranks)
            layout.copy_measurements(source, target)
            return larger

        extra = layout.reserved_bytes(room, self._ranks)
        with _without_interrupts():
            file, self._space = self._replaced(enlarge, extra)
            self._take(file)

    def _compressed(self, source: h5py.Group, target: h5py.Group) -> None:
        layout.compress(source, target, self.name)

    def _replaced(
        self, transform: Callable[[h5py.Group, h5py.Group], _Result], extra: int
    ) -> tuple[FileIO, _Result]:
        """Replace the file by one in which this run was rewritten by `transform(source, target)`."""

        def build(old: h5py.File | None, new: h5py.File) -> _Result:
            if old is None:
                raise self._gone()
            storage.copy_runs(old, new, without=self.name)
            source = old[RUNS][self.name]
            target = new[RUNS].create_group(self.name)
            layout.copy_info(source, target)
            return transform(source, target)

        self._check_there()
        with self._reported():
            return storage.replace(self._file, build, before=self._open, extra=extra)

    def _reported(self) -> AbstractContextManager[None]:
        doing = f"write to {self.name} (its {self.rows} rows so far are kept) of"
        return reported(self.path, doing)

    def _check_there(self) -> None:
        """Refuse to go on when the path names another file, or none, by now."""
        assert self._open is not None
        try:
            there = os.path.samestat(os.fstat(self._open.fileno()), self._file.stat())
        except FileNotFoundError:
            there = False
        if not there:
            raise self._gone()

    def _gone(self) -> ResultsError:
        return ResultsError(
            f"{self.path} was removed, moved or replaced while run {self.name} was written to it: "
            "the run is in the file that was there before"
        )

    def _take(self, file: FileIO) -> None:
        """Go on with the next version of the file, and let others read it."""
        if self._open is not None:
            self._open.close()
        self._open = file
        storage.lock(file, self.path, fcntl.LOCK_SH)


def _next_name(runs: h5py.Group) -> str:
    """Return the name after the highest ``runNNNN`` of the file."""
    numbers = [int(name[3:]) for name in runs if name[:3] == "run" and name[3:].isdigit()]
    return f"run{max(numbers, default=0) + 1:04d}"


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C: the path names the new file before the writer has it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
