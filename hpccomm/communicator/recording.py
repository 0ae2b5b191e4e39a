"""`Communicator.record`: every call of the program, on one clock, in a file.

Each rank has a `Trace` that takes its calls, and writes them to its part, a file beside the recording's. At the end,
rank 0 joins the parts. A program that is killed leaves its parts, and readers join them.

Used by `communicator`, and by `creation` for ``HPCCOMM_RECORDING``.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from threading import get_ident
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from hpccomm.backends.bootstrap import launch, mpi
from hpccomm.calls.core import Core
from hpccomm.errors import HpccommError, ResultsError, UsageError
from hpccomm.results import facts
from hpccomm.results.files import os_errors_as
from hpccomm.results.recording import (
    COMPLETED,
    Calls,
    Lateness,
    Recording,
    RecordingFacts,
    lateness,
)
from hpccomm.results.recording_file import PartWriter, RecordingWriter, joined, part_path, write
from hpccomm.runtime.clocks import ClockRanks, CommonClock
from hpccomm.runtime.engine import everyone
from hpccomm.runtime.recorder import Trace, in_words, unix_ns
from hpccomm.runtime.reports import traces
from hpccomm.runtime.service import ExitStep, after_fork, at_exit, before_end, write_stderr
from hpccomm.spelling import Hinting
from hpccomm.units import counted

logger = logging.getLogger("hpccomm")


class RecordedRanks(ClockRanks, Protocol):
    """A communicator whose program is recorded."""

    _core: Core

    @property
    def mpi_comm(self) -> Any:
        """Its MPI communicator, or None."""

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value."""

    def gather_object(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0, and None elsewhere."""


NO_CALLS = (
    "rank 0 made no call that is recorded, and hpccomm advise needs some: those on communicators of "
    "hpccomm are recorded, with hpccomm record those of mpi4py, and none that a program makes of PyTorch itself"
)


class PartRecorder:
    """Takes the calls of this rank, and writes them to its part. Collective to make; blocks.

    Parameters
    ----------
    comm : ClockRanks
        The ranks that are recorded.
    path : Path
        The file of the recording, the same on all ranks. Each part is beside it.
    about : RecordingFacts
        The facts, the same on all ranks.
    seat : int
        The key of the trace in `traces`.
    thread : int, optional
        As of `Trace`.

    Attributes
    ----------
    speaks : bool
        Whether rank 0 prints where the recording is.
    trace : Trace
        Takes the calls.

    Raises
    ------
    ResultsError
        On every rank, if one cannot write its file.
    """

    def __init__(
        self,
        comm: ClockRanks,
        path: Path,
        about: RecordingFacts,
        *,
        seat: int = 0,
        thread: int | None = None,
    ) -> None:
        self.speaks = False
        self._rank, self._file, self._seat = comm.rank, path, seat
        _agreed(comm, lambda: None if comm.rank else prepare(path))
        self._own_file = part_path(path, comm.rank)
        part = self._part = _agreed(comm, lambda: PartWriter(self._own_file, about, comm.rank))
        self._clock = CommonClock(comm)
        self._read_clock()
        self.trace = Trace(part.number, partial(part.add_calls, rank=comm.rank), part.flush, thread)
        traces[seat] = self.trace
        _recorders.add(self)
        at_exit(ExitStep.CALLERS, _leave_all)

    def _read_clock(self) -> None:
        """Write the last reading of the clock to the part."""
        now = perf_counter()
        ahead = now - float(self._clock.common(np.array(now)))
        self._part.add_clock(int(now * 1e9), round(ahead * 1e9), int(self._clock.error * 1e9))

    def _stop(self) -> None:
        """Stop recording calls."""
        traces.pop(self._seat, None)

    def leave(self, status: str, *, joins: bool = False) -> None:
        """Write this rank's remaining calls to its part, and end the part. Local; idempotent."""
        if self not in _recorders:
            return
        _recorders.discard(self)
        self._stop()
        self.trace.flush(last=True)
        if self.trace.failure:
            status = f"failed: {self.trace.failure}"
        try:
            self._part.end(status)
        except HpccommError as error:
            logger.warning("the recording is not whole: %s", error)
        if not joins:
            self._say(
                f"each rank's calls are in {self._own_file}, and so on", bool(self._part.numbers)
            )

    def _say(self, where: str, called: bool) -> None:
        """Print on rank 0 where the recording is, with a next command; or, if there are no calls, say so."""
        if self.speaks and self._rank == 0:
            then = f"{where}; next: hpccomm advise {self._file}"
            write_stderr(f"hpccomm: {then if called else NO_CALLS}")


class ProgramRecorder(PartRecorder, Hinting):
    """The recorder of a program's calls. Made by `Communicator.record`; use it in a ``with`` statement.

    >>> from hpccomm.testing import run_ranks
    >>> def program(comm):
    ...     with comm.record() as recorder:
    ...         comm.barrier()
    ...     return recorder.recording
    >>> recording, _ = run_ranks(2, program)
    >>> list(recording.operations()), len(recording.calls["begin"])
    (['barrier'], 2)

    Attributes
    ----------
    path : Path or None
        The results file; None without one.
    name : str
        Name of the recording in the file; set on rank 0 when the recording has ended.
    recording : Recording or None
        The recording, if there is no file; set on rank 0 when it has ended.
    lateness : Lateness or None
        Seconds for which each rank kept others waiting; set on every rank by `close`. It prints as a table.
    speaks : bool
        Whether rank 0 prints where the recording is.
    """

    def __init__(self, comm: RecordedRanks, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.name = ""
        self.recording: Recording | None = None
        self.lateness: Lateness | None = None
        self._comm, core = comm, comm._core  # noqa: SLF001 (it is a part of it)
        self._calls = core.calls
        seat = get_ident() if core.backend.shares_process else 0
        busy = 0 in traces or seat in traces
        each = comm.all_gather_object((facts.host(), str(self.path), busy))
        if any(busy for *_, busy in each):
            raise UsageError("the program is recorded already; end that recording first")
        if len({path for _, path, _ in each}) > 1:
            raise UsageError(f"path is {self.path} on rank {comm.rank}; give the same on all ranks")
        self._folder = TemporaryDirectory(prefix="hpccomm-") if path is None else None
        file = Path(self._folder.name, "recording.h5") if self._folder else self.path
        module = None if comm.mpi_comm is None else mpi.start()
        about, file = comm.broadcast_object(
            (facts_now(tuple(host for host, *_ in each), module), file)
        )
        if self._folder:  # another node does not have the folder yet
            file.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(comm, file, about, seat=seat)
        self._watch(self.trace)
        core.recorder = self

    def _watch(self, trace: Trace | None) -> None:
        """Have `trace` record the calls of all communicators of this rank; None ends that."""
        for each in everyone():
            alone = each.backend.size == 1 or not each.backend.shares_process
            if alone if self._seat == 0 else each.thread == self._seat:
                each.reports.record(trace)

    def step(self) -> None:
        """Mark the end of a step of the program, on this rank. `GradientSync` marks its steps itself. Local."""
        self.trace.step()

    def close(self) -> None:
        """End the recording: rank 0 joins the parts of all ranks. Collective; blocks; idempotent.

        Raises
        ------
        ResultsError
            On every rank, if rank 0 cannot write the file. Then the parts stay in files beside it.
        """
        if self not in _recorders:
            return
        failure = self._calls.gate.error
        if failure is not None:
            self.leave(f"failed: {in_words(failure)}")
            return
        with self._calls.one_call():
            self._calls.finish()
        self._stop()
        self._clock.read()
        self._read_clock()
        self.leave(COMPLETED, joins=True)
        self._join()

    def _stop(self) -> None:
        """Stop recording calls."""
        super()._stop()
        self._watch(None)

    def _join(self) -> None:
        """Join the parts of all ranks into one recording, on rank 0."""
        comm, path, error, late = self._comm, self._file, "", None
        files = [part_path(path, rank) for rank in range(comm.size)]
        stamps = enumerate(comm.gather_object(_stamp(self._own_file)) or ())
        # Rank 0 lacks the parts on nodes without a common file system, and parts that are gone.
        lacking = [rank for rank, stamp in stamps if not stamp or _stamp(files[rank]) != stamp]
        lacking = comm.broadcast_object(lacking)
        sent = comm.gather_object(_contents(self._own_file) if comm.rank in lacking else b"")
        if sent is not None:
            try:
                for rank in lacking:
                    if isinstance(sent[rank], str):
                        raise ResultsError(f"rank {rank}: {sent[rank]}")
                    files[rank].write_bytes(sent[rank])
                recording = joined(path)
                late = lateness(recording)
                if self.path is None:  # the parts are removed, so nothing is read from them later
                    kept = Calls(recording.calls.starts, {**recording.calls.columns})
                    self.recording = replace(recording, calls=kept)
                else:
                    self.name = write(path, recording)
                    calls, ranks = recording.calls.count, counted(comm.size, "rank")
                    where = f"{counted(calls, 'call')} of {ranks} are {self.name} of {path}"
                    self._say(where, calls > 0)
            except (OSError, HpccommError) as failure:
                error = str(failure)
        error, self.lateness = comm.broadcast_object((error, late))
        if error:
            raise ResultsError(f"{error}; what the ranks have recorded is in {path}.rank*")
        for file in files:
            file.unlink(missing_ok=True)
        if self._folder is not None:
            rmtree(self._file.parent, ignore_errors=True)
            self._folder.cleanup()

    def __enter__(self) -> "ProgramRecorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, where: object) -> None:
        if kind is None:
            self.close()
        else:
            self.leave(f"failed: {kind.__name__}: {error}")


def prepare(path: str | os.PathLike[str]) -> None:
    """Raise unless a recording can be added to a file. If a killed program has left parts beside it, add those first.

    Raises
    ------
    ResultsError
        If the file cannot be written, or another program records to it.
    """
    path = Path(path)
    prefix = part_path(path, 0).name.removesuffix("0")
    with os_errors_as(path, "write"):
        left = [each for each in path.parent.iterdir() if each.name.startswith(prefix)]
    if left:
        lost = joined(path)
        if lost.status == facts.RUNNING:
            raise ResultsError(f"another program records to {path}; give another file")
        write(path, lost)
        with os_errors_as(path.parent, "remove parts of a recording from"):
            for each in left:
                each.unlink()
    else:
        RecordingWriter(path, facts_now(("",))).discard()


_recorders: set[PartRecorder] = set()
"""The recorders whose recordings have not ended."""


def end_status() -> str:
    """Return the status of a recording of a program that ends now: whether an exception ends it."""
    error = getattr(sys, "last_value", None)
    return COMPLETED if error is None else f"failed: {in_words(error)}"


def _leave_all(status: str = "") -> None:
    status = status or end_status()
    for each in tuple(_recorders):
        each.leave(status)


before_end(partial(_leave_all, "failed: the process was ended"))
after_fork(_recorders.clear)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return a tuple that identifies a file and its contents; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _contents(path: Path) -> bytes | str:
    """Return the contents of a file as bytes, or the reason for which it cannot be read as a str."""
    try:
        return path.read_bytes()
    except OSError as error:
        return str(error)


def record_job(comm: RecordedRanks, path: str) -> None:
    """Record the program on a new communicator, if that has all ranks of the job.

    If recording is impossible, as in a process that a recorded program starts, the program runs without it.
    """
    everyone = 1 if comm.mpi_comm is None else mpi.start().COMM_WORLD.size
    if comm.size == everyone and not traces:
        try:
            ProgramRecorder(comm, path).speaks = True
        except ResultsError as error:
            if comm.rank == 0:
                write_stderr(f"hpccomm: the program is not recorded: {error}")


def _agreed(comm: ClockRanks, make: Callable[[], Any]) -> Any:
    """Return the result of `make` on this rank. If it raises on one rank, raise the error on all ranks."""
    writer, error = None, ""
    try:
        writer = make()
    except (OSError, HpccommError) as failure:
        error = str(failure)
    for rank, each in enumerate(comm.all_gather_object(error)):
        if each:
            if writer is not None:
                writer.discard()
            raise ResultsError(f"rank {rank}: {each}")
    return writer


def facts_now(hosts: tuple[str, ...], module: Any = None) -> RecordingFacts:
    """Return the facts of a recording that begins now, taken on this rank, with the version of MPI by ``mpi4py.MPI``."""
    versions = facts.versions()
    if module is not None:
        versions["mpi"] = mpi.vendor(module)
    return RecordingFacts(
        started=datetime.now().astimezone(),
        user=facts.user(),
        arguments=tuple(sys.argv),
        hosts=hosts,
        unix_ns=unix_ns(0.0),
        versions=versions,
        machine=launch.facts(),
    )
