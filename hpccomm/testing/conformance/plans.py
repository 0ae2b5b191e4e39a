"""Cases: plans: a call that is made many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.oracle import FLAT, IN_PLACE, NEW, OUT, SEMANTICS, Spec
from hpccomm.testing.conformance.trials import carry_out

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

PLANS = Behaviours("plans")

DTYPES = (np.float32, np.int64, BFLOAT16)


@PLANS.behaviour(dtype=DTYPES)
def plan_of_all_reduce(comm: Communicator, dtype: Any) -> None:
    """A plan reads x anew at each call, in place or into its `out`."""
    for op in (ReduceOp.SUM, ReduceOp.MAX):
        for results in ((NEW,), (FLAT,), (IN_PLACE, OUT, NEW)):
            spec = Spec("all_reduce", 5, np.dtype(dtype), op, results=results, rest=(3,))
            carry_out(comm, spec, "plan")


@PLANS.behaviour(dtype=DTYPES)
def plans_of_other_collectives(comm: Communicator, dtype: Any) -> None:
    """Every collective can be planned; a result is where the first call put it."""
    for collective in SEMANTICS:
        for result in (NEW, OUT):
            root = comm.size - 1
            spec = Spec(collective, 1, np.dtype(dtype), root=root, results=(result,), rest=(2,))
            carry_out(comm, spec, "plan")
