"""MPI, through mpi4py."""

from collections.abc import Mapping

from hpccomm.backends import refuse_hints
from hpccomm.backends.bootstrap import mpi as bootstrap
from hpccomm.contracts.backend import Backend


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
        If `mpi_comm` is no intracommunicator, or a hint is given.
    """
    refuse_hints("mpi", hints)
    mpi = bootstrap.start()
    # These import MPI, so they come after it was started as it should be.
    from hpccomm.backends.mpi.backend import make

    return make(mpi.COMM_WORLD if mpi_comm is None else mpi_comm)
