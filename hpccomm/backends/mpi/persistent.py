"""Messages of plans by MPI's persistent requests.

A receive is posted before its message has come, which `hpccomm.backends.mpi.transport` does not do:
Open MPI writes beyond the array if the message is longer. Here both ends have agreed on the size of
each message, and nothing else can match it, since the communicator carries only messages of plans,
each with its own tag.

A request can be freed only by a call of MPI, which a destructor must not make: it runs in any
thread, at any time. Requests of a deleted plan are freed by the next call of `PersistentMessages`.
`hpccomm.calls.lanes.host` binds messages by it.
"""

import weakref
from collections import deque
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.transport import DIRECT_BYTES
from hpccomm.backends.mpi.types import block, strided
from hpccomm.contracts.transport import BoundMessage, BoundSet

_start_all = MPI.Prequest.Startall
_test_all = MPI.Request.Testall


class PersistentMessages:
    """Binds messages of one communicator to their arrays.

    Parameters
    ----------
    comm : MPI communicator
        No other messages on it have tags of bound ones.
    near : set of int
        The other ranks of the node. Their large messages do not only go through MPI.
    """

    # MPICH 5.0 takes twice the time of NumPy's copies for faces of 256 KiB, or fifty times for single elements.
    strides = MPI.get_vendor()[0] == "Open MPI"

    def __init__(self, comm: Any, near: Set[int]) -> None:
        self._comm = comm
        self._near = near
        self._bound: set[tuple[int, ...]] = set()  # handles of the requests of each exchange
        self._left: deque[tuple[int, ...]] = deque()  # of deleted plans

    def pays(self, peer: int, nbytes: int) -> bool:
        """Tell whether a message is bound: the larger ones of a node go as `NearbyTransport` sends them."""
        return peer not in self._near or nbytes < DIRECT_BYTES

    def bind(self, receives: Sequence[BoundMessage], sends: Sequence[BoundMessage]) -> BoundSet:
        """Make the requests of an exchange; receives first, so that they are posted first."""
        self._free_left()
        receive, send = self._comm.Recv_init, self._comm.Send_init
        requests = [receive(_part(data), source=peer, tag=tag) for data, peer, tag in receives]
        requests += [send(_part(data), dest=peer, tag=tag) for data, peer, tag in sends]
        exchange = BoundSet(partial(_start_all, requests), partial(_test_all, requests))
        handles = tuple(request.handle for request in requests)
        self._bound.add(handles)
        # Lists and tuples have no weak references.
        weakref.finalize(exchange.start, self._left.append, handles).atexit = False
        return exchange

    def close(self) -> None:
        """Free all requests. None is active: this is not called after a failure."""
        self._left = deque(self._bound)
        self._free_left()

    def _free_left(self) -> None:
        while self._left:
            handles = self._left.popleft()
            self._bound.discard(handles)
            for handle in handles:
                MPI.Prequest.fromhandle(handle).Free()


def _part(data: NDArray[Any]) -> list[Any]:
    if data.flags.c_contiguous:
        return [data, *block(data.nbytes)]
    # The library packs the elements itself, which takes half of the time of NumPy's copies.
    where = MPI.buffer.fromaddress(data.__array_interface__["data"][0], 0)
    return [where, 1, strided(data.shape, data.strides, data.itemsize)]
