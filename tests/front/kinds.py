"""Numbers and arrays of every kind in every call: NumPy's or Python's value of what all ranks give, or one error on
every rank. No call gives other bytes. mpi4py's calls on objects add in the same way.
"""

from __future__ import annotations

import array
import enum
import math
from decimal import Decimal
from fractions import Fraction
from functools import partial, reduce
from operator import add
from typing import Any

import ml_dtypes
import numpy as np

import hpccomm
from hpccomm import Communicator, ReduceOp
from hpccomm.dtypes import REDUCIBLE
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises

KINDS = Behaviours("kinds")

Color = enum.IntEnum("Color", "RED GREEN BLUE")
Whole, Real = type("Whole", (int,), {}), type("Real", (float,), {})
DTYPES = ("?", "i1", "u8", "f2", "f8", "c8", "longlong", "longdouble", "clongdouble", "M8[s]", "m8[s]", "S2", "U2",
          "V3", [("a", "i4"), ("b", "f8")], *map(ml_dtypes.__dict__.get, ("bfloat16", "float8_e4m3fn", "int4",
          "float8_e8m0fnu")))  # fmt: skip
REDUCED = ("all_reduce", "scan", "reduce", "reduce_scatter")
OF_SCALARS = (*REDUCED[:3], "broadcast", "all_gather", "axis", "gather", "asynchronous")
"""Calls of those below that take scalars."""


def rows(rank: int, dtype: Any) -> Any:
    """Return an array that no other rank has."""
    return (np.arange(120).reshape(2, 60) % 2 + rank).astype(np.dtype(dtype))


NUMBERS = {each.__name__: each for each in (int, float, complex, Whole, Real)}
NUMBERS["IntEnum"] = lambda rank: Color(rank % 3 + 1)
SCALARS = {f"scalar of {d}": lambda rank, d=d: rows(rank, d)[0, 1] for d in DTYPES}
ARRAYS = {
    **{f"array of {d}": lambda rank, d=d: rows(rank, d) for d in DTYPES},
    "matrix": lambda rank: rows(rank, "f8").view(np.matrix),
    "memoryview": lambda rank: memoryview(rows(rank, "i4")),
    "array.array": lambda rank: array.array("d", range(rank, rank + 60)),
}
UNFIT = {
    **{repr(x): lambda _, x=x: x for x in (None, "ab", [1.5], Fraction(1, 2), Decimal(1))},
    **{d: lambda rank, d=d: rows(rank, "i4").astype(d) for d in ("O", "T", ">f8", ">M8[s]")},
    "object in a field": lambda _: np.zeros((2, 60), [("a", "O")]),
    "masked": lambda rank: np.ma.masked_equal(rows(rank, "f8"), 1),
    "strided": lambda rank: rows(rank, "f8")[:, ::-1],
}
EVERY = NUMBERS | SCALARS | ARRAYS | UNFIT


def calls(comm: Any, x: Any) -> dict[str, Any]:
    """Return the calls of a rank."""
    rank, size, like, at_root = comm.rank, comm.size, np.asarray(x), comm.rank == 1
    one, of_all = (np.empty((*lead, *like.shape), like.dtype) for lead in ((), (size,)))
    return {
        "all_reduce": partial(comm.all_reduce, x, out="new"),
        "scan": partial(comm.scan, x),
        "reduce": partial(comm.reduce, x, 1, out=one if at_root else None),
        "reduce_scatter": partial(comm.reduce_scatter, x, axis=-1),
        "broadcast": partial(comm.broadcast, x, 1, out="new"),
        "all_gather": partial(comm.all_gather, x, out=of_all if at_root else None),
        "axis": partial(comm.all_gather, x, axis=-1),
        "gather": partial(comm.gather, x, 1, out=of_all if at_root else None),
        "asynchronous": lambda: comm.gather(x, 1, axis=0, async_op=True).wait(),
        "send_recv": partial(comm.send_recv, x, (rank + 1) % size, one, (rank - 1) % size),
        "plan": lambda: comm.plan("all_gather", x)(),
        "all_gather_v": partial(comm.all_gather_v, x),
        "all_to_all": partial(comm.all_to_all, x, axis=-1),
    }


def truth(name: str, each: list[Any], rank: int) -> Any:
    """Return what a call gives, of what all ranks give."""
    if name in ("reduce", "gather", "asynchronous") and rank != 1:
        return None
    if name in REDUCED:
        total = reduce(add, each[: rank + 1] if name == "scan" else each)
        return np.split(total, len(each), -1)[rank] if name == "reduce_scatter" else total
    if name == "all_to_all":
        return np.concatenate([np.split(x, len(each), -1)[rank] for x in each], -1)
    if name in ("broadcast", "send_recv"):
        return each[1 if name == "broadcast" else rank - 1]
    return np.concatenate(each) if name == "all_gather_v" else np.stack(each, -(name == "axis"))


@KINDS.behaviour(min_size=3)
def each_kind(comm: Any) -> None:
    """Each in each call; what a call need not take, it may refuse."""
    faults = []
    for kind, make in EVERY.items():
        each = [make(rank) for rank in range(comm.size)]
        plain = [x if kind in NUMBERS else np.asarray(x) for x in each]
        for name, call in calls(comm, each[comm.rank]).items():
            try:
                given = call()
                came = np.asarray(given)
            except UsageError as error:
                adds = name not in REDUCED or np.asarray(plain[0]).dtype in REDUCIBLE
                if adds and kind in (EVERY.keys() - UNFIT if name in OF_SCALARS else ARRAYS):
                    faults.append(f"{name} of {kind}: {error}")
                continue
            due = truth(name, plain, comm.rank)
            wanted = np.asarray(due)
            alike = came.dtype == wanted.dtype and repr(came.tolist()) == repr(wanted.tolist())
            if name in ("all_reduce", "broadcast", "scan") and (
                type(each[0]) in (int, float, complex)
                or (kind in SCALARS and wanted.dtype in REDUCIBLE)
            ):
                alike &= type(given) is type(due if kind in NUMBERS else each[0])
            if not alike:
                faults.append(f"{name} of {kind}: {came!r}, not {wanted!r}")
    assert not faults, "\n".join(faults)


IN_PLACE_OF_ARRAYS = Behaviours("numbers")


@IN_PLACE_OF_ARRAYS.behaviour()
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
    comm.scan(comm.rank + 1, lambda a, b: a * b, out=out, exclusive=True)
    assert out == math.factorial(comm.rank) * (comm.rank > 0), "rank 0 keeps what it had"
    assert comm.broadcast(comm.rank, size - 1, out=out) is out, "an out"
    assert out == size - 1, "broadcast"
    comm.all_reduce(0.5, timeout=30.0)


@IN_PLACE_OF_ARRAYS.behaviour(min_size=2)
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


@IN_PLACE_OF_ARRAYS.behaviour()
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
