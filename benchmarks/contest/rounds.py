"""The turns that contenders take, and what is made of their times.

In a round, each contender has one turn, so that a change of the machine's speed affects all of them. The
order moves on by one from round to round, so that none profits from its place. A turn begins with a
barrier. It is a block of calls, long enough for the clock. Its time is the time of the block divided by the
number of calls, on the slowest rank. Figures are medians over the rounds, and ratios are medians of the
ratios within a round.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Call = Callable[[], object]
MOST_CALLS = 2000
BLOCK_SECONDS = 4e-3


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """What a contender's turns took.

    Attributes
    ----------
    samples : ndarray of float64, shape (rounds, ranks)
        Seconds of one call.
    """

    samples: NDArray[np.float64]

    @property
    def rounds(self) -> NDArray[np.float64]:
        """Seconds of the slowest rank, shape (rounds,)."""
        slowest: NDArray[np.float64] = self.samples.max(axis=1)
        return slowest

    @property
    def seconds(self) -> float:
        """Median over the rounds."""
        return float(np.median(self.rounds))

    def over(self, other: "Times") -> float:
        """Return how many times as long as `other` it took."""
        return float(np.median(self.rounds / other.rounds))

    def beyond(self, other: "Times") -> float:
        """Return how many seconds longer than `other` it took."""
        return float(np.median(self.rounds - other.rounds))


def duration(seconds: float) -> str:
    """Print a time with three digits."""
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def block(call: Call, calls: int) -> float:
    """Return the mean seconds of `calls` calls, one after the other."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def compete(
    contenders: Sequence[Call],
    bare: "Intracomm",
    rounds: int,
    calls: int | None = None,
    *,
    before: Call | None = None,
    between: Call | None = None,
) -> list[Times]:
    """Let contenders take turns. Collective; each is called once before the rounds, to warm up.

    Parameters
    ----------
    contenders : sequence of callable
        The same in the same order on all ranks.
    bare : MPI.Intracomm
        For what is not measured.
    rounds : int
        Turns of each.
    calls : int, optional
        Calls of a turn; by default as many as fill a few milliseconds.
    before : callable, optional
        Called before each round: what was called earlier.
    between : callable, optional
        Called after each turn, outside of the clock: waits for what calls only started.

    Returns
    -------
    list of Times
        Of each contender; on every rank.
    """
    own = np.empty((len(contenders), rounds))
    blocks = [calls or _calls(contender, bare) for contender in contenders]
    enabled = gc.isenabled()
    gc.disable()  # as timeit does
    try:
        for turn in range(rounds):
            if before is not None:
                before()
            for step in range(len(contenders)):
                number = (turn + step) % len(contenders)
                bare.Barrier()
                own[number, turn] = block(contenders[number], blocks[number])
                if between is not None:
                    between()
    finally:
        if enabled:
            gc.enable()
    every = np.empty((bare.Get_size(), *own.shape))
    bare.Allgather(own, every)
    return [Times(np.ascontiguousarray(every[:, number].T)) for number in range(len(contenders))]


def _calls(contender: Call, bare: "Intracomm") -> int:
    """Return how many calls fill a block; the same on all ranks."""
    from mpi4py.MPI import MAX

    contender()
    bare.Barrier()
    slowest = bare.allreduce(block(contender, 1), MAX)
    return max(1, min(MOST_CALLS, int(BLOCK_SECONDS / slowest)))
