"""Times several ways of one call in turns, so that a change of the machine affects all of them alike."""

import math
from collections.abc import Hashable, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.tune.calls import Call
from hpccomm.communicator import Communicator

Seconds = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

MOST_CALLS = 1000
"""The most calls of a block."""


def block(call: Call, calls: int, barrier: Call) -> float:
    """Return the mean seconds of calls back to back. All ranks begin together."""
    barrier()
    begin = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - begin) / calls


def shared(comm: Communicator, mine: Sequence[Sequence[float]]) -> Seconds:
    """Return the times of all ranks; the last axis is the rank. Collective; blocks."""
    found: Seconds = comm.all_gather(np.array(mine, np.float64), algorithm="ring")
    return np.moveaxis(found, 0, -1)


def first(comm: Communicator, ways: Mapping[Key, Call]) -> dict[Key, float]:
    """Return the approximate seconds of each way, the same on all ranks. Collective; blocks."""
    for call in ways.values():  # does what is needed on first use
        call()
    mine = [[block(call, 2, comm.barrier) for _ in range(3)] for call in ways.values()]
    seconds = shared(comm, mine).max(axis=-1).min(axis=-1)
    return dict(zip(ways, seconds.tolist(), strict=True))


def repeated(
    comm: Communicator,
    ways: Mapping[Key, Call],
    ideas: Mapping[Key, float],
    *,
    blocks: int,
    seconds: float,
) -> dict[Key, Seconds]:
    """Time each way several times, in turns. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        Whose ranks call.
    ways : mapping of key to callable
        The calls.
    ideas : mapping of key to float
        Approximate seconds of each call, the same on all ranks.
    blocks : int
        How often each is timed.
    seconds : float
        The approximate duration of each of these times.

    Returns
    -------
    dict of key to ndarray of float64, shape (blocks, ranks)
        Seconds of a call; the same on all ranks.
    """
    calls = {
        key: min(MOST_CALLS, max(1, math.ceil(seconds / max(ideas[key], 1e-7)))) for key in ways
    }
    mine: dict[Key, list[float]] = {key: [] for key in ways}
    for _ in range(blocks):
        for key, call in ways.items():
            mine[key].append(block(call, calls[key], comm.barrier))
    return dict(zip(ways, shared(comm, list(mine.values())), strict=True))


def typical(samples: Seconds) -> float:
    """Return the lower quartile of the slowest rank's seconds.

    Other work on the machine only adds to a time. On a quiet machine the quartile is close to the median;
    on a busy one it is closer than the median to the time that the call itself needs.
    """
    return float(np.quantile(samples.max(axis=1), 0.25))
