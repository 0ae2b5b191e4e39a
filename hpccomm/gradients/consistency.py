"""Whether arrays are the same on all ranks, bit by bit."""

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from hpccomm.contracts.majority import odd_ones
from hpccomm.errors import RankMismatch
from hpccomm.gradients.arrays import Array, on_host
from hpccomm.gradients.group import Group
from hpccomm.gradients.parameters import Arrays
from hpccomm.reductions import ReduceOp
from hpccomm.units import ranks_named

MOST = 5
"""Arrays that differ whose largest difference is found, and which messages name."""


def check_same(group: Group, arrays: Mapping[str, Array], *, problem: str, remedy: str) -> None:
    """Compare arrays of all ranks. Collective; blocks.

    One exchange of 8 bytes an array. Only for the first arrays that differ, two more reductions.

    Parameters
    ----------
    group : Group
        The ranks.
    arrays : mapping of str to ndarray
        By what they are, such as ``"parameter 'weight'"``; with the same shapes and dtypes on all ranks.
    problem, remedy : str
        How the message begins and ends.

    Raises
    ------
    RankMismatch
        On every rank, if an array differs. The message names the arrays, the ranks that have something else than
        most, and the largest difference of an element between two ranks. It is 0 if only the signs of zeros differ.
    """
    digests = np.frombuffer(b"".join(map(_digest, arrays.values())), np.uint64).copy()
    every = group.gather(digests)
    lines: list[str] = []
    ranks: set[int] = set()
    for (what, array), column in zip(arrays.items(), every.T, strict=True):
        if (column == column[0]).all():
            continue
        odd = odd_ones(dict(enumerate(map(int, column))))
        ranks.update(odd)
        lines.append(f"{what} on {ranks_named(odd)}")
        if len(lines) <= MOST:
            lines[-1] += f", by up to {_largest_difference(group, array):.3g}"
    if lines:
        if len(lines) > MOST:
            lines[MOST:] = [f"and {len(lines) - MOST} more"]
        raise RankMismatch(
            f"{problem}: {'; '.join(lines)}; {remedy}", rank=group.rank, ranks=sorted(ranks)
        )


def check_initial(group: Group, arrays: Arrays) -> None:
    """Compare the values that parameters begin with. Collective; blocks. Raises as `check_same` does."""
    check_same(
        group,
        {f"parameter {each.name!r}": array for each, array in arrays.items()},
        problem="the ranks begin with different values",
        remedy="give all ranks the same, take initial='broadcast' for those of rank 0, or 'ignore' if they are "
        "set later",
    )


def _largest_difference(group: Group, array: Array) -> float:
    content = on_host(array)
    high, low = np.array(content, order="C"), np.array(content, order="C")
    group.reduce(high, ReduceOp.MAX)
    group.reduce(low, ReduceOp.MIN)
    with np.errstate(invalid="ignore"):  # infinity on all ranks
        return float(np.subtract(high, low, dtype=np.float64).max())


def _digest(array: Array) -> bytes:
    # ml_dtypes' arrays have no buffers of their own.
    content = np.ascontiguousarray(on_host(array)).reshape(-1).view(np.uint8)
    return blake2b(content.data, digest_size=8).digest()
