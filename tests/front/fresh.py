"""Reductions whose result goes to a new array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

FRESH = Behaviours("fresh")


@FRESH.behaviour()
def new_arrays(comm: Communicator) -> None:
    """``out="new"`` leaves x as it is, also where x would take the result."""
    x = np.arange(6.0).reshape(2, 3) + comm.rank
    total = comm.size * np.arange(6.0).reshape(2, 3) + sum(range(comm.size))
    equal(comm.all_reduce(x, out="new"), total, "all_reduce")
    equal(comm.all_reduce(x, out="new", async_op=True).wait(), total, "asynchronous")
    reduced = comm.reduce(x, comm.size - 1, out="new")
    assert (reduced is None) == (comm.rank != comm.size - 1), "reduce"
    planned = comm.plan("all_reduce", x, out="new")
    equal(planned(), total, "plan")
    assert comm.scan(x, out="new") is not x, "scan"
    equal(x, np.arange(6.0).reshape(2, 3) + comm.rank, "x")
    with raises(UsageError, "neu"):
        comm.all_reduce(x, out="neu")
