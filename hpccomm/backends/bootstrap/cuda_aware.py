"""Whether MPI takes addresses in device memory: what the user or the library says, never assumed.

There is no call of MPI that tells for sure, so three are asked, in this order: the kinds of memory
that MPI 4.1 lists, ``MPIX_Query_cuda_support`` (Open MPI, MPICH and their descendants), and how Open
MPI was built. A library that says yes and is not is seen in a first exchange, in which a crash is
explained.
"""

import ctypes
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hpccomm.backends.bootstrap.mpi import vendor
from hpccomm.runtime.stderr import write_stderr

VARIABLE = "HPCCOMM_CUDA_AWARE"

_KINDS = "mpi_memory_alloc_kinds"
_QUERY = "MPIX_Query_cuda_support"
_BUILT = b"opal_built_with_cuda_support"

_LIBRARY = re.compile(r"/libmpi[^/]*\.so[^/]*$")

_THREAD_MULTIPLE = 3
"""Of MPI_T_init_thread; the numbers of all libraries agree that more is larger."""


class LibraryAnswers(NamedTuple):
    """What a library says of itself.

    Attributes
    ----------
    kinds : str
        Its kinds of memory, as ``mpi_memory_alloc_kinds`` has them; empty where it has no such key.
    query : bool or None
        What ``MPIX_Query_cuda_support`` gives; None where it is not exported.
    built : bool or None
        Open MPI's build flag; None where there is none.
    """

    kinds: str
    query: bool | None
    built: bool | None


def aware(mpi: Any, requested: bool | None) -> tuple[bool, str]:
    """Return whether MPI is given addresses in device memory, and why or why not.

    Local; ranks may differ.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``, initialised.
    requested : bool or None
        What the user says (``HPCCOMM_CUDA_AWARE``); None leaves it to the library.
    """
    if requested is not None:
        return decide(vendor(mpi), requested, LibraryAnswers("", None, None))
    return decide(vendor(mpi), None, _library_answers(mpi))


def decide(library: str, requested: bool | None, answers: LibraryAnswers) -> tuple[bool, str]:
    """Return whether device memory is given to MPI, and why, by what was said.

    Parameters
    ----------
    library : str
        Its name.
    requested : bool or None
        What the user says; None is nothing.
    answers : LibraryAnswers
        What the library says.
    """
    if requested is not None:
        return (
            requested,
            f"{VARIABLE} says that {library} is {'' if requested else 'not '}CUDA-aware",
        )
    if lists_cuda(answers.kinds):
        return True, f"{library} lists CUDA's memory in {_KINDS} ({answers.kinds})"
    if answers.query:
        return True, f"{library} says so by {_QUERY}"
    if answers.built:
        return True, f"{library} was built with CUDA ({_BUILT.decode()})"
    reasons = []
    if answers.kinds:
        reasons.append(f"{_KINDS} is {answers.kinds}")
    if answers.query is not None:
        reasons.append(f"{_QUERY} says no")
    if answers.built is not None:
        reasons.append(f"{_BUILT.decode()} is false")
    why = "; ".join(reasons) or "it does not say"
    return False, (
        f"{library} is not known to be CUDA-aware ({why}); load one that is, or set {VARIABLE}=1 "
        "if it is one all the same"
    )


def lists_cuda(kinds: str) -> bool:
    """Tell whether ``mpi_memory_alloc_kinds`` has CUDA's device memory.

    The value is a list of kinds, each with restrictors after colons: ``mpi,system,cuda:device``. A
    kind without any means all that it has (MPI 4.1, section 11.4.3, and its side document on CUDA).
    """
    for each in kinds.split(","):
        kind, *restrictors = each.strip().split(":")
        if kind == "cuda" and (not restrictors or "device" in restrictors):
            return True
    return False


def _library_answers(mpi: Any) -> LibraryAnswers:
    """Return what the library that is loaded says."""
    info = mpi.COMM_WORLD.Get_info()
    kinds: str = info.Get(_KINDS) or ""
    info.Free()
    query = built = None
    for library in _loaded():
        if query is None and hasattr(library, _QUERY):
            query = bool(library[_QUERY]())
        if built is None and hasattr(library, "MPI_T_cvar_read"):
            built = _control_variable(library, _BUILT)
    return LibraryAnswers(kinds, query, built)


def _loaded() -> list[ctypes.CDLL]:
    """Return the MPI libraries that this process has loaded.

    mpi4py loads one without giving its names to everybody, so it is looked up by its path.
    """
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:  # not there, or hidden: then nothing is answers
        return []
    paths = sorted({line.split()[-1] for line in lines if _LIBRARY.search(line)})
    return [ctypes.CDLL(path) for path in paths]


def _control_variable(library: ctypes.CDLL, name: bytes) -> bool | None:
    """Return a boolean control variable of MPI's tools interface; None if there is none."""
    provided = ctypes.c_int()
    if library.MPI_T_init_thread(_THREAD_MULTIPLE, ctypes.byref(provided)):
        return None
    try:
        index = ctypes.c_int()
        if library.MPI_T_cvar_get_index(name, ctypes.byref(index)):
            return None
        handle, count = ctypes.c_void_p(), ctypes.c_int()
        if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)):
            return None
        value = (ctypes.c_byte * 8)()  # as large as any number; a C bool is its first byte
        failed = library.MPI_T_cvar_read(handle, value)
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return None if failed else any(value)
    finally:
        library.MPI_T_finalize()


@contextmanager
def explain_crash(reason: str) -> Iterator[None]:
    """Have a crash within the block explained on standard error.

    A library that is not CUDA-aware ends the process (a segmentation fault, or its own abort), and
    nothing in it can say why. So a shell stands by, which speaks if this process ends before it
    takes that back.

    Parameters
    ----------
    reason : str
        Why device memory was given to MPI.
    """
    text = (
        "hpccomm: this process ended while MPI was given device memory for the first time, because "
        f"{reason}. If nothing else ended it, MPI is not CUDA-aware here: set {VARIABLE}=0 and device "
        "arrays go through host memory"
    )
    try:
        by = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r word || printf "%s\\n" "$1" >&2', "sh", text],
            stdin=subprocess.PIPE,
        )
    except OSError:  # no shell: said beforehand, then
        write_stderr(text.replace("ended while", "would end here, where", 1))
        yield
        return
    try:
        yield
    finally:
        by.communicate(b"over\n")
