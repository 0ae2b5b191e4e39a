"""mpi4py's, NumPy's and Python's own operators reduce as mpi4py's do in its own call."""

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hpccomm

if TYPE_CHECKING:
    from mpi4py import MPI

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
def test_operators_of_others_reduce_as_in_mpi4py(
    comm: hpccomm.Communicator, mpi_comm: "MPI.Intracomm", name: str
) -> None:
    from mpi4py import MPI

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


def test_ranks_may_spell_one_reduction_differently(comm: hpccomm.Communicator) -> None:
    from mpi4py import MPI

    op: Any = (MPI.MAX, np.maximum, max, hpccomm.ReduceOp.MAX)[comm.rank % 4]
    assert comm.all_reduce(np.array([comm.rank]), op) == comm.size - 1
    # One that no function here is: the library's own call would have been chosen.
    assert comm.explain("all_reduce", np.ones(4), op=op) == comm.explain(
        "all_reduce", np.ones(4), op=hpccomm.ReduceOp.MAX
    )


def test_habits_of_mpi4py_are_recognised(comm: hpccomm.Communicator) -> None:
    from mpi4py import MPI

    x, y = np.ones(3), np.empty((comm.size, 3))
    assert comm.all_gather(x, y) is y
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
