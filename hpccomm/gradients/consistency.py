"""Whether arrays are the same on all ranks, bit by bit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.majority import odd_ones
from hpccomm.errors import RankMismatch
from hpccomm.gradients.arrays import on_host
from hpccomm.reductions import ReduceOp
from hpccomm.units import ranks_named

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


SPREADS = 5
"""Arrays that differ whose largest difference is found, and which messages name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An array that is not the same on all ranks.

    Attributes
    ----------
    what : str
        Such as ``"parameter 'weight'"``.
    ranks : tuple of int
        Those that have something else than most; all, if there is no majority.
    spread : float or None
        The largest difference of an element between two ranks. It is 0 if only the signs of zeros differ, NaN if an
        element is NaN on a rank; None if it was not computed.
    """

    what: str
    ranks: tuple[int, ...]
    spread: float | None

    def __str__(self) -> str:
        by = "" if self.spread is None else f", by up to {self.spread:.3g}"
        return f"{self.what} on {ranks_named(self.ranks)}{by}"


def check_alike(
    comm: "Communicator", parameters: Mapping[str, NDArray[Any]], timeout: float | None
) -> None:
    """Raise on every rank if parameters do not begin with the same values. Collective; blocks.

    Raises
    ------
    RankMismatch
        The message has the parameters and the ranks.
    """
    arrays = {f"parameter {name!r}": array for name, array in parameters.items()}
    found = differences(comm, arrays, timeout)
    if found:
        raise RankMismatch(
            f"the ranks begin with different values: {listed(found)}; give all ranks the same, take "
            "initial='broadcast' for those of rank 0, or 'ignore' if they are set later",
            rank=comm.rank,
            ranks=ranks_of(found),
        )


def listed(found: Sequence[Difference]) -> str:
    """Return differences as a phrase, the first ones by name."""
    more = [f"and {len(found) - SPREADS} more"] if len(found) > SPREADS else []
    return "; ".join([*map(str, found[:SPREADS]), *more])


def ranks_of(found: Iterable[Difference]) -> tuple[int, ...]:
    """Return all ranks that differ."""
    return tuple(sorted({rank for each in found for rank in each.ranks}))


def differences(
    comm: "Communicator", arrays: Mapping[str, NDArray[Any]], timeout: float | None
) -> list[Difference]:
    """Return which arrays differ between ranks. Collective; blocks.

    One exchange of 8 bytes an array. Only for the first arrays that differ, two reductions more.

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
    found: list[Difference] = []
    for (what, array), column in zip(arrays.items(), every.T, strict=True):
        if (column == column[0]).all():
            continue
        ranks = odd_ones(dict(enumerate(map(int, column))))
        if len(found) >= SPREADS:
            found.append(Difference(what, ranks, None))
            continue
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
