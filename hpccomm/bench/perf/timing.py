"""Times a block of repetitions: back to back, between stamps.

perf, tune, pairs and the links measure by it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpccomm.runtime.lifetime import no_garbage_collection

if TYPE_CHECKING:
    from hpccomm.bench.perf.verification import Mismatch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Isolated:
    """Isolated repetitions, as one rank saw them.

    Attributes
    ----------
    stamps : ndarray of float64, shape ``(repetitions, 2)``
        Start and end of each, in seconds of rank 0's clock.
    late : int
        Further repetitions, discarded since a rank was late; the same on all ranks.
    clock_error : float
        Bound of the error of this rank's clock against rank 0's, in seconds.
    """

    stamps: NDArray[np.float64]
    late: int
    clock_error: float


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The measurements of one rank.

    Attributes
    ----------
    seconds : float
        Of one operation: the block's time until all was done, divided by the operations.
    issued : float
        Of one operation, until its call returned.
    samples : ndarray of float64
        Seconds of one operation in each repetition; empty if not taken.
    wrong : tuple of Mismatch
        Wrong results.
    isolated : Isolated or None
        Isolated repetitions, if requested.
    """

    seconds: float
    issued: float
    samples: NDArray[np.float64]
    wrong: tuple["Mismatch", ...] = ()
    isolated: Isolated | None = None

    def of_each(self, number: int) -> "RankTimes":
        """Return the times of one operation in each repetition."""
        shares = self.seconds / number, self.issued / number, self.samples / number
        return RankTimes(*shares, self.wrong, self.isolated)


def repetitions(
    operations: Sequence[Call],
    aggregated: int,
    batch: Callable[[], AbstractContextManager[object]],
    after: Call | None,
) -> list[Call]:
    """Group operations into repetitions.

    Parameters
    ----------
    operations : sequence of callable
        ``aggregated`` for each repetition.
    aggregated : int
        Operations that a repetition issues together (``-m``).
    batch : callable
        Gives the context manager in which operations are issued together.
    after : callable or None
        Called after each operation, in the time (``-z 1``).
    """
    if aggregated == 1 and after is None:
        return list(operations)

    def repetition(part: Sequence[Call]) -> Call:
        def run() -> None:
            # With a wait after each operation there is nothing left to issue together.
            with batch() if after is None else nullcontext():
                for operation in part:
                    operation()
                    if after is not None:
                        after()

        return run

    firsts = range(0, len(operations), aggregated)
    return [repetition(operations[first : first + aggregated]) for first in firsts]


def back_to_back(calls: Sequence[Call]) -> NDArray[np.float64]:
    """Run the calls one after the other, with nothing but a time stamp between them.

    Returns
    -------
    ndarray of float64, shape (len(calls),)
        Seconds of each. Their sum is the time of the whole block.
    """
    stamps = [0.0] * (len(calls) + 1)
    with no_garbage_collection():
        stamps[0] = perf_counter()
        for position, call in enumerate(calls, 1):
            call()
            stamps[position] = perf_counter()
    return np.diff(np.array(stamps))


def one_by_one(
    calls: Sequence[Call], *, settle: Call | None = None, after: Call | None = None
) -> NDArray[np.float64]:
    """Run the calls one by one.

    Parameters
    ----------
    calls : sequence of callable
        The timed calls.
    settle : callable, optional
        Waits until the work of a call is done, in the time.
    after : callable, optional
        Called after each, untimed.

    Returns
    -------
    ndarray of float64, shape (2, len(calls))
        Seconds of each, until its call returned and until it was done.
    """
    seconds = np.zeros((2, len(calls)))
    with no_garbage_collection():
        for position, call in enumerate(calls):
            start = perf_counter()
            call()
            seconds[:, position] = perf_counter() - start
            if settle is not None:
                settle()
                seconds[1, position] = perf_counter() - start
            if after is not None:
                after()
    return seconds
