"""Making a window: who reaches whose memory, agreed by all ranks."""

import struct

import numpy as np

from hpccomm.backends.control import Control
from hpccomm.communicator.windows.access import Access, Array, Watched
from hpccomm.communicator.windows.window import Caller, Window
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.transport import Exposure, Pages, Reach
from hpccomm.contracts.window import OneSided
from hpccomm.dispatch import Sharing
from hpccomm.errors import UsageError
from hpccomm.memory.views import as_bytes


def make(
    array: Array,
    backend: Backend,
    control: Control,
    sharing: Sharing | None,
    caller: Caller,
    watched: Watched,
) -> Window:
    """Return the window over every rank's `array`, of which only the dtype is agreed. Collective.

    Parameters
    ----------
    array : ndarray, 1-D, C-contiguous
        This rank's.
    backend : Backend
        Of the communicator.
    control : Control
        Its control plane.
    sharing : Sharing or None
        How ranks of a node reach each other's memory.
    caller : Caller
        Carries out the window's calls.
    watched : callable
        Has the watchdog look while the library blocks.

    Raises
    ------
    UsageError
        If the backend has no one-sided communication.
    """
    with watched("making a window"):
        onesided = backend.window()
    if onesided is None:
        raise UsageError(
            f"backend {backend.name!r} has no one-sided communication, which a window needs; "
            "use send and recv, or a communicator of backend 'mpi' or 'loopback'"
        )
    exposure = _exposed(array, onesided, sharing)
    mine = struct.pack("<q", array.size)
    messages = control.all_gather(mine if exposure is None else mine + exposure.record.tobytes())
    sizes = tuple(struct.unpack_from("<q", each)[0] for each in messages)
    direct = backend.size == 1
    reached: dict[int, Array | Pages] = {backend.rank: array}
    if exposure is not None:
        neighbours = backend.topology.neighbours(backend.rank)
        records = {rank: np.frombuffer(messages[rank][8:], np.int64) for rank in neighbours}
        direct = exposure.learn(records) is Reach.DIRECT
        if direct:
            for rank in neighbours:
                if rank != backend.rank and sizes[rank]:
                    reached[rank] = exposure.reach(rank, 0, array.dtype)
    # The same on all ranks, as those of a node learn the same.
    if backend.topology.num_nodes > 1 or not direct:
        with watched("making a window"):
            onesided.attach(as_bytes(array))
    access = Access(reached, onesided, array.dtype, watched)
    window = Window(array, sizes, backend.rank, access, onesided, caller, exposure)
    control.all_gather(b"")  # all have it
    return window


def _exposed(array: Array, onesided: OneSided, sharing: Sharing | None) -> Exposure | None:
    shared = onesided.signals.shared
    if sharing is None or shared is None:
        return None
    return shared.expose([array], 0, 0, plain=sharing.plain, room=sharing.room)
