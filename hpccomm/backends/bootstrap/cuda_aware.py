"""Finds out whether the MPI library takes device memory. The user or the library says so; it is never assumed.

No call of MPI gives a certain answer. Three sources are queried, in this order: the kinds of memory
that MPI 4.1 lists, ``MPIX_Query_cuda_support`` (Open MPI, MPICH and their descendants), and the
build flags of Open MPI. A first exchange of messages detects a library that wrongly says yes; if the library
crashes in it, the crash is explained. `hpccomm.calls.cuda_aware` and the doctor use this module.
"""

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hpccomm.backends.bootstrap.libmpi import loaded
from hpccomm.backends.bootstrap.mpi import vendor
from hpccomm.runtime.service import write_stderr

VARIABLE = "HPCCOMM_CUDA_AWARE"

_KINDS = "mpi_memory_alloc_kinds"
_QUERY = "MPIX_Query_cuda_support"
_BUILT = b"opal_built_with_cuda_support"

_THREAD_MULTIPLE = 3
"""The level for MPI_T_init_thread. In all libraries a higher number is a higher level."""


class LibraryAnswers(NamedTuple):
    """An MPI library's facts about itself.

    Attributes
    ----------
    kinds : str
        The kinds of memory in ``mpi_memory_alloc_kinds``; empty without that key.
    query : bool or None
        The result of ``MPIX_Query_cuda_support``; None if the library lacks the function.
    built : bool or None
        Open MPI's build flag; None for other libraries.
    """

    kinds: str
    query: bool | None
    built: bool | None


def aware(mpi: Any, requested: bool | None) -> tuple[bool, str]:
    """Return whether MPI may be given device memory, and the reason.

    Local; ranks may differ.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``, initialised.
    requested : bool or None
        The user's setting (``HPCCOMM_CUDA_AWARE``); None leaves it to the library.
    """
    none = LibraryAnswers("", None, None)
    return decide(vendor(mpi), requested, _library_answers(mpi) if requested is None else none)


def decide(library: str, requested: bool | None, answers: LibraryAnswers) -> tuple[bool, str]:
    """Return whether MPI may be given device memory, and the reason, from the answers of the library.

    Parameters
    ----------
    library : str
        Name of the library.
    requested : bool or None
        The user's setting; None if unset.
    answers : LibraryAnswers
        The answers of the library.
    """
    if requested is not None:
        return (
            requested,
            f"{VARIABLE} says that {library} is {'' if requested else 'not '}CUDA-aware",
        )
    kinds, built = answers.kinds, _BUILT.decode()
    sources = (
        (
            lists_cuda(kinds) if kinds else None,
            f"lists CUDA's memory in {_KINDS} ({kinds})",
            f"{_KINDS} is {kinds}",
        ),
        (answers.query, f"says so by {_QUERY}", f"{_QUERY} says no"),
        (answers.built, f"was built with CUDA ({built})", f"{built} is false"),
    )
    for says, yes, _ in sources:
        if says:
            return True, f"{library} {yes}"
    reasons = [no for says, _, no in sources if says is not None]
    why = "; ".join(reasons) or "it does not say"
    return False, (
        f"{library} is not known to be CUDA-aware ({why}); load a library that is, or set "
        f"{VARIABLE}=1 if this one is"
    )


def lists_cuda(kinds: str) -> bool:
    """Return whether ``mpi_memory_alloc_kinds`` lists CUDA's device memory.

    The value is a list of kinds, each with restrictors after colons: ``mpi,system,cuda:device``. A
    kind without restrictors includes all of its memory (MPI 4.1, section 11.4.3, and its side document on CUDA).
    """
    for each in kinds.split(","):
        kind, *restrictors = each.strip().split(":")
        if kind == "cuda" and (not restrictors or "device" in restrictors):
            return True
    return False


def _library_answers(mpi: Any) -> LibraryAnswers:
    """Return the answers of the loaded library."""
    info = mpi.COMM_WORLD.Get_info()
    kinds: str = info.Get(_KINDS) or ""
    info.Free()
    query = built = None
    for library in loaded():
        if query is None and hasattr(library, _QUERY):
            query = bool(library[_QUERY]())
        if built is None and hasattr(library, "MPI_T_cvar_read"):
            built = _control_variable(library, _BUILT)
    return LibraryAnswers(kinds, query, built)


def _control_variable(library: ctypes.CDLL, name: bytes) -> bool | None:
    """Return the value of a boolean control variable of MPI's tools interface; None without that variable."""
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
    """Explain a crash within the block on standard error.

    A library that is not CUDA-aware ends the process by a segmentation fault or by its abort, and
    nothing in the process can print the reason. So a shell waits beside it, and prints the reason
    if this process ends inside the block.

    Parameters
    ----------
    reason : str
        Why MPI was given device memory.
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
    except OSError:  # no shell: print the text before the block
        write_stderr(text.replace("ended while", "would end here, where", 1))
        yield
        return
    try:
        yield
    finally:
        by.communicate(b"over\n")
