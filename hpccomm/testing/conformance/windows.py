"""Cases: windows: one-sided communication, checked against NumPy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import CommOptions, ReduceOp
from hpccomm.dtypes import REDUCIBLE
from hpccomm.errors import (
    BufferMismatch,
    CollectiveTimeout,
    CommunicatorAborted,
    RankMismatch,
    UsageError,
)
from hpccomm.reductions import meaningful
from hpccomm.testing.conformance import atomics, capabilities
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.inputs import RECORD, moved, poison, reduced, reduction

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpccomm.communicator import Communicator

    Array = npt.NDArray[Any]

WINDOWS = Behaviours("windows", (capabilities.WINDOWS,))

OPS = tuple(op for op in ReduceOp if op is not ReduceOp.AVG)


@WINDOWS.behaviour(dtype=(np.dtype(np.float32), np.dtype(np.int8), RECORD))
def put_round_a_ring(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """A put is complete after the signal, for any rank, and x may be changed before that."""
    source = moved(comm.size, (5, 3), dtype)
    memory = np.stack([poison(source[0])] * 4)
    expected = memory.copy()
    with comm.window(memory) as window:
        for step in range(comm.size):
            right, left = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
            x = source[comm.rank].copy()
            window.put(x, right, 15)
            x[...] = source[right]
            window.signal(right)
            window.wait_signal(left)
            expected[1] = source[left]
            equal(memory, expected, f"step {step}")
            window.fence()


@WINDOWS.behaviour()
def get_from_every_rank(comm: Communicator) -> None:
    """Each rank reads parts of every rank's memory; all have different sizes."""
    memory = [np.arange(3 + 2 * rank, dtype=np.int64) + 100 * rank for rank in range(comm.size)]
    own = memory[comm.rank].copy()
    with comm.window(own) as window:
        assert window.sizes == tuple(each.size for each in memory), "sizes"
        assert window.dtype == np.int64, "dtype"
        for rank in range(comm.size):
            for offset in (0, 1, 2 + 2 * rank):
                out = np.full((1, memory[rank].size - offset), -1)
                assert window.get(out, rank, offset) is out, "the result is out"
                equal(out[0], memory[rank][offset:], f"of rank {rank} from {offset}")
        window.fence()
        equal(own, memory[comm.rank], "the own memory")


@WINDOWS.behaviour(length=(200_003, 1_300_001))
def large_parts(comm: Communicator, length: int) -> None:
    """Megabytes arrive whole, between any two ranks and in both directions at once."""
    source = moved(comm.size, (length,), np.float32)
    memory = np.full(length + 2, -1, np.float32)
    expected = memory.copy()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.window(memory) as window:
        window.put(source[comm.rank], right, 1)
        window.fence()
        expected[1:-1] = source[left]
        equal(memory, expected, "put")
        out = np.empty(length, np.float32)
        window.get(out, left, 1)
        equal(out, source[(left - 1) % comm.size], "get")


@WINDOWS.behaviour(dtype=REDUCIBLE)
def accumulate_from_all_at_once(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Every rank folds into the same elements of every rank; no contribution is lost."""
    size, length = comm.size, 37
    memory = np.zeros(length + 2, dtype)
    with comm.window(memory) as window:
        for op in OPS:
            if not meaningful(op, dtype):
                continue
            # One contribution more than ranks: what was there before.
            source = reduced(op, size + 1, (length,), dtype)
            memory[1:-1] = source[size]
            window.fence()
            for step in range(size):
                window.accumulate(source[comm.rank], (comm.rank + step) % size, 1, op)
            window.fence()
            equal(memory[1:-1].copy(), reduction(op, source), f"{op.name}")
            assert memory[0] == memory[-1] == 0, f"{op.name} beside the elements"


def larger(a: Array, b: Array) -> Array:
    """Return the larger of each two elements."""
    return np.where(a > b, a, b)


@WINDOWS.behaviour()
def accumulate_by_other_reductions(comm: Communicator) -> None:
    """A factor multiplies x first; a function of two arrays folds; x stays as it is."""
    memory = np.full(6, 3.0)
    with comm.window(memory) as window:
        x = np.arange(6.0)
        for rank in range(comm.size):
            window.accumulate(x, rank, op=hpccomm.premul_sum(2.0))
        window.fence()
        equal(memory, 3.0 + 2.0 * comm.size * np.arange(6.0), "premul_sum")
        window.fence()
        memory[:] = -1.0
        window.fence()
        for rank in range(comm.size):
            window.accumulate(x + comm.rank, rank, op=larger)
        window.fence()
        equal(memory, np.arange(6.0) + comm.size - 1, "the larger")
        equal(x, np.arange(6.0), "x")


@WINDOWS.behaviour(min_size=2)
def accumulate_many_times(comm: Communicator) -> None:
    """Ranks that accumulate one element again and again come to the number of times."""
    memory = np.zeros(3, np.int64)
    with comm.window(memory) as window:
        for turn in range(40):
            window.accumulate(np.array([1, comm.rank]), 0, 1)
            window.accumulate(np.array([turn]), comm.size - 1)
        window.fence()
        ranks = sum(range(comm.size))
        expected = np.zeros(3, np.int64)
        if comm.rank == 0:
            expected[1:] = 40 * comm.size, 40 * ranks
        if comm.rank == comm.size - 1:
            expected[0] = 780 * comm.size
        equal(memory, expected)


@WINDOWS.behaviour()
def accumulate_large_parts(comm: Communicator) -> None:
    """Parts that are folded block by block, also narrow floats."""
    for dtype, length in ((np.dtype(np.float64), 700_001), (np.dtype(np.float16), 300_001)):
        source = reduced(ReduceOp.SUM, comm.size + 1, (length,), dtype)
        memory = source[comm.size].copy()
        with comm.window(memory) as window:
            window.accumulate(source[comm.rank], 0)
            window.fence()
            expected = reduction(ReduceOp.SUM, source) if comm.rank == 0 else source[comm.size]
            equal(memory, expected, f"{dtype}")


@WINDOWS.behaviour()
def fences_part_epochs(comm: Communicator) -> None:
    """Each epoch sees all data of the last one, and none of the next one."""
    memory = np.full((2, comm.size), -1, np.int32)
    with comm.window(memory) as window:
        for epoch in range(8):
            half = epoch % 2
            for rank in range(comm.size):
                x = np.array([10 * epoch + comm.rank], np.int32)
                window.put(x, rank, half * comm.size + comm.rank)
            window.fence()
            equal(memory[half], 10 * epoch + np.arange(comm.size, dtype=np.int32), f"{epoch}")


@WINDOWS.behaviour()
def what_was_flushed_is_there(comm: Communicator) -> None:
    """After `flush` and a barrier of the communicator the target has what was put."""
    memory = np.full(comm.size, -1)
    with comm.window(memory) as window:
        for rank in range(comm.size):
            window.put(np.array([comm.rank]), rank, comm.rank)
        if comm.rank % 2:
            window.flush()
        else:
            for rank in range(comm.size):
                window.flush(rank)
        comm.barrier()
        out = np.full(comm.size, -1)
        window.get(out, comm.rank)
        equal(out, np.arange(comm.size))


@WINDOWS.behaviour()
def signals_are_counted(comm: Communicator) -> None:
    """Signals of one rank and index are taken one by one; other indices are other signals."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
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
        # They are not confused with messages or another window's signals.
        with comm.window(memory) as other:
            other.signal(right)
            sent = comm.send(memory, right, async_op=True)
            window.signal(right)
            window.wait_signal(left)
            other.wait_signal(left)
            comm.recv(np.empty(4, np.int64), left)
            sent.wait()


@WINDOWS.behaviour()
def empty_memory_and_parts(comm: Communicator) -> None:
    """A rank may have no memory, and a call no elements."""
    memory = np.zeros((comm.rank + 1) % comm.size, np.float64)
    with comm.window(memory) as window:
        nothing = np.empty((0, 2))
        for rank, size in enumerate(window.sizes):
            window.put(nothing, rank, size)
            window.get(nothing, rank)
            window.accumulate(nothing, rank)
            if size:
                window.accumulate(np.ones(1), rank, size - 1)
            else:
                with raises(BufferMismatch, "1 elements", "has 0"):
                    window.put(np.ones(1), rank)
        window.fence()
        expected = np.zeros(memory.size)
        expected[-1:] = comm.size
        equal(memory, expected)


@WINDOWS.behaviour()
def windows_by_messages_alone(comm: Communicator) -> None:
    """The same where ranks of a node do not reach each other's memory."""
    with another(comm, options=CommOptions(shared_memory="off")) as unshared:
        put_round_a_ring(unshared, np.dtype(np.float32))
        get_from_every_rank(unshared)
        large_parts(unshared, 1_300_001)
        accumulate_from_all_at_once(unshared, np.dtype(np.float16))
        accumulate_large_parts(unshared)
        fences_part_epochs(unshared)
        empty_memory_and_parts(unshared)
        if unshared.size > 1:
            accumulate_many_times(unshared)
        atomics.tickets(unshared)
        atomics.a_lock_of_ones_own(unshared)
        atomics.fetch_large_parts(unshared)


@WINDOWS.behaviour()
def registered_and_plain_memory(comm: Communicator) -> None:
    """Some ranks' memory is registered, or a part of such, and others' is plain."""
    length = 70_001
    source = moved(comm.size, (length,), np.float64)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(3):
        kind = (comm.rank + turn) % 3
        memory = np.empty(length) if kind == 0 else comm.empty(length + kind - 1, np.float64)
        memory = memory[kind - 1 :] if kind else memory
        memory[:] = 1.0
        x = comm.empty(length, np.float64) if turn % 2 else np.empty(length)
        x[:] = source[comm.rank]
        with comm.window(memory) as window:
            window.accumulate(x, right)
            window.fence()
            equal(memory, source[left] + 1.0, f"accumulate, turn {turn}")
            window.fence()
            window.put(x[5:], right, 5)
            window.signal(right)
            window.wait_signal(left)
            equal(memory[5:], source[left][5:], f"put, turn {turn}")
            window.fence()
            window.get(x, left)
            equal(x[5:], source[(left - 1) % comm.size][5:], f"get, turn {turn}")


@WINDOWS.behaviour()
def several_windows(comm: Communicator) -> None:
    """Windows at once, of several dtypes, over parts of one array, and one within a group."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    memory = np.zeros(8, np.int64)
    whole, half, small = np.zeros(3, np.int16), memory[4:], memory[:4]
    with comm.window(whole) as a, comm.window(half) as b, comm.window(small) as c:
        b.put(np.full(4, comm.rank), right)
        a.put(np.full(3, comm.rank, np.int16), right)
        c.accumulate(np.full(4, comm.rank), 0)
        for window in (c, b, a):
            window.fence()
        equal(whole, np.full(3, left, np.int16), "int16")
        total = sum(range(comm.size)) if comm.rank == 0 else 0
        equal(memory, np.array([total] * 4 + [left] * 4), "halves")
    node = comm.node_comm
    with node.window(memory) as window:
        window.put(np.full(8, 7), (node.rank + 1) % node.size)
        window.fence()
        equal(memory, np.full(8, 7), "within the node")


@WINDOWS.behaviour()
def windows_among_other_calls(comm: Communicator) -> None:
    """Collectives between one-sided calls, also asynchronous ones, do not disturb them."""
    memory, x = np.zeros(5), np.full(5, comm.rank + 1.0)
    total = float(sum(range(1, comm.size + 1)))
    with comm.window(memory) as window:
        work = comm.all_reduce(x, async_op=True)
        window.accumulate(np.ones(5), 0)
        window.fence()
        work.wait()
        equal(x, np.full(5, total), "all_reduce")
        comm.broadcast(memory)
        equal(memory, np.full(5, float(comm.size)), "broadcast of the window's own memory")
        comm.barrier()


@WINDOWS.behaviour()
def closing(comm: Communicator) -> None:
    """A closed window is refused, again and again, and its memory is an array as any."""
    memory = np.zeros(2)
    window = comm.window(memory)
    assert not window.closed, "open"
    window.put(np.ones(2), (comm.rank + 1) % comm.size)
    window.close()
    equal(memory, np.ones(2), "closing fences")
    window.close()
    assert window.closed, "closed"
    for call in (lambda: window.put(memory, 0), lambda: window.signal(0), window.fence):
        with raises(UsageError, "closed"):
            call()
    memory[:] = 3


@WINDOWS.behaviour()
def finalize_closes(comm: Communicator) -> None:
    """A block left by an exception is closed with the communicator."""
    memory = np.zeros(comm.size)
    duplicate = comm.dup()
    with raises(ZeroDivisionError), duplicate.window(memory) as window:
        window.put(np.ones(1), (comm.rank + 1) % comm.size, comm.rank)
        raise ZeroDivisionError
    assert not window.closed, "open"
    duplicate.finalize()
    assert window.closed, "closed"
    assert memory.sum() == 1, "what was put is there"
    with raises(UsageError):
        window.put(np.ones(1), 0)


@WINDOWS.behaviour(min_size=2)
def windows_that_do_not_fit(comm: Communicator) -> None:
    """Memory that cannot be a window, or of another dtype, raises on every rank."""
    last = comm.size - 1
    wrong: tuple[tuple[Any, type[BaseException], str], ...] = (
        ([1.0], UsageError, "numpy.asarray"),
        (np.zeros((2, 2))[:, 0], UsageError, "contiguous"),
        (np.zeros(2, np.float32), RankMismatch, "float32"),
    )
    for x, error, word in wrong:
        with raises(error if comm.rank == last else RankMismatch, word):
            comm.window(x if comm.rank == last else np.zeros(2))
    with comm.window(np.zeros(2)) as window:
        window.fence()


@WINDOWS.behaviour(fails=True)
def wait_signal_has_a_deadline(comm: Communicator) -> None:
    """A signal that does not come is a `CollectiveTimeout`; then the communicator has failed."""
    window = comm.window(np.zeros(3))
    with raises(CollectiveTimeout, "wait_signal"):
        window.wait_signal(0, timeout=0.05)
    with raises(CommunicatorAborted):
        window.put(np.zeros(1), 0)
    window.close()
    assert window.closed, "closing is local then"
