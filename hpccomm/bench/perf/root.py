"""Work that only rank 0 does, with its failures raised on all ranks.

Programs that print or write files under MPI do so within it.
"""

from collections.abc import Callable
from typing import TypeVar

from hpccomm.communicator import Communicator
from hpccomm.errors import HpccommError, ResultsError

T = TypeVar("T")


def on_root(comm: Communicator, action: Callable[[], T]) -> T | None:
    """Do what only rank 0 does; if it fails there, raise the error on every rank.

    Collective; blocks.

    Returns
    -------
    object
        What `action` returned, on rank 0; None elsewhere.

    Raises
    ------
    HpccommError
        What `action` raised; `ResultsError` for an error of the operating system.
    """
    value: T | None = None
    failure: HpccommError | None = None
    if comm.rank == 0:
        try:
            value = action()
        except HpccommError as error:
            failure = error
        except OSError as error:
            failure = ResultsError(f"the results cannot be written: {error}")
    failure = comm.broadcast_object(failure)
    if failure is not None:
        raise failure
    return value
