"""The MPI library itself, called without mpi4py.

mpi4py holds the interpreter's lock in ``MPI_Init_thread``, ``MPI_Finalize`` and ``MPI_Abort``, so
that Python's threads cannot watch these calls. Calls by ctypes release the lock. `mpi` and `shutdown` start and end
MPI by this module, `cuda_aware` asks the library, and `hpccomm.backends.mpi` asks whether the job survives lost ranks.
"""

import contextlib
import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from hpccomm.backends.bootstrap.launch import LIBRARY

_LAUNCHED_WITH = "OMPI_MCA_mpi_ft_enable"


def loaded() -> list[ctypes.CDLL]:
    """Return the MPI libraries that this process has loaded.

    mpi4py does not export the library's symbols, so the library is found by its path.
    """
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:  # missing or hidden: no library is known
        return []
    libraries = []
    for path in sorted({line.split()[-1] for line in lines if LIBRARY.search(line)}):
        with contextlib.suppress(OSError):  # replaced, or moved
            libraries.append(ctypes.CDLL(path))
    return libraries


@cache
def library() -> ctypes.CDLL | None:
    """Return the MPI library that mpi4py has loaded; None if it is not found. Import mpi4py.MPI before the call."""
    for each in loaded():
        if hasattr(each, "MPI_Init_thread") and hasattr(each, "MPI_Finalize"):
            return each
    return None


def init_thread(mpi_library: ctypes.CDLL, level: int) -> bool:
    """Start MPI with a thread level, and return whether it started. Blocks, without the interpreter's lock."""
    given = ctypes.c_int()
    failed: int = mpi_library.MPI_Init_thread(None, None, ctypes.c_int(level), ctypes.byref(given))
    return not failed


def abort(mpi: Any, status: int) -> None:
    """End all processes of the job. Blocks, without the interpreter's lock if the library is found."""
    mpi_library = library()
    if mpi_library is None:
        mpi.COMM_WORLD.Abort(status)
        return
    if hasattr(mpi_library, "PMIx_Abort") and mpi_library.PMIx_Initialized():
        # It does the same as MPI_Abort, without nine lines of output.
        mpi_library.PMIx_Abort(ctypes.c_int(status), None, None, ctypes.c_size_t(0))
        return
    # MPICH's MPI_Abort fails while another thread is in MPI_Finalize: then this process's status ends the job.
    handle: int = mpi._handleof(mpi.COMM_WORLD)  # noqa: SLF001 (documented so)
    size: int = mpi._sizeof(mpi.COMM_WORLD)  # noqa: SLF001 (documented so)
    wide = size > ctypes.sizeof(ctypes.c_int)  # a pointer
    world = ctypes.c_void_p(handle) if wide else ctypes.c_int(handle)
    mpi_library.MPI_Abort(world, ctypes.c_int(status))


def survives() -> bool:
    """Whether the job was started so that it survives lost ranks (ULFM)."""
    asked = os.environ.get(_LAUNCHED_WITH, "").lower()
    return asked not in ("", "0", "false", "no")


@cache
def has_ulfm(mpi: Any) -> bool:
    """Whether ranks of this job can continue after the loss of others, by User-Level Failure Mitigation."""
    return survives() and mpi.get_vendor()[0] == "Open MPI"


def sign_off() -> bool:
    """Tell the launcher that this process leaves in order, without ``MPI_Finalize``; return whether the launcher knows.

    ``MPI_Finalize`` waits for all ranks, while PMIx lets each process sign off alone. Without signing off, Open MPI's
    launcher would end the job with status 1 and thirty lines of output. Other launchers have no such call.
    """
    mpi_library = library()
    if mpi_library is None or not hasattr(mpi_library, "PMIx_Finalize"):
        return False
    for _ in range(8):  # PMIx counts its users, and each of them has to finalise it
        if not mpi_library.PMIx_Initialized() or mpi_library.PMIx_Finalize(None, 0):
            break
    return not mpi_library.PMIx_Initialized()


def exit_at_once() -> None:
    """Let the process end with Python's status once Python is done, without the library's exit functions.

    The functions that MPI registered with the C library would wait for peers, or meet unfinished communication.
    """
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc["_exit"], None)
