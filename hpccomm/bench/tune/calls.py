"""The calls that are measured: float32 sums on plain arrays, the way that programs make them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS, REDUCTIONS

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
    what = DESCRIPTIONS[collective]
    if what.sends == "nothing":
        return (), {}
    keywords: dict[str, Any] = {"root": ROOT} if what.rooted else {}
    count = nbytes // DTYPE.itemsize
    x, y = memory
    if not what.blockwise:
        return (x[:count],), keywords
    block = count // comm.size
    lengths = {"block": block, "blocks": block * comm.size}
    sends, receives = what.uses(comm.rank, ROOT)
    out = y[: lengths[what.receives]] if receives else None
    return (x[: lengths[what.sends]] if sends else None,), {**keywords, "out": out}


def how(collective: str, algorithm: str, *, deterministic: bool) -> dict[str, Any]:
    """Return the keywords that say how a call is carried out."""
    ordered = {"deterministic": True} if deterministic and collective in REDUCTIONS else {}
    return {"algorithm": algorithm, **ordered}
