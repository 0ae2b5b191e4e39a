"""Numbers in place of arrays, beside mpi4py's calls on Python objects, and new arrays for reductions."""

import math

import numpy as np

import hpccomm
from hpccomm import Communicator, ReduceOp
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises

NUMBERS = Behaviours("numbers")


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
    assert comm.reduce(comm.rank + 1, size - 1, ReduceOp.PROD) == (
        math.factorial(size) if comm.rank == size - 1 else None
    ), "PROD"
    out = np.empty((), int)
    assert comm.scan(comm.rank, out=out, exclusive=True) is out, "an out"
    assert out == sum(range(comm.rank)), "exclusive"
    assert comm.broadcast(comm.rank, size - 1, out=out) is out, "an out"
    assert out == size - 1, "broadcast"
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
