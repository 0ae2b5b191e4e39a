"""The backend on MPI, through mpi4py. `hpccomm.communicator.creation` opens it.

- `backend` joins the parts for one communicator, and continues after lost ranks.
- `transport` has the messages, `collectives` the library's own collectives, `window` one-sided communication,
  `side` the side channel. `types` has MPI's datatypes and reductions for hpccomm's.
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

    Collective over `mpi_comm`, and blocks. MPI is started if it is not.

    Raises
    ------
    BackendUnavailable
        If MPI cannot be started.
    LaunchError
        If a job of N processes came up as N jobs of one.
    UsageError
        If `mpi_comm` is not an intracommunicator, or a hint is given.
    """
    refuse_hints("mpi", hints)
    mpi = bootstrap.start()
    # These import MPI, so they come after it was started as it should be.
    from hpccomm.backends.mpi.backend import make

    return make(mpi.COMM_WORLD if mpi_comm is None else mpi_comm)


def ended_making(error: Exception, mpi_comm: Any) -> CommunicationError | None:
    """Return MPI's error in the making of a communicator over `mpi_comm`; None without one.

    After a loss anything may have been received instead of an object, and so any error come of it.
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
