"""Ranks as threads of one process: `hpccomm.testing.run_ranks`, for tests and notebooks.

On request the ranks' sends leave later, as a library's sends may. Then numbers that are written to the array of a send
before it is complete are sent. So a caller that does not wait for its sends sends wrong numbers, as it does over MPI.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from hpccomm.backends import seat
from hpccomm.backends.loopback import LoopbackTransport, make_world
from hpccomm.communicator.creation import new_comm
from hpccomm.contracts.transport import Request
from hpccomm.errors import CollectiveTimeout, CommunicatorAborted, UsageError
from hpccomm.runtime.engine import everyone
from hpccomm.settings import CommOptions, check_int, check_seconds

T = TypeVar("T")


POLLS = 1, 2, 4, 16
"""Numbers of polls after which a send may leave. A wait spins more often than that, so the delay costs microseconds."""


class LateTransport(LoopbackTransport):
    """A transport whose messages leave later, in their order. Every poll of the rank on it moves them on.

    Parameters
    ----------
    seed : int
        Seed of the random number of polls that each message takes. The same seed gives the same numbers.
    *its
        The arguments of `LoopbackTransport`.
    """

    def __init__(self, seed: int, *its: Any) -> None:
        super().__init__(*its)
        self._random = Random(f"{seed} {self.context} {self.rank}")
        self._lock = threading.Lock()
        self._under_way: list[Callable[[], object]] = []
        self._polls = 0  # until the first of them leaves

    def leaving(self, leave: Callable[[], object]) -> Request:
        """Begin a send. `leave` reads its array, and puts the message where the receiver finds it."""
        with self._lock:
            if not self._under_way:
                self._polls = self._random.choice(POLLS)
            self._under_way.append(leave)
        return self.moving(lambda: leave not in self._under_way)

    def moving(self, test: Callable[[], T]) -> Callable[[], T]:
        """Return a request, or a packet, whose test first moves the sends on."""

        def tested() -> T:
            with self._lock:
                self._polls -= 1
                if self._under_way and self._polls <= 0:
                    self._under_way[0]()
                    del self._under_way[0]
                    self._polls = self._random.choice(POLLS)
            return test()

        return tested


GRACE_SECONDS = 1.0
"""Seconds past the deadline that a call has to raise its own error, which tells more than that of `run_ranks`."""


def run_ranks(
    n: int,
    function: Callable[..., T],
    *args: Any,
    timeout: float = 60.0,
    ranks_per_node: int | None = None,
    options: CommOptions | None = None,
    backend: str = "loopback",
    late_sends: int | None = None,
) -> list[T]:
    """Run ``function(comm, *args)`` on `n` ranks that are threads of this process. Blocks.

    Parameters
    ----------
    n : int
        Number of ranks.
    function : callable
        Each rank calls it once, in its own thread, with its `Communicator`.
    *args
        Further arguments; all ranks get the same objects. They may all read one array. If a rank writes to memory that
        another rank gives to the same call, the first call of that kind raises `RankMismatch` on every rank;
        asynchronous calls, batches and messages are not checked.
    timeout : float
        Deadline of each call, and of the whole run, in seconds.
    ranks_per_node : int, optional
        Number of ranks that appear to share a node; None puts all ranks on one node.
    options : CommOptions, optional
        Options of the communicators.
    backend : str
        As in `new_comm`; a backend that runs on threads. ``"loopback"`` stages device arrays
        through host memory; ``"nccl"`` and ``"auto"`` use the devices that there are.
    late_sends : int, optional
        Seed of random delays of the sends, which then leave later, as over MPI: what is written to their arrays before
        their ``wait`` is sent. None: sends are not delayed.

    Returns
    -------
    list
        The result of `function` on each rank.

    Raises
    ------
    Exception
        The error of the first rank that failed, with a note that names the rank. The other ranks'
        communicators are then aborted.
    CollectiveTimeout
        If the whole run takes longer than `timeout`.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n is {n!r}; give a number of ranks of at least 1")
    if ranks_per_node is not None and check_int("ranks_per_node", ranks_per_node) < 1:
        raise UsageError(f"ranks_per_node is {ranks_per_node}; give at least 1, or None")
    limit = check_seconds("timeout", timeout)
    world = make_world(n, ranks_per_node)
    if late_sends is not None:
        world.transport = partial(LateTransport, check_int("late_sends", late_sends))
    results: list[Any] = [None] * n
    failures: list[tuple[int, BaseException]] = []

    def give_up(why: str) -> None:
        for each in everyone():
            there = getattr(each.backend, "world", None)
            if there is not None and there.token == world.token:
                rank = each.backend.rank
                each.fail(CommunicatorAborted(why, communicator=each.name, rank=rank))

    def rank_main(rank: int) -> None:
        seat.world, seat.rank, seat.opened = world, rank, 0
        try:
            with new_comm(backend, timeout=timeout, options=options) as comm:
                results[rank] = function(comm, *args)
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            failures.append((rank, error))
            give_up(f"rank {rank} raised {type(error).__name__}: {error}")
        finally:
            seat.world = None

    threads = [
        threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(n)
    ]
    for thread in threads:
        thread.start()
    # A call that hangs should end by its own deadline, since its error tells more.
    deadline = time.monotonic() + limit + GRACE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if late:
        give_up(f"ranks {late} were not done after {limit:g} s")
        for thread in threads:
            thread.join(1.0)
    if late and all(isinstance(error, CommunicatorAborted) for _, error in failures):
        raise CollectiveTimeout(
            f"run_ranks: ranks {late} were not done after {limit:g} s; they run on as daemon threads",
            operation="run_ranks",
            elapsed=limit,
            ranks=late,
        )
    if failures:
        # The errors of the other ranks follow from it: their communicators were aborted.
        rank, first = min(
            failures, key=lambda each: (isinstance(each[1], CommunicatorAborted), each[0])
        )
        first.add_note(f"raised on rank {rank} of run_ranks")
        raise first
    return results
