"""Cases of `OneSided`: windows, their locks and signals, by shared memory and without it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpccomm import CommOptions, ReduceOp
from hpccomm.communicator import Communicator
from hpccomm.testing.conformance.case import Behaviours, equal
from hpccomm.testing.conformance.collectives import another
from hpccomm.testing.conformance.oracle import RECORD, moved, poison, reduction
from hpccomm.testing.conformance.transport import around

WINDOW = Behaviours("window", "windows")

MEMORY = ("auto", "off")
"""Values of `CommOptions.shared_memory`: ranks of a node reach each other's memory, or use `OneSided` alone."""


@contextmanager
def reaching(comm: Communicator, memory: str) -> Iterator[Communicator]:
    """Yield a communicator whose `shared_memory` option is `memory`, one of `MEMORY`; collective over `comm`."""
    if memory == "auto":
        yield comm
        return
    with another(comm, options=CommOptions(self_check=False, shared_memory=memory)) as other:
        yield other


@WINDOW.behaviour(memory=MEMORY, dtype=(np.dtype(np.float32), np.dtype(np.int8), RECORD))
def put_round_a_ring(comm: Communicator, memory: str, dtype: np.dtype[Any]) -> None:
    """A put to any rank has arrived when its signal has; x may be changed as soon as `put` returns."""
    source = moved(comm.size, (5, 3), dtype)
    mine = np.stack([poison(source[0])] * 4)
    expected = mine.copy()
    with reaching(comm, memory) as on, on.window(mine) as window:
        for step in range(comm.size):
            right, left = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
            x = source[comm.rank].copy()
            window.put(x, right, 15)
            x[...] = source[right]
            window.signal(right)
            window.wait_signal(left)
            expected[1] = source[left]
            equal(mine, expected, f"step {step}")
            window.fence()


@WINDOW.behaviour(memory=MEMORY)
def get_from_every_rank(comm: Communicator, memory: str) -> None:
    """Each rank reads parts of every rank's memory. All sizes differ, and rank 0 has no memory."""
    every = [np.arange(2 * rank, dtype=np.int64) + 100 * rank for rank in range(comm.size)]
    own = every[comm.rank].copy()
    with reaching(comm, memory) as on, on.window(own) as window:
        assert window.sizes == tuple(each.size for each in every), "sizes"
        for rank in range(comm.size):
            for offset in (0, 1, 2 * rank):
                out = np.full(max(0, every[rank].size - offset), -1)
                assert window.get(out, rank, min(offset, every[rank].size)) is out, "out"
                equal(out, every[rank][offset:], f"of rank {rank} from {offset}")
        window.fence()
        equal(own, every[comm.rank], "the own memory")


@WINDOW.behaviour(memory=MEMORY, length=(200_003, 1_300_001), registered=(False, True))
def large_parts(comm: Communicator, memory: str, length: int, registered: bool) -> None:
    """Megabytes arrive whole, also when all ranks send at once."""
    source = moved(comm.size, (length,), np.float32)
    right, left = around(comm)
    make: Any = comm.empty if registered and comm.rank % 2 == 0 else np.empty
    mine, out = make(length + 2, np.float32), make(length, np.float32)
    mine[:] = -1
    with reaching(comm, memory) as on, on.window(mine) as window:
        window.put(source[comm.rank], right, 1)
        window.fence()
        equal(mine[1:-1], source[left], "put")
        equal(mine[[0, -1]], np.full(2, -1, np.float32), "beside it")
        window.get(out, left, 1)
        equal(out, source[(left - 1) % comm.size], "get")
        window.fence()
        window.accumulate(source[comm.rank], 0, 1)
        window.fence()
        added = reduction(ReduceOp.SUM, [*source, source[left]]) if comm.rank == 0 else source[left]
        equal(mine[1:-1], added, "accumulate")


@WINDOW.behaviour()
def signals_are_counted(comm: Communicator) -> None:
    """Each wait takes one signal of its rank and index; signals of other indices are not taken."""
    right, left = around(comm)
    memory = np.zeros(4, np.int64)
    with comm.window(memory) as window:
        for turn in range(3):
            window.put(np.array([turn + 1]), right, turn)
            window.signal(right, index=7)
        time.sleep(0.02)  # the signals so far have come
        window.put(np.array([4]), right, 3)
        window.signal(right)
        window.wait_signal(left)
        equal(memory, np.array([1, 2, 3, 4]))
        for _ in range(3):
            window.wait_signal(left, index=7)
        for call in (window.signal, window.wait_signal):  # a rank's own are counted as well
            call(comm.rank, index=7)
            call(comm.rank, index=7)
        # Signals are not confused with messages or with the signals of another window.
        with comm.window(memory) as other:
            other.signal(right)
            sent = comm.send(memory, right, async_op=True)
            window.signal(right)
            window.wait_signal(left)
            other.wait_signal(left)
            comm.recv(np.empty(4, np.int64), left)
            sent.wait()


@WINDOW.behaviour(memory=MEMORY)
def a_lock_of_ones_own(comm: Communicator, memory: str) -> None:
    """A lock made of `compare_and_swap` excludes other ranks between a read and a later `put`."""
    mine, owner = np.zeros(2), comm.size - 1
    with reaching(comm, memory) as on, on.window(mine) as window:
        for _ in range(5):
            while window.compare_and_swap(comm.rank + 1.0, 0.0, owner) != 0.0:
                pass
            count = window.get(np.empty(1), owner, 1)
            window.put(count + 1.0, owner, 1)
            window.flush(owner)
            freed = window.compare_and_swap(0.0, comm.rank + 1.0, owner)
            assert freed == comm.rank + 1.0, f"{freed} held the lock of rank {comm.rank}"
        window.fence()
        equal(mine, np.array([0.0, 5.0 * comm.size if comm.rank == owner else 0.0]), "the count")
