"""The clock of rank 0, readable on every rank.

The ranks compare their clocks in a tree of pairs, in about log2(ranks) rounds. The hierarchy is
that of S. Hunold and A. Carpen-Amarie, "Hierarchical clock synchronization in MPI", IEEE Cluster
2018. The bounds of a difference are those of their "On the impact of synchronizing clocks and
processes on benchmarking MPI collectives", EuroMPI 2015: the other clock was read after its reader
was asked, and before the answer arrived. Processes that share a clock need no messages. Between
processes with different clocks, the pairs of a binomial tree exchange messages; all pairs of a level do
so at the same time.

`hpccomm.tools.perf.isolated` announces starts by this clock, and `hpccomm.communicator.recording` compares the times
of ranks by it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Offset:
    """The lead of another clock over this one, at one moment.

    Attributes
    ----------
    at : float
        The moment, in seconds of this clock.
    low, high : float
        Bounds of the lead, in seconds.
    """

    at: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The middle of the bounds, in seconds."""
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """The largest possible error of `value`, in seconds."""
        return (self.high - self.low) / 2


SAME = Offset(0.0, 0.0, 0.0)
"""The offset between two readers of one clock."""


def bounded(exchanges: NDArray[np.float64]) -> Offset:
    """Return bounds of an offset from messages that went to the other clock and back.

    Parameters
    ----------
    exchanges : ndarray of float64, shape ``(n, 3)``
        Each row is one exchange: this clock's time when the question left, the other clock's time when it was read,
        and this clock's time when the answer arrived, in seconds. All exchanges take so little time that the drift of
        the clocks is negligible.
    """
    asked, other, answered = exchanges.T
    low, high = float((other - answered).max()), float((other - asked).min())
    if low > high:  # a clock was set during the exchanges: only the quickest exchange counts
        best = int((answered - asked).argmin())
        low, high = float(other[best] - answered[best]), float(other[best] - asked[best])
    return Offset(float((asked + answered).mean()) / 2, low, high)


@dataclass(frozen=True, slots=True)
class ClockLine:
    """The difference of two clocks, between two moments and a little beyond.

    The difference is a straight line through two offsets, since quartz drifts at a constant rate within
    seconds. Between the two moments, the difference is as uncertain as the worse offset. After them, the line
    drifts no more than the two offsets prove, as their errors grow with the distance.

    Attributes
    ----------
    before, after : Offset
        The two offsets. They are the same object as long as there is only one reading.
    """

    before: Offset
    after: Offset

    @property
    def rate(self) -> float:
        """Seconds that the other clock gains in a second of this one, between the two moments."""
        distance = self.after.at - self.before.at
        return (self.after.value - self.before.value) / distance if distance > 0 else 0.0

    @property
    def later_rate(self) -> float:
        """Seconds that the other clock gains per second after the two moments: the least that the bounds allow."""
        gained = self.after.value - self.before.value
        doubt = self.before.error + self.after.error
        return self.rate * (1 - doubt / abs(gained)) if abs(gained) > doubt else 0.0

    @property
    def error(self) -> float:
        """Bound of the error between the two moments, in seconds."""
        return max(self.before.error, self.after.error)

    def other(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return times of this clock, an array of any shape in seconds, as times of the other clock."""
        since = mine - self.after.at
        rates = np.where(since > 0, self.later_rate, self.rate)
        return mine + self.after.value + rates * since

    def mine(self, other: float) -> float:
        """Return a time of the other clock as a time of this one, in seconds."""
        since = other - self.after.value - self.after.at
        return self.after.at + since / (1.0 + (self.later_rate if since > 0 else self.rate))


EXCHANGES = 100
"""Exchanges of one reading: so many that a few of them meet no delay."""


def kernel_clock() -> str:
    """Return a name that is the same for all processes that read one ``CLOCK_MONOTONIC``; empty if unknown.

    All processors and processes of a system share that clock (clock_gettime(2)), except that each time
    namespace has its own offset (time_namespaces(7)).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return ""


class ClockRanks(Protocol):
    """The communicator by which ranks compare their clocks."""

    rank: int
    size: int

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""

    def send(self, x: Any, dst: int) -> Any:
        """Send an array."""

    def recv(self, out: Any, src: int) -> Any:
        """Receive an array."""


class CommonClock:
    """The clock of rank 0, on every rank. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        The communicator of the ranks.
    clock : callable
        Returns the time of this rank's clock, in seconds.
    name : str, optional
        Ranks that give the same name read the same clock. By default these are the ranks with the same kernel.
        A rank with an empty name shares its clock with no other rank.
    """

    def __init__(
        self,
        comm: ClockRanks,
        clock: Callable[[], float] = perf_counter,
        name: str | None = None,
    ) -> None:
        self._comm = comm
        self.clock = clock
        names = comm.all_gather_object(kernel_clock() if name is None else name)
        # Each clock has a reader that exchanges messages: the first rank with that clock.
        known: dict[str, int] = {}
        firsts = [known.setdefault(each, rank) if each else rank for rank, each in enumerate(names)]
        self._readers = sorted(set(firsts))
        self._mine = self._readers.index(firsts[comm.rank])
        self._reads = firsts[comm.rank] == comm.rank
        self._lines: tuple[ClockLine, ...] = ()
        self._last: dict[int, Offset] = {}
        self.read()

    @property
    def error(self) -> float:
        """Bound of the error of `common` on this rank, between the last two readings, in seconds."""
        return sum(line.error for line in self._lines)

    def read(self) -> None:
        """Read the offsets between the clocks. Collective; blocks.

        Times between this reading and the previous one are the most exact.
        """
        before = self._last
        offset = self._exchange() if self._reads else None
        offsets = [each for each in self._comm.all_gather_object(offset) if each is not None]
        self._last = dict(offsets)
        path = []
        reader = self._mine
        while reader:
            now = self._last[reader]
            path.append(ClockLine(before.get(reader, now), now))
            reader = _parent(reader)
        self._lines = tuple(path)

    def common(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return times of this rank's clock as times of rank 0's. Local.

        Parameters
        ----------
        times : ndarray of float64, any shape
            Times in seconds.
        """
        for line in self._lines:
            times = line.other(times)
        return times

    def local(self, time: float) -> float:
        """Return a time of rank 0's clock as a time of this rank's, in seconds. Local."""
        for line in reversed(self._lines):
            time = line.mine(time)
        return time

    def _exchange(self) -> tuple[int, Offset]:
        """Exchange messages with other readers; return this one's number and its parent's offset."""
        offset, number = SAME, len(self._readers)
        for level in reversed(range(math.ceil(math.log2(number)) if number > 1 else 0)):
            step = 1 << level
            if self._mine % (2 * step) == step:
                offset = self._ask(self._readers[self._mine - step])
            elif self._mine % (2 * step) == 0 and self._mine + step < number:
                self._answer(self._readers[self._mine + step])
        return self._mine, offset

    def _ask(self, rank: int) -> Offset:
        """Return the lead of the clock of `rank`, which runs `_answer`."""
        comm, clock, out = self._comm, self.clock, np.empty(1)
        exchanges = np.empty((EXCHANGES, 3))
        for exchange in exchanges:
            asked = clock()
            comm.send(out, rank)
            comm.recv(out, rank)
            exchange[:] = asked, out[0], clock()
        return bounded(exchanges)

    def _answer(self, rank: int) -> None:
        """Send the time to `rank`, which runs `_ask`, once for each of its `EXCHANGES`."""
        comm, clock, out = self._comm, self.clock, np.empty(1)
        for _ in range(EXCHANGES):
            comm.recv(out, rank)
            out[0] = clock()
            comm.send(out, rank)


def _parent(reader: int) -> int:
    """Return the number of the reader that `reader` asks: the same number without its lowest set bit."""
    return reader & (reader - 1)
