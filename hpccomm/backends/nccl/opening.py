"""Creates the NCCL backend of a communicator, for `hpccomm.communicator.creation`.

An NCCL communicator of the program's (``nccl=``) is borrowed: hpccomm calls it, and leaves its end to its
owner. The places of its pointer are:

- CuPy's ``NcclCommunicator.comm``, 0 once it is ended (cupy 14.2,
  cupy_backends/cuda/libs/nccl.pyx),
- nccl4py's ``Communicator.ptr``, likewise (nccl4py 0.6, nccl/core/communicator.py),
- PyTorch's ``ProcessGroupNCCL._comm_ptr()``, 0 before the first collective. It belongs to the
  current device (PyTorch 2.8 and later, ProcessGroupNCCL.cpp: getCommPtr), and raises once PyTorch has aborted
  and freed it (NCCLUtils.cpp: getNcclComm).

Each is asked again before a use, as the owner may end it at any time.
"""

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpccomm.backends.control import Control, Drive
from hpccomm.backends.nccl import libnccl, variables
from hpccomm.backends.nccl.backend import NcclBackend
from hpccomm.backends.nccl.communicators import (
    CommunicatorThread,
    SetupRanks,
    agreed_setup,
    new_communicator,
)
from hpccomm.backends.nccl.facts import mine, shared_gpus, unfit, unpacked, version_text
from hpccomm.backends.nccl.libnccl import RawCommunicator
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicatorAborted, ConfigurationError
from hpccomm.memory.cuda import memory, streams

FILES = ("libnccl.so", "libtorch_cuda.so")
"""How the names of files begin that NCCL may be in; PyTorch's may have it built in."""

SYMBOL = "ncclCommCount"
"""A function that each NCCL has."""

NOT_THERE = (
    "nccl= has been ended, or PyTorch has not made it for this device; PyTorch does that in its first "
    "collective, or in init_process_group(device_id=)"
)
FIT = "CuPy's or nccl4py's, a process group of PyTorch over NCCL, or ncclComm_t as an integer"


class BorrowedCommunicator(RawCommunicator):
    """NCCL's communicator that belongs to another object, which ends it.

    Parameters
    ----------
    given : object
        Its owner, which is kept until `abort` or `destroy`; or the pointer.
    device : int
        Where it is.
    """

    borrowed = True

    def __init__(self, given: Any, device: int) -> None:
        super().__init__(0)
        if hasattr(given, "_get_backend"):
            given = given._get_backend(sys.modules["torch"].device("cuda"))  # noqa: SLF001 (no public one)
        self._owner = given
        self._read: Callable[[], int]
        if isinstance(given, int):
            self._read = partial(int, given)
        elif hasattr(given, "_comm_ptr"):
            self._read = streams.on_device(device)(given._comm_ptr)  # noqa: SLF001 (likewise)
        else:
            self._read = partial(getattr, given, "comm" if hasattr(given, "comm") else "ptr")

    @property
    def comm(self) -> int:
        """NCCL's pointer.

        Raises
        ------
        CommunicatorAborted
            If its owner has ended it. Of a pointer that was given as an integer that is not known.
        """
        pointer = 0
        with suppress(Exception):  # PyTorch raises where it has ended it
            pointer = self._read()
        if not pointer:
            raise CommunicatorAborted("nccl= has been ended; finalize hpccomm's communicator first")
        return pointer

    def unfit(self, rank: int, size: int, device: int) -> str:
        """Return why it cannot be used as this rank's, and the remedy; else ''. Local."""
        pointer, library, asked = self._read(), libnccl.functions(), list[int]()
        # No pointer is so low, but a rank or a bool is.
        why = NOT_THERE if pointer < 1 << 16 else another_library(self._owner)
        if why:
            return why
        for name in ("GetAsyncError", "Count", "UserRank", "CuDevice"):
            answer = ctypes.c_int()
            status = getattr(library, f"ncclComm{name}")(pointer, ctypes.byref(answer))
            status = status or (answer.value if name == "GetAsyncError" else 0)
            if status:
                text = library.ncclGetErrorString(status).decode()
                return f"nccl= has failed or is not ready (NCCL: {text}); give one that works and blocks"
            asked.append(answer.value)
        _, ranks, own, at = asked
        if ranks != size:
            return f"nccl= is of size {ranks} and mpi_comm of {size}; give both of the same ranks"
        if own != rank:
            return "nccl= has the ranks in another order than mpi_comm; give both in the same order"
        return (
            "" if at == device else f"nccl= is on device {at} and not on {device}; give device={at}"
        )

    def abort(self) -> None:
        """Stop all calls under way, its owner's too, if NCCL can do so without freeing it."""
        with suppress(CommunicatorAborted):
            if not self.revoke():
                logger.warning(
                    "calls under way over nccl= go on: NCCL can stop them without freeing it from 2.28.7 on; "
                    "let its owner abort it"
                )
        self.destroy()

    def destroy(self) -> None:
        """Drop the reference to it."""
        self._owner, self._read = None, int


def another_library(owner: object) -> str:
    """Return why a communicator is not, or may not be, of the NCCL that hpccomm calls; else ''. Local.

    To another copy of NCCL its pointer means nothing. The copy is found through the libraries of the
    package of its owner; for a pointer, or where they are not linked to NCCL, it may be any that is loaded.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = sorted({line.split(maxsplit=5)[5] for line in lines if ".so" in line})
    loaded = [file for file in files if Path(file).name.startswith(FILES)]
    package = sys.modules.get(type(owner).__module__.partition(".")[0])
    homes = tuple(f"{os.path.realpath(path)}/" for path in getattr(package, "__path__", ()))
    addresses = _addresses(file for file in files if file.startswith(homes)) or _addresses(loaded)
    own = _addresses([libnccl.functions()._name])  # noqa: SLF001 (its file)
    if addresses == own:
        return ""
    return (
        f"nccl= {'may be' if own <= addresses else 'is'} of another NCCL library than hpccomm calls: loaded are "
        f"{', '.join(loaded)}; have all packages load the same file, as with LD_PRELOAD"
    )


def _addresses(files: Iterable[str]) -> set[int | None]:
    """Return where lookups in loaded libraries find NCCL: in themselves, or in linked ones."""
    libraries = []
    for file in files:
        with suppress(OSError):
            libraries.append(ctypes.CDLL(file, mode=os.RTLD_NOLOAD))
    symbols = (getattr(library, SYMBOL) for library in libraries if hasattr(library, SYMBOL))
    return {ctypes.cast(each, ctypes.c_void_p).value for each in symbols}


logger = logging.getLogger("hpccomm")

_warned = False


def open_nccl(
    backend: Backend,
    control: Control,
    drive: Drive,
    device: int | None,
    *,
    name: str = "",
    parent: object = None,
    left_out: Sequence[int] = (),
    settling: Callable[[], Steps] | None = None,
    config: Mapping[str, int | str] | None = None,
    given: object = None,
) -> tuple[NcclBackend | None, str]:
    """Make the NCCL backend for the ranks of a host backend. Collective over them; blocks.

    All ranks agree on every step: a failure on one rank gives the same result on all, and no rank is
    left waiting.

    Parameters
    ----------
    backend : Backend
        The ranks.
    control : Control
        Small messages between them.
    drive : callable
        Waits for polled steps, under the communicator's deadline.
    device : int or None
        CUDA device of this rank; None without one.
    name : str
        The communicator's, by which NCCL knows it.
    parent : NcclBackend, optional
        The backend of the communicator from which this one is shrunk. NCCL's shrink is used if NCCL
        has it and the parent has not failed.
    left_out : sequence of int
        The parent's ranks that are left out.
    settling : callable, optional
        Returns steps that end when no call is under way on the parent, or when it has failed. NCCL's
        shrink could wait for ever for such a call.
    config : mapping of str to int or str, optional
        Fields of ncclConfig_t that the program sets, equal on all ranks. A shrunk communicator has its
        parent's.
    given : object, optional
        NCCL's communicator of these ranks, which the program has and will end. None makes one. All ranks
        give one, or none does.

    Returns
    -------
    NcclBackend or None
        None on all ranks if NCCL cannot work between them.
    str
        The reason then, and the remedy.

    Raises
    ------
    ConfigurationError
        On all ranks, if NCCL does not have a field of `config`.
    CollectiveTimeout
        If a rank did not call before the deadline.
    """
    global _warned
    config = config or {}
    own, borrowed = mine(backend.rank, device), None
    if given is not None and not own.why_not:
        try:
            borrowed = BorrowedCommunicator(given, own.device)
            why_not = borrowed.unfit(backend.rank, backend.size, own.device)
        except Exception as error:  # noqa: BLE001 (all ranks get it)
            why_not = f"nccl= is not to be used ({type(error).__name__}: {error}); give {FIT}"
        own = replace(own, why_not=why_not)
    if not own.why_not:
        if not _warned:
            _warned = True
            variables.warn(own.nccl, config)
        if own.nccl < libnccl.ORDER_SINCE and "launchOrderImplicit" not in config:
            variables.order_launches(own.nccl)
        variables.register_no_captured_arrays()
        equal, why_not = variables.equal_on_all(), memory.claim(own.device, memory.NCCL)
        own = replace(own, variables=equal, why_not=why_not)
    claimed = not own.why_not
    opened: NcclBackend | None = None
    try:
        facts = tuple(unpacked(each) for each in control.all_gather(own.packed()))
        why = unfit(facts)
        if not why:
            _refuse_newer(config, own.nccl)
            fear = shared_gpus(facts)
            if fear and backend.rank == 0:
                logger.warning("%s", fear)
            ranks = SetupRanks(backend.rank, backend.size, own.device, control, drive, name, config)
            if borrowed is not None:
                native, why = agreed_setup(ranks, "borrowing NCCL's communicator", lambda: borrowed)
            else:
                native, why = _communicator(ranks, parent, left_out, settling)
            if native is not None:
                opened = NcclBackend(ranks, facts, native)
            else:
                why = f"NCCL cannot connect the ranks ({why}); NCCL_DEBUG=WARN tells more"
    finally:
        if claimed and opened is None:
            memory.release(own.device, memory.NCCL)
    return opened, why


def _refuse_newer(config: Mapping[str, int | str], nccl: int) -> None:
    """Raise for fields that this NCCL does not have."""
    from hpccomm.contracts.variables import (
        newer,  # its tables are read where they are needed
    )

    if missing := newer(config, nccl):
        has = f"NCCL {version_text(nccl)} is installed; leave it out, or install a later NCCL"
        raise ConfigurationError(f"options.nccl_config: {missing}, and {has}")


def _communicator(
    ranks: SetupRanks,
    parent: object,
    left_out: Sequence[int],
    settling: Callable[[], Steps] | None,
) -> tuple[CommunicatorThread | None, str]:
    """Return NCCL's communicator: shrunk from the parent's if possible, else a new one."""
    if isinstance(parent, NcclBackend) and left_out and parent.shrinkable:
        if settling is not None:
            ranks.drive("shrink", settling())
        sound = ranks.control.all_gather(b"+" if parent.sound else b"")
        if all(sound):
            shrunk, why = agreed_setup(ranks, "shrinking", lambda: parent.shrunk(left_out))
            if shrunk is not None:
                return shrunk, why
            logger.warning("NCCL cannot shrink a communicator (%s); a new one is made", why)
    return new_communicator(ranks, None)
