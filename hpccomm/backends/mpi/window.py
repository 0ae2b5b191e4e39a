"""One-sided communication by MPI's windows, for `Communicator.window`.

All epochs are passive and last as long as the window. Even on one node an MPI library may need the
target's help (Open MPI, MPICH and Intel MPI do, for memory that they did not allocate). A rank
helps whenever it is in an MPI call. If all ranks are on a single node and reach each other's memory, their locks are
mutexes in shared memory; otherwise the locks use MPI's atomic operations.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.transport import CheckedTransport
from hpccomm.backends.mpi.types import PIECE_BYTES
from hpccomm.contracts.transport import Request, SharedMemory, Transport
from hpccomm.errors import CommunicationError
from hpccomm.memory.shared.heap import MUTEX_BYTES, NodeMutex
from hpccomm.memory.views import as_bytes

NEXT, SERVED = 0, 1
"""Indices of the two numbers of a rank's lock: the next ticket, and the ticket that is served."""

_ONE = np.ones(1, np.int64)
_INT64 = MPI.INT64_T


class MpiOneSided:
    """One window, over a separate communicator.

    Making it is collective; blocks until all ranks have called.

    Parameters
    ----------
    comm : MPI communicator
        The communicator that is duplicated.
    shared : SharedMemory or None
        The window's access to other ranks' memory; None if ranks do not reach each other's memory.

    Attributes
    ----------
    comm : MPI communicator
        The duplicate.
    """

    def __init__(self, comm: Any, shared: SharedMemory | None) -> None:
        self.comm = comm.Dup()
        self.signals: Transport = CheckedTransport(self.comm)
        self.signals.shared = shared
        self._locks: Any = None
        self._data: Any = None

    def attach(self, memory: NDArray[np.uint8] | None) -> None:
        """Make a window of MPI over the memory, if there is any, and the locks. Collective; blocks."""
        mutexes: Sequence[NodeMutex] = ()
        if memory is not None:
            self._data = MPI.Win.Create(memory if memory.size else None, 1, comm=self.comm)
            self._data.Lock_all(MPI.MODE_NOCHECK)
        elif self.signals.shared is not None:
            mutexes = self._node_mutexes(self.signals.shared)
        if mutexes:  # bound directly, since a call in between takes a tenth of a microsecond
            self.acquire = [each.taken for each in mutexes].__getitem__  # type: ignore[assignment, method-assign]
            self.release = [each.released for each in mutexes].__getitem__  # type: ignore[assignment, method-assign]
        else:
            # MPI allocates the memory: then its atomic operations need no help from a target on the same node.
            self._locks = MPI.Win.Allocate(2 * 8, 1, comm=self.comm)
            np.asarray(self._locks.tomemory()).view(np.int64)[:] = 0
            self._locks.Lock_all(MPI.MODE_NOCHECK)
            self._locks.Sync()
            self.comm.Barrier()  # all locks are initialised

    def _node_mutexes(self, shared: SharedMemory) -> Sequence[NodeMutex]:
        """Return the mutex of each rank; none if any rank cannot reach one. Collective."""
        rank, own, record = self.comm.rank, shared.empty(MUTEX_BYTES), None
        exposure = shared.expose([own], 0, 0, plain=False, room=0)
        with suppress(OSError, AttributeError):  # the C library may lack such mutexes
            NodeMutex(own, rank).make()
            record = exposure.record
        records = self.comm.allgather(record)
        if any(each is None for each in records):
            return ()
        exposure.take_records(dict(enumerate(records)))
        mutexes = list[NodeMutex]()
        with suppress(CommunicationError):  # a peer's memory cannot be mapped here
            for peer in range(len(records)):
                mutexes.append(NodeMutex(exposure.peer_buffer(peer, 0, own.dtype), rank))  # type: ignore[arg-type]  # it is registered
        usable = self.comm.allreduce(len(mutexes) == len(records), MPI.LAND)
        return mutexes if usable else ()

    def put(self, data: NDArray[Any], dst: int, start: int) -> Request:
        """Begin to write."""
        return _begun(self._data.Rput, data, dst, start)

    def get(self, into: NDArray[Any], src: int, start: int) -> Request:
        """Begin to read."""
        return _begun(self._data.Rget, into, src, start)

    def flush(self, dst: int) -> None:
        """Wait until all writes to `dst` have arrived. Blocks, since MPI has no such call that can be polled."""
        self._data.Flush(dst)

    def acquire(self, dst: int) -> Request:
        """Draw a ticket, and return the request that polls until the ticket is served.

        This is the ticket lock, which is fair: J. M. Mellor-Crummey, M. L. Scott, "Algorithms for scalable
        synchronization on shared-memory multiprocessors", 1991.
        """
        number = np.empty(1, np.int64)
        request = self._fetch(number, dst, NEXT, MPI.SUM)
        ticket: int | None = None

        def test() -> bool:
            nonlocal request, ticket
            while request.Test():
                if ticket is None:
                    ticket = int(number[0])
                elif ticket == number[0]:
                    self.order()
                    return True
                else:
                    # A read of memory on this node completes at once, without progress of MPI, and the holder
                    # of the lock may wait for that progress. So `Iprobe` makes progress.
                    self.comm.Iprobe()
                    request = self._fetch(number, dst, SERVED, MPI.NO_OP)
                    return False
                request = self._fetch(number, dst, SERVED, MPI.NO_OP)
            return False

        return test

    def release(self, dst: int) -> Request:
        """Begin to serve the next ticket."""
        self.order()
        if self._data is not None:
            self.comm.Iprobe()  # others may wait for this rank's help
        test: Request = self._fetch(np.empty(1, np.int64), dst, SERVED, MPI.SUM).Test
        return test

    def _fetch(self, number: NDArray[np.int64], dst: int, which: int, op: MPI.Op) -> Any:
        """Begin to read a number of rank `dst`'s lock; with SUM, also to add 1 to it."""
        target = [8 * which, 1, _INT64]
        return self._locks.Rget_accumulate([_ONE, 1, _INT64], [number, 1, _INT64], dst, target, op)

    def order(self) -> None:
        """Order reads and writes: ``MPI_Win_sync`` is a memory barrier."""
        for window in (self._data, self._locks):
            if window is not None:
                window.Sync()

    def free(self) -> None:
        """Free the windows and the communicator."""
        for window in (self._data, self._locks):
            if window is not None:
                window.Unlock_all()
                window.Free()
        self.comm.Free()


def _begun(begin: Any, data: NDArray[Any], rank: int, start: int) -> Request:
    """Begin a transfer of `data` in pieces that MPI's counts can hold, and return the request."""
    memory = as_bytes(data)
    requests = []
    for at in range(0, memory.size, PIECE_BYTES):
        piece = memory[at : at + PIECE_BYTES]
        own, theirs = [piece, piece.size, MPI.BYTE], [start + at, piece.size, MPI.BYTE]
        requests.append(begin(own, rank, theirs))
    if len(requests) == 1:
        test: Request = requests[0].Test
        return test
    return lambda: bool(MPI.Request.Testall(requests))
