"""Creates the NCCL backend of a communicator, for `hpccomm.communicator.making`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpccomm.backends.control import Control, Drive
from hpccomm.backends.nccl import libnccl, variables
from hpccomm.backends.nccl.agreed_setup import SetupRanks, agreed_setup
from hpccomm.backends.nccl.backend import NcclBackend
from hpccomm.backends.nccl.communicators import kept, new_communicator
from hpccomm.backends.nccl.facts import mine, shared_gpus, unfit, unpacked, version_text
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.transport import Steps
from hpccomm.errors import ConfigurationError
from hpccomm.memory.cuda import memory

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
        The communicator's, which NCCL gets if hpccomm makes it without CuPy's binding.
    parent : NcclBackend, optional
        The backend of the communicator from which this one is shrunk. NCCL's shrink is used if NCCL
        has it and the parent has not failed.
    left_out : sequence of int
        The parent's ranks that are left out.
    settling : callable, optional
        Returns steps that end when no call is under way on the parent, or when it has failed. NCCL's
        shrink could wait for ever for such a call.
    config : mapping of str to int or str, optional
        Fields of ncclConfig_t that the program sets, equal on all ranks. CuPy's binding takes none
        of them, so that hpccomm makes the communicator itself. A shrunk one has its parent's.
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
        from hpccomm.backends.nccl.borrowed import borrow

        borrowed, why_not = borrow(given, backend.rank, backend.size, own.device)
        own = replace(own, why_not=why_not)
    if not own.why_not:
        if not _warned:
            _warned = True
            variables.warn(own.nccl, config)
        if not libnccl.orders_calls(own.nccl) and "launchOrderImplicit" not in config:
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
            native, why = borrowed and kept(borrowed), ""
            if native is None:
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
    from hpccomm.contracts.variables.tables import (
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
) -> tuple[Any, str]:
    """Return NCCL's communicator: shrunk from the parent's if possible, else a new one."""
    if isinstance(parent, NcclBackend) and left_out and parent.shrinkable:
        if settling is not None:
            ranks.drive("shrink", settling())
        sound = ranks.control.all_gather(b"+" if parent.sound else b"")
        if all(sound):
            shrunk, why = agreed_setup(ranks, "shrinking", lambda: kept(parent.shrunk(left_out)))
            if shrunk is not None:
                return shrunk, why
            logger.warning("NCCL cannot shrink a communicator (%s); a new one is made", why)
    return new_communicator(ranks, None)
