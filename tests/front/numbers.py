"""Numbers in place of arrays, beside mpi4py's calls on Python objects, and new arrays for reductions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

NUMBERS = Behaviours("numbers")

KINDS: dict[str, Any] = {f"python_{kind.__name__}": kind for kind in (int, float, complex, bool)}
_OF_NUMPY = (
    *(np.bool_, np.int8, np.uint64, np.int64),
    *(np.float16, BFLOAT16.type, np.float32, np.float64, np.complex64),
)
KINDS |= {np.dtype(kind).name: kind for kind in _OF_NUMPY}


@NUMBERS.behaviour(name=KINDS)
def kinds(comm: Communicator, name: str) -> None:
    """What comes is a number of the given class: what Python or NumPy makes of it, as mpi4py does."""
    kind = KINDS[name]
    each = [kind(rank % 3) for rank in range(comm.size)]
    mine, total = each[comm.rank], sum(each[1:], each[0] if kind is not bool else 0)
    for _ in range(2):  # the first call of its kind, and the others
        came = comm.all_reduce(mine)
        assert (came, type(came)) == (total, type(total)), "all_reduce"
        if comm.mpi_comm is not None and kind is not BFLOAT16.type:
            assert came == comm.mpi_comm.allreduce(mine), "mpi4py"
        came = comm.reduce(mine, comm.size - 1, ReduceOp.PROD)
        assert came == (math.prod(each) if comm.rank == comm.size - 1 else None), "reduce"
        came = comm.broadcast(mine, comm.size - 1)
        assert (came, type(came)) == (each[-1], kind), "broadcast"
        prefix = sum(each[1 : comm.rank + 1], each[0])
        assert comm.scan(mine) == prefix, "scan"
        assert comm.all_reduce(mine, async_op=True).wait() == total, "asynchronous"
    out = np.empty(1, np.array(mine).dtype)
    assert comm.scan(mine, out=out, exclusive=True) is out, "an out"
    equal(out, np.array([sum(each[1 : comm.rank], each[0]) if comm.rank else 0], out.dtype), "out")


@NUMBERS.behaviour()
def operations(comm: Communicator) -> None:
    """Integers of Python's are exact, or refused; their average is what they divide to."""
    size = comm.size
    assert comm.all_reduce(comm.rank, ReduceOp.AVG) == (size - 1) / 2, "AVG of int"
    assert comm.all_reduce(np.int64(comm.rank), ReduceOp.AVG) == (size - 1) // 2, "AVG of int64"
    assert comm.all_reduce(comm.rank - 5, ReduceOp.MIN) == -5, "MIN"
    assert comm.all_reduce(comm.rank == 0, ReduceOp.MAX) is True, "MAX of bool"
    assert comm.all_reduce(1 << comm.rank, ReduceOp.BOR) == (1 << size) - 1, "BOR"
    assert comm.all_reduce(1, ReduceOp.BXOR) == size % 2, "BXOR"
    assert comm.all_reduce(0.5, hpccomm.premul_sum(4)) == 2.0 * size, "premul_sum"
    assert comm.all_reduce(comm.rank, lambda a, b: a * b) == 0, "a function"
    assert comm.all_reduce(True, np.add) == size, "NumPy's SUM"
    assert comm.all_reduce(np.int8(100)) == np.full(size, 100, np.int8).sum(dtype=np.int8), "wraps"
    largest = np.iinfo(np.int64).max // size
    assert comm.all_reduce(largest) == largest * size, "the largest"
    with raises(UsageError, str(largest + 1), "int64", "float(x)"):
        comm.all_reduce(largest + 1)
    with raises(UsageError, "int64"):
        comm.broadcast(1 << 63)
    with raises(UsageError, "x is None"):
        comm.broadcast(None)
    comm.all_reduce(0.5, timeout=30.0)


@NUMBERS.behaviour(min_size=2)
def different_kinds(comm: Communicator) -> None:
    """One rank has 0 where the others have 0.5: a named error, in the first call and in any other."""
    one = 0 if comm.rank == 0 else 0.5
    first = comm.dup()
    with raises(RankMismatch, "int64", "float64", "float(x)"):
        first.all_reduce(one, ReduceOp.MAX)
    second = comm.dup()
    for kind in (int, float):
        second.all_reduce(kind(comm.rank))
    with raises(RankMismatch, type(one).__name__, "float(x)"):
        second.all_reduce(one)


@NUMBERS.behaviour()
def plans(comm: Communicator) -> None:
    """A number is explained; a plan or a batch would have to fill it later."""
    assert comm.explain("all_reduce", 0.5).collective == "all_reduce"
    assert comm.all_reduce(1.0) == comm.size, "nothing was changed"
    for planned in (comm.plan, lambda *call: comm.plan(call[0], x=call[1])):
        with raises(UsageError, "array"):
            planned("all_reduce", 0.5)
    x = np.ones(3)
    with comm.batch():
        total = comm.all_reduce(x, out="new")
    equal(total - x, np.full(3, comm.size - 1.0), "a new array of a batch")
    with raises(UsageError, "batch()", "numpy.array(0.5)"), comm.batch():
        comm.all_reduce(0.5)
    with raises(UsageError, "0.5", "array"):
        comm.all_to_all(0.5)
