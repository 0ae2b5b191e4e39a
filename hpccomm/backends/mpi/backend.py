"""The ranks of an MPI communicator, as a backend: joins the parts of this package.

`hpccomm.backends.mpi` opens it for `new_comm`.

`Ulfm` continues after lost ranks, for `Communicator.shrink`, by User-Level Failure Mitigation: revoke, shrink,
agreement. See W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of MPI
communication capability: design and rationale", 2013. Open MPI has had it since version 5, in jobs
started with ``mpiexec --with-ft ulfm``. In other jobs it must not be called, since revoking would block
for ever.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from mpi4py import MPI

from hpccomm.backends.bootstrap import mpi as bootstrap
from hpccomm.backends.bootstrap.launch import agree, job_key, job_name, launched
from hpccomm.backends.bootstrap.libmpi import has_ulfm
from hpccomm.backends.bootstrap.node_sockets import serve
from hpccomm.backends.mpi.collectives import native
from hpccomm.backends.mpi.side import MpiSideChannel, SideMessages, apart
from hpccomm.backends.mpi.transport import (
    CheckedTransport,
    MpiArrivals,
    NearbyTransport,
    PersistentMessages,
    SizedTransport,
)
from hpccomm.backends.mpi.types import Reductions, agreed, tried
from hpccomm.backends.mpi.window import MpiOneSided
from hpccomm.contracts.backend import (
    Backend,
    Implementation,
    SideChannel,
    Survival,
    both,
    group_uid,
)
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import DTYPES, Transport
from hpccomm.errors import (
    BufferMismatch,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    UsageError,
    peers_lost,
)
from hpccomm.memory import shared as sharedmemory
from hpccomm.memory.shared import NodeMemory
from hpccomm.topology import Topology, arrange

LEARNING_SECONDS, SUSPICION_SECONDS = 1.0, 0.1
"""Seconds to wait until lost ranks are known: after a reported loss, and after another error."""

Over = Callable[[Any, Sequence[int], object], Backend]
"""``over(comm, ranks, label)`` makes the backend over an MPI communicator of those ranks."""


class Ulfm:
    """The `Survival` of one communicator.

    Parameters
    ----------
    comm : MPI communicator
        The communicator of all ranks.
    over : callable
        Makes the backends of groups; see `Over`.
    """

    def __init__(self, comm: Any, over: Over) -> None:
        self._comm = comm
        self._over = over
        self.epoch = 0  # `shrunk` sets other epochs
        self._others: list[Any] = []
        self._released = False

    def add(self, comm: Any) -> None:
        """Revoke another communicator of the same ranks together with this one."""
        self._others = [each for each in self._others if each != MPI.COMM_NULL]  # drop freed ones
        self._others.append(comm)
        if self._released:
            comm.Revoke()

    def lost(self, seconds: float = 0.0) -> tuple[int, ...]:
        """Return the ranks that this process knows to be lost."""
        return lost(self._comm, seconds)

    def loss(self, error: MPI.Exception) -> CommunicationError | None:
        """Return the error of lost ranks that MPI's error stands for; None if no rank is lost.

        After a loss, some calls, such as those on windows, fail with other errors, so lost ranks are looked for
        after any error.
        """
        loss = of_loss(error)
        ranks = self.lost(LEARNING_SECONDS if loss else SUSPICION_SECONDS)
        if ranks:
            return peers_lost(ranks)
        if not loss:
            return None
        return CommunicatorAborted(
            "another rank has given this communicator up: look at its own report"
        )

    def release(self) -> None:
        """Revoke the communicators."""
        if MPI.Is_finalized():
            return
        self._released = True
        for comm in (self._comm, *self._others):
            if comm != MPI.COMM_NULL and not comm.Is_revoked():
                comm.Revoke()

    def made(self, comm: Any, ranks: Sequence[int], label: object) -> Backend:
        """Return the backend over a new communicator. If that fails, revoke the communicator.

        A further loss may make it fail on this rank alone; without the revoke, the other ranks would wait for ever.
        """
        try:
            return self._over(comm, ranks, label)
        except BaseException:
            if comm != MPI.COMM_NULL and not comm.Is_revoked():
                comm.Revoke()
            raise

    def shrunk(self, epoch: int, attempt: int) -> tuple[Backend, tuple[int, ...]]:
        """Return the backend of the ranks that are left, and the ranks that were left out."""
        comm = self._comm.Shrink()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        left = ranks_of(comm, self._comm)
        gone = tuple(sorted(set(range(self._comm.size)) - set(left)))
        backend = self.made(comm, left, ("epoch", epoch, attempt))
        assert backend.survival is not None
        backend.survival.epoch = epoch
        return backend, gone

    def agreed(self, flags: int) -> int:
        """Return the bits that are set in the `flags` of all ranks that are left."""
        while True:
            self._comm.Ack_failed()
            try:
                agreed: int = self._comm.Agree(flags)
            except MPI.Exception as error:
                # Every rank gets the error of a loss that not all have acknowledged.
                if not of_loss(error):
                    raise
            else:
                return agreed


def of_loss(error: MPI.Exception) -> bool:
    """Return whether an error says that a rank is lost, or that another rank has revoked the communicator."""
    return error.Get_error_class() in (
        MPI.ERR_PROC_FAILED,
        MPI.ERR_PROC_FAILED_PENDING,
        MPI.ERR_REVOKED,
    )


def lost(comm: Any, seconds: float = 0.0) -> tuple[int, ...]:
    """Return the ranks of a communicator that this process knows to be lost.

    It waits at most `seconds`, since a process may learn of a loss before it knows which rank is lost.
    """
    until = time.monotonic() + seconds
    while not (MPI.Is_finalized() or comm == MPI.COMM_NULL):
        MPI.COMM_SELF.Iprobe()  # lets the library notice losses, if no other thread is in it
        try:
            failed = comm.Get_failed()
        except MPI.Exception:  # another thread has just freed the communicator
            return ()
        if failed.size:
            everyone = comm.Get_group()
            ranks: list[int] = failed.Translate_ranks(None, everyone)
            everyone.Free()
            failed.Free()
            return tuple(sorted(rank for rank in ranks if rank >= 0))
        if failed != MPI.GROUP_EMPTY:
            failed.Free()
        if time.monotonic() >= until:
            break
        time.sleep(0.0005)
    return ()


def ranks_of(comm: Any, parent: Any) -> list[int]:
    """Return, for each rank of a communicator, its rank in `parent`."""
    own, everyone = comm.Get_group(), parent.Get_group()
    try:
        ranks: list[int] = own.Translate_ranks(None, everyone)
        return ranks
    finally:
        own.Free()
        everyone.Free()


GO_ON = "comm.shrink() makes a communicator of the ranks that are left"
REMEDY = (
    "to go on without lost ranks, start the job with mpiexec --with-ft ulfm (Open MPI 5 and later; MPICH and "
    "Intel MPI have no such thing), and call comm.shrink()"
)

logger = logging.getLogger("hpccomm")


class MpiBackend:
    """The ranks of an MPI communicator.

    The backend owns `comm`, a duplicate of it for messages, and the duplicates for plans.
    """

    name = "mpi"
    shares_process = False

    def __init__(
        self,
        comm: Any,
        topology: Topology,
        mpi_comm: object,
        members: Sequence[int],
        reductions: Reductions,
        thread_restriction: str,
        memory: NodeMemory | None,
        uid: str,
        side: MpiSideChannel,
        *,
        root: bool = False,
    ) -> None:
        self._comm = comm
        self._user = comm.Dup()
        self._reductions = reductions
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.topology = topology
        self._memory = memory
        self._own = SizedTransport(comm, memory)
        self.collectives: Transport = self._own
        self._near: frozenset[int] = frozenset()
        if memory is not None:
            self._near = frozenset(topology.neighbors(self.rank)) - {self.rank}
        self._messages = self._transport(self._user)
        self.messages: Transport = self._messages
        self._planned: list[tuple[Any, PersistentMessages]] = []
        self.thread_restriction = thread_restriction
        self.mpi_comm = mpi_comm
        self.uid = uid
        self.members = members
        self._side, self._root = side, root
        self.side: SideChannel | None = side
        self._ulfm: Ulfm | None = None
        self.recovery = REMEDY
        if has_ulfm(MPI):
            self._ulfm, self.recovery = Ulfm(comm, self._over), GO_ON
            self._ulfm.add(self._user)
        self.survival: Survival | None = self._ulfm

    @cached_property
    def arrivals(self) -> "MpiArrivals":
        """Looks for messages of any sender, tag and size."""
        return MpiArrivals(self._user, self._messages)

    def native(self, signature: Signature, *, apart: bool = False) -> Implementation | None:
        """Return the library's own form of a call, or None. With `apart`, it uses the communicator of messages."""
        own = native(self._user if apart else self._comm, signature, self._reductions)
        if own is not None and self.thread_restriction:
            # Without a thread that moves asynchronous calls on, every wait must do so, and a blocking call cannot.
            # A blocking call does not match a polled one, so no rank may use it.
            return own._replace(run=None, arguments=both)
        return own

    def group(self, ranks: Sequence[int], label: int) -> "MpiBackend":
        """Return the backend of the group of `ranks`. Blocks until all of them have called."""
        everyone = self._comm.Get_group()
        members = everyone.Incl(list(ranks))
        # MPI guarantees tags up to 32767.
        comm = self._comm.Create_group(members, tag=label % 32768)
        members.Free()
        everyone.Free()
        return self._over(comm, ranks, label)

    def split(self, color: int | None, key: int, label: int) -> Backend | None:
        """Return the backend of the ranks that give the same color; None for no color. Blocks until all have called."""
        comm = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        if color is None:
            return None
        ranks = ranks_of(comm, self._comm)
        if self._ulfm is None:
            return self._over(comm, ranks, label)
        return self._ulfm.made(comm, ranks, label)

    def _over(self, comm: Any, ranks: Sequence[int], label: object) -> "MpiBackend":
        """Return the backend over the new communicator of some of the ranks. Collective over them."""
        topology = self.topology.restrict(ranks)
        memory = self._memory
        if memory is not None:
            memory = memory.group(ranks, comm.rank) if _has_node_peers(topology) else None
        uid = group_uid(self.uid, ranks, label)
        side = self._side.group(ranks, comm.rank)
        restriction = self.thread_restriction
        members = [self.members[rank] for rank in ranks]
        right = self._reductions
        return MpiBackend(comm, topology, comm, members, right, restriction, memory, uid, side)

    def _transport(self, comm: Any) -> CheckedTransport:
        """Return a transport of messages over a communicator of all ranks."""
        if self._memory is None:
            return CheckedTransport(comm, DTYPES)
        return NearbyTransport(comm, self._memory.another(), self._near)

    def planned(self) -> "Transport":
        """Return a transport for the messages of plans, over a new duplicate. Blocks until all have called."""
        comm = self._comm.Dup()
        if self._ulfm is not None:
            self._ulfm.add(comm)
        transport = self._transport(comm)
        if self.messages.shared is None:
            transport.shared = None
        persistent = PersistentMessages(comm, self._near)
        transport.persistent = persistent
        self._planned.append((comm, persistent))
        return transport

    def window(self) -> "MpiOneSided":
        """Return one-sided communication over a new duplicate. Blocks until all ranks have called."""
        memory = self._memory and self._memory.another()
        onesided = MpiOneSided(self._comm, memory)
        if self._ulfm is not None:
            self._ulfm.add(onesided.comm)
        return onesided

    def translate(self, error: Exception) -> HpccommError | None:
        """Return MPI's error as one of hpccomm's; None for errors that are not MPI's."""
        if not isinstance(error, MPI.Exception):
            return None
        if self._ulfm is not None:
            lost = self._ulfm.loss(error)
            if lost is not None:
                return lost
        text = (
            f"{bootstrap.library_name(MPI)} failed in rank {self.rank}: {error.Get_error_string()}"
        )
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            return BufferMismatch(text)
        return CommunicationError(text, rank=self.rank)

    def end_job(self, reason: str) -> None:
        """End all processes of the job."""
        bootstrap.end_started_job(reason)

    def abandon(self) -> None:
        """Note that MPI may not be able to finalise, since a peer may never come."""
        bootstrap.note_failure()

    def close(self) -> None:
        """Free the communicators and the side channel."""
        if not MPI.Is_finalized():
            self._side.close(root=self._root)
            self._own.free()
            for comm, persistent in self._planned:
                persistent.close()
                comm.Free()
            self._user.Free()
            self._comm.Free()


def _ranks_of_job(comm: Any) -> Sequence[int]:
    """Return a communicator's ranks as ranks of the job. Local."""
    members, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = members.Translate_ranks(None, everyone)
    members.Free()
    everyone.Free()
    # Processes that were spawned later have no rank in this COMM_WORLD.
    return range(comm.size) if MPI.UNDEFINED in ranks else tuple(ranks)


def make(mpi_comm: object) -> MpiBackend:
    """Return the backend over a duplicate of `mpi_comm`. Collective over `mpi_comm`; blocks.

    Raises
    ------
    UsageError
        If `mpi_comm` is not an intracommunicator.
    """
    if not isinstance(mpi_comm, MPI.Intracomm) or mpi_comm == MPI.COMM_NULL:
        fits = "mpi_comm.Merge()" if isinstance(mpi_comm, MPI.Intercomm) else "MPI.COMM_WORLD"
        raise UsageError(
            f"mpi_comm is {mpi_comm!r}; give an mpi4py intracommunicator, such as {fits}"
        )
    own = mpi_comm.Dup()
    shared = own.Split_type(MPI.COMM_TYPE_SHARED)
    first, key = shared.bcast((own.rank, job_key()))
    shared.Free()
    world, whole = MPI.COMM_WORLD, own.size == MPI.COMM_WORLD.size
    if whole:
        agree(key=key)
    address = serve(world.rank if whole else None)
    local = first, tried(), bootstrap.threads_limited(MPI), address, os.urandom(8).hex(), job_name()
    answers = own.allgather(local)
    nodes, right, limits, addresses, uids, names = zip(*answers, strict=True)
    if whole:
        agree(name=names[0])
    restriction = next((f"rank {rank}: {limit}" for rank, limit in enumerate(limits) if limit), "")
    topology = arrange(nodes)
    memory = _shared_memory(own, topology) if _has_node_peers(topology) else None
    messages = SideMessages(own, addresses) if apart(addresses) and not restriction else None
    side = MpiSideChannel(own.rank, addresses, messages, range(own.size))
    here, uid = _ranks_of_job(own), uids[0]
    return MpiBackend(
        own, topology, mpi_comm, here, agreed(right), restriction, memory, uid, side, root=True
    )


def _has_node_peers(topology: Topology) -> bool:
    """Whether some ranks share a node."""
    return topology.num_nodes < topology.size


def _shared_memory(comm: Any, topology: Topology) -> NodeMemory | None:
    """Return the memory of the node's ranks if the ranks of every node reach each other's memory, else None.

    Collective; blocks.
    """
    rank: int = comm.rank
    neighbors = topology.neighbors(rank)
    launch = launched()
    # The node may have ranks of the job that are not in this communicator.
    here = max(len(neighbors), (launch and launch.local_size) or 1)
    offers = comm.allgather((sharedmemory.offer(), here))
    near = {peer: offers[peer][0] for peer in neighbors}
    mapped, plain, how = sharedmemory.agreed(comm.allgather(sharedmemory.tried(near, rank)))
    if mapped:
        if rank == 0:
            logger.warning("the ranks of a node share no memory and send messages: %s", mapped)
        return None
    if rank == 0:
        logger.info("on a node %s", how)
    pids = {peer: offered.pid for peer, offered in near.items()}
    fullest = max(nbytes for _, nbytes in offers)
    return NodeMemory(rank, pids, fullest, plain=not plain, how=how)
