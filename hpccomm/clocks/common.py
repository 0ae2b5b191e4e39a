"""The clock of rank 0, readable on every rank.

The ranks compare their clocks in a tree of pairs, in about log2(ranks) rounds. The hierarchy is
that of S. Hunold and A. Carpen-Amarie, "Hierarchical clock synchronization in MPI", IEEE Cluster
2018. Processes that share a clock need no messages. Between processes with different clocks, the
pairs of a binomial tree exchange them; all pairs of a level do so at the same time.

`hpccomm.bench.perf.isolated` announces starts by this clock.
"""

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpccomm.clocks.offsets import SAME, ClockLine, Offset, bounded

EXCHANGES = 100
"""Messages to the other clock and back in one reading: a few of them meet no delay."""


def kernel_clock() -> str:
    """Return a name that is the same for all processes that read one ``CLOCK_MONOTONIC``; empty if unknown.

    It is one clock for all processors and processes of a system (clock_gettime(2)), except that a time
    namespace has an offset of its own (time_namespaces(7)).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return ""


class ClockRanks(Protocol):
    """What the ranks compare their clocks by: a communicator."""

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
        Of the ranks.
    clock : callable
        This rank's own clock, in seconds.
    name : str, optional
        Ranks that give the same name read the same clock. By default those whose kernel is the same do.
        With an empty name, no other rank does.
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
        # Each clock has a reader that exchanges messages: the first rank that has it.
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

        Times between this reading and the one before are known best.
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
            In seconds.
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
        """Return how far the clock of a rank is ahead, which answers."""
        comm, clock, out = self._comm, self.clock, np.empty(1)
        exchanges = np.empty((EXCHANGES, 3))
        for exchange in exchanges:
            asked = clock()
            comm.send(out, rank)
            comm.recv(out, rank)
            exchange[:] = asked, out[0], clock()
        return bounded(exchanges)

    def _answer(self, rank: int) -> None:
        """Tell a rank the time, as often as it asks."""
        comm, clock, out = self._comm, self.clock, np.empty(1)
        for _ in range(EXCHANGES):
            comm.recv(out, rank)
            out[0] = clock()
            comm.send(out, rank)


def _parent(reader: int) -> int:
    """Return the reader whose clock a reader asks: its number without the lowest bit that is set."""
    return reader & (reader - 1)
