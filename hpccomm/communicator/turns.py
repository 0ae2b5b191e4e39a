"""Counters, mutexes and turns, by which ranks do something one after another. `Communicator` makes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from hpccomm.calls.core import Core
from hpccomm.communicator import memory, windows
from hpccomm.contracts.signature import CallFingerprint, compared, with_peers
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.reductions import ReduceOp, WindowOp
from hpccomm.runtime.progress import Operation
from hpccomm.runtime.recorder import LABEL
from hpccomm.runtime.traffic import TURNS
from hpccomm.settings import check_int
from hpccomm.spelling import Hinting
from hpccomm.topology import check_rank

_NEXT, _SERVED = 0, 1
"""Offsets of a mutex's three numbers: the next ticket, and the ticket that is served. Behind the latter stands the rank
that holds the mutex, plus 1; 0 if none does."""

_ONE = np.ones(1, np.int64)

_OF_ALL = compared("in_turn", {"operation": "in_turn"})


class _Shared(Hinting):
    """Numbers in the memory of rank `root`, which all ranks read and write by a window. Made by all ranks together."""

    def __init__(self, core: Core, numbers: int, root: int) -> None:
        self._root, self._rank = check_rank("root", root, core.backend.size), core.backend.rank
        own = memory.empty(core, numbers if self._rank == root else 0, np.int64)
        own[:] = 0
        self._window = windows.make(core, own)
        self._number = core.calls.number  # equal on all ranks, and unique

    def close(self) -> None:
        """End it. Collective; blocks; idempotent. Without it, the communicator's `finalize` ends it."""
        self._window.close()


class Counter(_Shared):
    """An integer that all ranks count up. Made by `Communicator.counter`; a context manager that closes it."""

    def next(self, step: int = 1, *, timeout: float | None = None) -> int:
        """Add `step` to the counter, and return its value before that. Blocks until it is done.

        No two calls, on any ranks, get the same number, unless `step` is 0. The rank that holds the counter
        may compute meanwhile, as with windows.

        Parameters
        ----------
        step : int
            The number to add; 0 only reads.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        UsageError
            If an argument does not fit, or the counter is closed.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return int(self._window.fetch_and_op(check_int("step", step), self._root, timeout=timeout))

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.close()


class Mutex(_Shared):
    """A lock that one rank at a time holds, in the order in which they ask. Made by `Communicator.mutex`.

    ``with mutex:`` holds it during the block.
    """

    @property
    def held(self) -> bool:
        """Whether this rank holds the mutex."""
        return self._number in self._window._core.calls.holds  # noqa: SLF001

    def acquire(self, *, timeout: float | None = None) -> None:
        """Take the mutex. Blocks until the ranks that asked before have released it.

        It is the ticket lock of J. M. Mellor-Crummey, M. L. Scott, "Algorithms for scalable synchronization
        on shared-memory multiprocessors", 1991.

        Parameters
        ----------
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        UsageError
            If this rank holds the mutex already, or the mutex is closed.
        CommunicationError
            If the call fails or its deadline passes. The message names the rank that holds the mutex. If that rank has
            ended, the error is a `PeerLost`.
        """
        window, state = self._window, np.zeros(2, np.int64)
        with window._call("acquire"):  # noqa: SLF001 (this class is made of windows)
            if self.held:
                raise UsageError("this rank holds the mutex; release it before")
            try:
                window._issue("acquire", 0, self._taken(state), (), timeout)  # noqa: SLF001
            except CommunicationError as error:
                if state[1]:
                    error.args = (f"{error.args[0]}; rank {state[1] - 1} holds the mutex",)
                raise
            window._core.calls.holds.add(self._number)  # noqa: SLF001

    def release(self, *, timeout: float | None = None) -> None:
        """Give the mutex to the rank that asked next. Blocks until it is done.

        Parameters
        ----------
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        UsageError
            If this rank does not hold the mutex, or the mutex is closed.
        CommunicationError
            If the call fails or its deadline passes.
        """
        window = self._window
        with window._call("release"):  # noqa: SLF001
            if not self.held:
                raise UsageError("this rank does not hold the mutex; acquire it before")
            window._core.calls.holds.discard(self._number)  # noqa: SLF001
            served = np.array([1, -1 - self._rank])
            steps = self._fold(served, _SERVED, ReduceOp.SUM, np.empty_like(served))
            window._issue("release", 0, steps, (), timeout, self._root)  # noqa: SLF001

    def _taken(self, state: np.ndarray) -> Steps:
        """Draw a ticket, and wait until it is served. `state` holds the served ticket and the holder plus 1."""
        ticket, holder = np.empty(1, np.int64), 0
        yield from self._fold(_ONE, _NEXT, ReduceOp.SUM, ticket)
        while True:
            yield from self._fold(state, _SERVED, WindowOp.NO_OP, state)
            if state[0] == ticket[0]:
                break
            if state[1] != holder:
                holder = int(state[1])
                self._waits_for(holder - 1)
            yield False
        state[:] = 0, self._rank + 1
        yield from self._fold(state, _SERVED, ReduceOp.SUM, np.empty_like(state))

    def _waits_for(self, holder: int) -> None:
        """Note that the call under way waits for rank `holder`, or with -1 for any rank: a late rank is asked."""
        entry = self._window._core.calls.current  # noqa: SLF001
        assert entry is not None
        ends = (("held", holder, self._number),) if holder >= 0 else ()
        entry[LABEL] = with_peers("acquire", 0, tuple(peer for _, peer, _ in ends), ends)

    def _fold(self, x: np.ndarray, start: int, op: ReduceOp | WindowOp, old: np.ndarray) -> Steps:
        return self._window._access.fold(x, self._root, start, op, old)  # noqa: SLF001

    def __enter__(self) -> "Mutex":
        self.acquire()
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if self._window._core.calls.gate.error is None:  # noqa: SLF001 (else no rank can take it)
            self.release()


@contextmanager
def turn(core: Core, timeout: float | None) -> Iterator[None]:
    """Run the block on one rank after another; see `Communicator.in_turn`. Collective; blocks."""
    rank, last, control = core.backend.rank, core.backend.size - 1, core.control
    cell = core.calls.traffic.cell
    of_all = _OF_ALL._replace(ends=(("src", rank - 1, TURNS),) if rank else ())

    def come() -> Steps:
        if rank:
            cell(rank - 1, TURNS)[1] += 1
            yield from control.receive_steps(rank - 1)

    _part(core, of_all, come, timeout)
    try:
        yield
    finally:
        if core.calls.gate.error is None:
            # First pass the turn on: the next rank runs its block before all ranks leave together.
            if rank < last:
                cell(rank + 1, TURNS)[0] += 1
                passed = with_peers("in_turn", 0, (rank + 1,))
                _part(core, passed, lambda: control.send_steps(b"", rank + 1), timeout)
            _part(core, of_all, lambda: control.all_gather_steps(b""), timeout)


def _part(
    core: Core, label: CallFingerprint, start: Callable[[], Steps], timeout: float | None
) -> None:
    with core.outside_batch("in_turn"):
        operation = core.check.operation(Operation(label, start, ordered=not label.peers))
        core.calls.run_operation(operation, core.limit(timeout))
