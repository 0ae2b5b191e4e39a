"""The backend on MPI, through mpi4py. `hpccomm.communicator.creation` opens it.

- `backend` joins the parts for one communicator, and continues after lost ranks.
- `transport` has the messages, `collectives` the library's own collectives, `window` one-sided communication,
  `side` the side channel. `types` has MPI's counterparts of hpccomm's datatypes and reductions.
"""

import sys
from collections.abc import Mapping
from typing import Any

from hpccomm.backends import refuse_hints
from hpccomm.backends.bootstrap import mpi as bootstrap
from hpccomm.backends.bootstrap.libmpi import has_ulfm
from hpccomm.contracts.backend import Backend
from hpccomm.errors import CommunicationError, peers_lost


def open_backend(mpi_comm: object, hints: Mapping[str, str]) -> Backend:
    """Return the backend over a duplicate of `mpi_comm`, by default of ``COMM_WORLD``.

    Collective over `mpi_comm`; blocks. It starts MPI unless that has been started.

    Raises
    ------
    BackendUnavailable
        If MPI cannot be started.
    LaunchError
        If a job of N processes started as N jobs of one process.
    UsageError
        If `mpi_comm` is not an intracommunicator, or a hint is given.
    """
    refuse_hints("mpi", hints)
    mpi = bootstrap.start()
    # This module imports mpi4py.MPI, so it is imported after `start` has started MPI with the right thread level.
    from hpccomm.backends.mpi.backend import make

    return make(mpi.COMM_WORLD if mpi_comm is None else mpi_comm)


def ended_making(error: Exception, mpi_comm: Any) -> CommunicationError | None:
    """Return hpccomm's error for one that MPI caused in the making of a communicator over `mpi_comm`, or None.

    After a lost rank, garbage may have been received in place of an object, so that any error may follow from it.
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    if has_ulfm(mpi):
        from hpccomm.backends.mpi import backend

        lost = backend.lost(
            mpi.COMM_WORLD if mpi_comm is None else mpi_comm, backend.LEARNING_SECONDS
        )
        if lost:
            return peers_lost(lost, "no communicator was made; start the job anew")
    if not isinstance(error, mpi.Exception):
        return None
    rank = mpi.COMM_WORLD.rank
    return CommunicationError(
        f"{bootstrap.library_name(mpi)} failed in rank {rank} while it made a communicator: {error}",
        rank=rank,
    )
