"""Others' operators, and functions that do not commute, reduce as they do in mpi4py's own calls."""

import operator
from functools import reduce
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccomm
from hpccomm import Communicator

ALIKE = {
    "SUM": (np.add, operator.add, sum),
    "PROD": (np.multiply, operator.mul),
    "MIN": (np.minimum, min),
    "MAX": (np.maximum, max),
    "BAND": (np.bitwise_and, operator.and_),
    "BOR": (np.bitwise_or, operator.or_),
    "BXOR": (np.bitwise_xor, operator.xor),
    "LAND": (np.logical_and,),
    "LOR": (np.logical_or,),
    "LXOR": (np.logical_xor,),
}


@pytest.mark.parametrize("name", ALIKE)
def test_operators_of_others_reduce_as_in_mpi4py(comm: Communicator, mpi_comm, name: str) -> None:
    theirs: Any = getattr(MPI, name)
    for dtype in ("i4", "?") if name[0] in "BL" else ("i4", "f8"):
        x = ((np.arange(6) * (comm.rank + 2)) % 4).astype(dtype)
        # MPI has no LAND of NumPy's bool; C's int is its logical.
        given = x.astype("i4")
        expected = np.empty_like(given if dtype == "?" else x)
        mpi_comm.Allreduce(given if dtype == "?" else x, expected, op=theirs)
        for op in (theirs, *ALIKE[name], getattr(hpccomm.ReduceOp, name, theirs)):
            for _ in range(2):  # known and unknown calls
                assert (comm.all_reduce(x.copy(), op) == expected.astype(dtype)).all(), op
            assert (comm.scan(x, op)[...] == comm.scan(x, theirs)).all()
        with comm.window(np.array([x[1]])) as window:
            window.fence()
            window.accumulate(x[:1], 0, op=theirs)
            window.fence()


def test_ranks_may_spell_one_reduction_differently(comm: Communicator) -> None:
    op: Any = (MPI.MAX, np.maximum, max, hpccomm.ReduceOp.MAX)[comm.rank % 4]
    assert comm.all_reduce(np.array([comm.rank]), op) == comm.size - 1
    # One that no function here is: the library's own call would have been chosen.
    assert comm.explain("all_reduce", np.ones(4), op=op) == comm.explain(
        "all_reduce", np.ones(4), op=hpccomm.ReduceOp.MAX
    )


def test_habits_of_mpi4py_are_recognised(comm: Communicator) -> None:
    x, y = np.ones(3), np.empty((comm.size, 3))
    assert comm.all_gather(x, out=y) is y
    assert (y == 1).all()
    for call, words in (
        (lambda: comm.all_reduce(x, np.empty(3)), "op is an array; .*out="),  # type: ignore[arg-type]
        (lambda: comm.reduce(x, np.empty(3)), "root is .*out="),  # type: ignore[arg-type]
        (lambda: comm.all_reduce(MPI.IN_PLACE), "without out= a reduction is in place"),
        (lambda: comm.all_reduce([x, MPI.DOUBLE]), "give one array"),
        (lambda: comm.send({"a": 1}, 0), "send_object"),
        (lambda: comm.all_reduce(x, MPI.MINLOC), "hpccomm.with_index"),
    ):
        with pytest.raises(hpccomm.UsageError, match=words):
            call()


LINEAR = np.dtype([("slope", "f8"), ("shift", "f8")])
"""x -> slope x + shift, whose composition is associative and does not commute."""


def composed(a: Any, b: Any) -> Any:
    """Apply `a`, then `b`."""
    both = np.empty_like(a)
    both["slope"] = a["slope"] * b["slope"]
    both["shift"] = b["slope"] * a["shift"] + b["shift"]
    return both


def test_functions_that_do_not_commute_are_folded_in_rank_order(comm, mpi_comm) -> None:
    def into(left: Any, right: Any, _: Any) -> None:
        a, b = (np.frombuffer(each, LINEAR) for each in (left, right))
        b[...] = composed(a, b)

    op, pair = MPI.Op.Create(into, commute=False), MPI.DOUBLE.Create_contiguous(2).Commit()
    rng = np.random.default_rng(3)
    # Small integers, so that any association gives the same bits.
    every = rng.integers(-2, 3, (comm.size, 6 * comm.size, 2)).astype("f8").view(LINEAR)[..., 0]
    x = every[comm.rank]

    def theirs(call: Any) -> Any:
        out = np.zeros(x.size, LINEAR)
        call([x, x.size, pair], [out, x.size, pair], op)
        return out

    whole, ordered = reduce(composed, every), {"deterministic": True}
    assert (theirs(mpi_comm.Allreduce) == whole).all()
    explained: Any = comm.explain("all_reduce", x, op=composed, **ordered)
    for way in explained.algorithm, "auto", "ring", "binomial":
        got = comm.all_reduce(x.copy(), composed, algorithm=way, **ordered)
        assert (got == whole).all(), way
    got = comm.reduce(x.copy(), comm.size - 1, composed, deterministic=True)
    assert got is None or (got == whole).all()
    assert (comm.scan(x, composed, deterministic=True) == theirs(mpi_comm.Scan)).all()
    out, before = np.zeros(x.size, LINEAR), theirs(mpi_comm.Exscan)
    out["slope"] = 1  # rank 0 keeps what is there, as in MPI
    comm.scan(x, composed, exclusive=True, out=out, deterministic=True)
    assert (out == before).all() if comm.rank else (out["slope"] == 1).all()
    mine = whole.reshape(comm.size, 6)[comm.rank]
    assert (comm.reduce_scatter(x, composed, deterministic=True) == mine).all()
    counts = [6 * comm.size, *[0] * (comm.size - 1)]
    got = comm.reduce_scatter_v(x, counts, composed, deterministic=True)
    assert (got == (whole if comm.rank == 0 else mine[:0])).all()
    with pytest.raises(hpccomm.UsageError, match=r"not commutative .*deterministic=True"):
        comm.all_reduce(x, composed)
    with pytest.raises(hpccomm.UsageError, match=r"no identity element.* give out="):
        comm.scan(x, composed, exclusive=True, deterministic=True)
    op.Free()
    pair.Free()
