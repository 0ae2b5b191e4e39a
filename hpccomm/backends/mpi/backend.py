"""The ranks of an MPI communicator."""

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.collectives import native
from hpccomm.backends.mpi.types import Reductions, agreed, block, tried
from hpccomm.bootstrap import mpi as bootstrap
from hpccomm.contracts.backend import Native
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request, Transport
from hpccomm.errors import BufferMismatch, CommunicationError, HpccommError, UsageError
from hpccomm.topology import Topology, arrange


class _Send:
    __slots__ = ("_data", "_request", "test")

    def __init__(self, request: Any, data: NDArray[Any]) -> None:
        self._request = request
        self._data = data  # the memory must outlive the transfer
        self.test = request.Test

    def cancel(self) -> None:
        """Leave it: MPI cannot cancel sends."""


class _Receive:
    __slots__ = ("_data", "_request", "_src", "_status")

    def __init__(self, request: Any, data: NDArray[Any], src: int) -> None:
        self._request = request
        self._data = data
        self._src = src
        self._status = MPI.Status()

    def test(self) -> bool:
        """Return whether the message is there, and check its size."""
        try:
            if not self._request.Test(self._status):
                return False
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_TRUNCATE:
                raise self._mismatch("a larger message") from error
            raise
        arrived = self._status.Get_elements(MPI.BYTE)
        if arrived != self._data.nbytes:
            raise self._mismatch(f"{arrived} bytes")
        return True

    def cancel(self) -> None:
        """Cancel it, so that no late message is written into the array."""
        self._request.Cancel()

    def _mismatch(self, sent: str) -> BufferMismatch:
        return BufferMismatch(
            f"rank {self._src} sent {sent}, and the array takes {self._data.nbytes} bytes; "
            "give an array of the size that is sent"
        )


class MpiTransport:
    """Messages over one MPI communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        # MPI promises at least 32767.
        self.largest_tag: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        count, datatype = block(data.nbytes)
        return _Send(self._comm.Isend([data, count, datatype], dst, tag), data)

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive."""
        count, datatype = block(data.nbytes)
        return _Receive(self._comm.Irecv([data, count, datatype], src, tag), data, src)


class MpiBackend:
    """The ranks of an MPI communicator, of which it owns two duplicates."""

    name = "mpi"

    def __init__(
        self, comm: Any, topology: Topology, mpi_comm: object, reductions: Reductions
    ) -> None:
        self._comm = comm
        self._user = comm.Dup()
        self._reductions = reductions
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.topology = topology
        self.collectives: Transport = MpiTransport(comm)
        self.messages: Transport = MpiTransport(self._user)
        self.threaded = bootstrap.threads_limited(MPI)
        self.mpi_comm = mpi_comm

    def native(self, signature: Signature) -> Native | None:
        """Return the library's own way, or None."""
        return native(self._comm, signature, self._reductions)

    def group(self, ranks: Sequence[int], label: int) -> "MpiBackend":
        """Make the communicator of `ranks`. Blocks until all of them have called."""
        everyone = self._comm.Get_group()
        members = everyone.Incl(list(ranks))
        # MPI guarantees tags up to 32767.
        comm = self._comm.Create_group(members, tag=label % 32768)
        members.Free()
        everyone.Free()
        return MpiBackend(comm, self.topology.restrict(ranks), comm, self._reductions)

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
        bootstrap.end_job(MPI, reason)

    def close(self, *, collective: bool) -> None:
        """Free the duplicates; without the peers, leave them to the end of the process."""
        if not collective:
            bootstrap.note_failure()
        elif not MPI.Is_finalized():
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
    told = own.allgather((first, tried()))
    topology = arrange([node for node, _ in told])
    return MpiBackend(own, topology, mpi_comm, agreed([right for _, right in told]))
