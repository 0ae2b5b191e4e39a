"""The calls that are measured: float32 sums on plain arrays, the way that programs make them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import BLOCKWISE, REDUCTIONS

Array = NDArray[Any]
Call = Callable[[], object]

DTYPE = np.dtype(np.float32)
ROOT = 0


def even(collective: str, nbytes: int, ranks: int) -> int:
    """Return the bytes nearest to `nbytes`, and no more, that a call can have."""
    unit = DTYPE.itemsize * (ranks if collective in BLOCKWISE else 1)
    return nbytes // unit * unit


def arrays(nbytes: int) -> tuple[Array, Array]:
    """Return memory for calls of up to `nbytes`, all of it there."""
    count = nbytes // DTYPE.itemsize
    return np.ones(count, DTYPE) * 0, np.ones(count, DTYPE) * 0


def arguments(
    comm: Communicator, collective: str, nbytes: int, memory: tuple[Array, Array]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a call is made with. Zeros: sums of sums of them stay so.

    All-reduce, reduce, broadcast and scan are in place, the others out of place.

    Parameters
    ----------
    comm : Communicator
        Who calls.
    collective : str
        The call.
    nbytes : int
        Of the larger array of a rank, as `even` gives them.
    memory : tuple of two ndarray
        As `arrays` gives it.
    """
    count = nbytes // DTYPE.itemsize
    block = count // comm.size
    x, y = memory
    at_root = comm.rank == ROOT
    every: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "all_reduce": ((x[:count],), {}),
        "broadcast": ((x[:count],), {"root": ROOT}),
        "reduce": ((x[:count],), {"root": ROOT}),
        "all_gather": ((x[:block],), {"out": y[: block * comm.size]}),
        "reduce_scatter": ((x[: block * comm.size],), {"out": y[:block]}),
        "all_to_all": ((x[: block * comm.size],), {"out": y[: block * comm.size]}),
        "gather": (
            (x[:block],),
            {"root": ROOT, "out": y[: block * comm.size] if at_root else None},
        ),
        "scatter": (
            (x[: block * comm.size] if at_root else None,),
            {"root": ROOT, "out": y[:block]},
        ),
        "scan": ((x[:count],), {}),
        "barrier": ((), {}),
    }
    return every[collective]


def how(collective: str, algorithm: str, *, deterministic: bool) -> dict[str, Any]:
    """Return the keywords that say how a call is carried out."""
    ordered = {"deterministic": True} if deterministic and collective in REDUCTIONS else {}
    return {"algorithm": algorithm, **ordered}
