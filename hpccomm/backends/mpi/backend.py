"""The ranks of an MPI communicator."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.collectives import native
from hpccomm.backends.mpi.types import Reductions, agreed, block, tried
from hpccomm.bootstrap import mpi as bootstrap
from hpccomm.contracts.backend import Native
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request, SharedMemory, Transport
from hpccomm.errors import BufferMismatch, CommunicationError, HpccommError, UsageError
from hpccomm.topology import Topology, arrange


class MpiTransport:
    """Messages over one MPI communicator."""

    shared: SharedMemory | None = None

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._isend = comm.Isend
        self._improbe = comm.Improbe
        # For each sender and tag, how many receives were begun, and how many have their message.
        self._receives: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self.rank: int = comm.rank
        self.size: int = comm.size
        # MPI promises at least 32767.
        self.largest_tag: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        # The request keeps the memory, which must outlive the transfer.
        test: Request = self._isend([data, *block(data.nbytes)], dst, tag).Test
        return test

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive.

        A message that is longer than a posted receive may overwrite memory (Open MPI 5 does). So the
        message is matched first, and received once its size is known. Receives of one sender and tag
        match in the order in which they were begun.
        """
        receives = self._receives[src, tag]
        turn = receives[0]
        receives[0] = turn + 1
        improbe = self._improbe
        request: Any = None
        wrong: BufferMismatch | None = None

        def test() -> bool:
            nonlocal request, wrong
            if request is None:
                if receives[1] != turn:
                    return False
                status = MPI.Status()
                message = improbe(src, tag, status)
                if message is None:
                    return False
                receives[1] = turn + 1
                arrived = status.Get_elements(MPI.BYTE)
                into = data
                if arrived != data.nbytes:
                    wrong = BufferMismatch(
                        f"rank {src} sent {arrived} bytes, and the array takes {data.nbytes} bytes; "
                        "give an array of the size that is sent"
                    )
                    into = np.empty(arrived, np.uint8)  # takes what is lost
                request = message.Irecv([into, *block(arrived)])
            if not request.Test():
                return False
            if wrong is not None:
                raise wrong
            return True

        return test


class MpiBackend:
    """The ranks of an MPI communicator, of which it owns two duplicates."""

    name = "mpi"
    crowded = False

    def __init__(
        self,
        comm: Any,
        topology: Topology,
        mpi_comm: object,
        reductions: Reductions,
        threaded: str,
    ) -> None:
        self._comm = comm
        self._user = comm.Dup()
        self._reductions = reductions
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.topology = topology
        self.collectives: Transport = MpiTransport(comm)
        self.messages: Transport = MpiTransport(self._user)
        self.threaded = threaded
        self.mpi_comm = mpi_comm

    def native(self, signature: Signature) -> Native | None:
        """Return the library's own way, or None."""
        found = native(self._comm, signature, self._reductions)
        if found is not None and self.threaded:
            # Where no thread moves asynchronous calls on, every wait must, also on the ranks that
            # could do otherwise: a blocking call does not match a polled one.
            return Native(found.start)
        return found

    def group(self, ranks: Sequence[int], label: int) -> "MpiBackend":
        """Make the communicator of `ranks`. Blocks until all of them have called."""
        everyone = self._comm.Get_group()
        members = everyone.Incl(list(ranks))
        # MPI guarantees tags up to 32767.
        comm = self._comm.Create_group(members, tag=label % 32768)
        members.Free()
        everyone.Free()
        topology = self.topology.restrict(ranks)
        return MpiBackend(comm, topology, comm, self._reductions, self.threaded)

    def translate(self, error: Exception) -> HpccommError | None:
        """Return MPI's error as one of hpccomm's."""
        if not isinstance(error, MPI.Exception):
            return None
        return CommunicationError(
            f"{bootstrap.library_name(MPI)} failed in rank {self.rank}: {error.Get_error_string()}",
            rank=self.rank,
        )

    def end_job(self, reason: str) -> None:
        """End all processes of the job."""
        bootstrap.end_started_job(reason)

    def abandon(self) -> None:
        """Have MPI's finalisation stand under a deadline: a peer may never come."""
        bootstrap.note_failure()

    def close(self) -> None:
        """Free the duplicates."""
        if not MPI.Is_finalized():
            self._user.Free()
            self._comm.Free()


def make(mpi_comm: object) -> MpiBackend:
    """Return the backend over a duplicate of `mpi_comm`. Collective over it, and blocks.

    Raises
    ------
    UsageError
        If `mpi_comm` is no intracommunicator.
    """
    if not isinstance(mpi_comm, MPI.Intracomm) or mpi_comm == MPI.COMM_NULL:
        raise UsageError(
            f"mpi_comm is {mpi_comm!r}; give an mpi4py intracommunicator, such as MPI.COMM_WORLD"
        )
    own = mpi_comm.Dup()
    shared = own.Split_type(MPI.COMM_TYPE_SHARED)
    first = shared.bcast(own.rank)
    shared.Free()
    told = own.allgather((first, tried(), bootstrap.threads_limited(MPI)))
    nodes, right, limits = zip(*told, strict=True)
    limited = [f"rank {rank}: {limit}" for rank, limit in enumerate(limits) if limit]
    threaded = limited[0] if limited else ""
    return MpiBackend(own, arrange(nodes), mpi_comm, agreed(right), threaded)
