"""Cases: atomic calls on windows: fetching, and swapping on a condition."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ReduceOp, WindowOp
from hpccomm.dtypes import REDUCIBLE
from hpccomm.reductions import meaningful
from hpccomm.testing.conformance import capabilities
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal
from hpccomm.testing.conformance.inputs import LOCATED, RECORD, moved, reduced, reduction

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpccomm.communicator import Communicator

    Array = npt.NDArray[Any]

ATOMICS = Behaviours("atomics", (capabilities.WINDOWS,))

OPS = tuple(op for op in ReduceOp if op is not ReduceOp.AVG)
TURNS = 30


@ATOMICS.behaviour()
def tickets(comm: Communicator) -> None:
    """Ranks that hammer a counter each get another ticket, all of them in turn, and none is lost.

    Some draw by `fetch_and_op`, some by `compare_and_swap`, and `accumulate` counts beside them: all of them
    are atomic with each other.
    """
    memory = np.zeros(2, np.int64)
    drawn = []
    with comm.window(memory) as window:
        for turn in range(TURNS):
            if (comm.rank + turn) % 3:
                drawn.append(int(window.fetch_and_op(1, 0)))
            else:
                seen = window.fetch_and_op(0, 0, op=WindowOp.NO_OP)
                while (value := window.compare_and_swap(seen + 1, seen, 0)) != seen:
                    seen = value
                drawn.append(int(seen))
            window.accumulate(np.array([1, 1]), 0)
            drawn.append(int(window.fetch_and_op(np.array([0, 1]), 0, op=ReduceOp.SUM)[0]))
        window.fence()
        total = TURNS * comm.size
        if comm.rank == 0:
            equal(memory, np.array([2 * total, 2 * total]), "counts")
        assert drawn == sorted(drawn), f"a ticket came after a later one: {drawn}"
        tickets = [ticket for each in comm.all_gather_object(drawn[::2]) for ticket in each]
        assert len(set(tickets)) == total, f"two ranks drew the same of {sorted(tickets)}"


@ATOMICS.behaviour()
def a_lock_of_ones_own(comm: Communicator) -> None:
    """A lock made of `compare_and_swap` excludes other ranks between a read and a later `put`."""
    memory = np.zeros(2)
    owner = comm.size - 1
    with comm.window(memory) as window:
        for _ in range(5):
            while window.compare_and_swap(comm.rank + 1.0, 0.0, owner) != 0.0:
                pass
            count = window.get(np.empty(1), owner, 1)
            window.put(count + 1.0, owner, 1)
            window.flush(owner)
            freed = window.compare_and_swap(0.0, comm.rank + 1.0, owner)
            assert freed == comm.rank + 1.0, f"{freed} held the lock of rank {comm.rank}"
        window.fence()
        equal(memory, np.array([0.0, 5.0 * comm.size if comm.rank == owner else 0.0]), "the count")


@ATOMICS.behaviour(dtype=REDUCIBLE)
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
                    same(fetched[rank], reduction(op, [source[i] for i in (ranks, *order[:at])]))
                    for at, rank in enumerate(order)
                )
                for order in itertools.permutations(range(ranks))
            ), f"{op.name}: no order of the ranks gives {fetched}"


def same(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bytes."""
    return a.tobytes() == b.tobytes()


@ATOMICS.behaviour(dtype=(np.dtype(np.float32), RECORD, np.dtype("datetime64[ns]")))
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


@ATOMICS.behaviour()
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
        one = window.fetch_and_op(np.float64(1.0), comm.rank)
        assert isinstance(one, np.float64), f"a number gives {one!r}"
        assert one == np.hypot(5.0, 1.0), f"a number gives {one!r}"
        memory[0], nan = np.nan, np.float64(np.nan)
        assert np.isnan(window.compare_and_swap(0.0, nan, comm.rank)), "NaN"
        assert np.isnan(window.compare_and_swap(-0.0, 1.0, comm.rank)) == 0, "was written"


@ATOMICS.behaviour()
def values_with_their_indices(comm: Communicator) -> None:
    """`accumulate` finds the best value of all ranks, and `fetch_and_op` returns the best so far."""
    source = reduced(ReduceOp.MINLOC, comm.size + 1, (20,), LOCATED["float64"])
    memory = source[comm.size].copy()
    with comm.window(memory) as window:
        window.accumulate(source[comm.rank], 0, op=ReduceOp.MINLOC)
        window.fence()
        best = reduction(ReduceOp.MINLOC, source)
        equal(window.fetch_and_op(source[comm.rank], 0, op=ReduceOp.MINLOC), best, "fetched")
        window.fence()
        equal(memory, best if comm.rank == 0 else source[comm.size], "accumulated")


@ATOMICS.behaviour()
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
