"""The timing of repetitions: a block of them back to back; and isolated ones, which all ranks start at the same time.

Back to back, operations overlap: a rank begins the next one while other ranks end the last one. So a
second block of repetitions is timed on a clock that all ranks read (`hpccomm.runtime.clocks`). A
repetition lasts from the earliest start to the latest end. There are three ways to start it:

barrier
    After a barrier. Ranks leave a barrier at different times; the figure includes that.
window
    At fixed times (the windows of SKaMPI: T. Worsch, R. Reussner, W. Augustin, "On benchmarking
    collective MPI operations", EuroPVM/MPI 2002).
round-time
    At a time, a little ahead, that rank 0 broadcasts. Between broadcast and start, a short operation
    is run twice, untimed, to warm the caches again (Round-Time: S. Hunold and
    A. Carpen-Amarie, "Hierarchical clock synchronization in MPI", IEEE Cluster 2018).

With the last two, a repetition is discarded if a rank was late for it. The lead time of starts is
adapted so that some repetitions are late: caches and branch predictors forget a short operation
within some ten microseconds of waiting.

`hpccomm.tools.perf.sweep` and `arrays` use both ways, `pairs` and `tune` the first.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.timings import isolated_times, median_interval
from hpccomm.runtime.clocks import CommonClock
from hpccomm.runtime.service import no_garbage_collection
from hpccomm.tools.perf.options import Options

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.tools.perf.patterns import Mismatch


Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Isolated:
    """The times of isolated repetitions on one rank.

    Attributes
    ----------
    stamps : ndarray of float64, shape ``(repetitions, 2)``
        Start and end of each repetition, in seconds of rank 0's clock.
    late : int
        Number of further repetitions that were discarded since a rank was late; the same on all ranks.
    clock_error : float
        Bound of the error of this rank's clock against rank 0's, in seconds.
    """

    stamps: NDArray[np.float64]
    late: int
    clock_error: float


NOT_ISOLATED = Isolated(np.empty((0, 2)), 0, math.nan)
"""No isolated repetitions."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The measurements of one rank.

    Attributes
    ----------
    seconds : float
        Seconds of one operation: the block's time until all was done, divided by the number of operations.
    issued : float
        Seconds of one operation until its call returned.
    samples : ndarray of float64
        Seconds of one operation in each repetition; empty if not taken.
    wrong : tuple of Mismatch
        Wrong results.
    isolated : Isolated
        Isolated repetitions, if requested.
    """

    seconds: float
    issued: float
    samples: NDArray[np.float64]
    wrong: tuple["Mismatch", ...] = ()
    isolated: Isolated = NOT_ISOLATED


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
        The operations: `aggregated` for each repetition.
    aggregated : int
        Number of operations that a repetition issues together (``-m``).
    batch : callable
        Returns the context manager in which operations are issued together.
    after : callable or None
        A function that is called after each operation, within the measured time (``-z 1``).
    """
    if aggregated == 1 and after is None:
        return list(operations)

    def repetition(part: Sequence[Call]) -> Call:
        def run() -> None:
            # If each operation is waited for, operations cannot be issued together.
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
        A function that waits until the work of a call is done, within the measured time.
    after : callable, optional
        A function that is called after each call, untimed.

    Returns
    -------
    ndarray of float64, shape (2, len(calls))
        Seconds of each call until it returned, and until its work was done.
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


BARRIER, WINDOW, ROUND_TIME = "barrier", "window", "round-time"

SYNCS = (BARRIER, WINDOW, ROUND_TIME)
"""Values of ``--sync``."""

_TOLERANCE = 1e-6
"""Seconds after the agreed time at which a start is not yet late."""

_MARGIN, _LEAST_MARGIN, _MOST_MARGIN = 20e-6, 1e-6, 50e-3
"""Seconds that ranks wait for a start if all goes well: at first, at least and at most."""

_FEW_LATE, _MANY_LATE, _MOST_LATE = 0.2, 0.5, 0.75
"""Fractions of late repetitions: below the first the margin shrinks, above the second it grows, above the third it is
doubled."""

_BATCH = 20
"""Repetitions after which the margin is adapted for the first time."""

_WARM = 2
"""Untimed operations between announcement and start, to warm the caches again after the broadcast."""

_AWAKE = 200e-6
"""Seconds before a start in which a rank polls the clock: longer than a wake-up takes."""

_SHORT = 1e-3
"""Seconds of an operation that is repeated, untimed, between its announcement and its start."""

_TRIES = 20
"""Attempts for each wanted repetition, after which further ones are abandoned."""

_UNREAD = 1.0
"""Most seconds between two comparisons of the clocks, which drift."""

_HOPELESS = 1.0
"""Seconds without a valid repetition after which a row is abandoned."""

_PATIENCE = 10.0
"""Seconds after which late repetitions are not replaced, if only ``-n`` is given."""

_MOST = 100_000
"""Most repetitions of ``--ci``."""


class Budget:
    """Time for isolated repetitions, shared out over the rows that are still to be measured.

    Parameters
    ----------
    seconds : float
        Seconds for all rows; infinite without a limit.
    rows : int
        The expected number of rows; further rows share the rest.
    """

    def __init__(self, seconds: float, rows: int) -> None:
        self._seconds, self._rows = seconds, rows

    @property
    def share(self) -> float:
        """Seconds of the next row."""
        return self._seconds / max(1, self._rows)

    def spend(self, seconds: float) -> None:
        """Subtract the time that a row has used."""
        self._seconds = max(0.0, self._seconds - seconds)
        self._rows -= 1


class IsolatedTimer:
    """A timer of isolated operations on one communicator. Every rank makes one, and makes the same calls on it.

    Parameters
    ----------
    comm : Communicator
        The communicator of the ranks.
    settle : callable
        Waits until the work of calls is done.
    options : Options
        The options. Operations are started by `sync`, at least `config.iterations` times, until the confidence
        interval is as narrow as `interval`.
    budget : Budget
        The time for repetitions. Rank 0's budget ends those of a row.
    """

    def __init__(
        self, comm: "Communicator", settle: Call, options: Options, budget: Budget
    ) -> None:
        self._comm = comm
        self._settle = settle
        self._options = options
        self._budget = budget
        self._clock = CommonClock(comm)
        self._margin = _MARGIN
        self._took = 0.0  # seconds of an operation, roughly
        self._announcing = 0.0  # seconds from an announcement until all are ready

    def measure(self, calls: Sequence[Call]) -> Isolated:
        """Time operations one by one, in turns. Collective; blocks.

        Parameters
        ----------
        calls : sequence of callable
            The operations; repetitions take them in order, again and again.
        """
        comm, wanted = self._comm, self._options.config.iterations
        self._clock.read()
        began = perf_counter()
        self._explore(calls[0])
        of_batches: list[NDArray[np.float64]] = []
        seen: list[NDArray[np.float64]] = []  # on rank 0, the seconds of each repetition
        late = turn = 0
        error = 0.0
        left, most = wanted, _BATCH
        while left:
            size = left if self._options.sync == BARRIER else min(left, most)
            with no_garbage_collection():
                batch = [calls[(turn + each) % len(calls)] for each in range(size)]
                stamps, missed = self._batch(batch, self._options.sync)
            turn += size
            self._clock.read()  # so that the measurement lies between two readings
            error = max(error, self._clock.error)
            stamps = self._clock.common(stamps)
            of_ranks = comm.gather_object((missed, stamps))
            verdict = None
            if of_ranks is not None:
                valid = ~np.any([each for each, _ in of_ranks], axis=0)
                seen.append(isolated_times(np.stack([each[valid] for _, each in of_ranks], axis=1)))
                more = self._more(np.concatenate(seen), turn, perf_counter() - began)
                verdict = valid, more, _adapted(self._margin, 1 - float(valid.mean()))
            valid, left, margin = comm.broadcast_object(verdict)
            if margin == self._margin:
                most *= 2  # the margin fits
            self._margin = margin
            of_batches.append(stamps[valid])
            late += int(len(valid) - valid.sum())
        self._budget.spend(perf_counter() - began)
        return Isolated(np.concatenate(of_batches), late, error)

    def _explore(self, call: Call) -> None:
        """Measure how long an operation takes, and an announcement with its warm-up. Collective."""
        comm, announced = self._comm, np.empty(1)
        stamps, _ = self._batch([call] * 3, BARRIER)
        self._took = max(comm.all_gather_object(float(np.median(np.diff(stamps, axis=1)))))
        announcing = []
        for _ in range(5 * self._warms):
            began = perf_counter()
            comm.broadcast(announced)
            self._warm_up(call)
            announcing.append(perf_counter() - began)
        took = float(np.median(announcing)) if announcing else 0.0
        self._announcing = max(comm.all_gather_object(took))

    @property
    def _warms(self) -> bool:
        """Whether untimed operations are run between announcement and start."""
        return self._options.sync == ROUND_TIME and self._took < _SHORT

    def _warm_up(self, call: Call) -> None:
        for _ in range(_WARM * self._warms):
            self._run(call)

    def _more(self, times: NDArray[np.float64], tried: int, seconds: float) -> int:
        """Return the number of further repetitions; 0 ends the row."""
        wanted, interval = self._options.config.iterations, self._options.interval
        over = tried >= _MOST or seconds >= self._budget.share
        if over or tried >= _TRIES * max(wanted, len(times)):
            return 0
        if not len(times) and tried >= 3 * wanted and seconds >= _HOPELESS:
            return 0  # ranks that share cores cannot start together
        if len(times) < wanted <= tried and seconds >= _PATIENCE and not interval:
            return 0
        if len(times) < wanted:
            return max(4, wanted - len(times))
        if not interval:
            return 0
        low, high = median_interval(times)
        if (high - low) / 2 <= interval * float(np.median(times)):
            return 0
        # Half the number again, but within the remaining time, and while the clocks agree.
        left = min(self._budget.share - seconds, _UNREAD) / (seconds / tried)
        return int(max(4.0, min(len(times) / 2, left, _MOST - tried)))

    def _batch(
        self, calls: Sequence[Call], sync: str
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Run calls one by one; return this rank's stamps, and whether it was late for each call."""
        stamps, due = np.empty((len(calls), 2)), np.full(len(calls), math.inf)
        for position, start in enumerate(self._starts(calls, sync)):
            if start is not None:
                due[position] = start
                self._until(start)
            stamps[position] = self._run(calls[position])
        return stamps, stamps[:, 0] > due + _TOLERANCE + self._clock.error

    def _starts(self, calls: Sequence[Call], sync: str) -> Iterator[float | None]:
        """Yield the time at which each call starts, by this rank's clock; None if it starts at once."""
        comm, clock, announced = self._comm, self._clock, np.empty(1)
        if sync == WINDOW:
            window = 2 * self._took + self._margin
            first = comm.broadcast_object(float(clock.common(np.array(clock.clock()))))
            yield from [clock.local(first + turn * window) for turn in range(1, len(calls) + 1)]
            return
        ahead = self._announcing + self._margin
        for call in calls:
            if sync == BARRIER:
                comm.barrier()
                yield None
                continue
            if comm.rank == 0:
                announced[0] = clock.clock() + ahead
            comm.broadcast(announced)
            self._warm_up(call)
            yield clock.local(float(announced[0]))

    def _until(self, start: float) -> None:
        """Wait for a time of this rank's clock. Sleep while it is far ahead, since ranks may share a core."""
        clock = self._clock.clock
        far = start - clock() - _AWAKE
        if far > 0:
            sleep(far)
        while clock() < start:
            pass

    def _run(self, call: Call) -> tuple[float, float]:
        clock = self._clock.clock
        start = clock()
        call()
        self._settle()
        return start, clock()


def _adapted(margin: float, late: float) -> float:
    """Return the margin of the next repetitions. `late` is the fraction of the last ones that was late."""
    if late > _MANY_LATE:
        return min(margin * (2 if late > _MOST_LATE else 1.25), _MOST_MARGIN)
    return max(margin * 0.8, _LEAST_MARGIN) if late < _FEW_LATE else margin
