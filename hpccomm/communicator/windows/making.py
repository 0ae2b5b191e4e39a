"""Makes a window: all ranks agree which of them reach whose memory. For `Communicator.window`."""

import struct
from functools import partial
from typing import Any

import numpy as np

from hpccomm.communicator.core import Core
from hpccomm.communicator.windows.access import Access, Array
from hpccomm.communicator.windows.window import Window
from hpccomm.contracts.backend import OneSided
from hpccomm.contracts.transport import Exposure, Pages, Reach
from hpccomm.dispatch.algorithms import sharing
from hpccomm.errors import HpccommError, UsageError
from hpccomm.memory.views import as_bytes, check_dtype, check_layout, flat, host_view


def make(core: Core, x: Any) -> Window:
    """Return a window over x. Collective; blocks."""
    error: HpccommError | None = None
    array = np.empty(0, np.uint8)
    mine: dict[str, object] = {}
    try:
        seen = host_view(x, "x")
        check_dtype("x", seen.dtype)
        check_layout(seen, "x", written=True)
        array = flat(seen)
        mine = {"dtype": str(array.dtype)}
    except HpccommError as refused:
        error = refused
    with core.outside_batch("window"):
        core.agree("window", mine, error)
        made = _made(core, array)
        core.windows.append(made)
    return made


def _made(core: Core, array: Array) -> Window:
    """Return the window over every rank's `array`; only the dtype is agreed. Collective.

    Raises
    ------
    UsageError
        If the backend has no one-sided communication.
    """
    backend, watched = core.backend, partial(core.calls.beside_watchdog, ordered=True)
    with watched("making a window"):
        onesided = backend.window()
    if onesided is None:
        raise UsageError(
            f"backend {backend.name!r} has no one-sided communication, which a window needs; "
            "use send and recv, or a communicator of backend 'mpi' or 'loopback'"
        )
    exposure = _exposed(core, array, onesided)
    mine = struct.pack("<q", array.size)
    messages = core.control.all_gather(
        mine if exposure is None else mine + exposure.record.tobytes()
    )
    sizes = tuple(struct.unpack_from("<q", each)[0] for each in messages)
    direct = backend.size == 1
    reached: dict[int, Array | Pages] = {backend.rank: array}
    if exposure is not None:
        neighbors = backend.topology.neighbors(backend.rank)
        records = {rank: np.frombuffer(messages[rank][8:], np.int64) for rank in neighbors}
        direct = exposure.take_records(records) is Reach.DIRECT
        if direct:
            for rank in neighbors:
                if rank != backend.rank and sizes[rank]:
                    reached[rank] = exposure.peer_buffer(rank, 0, array.dtype)
    # The same on all ranks, since the ranks of a node have the same records.
    attached = backend.topology.num_nodes > 1 or not direct
    with watched("making a window"):
        onesided.attach(as_bytes(array) if attached else None)
    access = Access(reached, onesided, array.dtype, core.calls.beside_watchdog)
    window = Window(core, array, sizes, access, onesided, exposure)
    core.control.all_gather(b"")  # all have it
    return window


def _exposed(core: Core, array: Array, onesided: OneSided) -> Exposure | None:
    """Return the node's record of `array`; None if ranks share no memory."""
    way, shared = sharing(core.backend, core.settings), onesided.signals.shared
    if way is None or shared is None:
        return None
    return shared.expose([array], 0, 0, plain=way.plain, room=way.room)
