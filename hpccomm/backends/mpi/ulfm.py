"""Continues after lost ranks by User-Level Failure Mitigation: revoke, shrink, agreement.

W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of MPI
communication capability: design and rationale", 2013. Open MPI has it since version 5, in jobs
started with ``mpiexec --with-ft ulfm``. In other jobs it must not be called: there revoking blocks
for ever.

`Communicator.shrink` uses it through `backend`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccomm.contracts.backend import Backend
from hpccomm.errors import CommunicationError, CommunicatorAborted, peers_lost

LEARNING_SECONDS, SUSPICION_SECONDS = 1.0, 0.1
"""Seconds to wait for the names of lost ranks: after a reported loss, and after another error."""

Over = Callable[[Any, Sequence[int], object], Backend]
"""``over(comm, ranks, label)`` makes the backend over an MPI communicator of those ranks."""


class Ulfm:
    """Survival of one communicator: `Survival` of the contracts.

    Parameters
    ----------
    comm : MPI communicator
        Of all its ranks. Backends of groups are made of it.
    over : callable
        Makes those.
    """

    def __init__(self, comm: Any, over: Over) -> None:
        self._comm = comm
        self._over = over
        self.epoch = 0  # `shrunk` makes others
        self._others: list[Any] = []
        self._released = False

    def add(self, comm: Any) -> None:
        """Have another communicator of the same ranks revoked with this one."""
        self._others = [each for each in self._others if each != MPI.COMM_NULL]  # not those freed
        self._others.append(comm)
        if self._released:
            comm.Revoke()

    def lost(self, seconds: float = 0.0) -> tuple[int, ...]:
        """Return the ranks that this process knows to be lost."""
        return lost(self._comm, seconds)

    def loss(self, error: MPI.Exception) -> CommunicationError | None:
        """Return the loss of ranks that an error reports; None for other errors.

        Some calls, such as those on windows, then fail with other errors.
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
        """Make the backend over a new communicator, or release ranks that wait for this one in it.

        A further loss may keep this rank from it, and others not, which would wait for ever.
        """
        try:
            return self._over(comm, ranks, label)
        except BaseException:
            if comm != MPI.COMM_NULL and not comm.Is_revoked():
                comm.Revoke()
            raise

    def shrunk(self, epoch: int, attempt: int) -> tuple[Backend, tuple[int, ...]]:
        """Make the communicator of the ranks that are left."""
        comm = self._comm.Shrink()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        left = ranks_of(comm, self._comm)
        gone = tuple(sorted(set(range(self._comm.size)) - set(left)))
        backend = self.made(comm, left, ("epoch", epoch, attempt))
        assert backend.survival is not None
        backend.survival.epoch = epoch
        return backend, gone

    def agreed(self, flags: int) -> int:
        """Agree with the ranks that are left."""
        while True:
            self._comm.Ack_failed()
            try:
                agreed: int = self._comm.Agree(flags)
            except MPI.Exception as error:
                if not of_loss(error):  # of a loss that not all have acknowledged, it tells all
                    raise
            else:
                return agreed


def of_loss(error: MPI.Exception) -> bool:
    """Whether an error says that a rank is lost, or that another rank has revoked the communicator."""
    return error.Get_error_class() in (
        MPI.ERR_PROC_FAILED,
        MPI.ERR_PROC_FAILED_PENDING,
        MPI.ERR_REVOKED,
    )


def lost(comm: Any, seconds: float = 0.0) -> tuple[int, ...]:
    """Return the ranks of a communicator that this process knows to be lost.

    It waits a time for a name: it may learn of a loss before it knows which rank is lost.
    """
    until = time.monotonic() + seconds
    while not (MPI.Is_finalized() or comm == MPI.COMM_NULL):
        MPI.COMM_SELF.Iprobe()  # lets the library take notice, if no other thread is in it
        try:
            failed = comm.Get_failed()
        except MPI.Exception:  # another thread has just freed it
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
    """Return the parent's ranks of the ranks of a communicator."""
    own, everyone = comm.Get_group(), parent.Get_group()
    try:
        ranks: list[int] = own.Translate_ranks(None, everyone)
        return ranks
    finally:
        own.Free()
        everyone.Free()
