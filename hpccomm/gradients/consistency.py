"""Whether arrays are the same on all ranks, bit by bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.majority import odd_ones
from hpccomm.gradients.agreement import named
from hpccomm.gradients.arrays import on_host
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Difference:
    """An array that is not the same on all ranks.

    Attributes
    ----------
    what : str
        Such as ``"parameter 'weight'"``.
    ranks : tuple of int
        Those that have something else than most; all, if there is no majority.
    spread : float
        The largest difference of an element between two ranks. It is 0 if only the signs of zeros differ, NaN if an
        element is NaN on a rank.
    """

    what: str
    ranks: tuple[int, ...]
    spread: float

    def __str__(self) -> str:
        return f"{self.what} on {named(self.ranks)}, by up to {self.spread:.3g}"


def differences(
    comm: "Communicator", arrays: Mapping[str, NDArray[Any]], timeout: float | None
) -> list[Difference]:
    """Return which arrays differ between ranks. Collective; blocks.

    One exchange of 8 bytes an array. Only for arrays that differ, two reductions more.

    Parameters
    ----------
    comm : Communicator
        Over the ranks.
    arrays : mapping of str to ndarray
        What is compared, with the same names, shapes and dtypes on all ranks.
    timeout : float or None
        Deadline of each call in seconds.
    """
    digests = np.frombuffer(b"".join(map(_digest, arrays.values())), np.uint64).copy()
    every = comm.all_gather(digests, timeout=timeout)
    found = []
    for (what, array), column in zip(arrays.items(), every.T, strict=True):
        if (column == column[0]).all():
            continue
        ranks = odd_ones(dict(enumerate(map(int, column))))
        content = on_host(array)
        high, low = np.array(content, order="C"), np.array(content, order="C")
        comm.all_reduce(high, ReduceOp.MAX, timeout=timeout)
        comm.all_reduce(low, ReduceOp.MIN, timeout=timeout)
        with np.errstate(invalid="ignore"):  # infinity on all ranks
            spread = np.subtract(high, low, dtype=np.float64).max()
        found.append(Difference(what, ranks, float(spread)))
    return found


def _digest(array: NDArray[Any]) -> bytes:
    # ml_dtypes' arrays have no buffers of their own.
    content = np.ascontiguousarray(on_host(array)).reshape(-1).view(np.uint8)
    return blake2b(content.data, digest_size=8).digest()
