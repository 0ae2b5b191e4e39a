"""Windows as a program sees them: what is folded, what is closed, and what does not fit."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

import hpccomm
from hpccomm import Communicator, ReduceOp, WindowOp
from hpccomm.dtypes import REDUCIBLE
from hpccomm.errors import CollectiveTimeout, CommunicatorAborted, RankMismatch, UsageError
from hpccomm.reductions import meaningful
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.oracle import RECORD, moved, reduced, reduction

Array = npt.NDArray[Any]

WINDOWS = Behaviours("windows", "windows")

OPS = tuple(op for op in ReduceOp if op is not ReduceOp.AVG)


def larger(a: Array, b: Array) -> Array:
    """Return the larger of each two elements."""
    return np.where(a > b, a, b)


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
        window.fence()
        expected = np.zeros(memory.size)
        expected[-1:] = comm.size
        equal(memory, expected)


@WINDOWS.behaviour()
def several_windows(comm: Communicator) -> None:
    """Windows at once, of several dtypes, over parts of one array, and one within a group."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    memory = np.zeros(8, np.int64)
    whole, half, small = np.zeros(3, np.int16), memory[4:], memory[:4]
    with comm.window(whole) as a, comm.window(half) as b, comm.window(small) as c:
        work = comm.all_reduce(np.ones(5), async_op=True)  # other calls do not disturb them
        b.put(np.full(4, comm.rank), right)
        a.put(np.full(3, comm.rank, np.int16), right)
        c.accumulate(np.full(4, comm.rank), 0)
        for window in (c, b, a):
            window.fence()
            comm.broadcast(np.ones(3))
        equal(work.wait(), np.full(5, float(comm.size)), "all_reduce")
        equal(whole, np.full(3, left, np.int16), "int16")
        total = sum(range(comm.size)) if comm.rank == 0 else 0
        equal(memory, np.array([total] * 4 + [left] * 4), "halves")
    node = comm.node_comm
    with node.window(memory) as window:
        window.put(np.full(8, 7), (node.rank + 1) % node.size)
        window.fence()
        equal(memory, np.full(8, 7), "within the node")


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
    duplicate = comm.dup()  # a block left by an exception is closed with the communicator
    with raises(ZeroDivisionError), duplicate.window(memory) as window:
        window.put(np.ones(1), (comm.rank + 1) % comm.size, 1)
        raise ZeroDivisionError
    assert not window.closed, "open"
    duplicate.finalize()
    assert window.closed, "closed"
    equal(memory, np.array([3.0, 1.0]), "what was put is there")
    with raises(UsageError):
        window.put(np.ones(1), 0)


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


@WINDOWS.behaviour(dtype=REDUCIBLE)
def fetch_by_every_reduction(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Fetched values are folds of the earlier contributions, in some order of the ranks."""
    ranks, length = min(comm.size, 3), 5
    memory = np.zeros(length + 2, dtype)
    with comm.window(memory) as window:
        for op in OPS:
            if not meaningful(op, dtype):
                continue
            # One contribution more than ranks: what was there before.
            source = reduced(op, ranks + 1, (length,), dtype)
            memory[1:-1] = source[ranks]
            window.fence()
            old = None
            if comm.rank < ranks:
                old = window.fetch_and_op(source[comm.rank], 0, 1, op)
            fetched = comm.all_gather_object(old)[:ranks]
            window.fence()
            expected = reduction(op, source) if comm.rank == 0 else source[ranks]
            equal(memory[1:-1].copy(), expected, f"{op.name}")
            assert any(
                all(
                    fetched[rank].tobytes()
                    == reduction(op, [source[i] for i in (ranks, *order[:at])]).tobytes()
                    for at, rank in enumerate(order)
                )
                for order in itertools.permutations(range(ranks))
            ), f"{op.name}: no order of the ranks gives {fetched}"


@WINDOWS.behaviour(dtype=(np.dtype(np.float32), RECORD, np.dtype("datetime64[ns]")))
def replace_and_read(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """`REPLACE` writes and `NO_OP` reads, elements of any dtype; so does `accumulate` with `REPLACE`."""
    source = moved(comm.size, (3, 2), dtype)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    memory = source[comm.rank].copy()
    with comm.window(memory) as window:
        out = np.empty(6, dtype)
        assert window.fetch_and_op(source[comm.rank], right, op=WindowOp.REPLACE, out=out) is out
        equal(out.reshape(3, 2), source[right], "what was there")
        window.fence()
        equal(memory, source[left], "what was written")
        window.fetch_and_op(out, right, op=WindowOp.NO_OP, out=out)
        equal(out.reshape(3, 2), source[comm.rank], "the old value, in place")
        window.fence()
        window.accumulate(source[comm.rank][:1], comm.rank, op=WindowOp.REPLACE)
        window.fence()
        equal(memory[:1], source[comm.rank][:1], "replaced by accumulate")
        first = source[comm.rank][0, :1]
        window.fence()
        for compare in (moved(1, (1,), dtype, 99)[0], first.copy()):
            old = window.compare_and_swap(source[left][1, :1], compare, comm.rank)
            equal(old, first, "what compare_and_swap returns")
        equal(memory[0, :1], source[left][1, :1], "swapped")
        window.fence()


@WINDOWS.behaviour()
def fetch_by_other_reductions(comm: Communicator) -> None:
    """A factor multiplies x first, a function of two arrays folds, and `out` may be x."""
    memory = np.full(3, 2.0)
    with comm.window(memory) as window:
        x = np.array([1.0, 2.0, 4.0])
        old = window.fetch_and_op(x, comm.rank, op=hpccomm.premul_sum(3.0))
        equal(old, np.full(3, 2.0), "premul_sum")
        equal(memory, np.array([5.0, 8.0, 14.0]), "premul_sum")
        assert window.fetch_and_op(x, comm.rank, op=np.hypot, out=x) is x, "the result is out"
        equal(x, np.array([5.0, 8.0, 14.0]), "in place")
        equal(memory, np.hypot([5.0, 8.0, 14.0], [1.0, 2.0, 4.0]), "hypot")
        window.accumulate(np.full(3, 2.0), comm.rank, op=hpccomm.premul_sum(-3.0))
        window.accumulate(np.full(3, 0.5), comm.rank, op=larger)
        window.flush(comm.rank)
        folded = np.hypot([5.0, 8.0, 14.0], [1.0, 2.0, 4.0]) - 6.0
        equal(memory, np.maximum(folded, 0.5), "accumulate, in the order of the calls")
        window.put(np.hypot([5.0, 8.0, 14.0], [1.0, 2.0, 4.0]), comm.rank)
        window.flush(comm.rank)
        one = window.fetch_and_op(np.float64(1.0), comm.rank)
        assert isinstance(one, np.float64), f"a number gives {one!r}"
        assert one == np.hypot(5.0, 1.0), f"a number gives {one!r}"
        memory[0], nan = np.nan, np.float64(np.nan)
        assert np.isnan(window.compare_and_swap(0.0, nan, comm.rank)), "NaN"
        assert np.isnan(window.compare_and_swap(-0.0, 1.0, comm.rank)) == 0, "was written"


@WINDOWS.behaviour()
def fetch_large_parts(comm: Communicator) -> None:
    """Parts of many blocks are folded and fetched as a whole: no half of another rank's is seen."""
    length = 700_001
    memory = np.zeros(length)
    with comm.window(memory) as window:
        for _ in range(2):
            old = window.fetch_and_op(np.ones(length), 0)
            assert old[0] == old[-1] == old.mean(), "a part of another call"
        window.fence()
        equal(memory, np.full(length, 2.0 * comm.size if comm.rank == 0 else 0.0))
