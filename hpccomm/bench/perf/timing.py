"""How a block of repetitions is timed."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timed:
    """How long a block of repetitions took.

    Attributes
    ----------
    seconds : float
        Of one repetition: those of the block, until all was done, divided by their number.
    issued : float
        Of one repetition, until all calls had returned.
    samples : ndarray of float64
        Seconds of each repetition; empty if they were not requested.
    again : callable or None
        Runs the block once more, where it was recorded to be replayed.
    """

    seconds: float
    issued: float
    samples: NDArray[np.float64]
    again: Call | None = None


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
        ``aggregated`` times as many as there are repetitions.
    aggregated : int
        Operations that a repetition issues together (``-m``).
    batch : callable
        Gives the context manager in which operations are issued together.
    after : callable or None
        Called after each operation, in the time (``-z 1``).
    """
    if after is not None:
        operations = [_followed(operation, after) for operation in operations]
    if aggregated == 1:
        return list(operations)
    return [
        # With a wait after each operation there is nothing left to issue together.
        _together(operations[first : first + aggregated], batch if after is None else None)
        for first in range(0, len(operations), aggregated)
    ]


def _followed(operation: Call, after: Call) -> Call:
    def run() -> None:
        operation()
        after()

    return run


def _together(
    operations: Sequence[Call], batch: Callable[[], AbstractContextManager[object]] | None
) -> Call:
    def in_turn() -> None:
        for operation in operations:
            operation()

    def batched() -> None:
        assert batch is not None
        with batch():
            in_turn()

    return in_turn if batch is None else batched


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


def each_after_a_barrier(calls: Sequence[Call], barrier: Call) -> NDArray[np.float64]:
    """Run the calls with a barrier after each, which is not timed (``-z 3``).

    Returns
    -------
    ndarray of float64, shape (len(calls),)
        Seconds of each.
    """
    seconds = np.zeros(len(calls))
    with no_garbage_collection():
        for position, call in enumerate(calls):
            start = perf_counter()
            call()
            seconds[position] = perf_counter() - start
            barrier()
    return seconds


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector from running in the middle of a measurement, as timeit does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
