"""Cases: MINLOC and MAXLOC: values with indices, against `numpy.argmin` and `numpy.argmax`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

LOCATIONS = Behaviours("locations")

OPS = (ReduceOp.MINLOC, ReduceOp.MAXLOC)


@LOCATIONS.behaviour()
def where_the_best_value_is(comm: Communicator) -> None:
    """The best value of all ranks, with the rank that has it: the first one of equals, and of NaN."""
    rank, size = comm.rank, comm.size
    x = np.random.default_rng(rank).integers(0, 3, 40).astype(np.float32)
    x[5 * rank % 40] = np.nan
    x[-1] = np.nan
    everyone = np.stack(comm.all_gather_object(x))
    for op, best, at in ((OPS[0], np.min, np.argmin), (OPS[1], np.max, np.argmax)):
        result = comm.all_reduce(hpccomm.with_index(x, rank), op)
        equal(result["value"], best(everyone, axis=0), f"{op.name}: values")
        equal(result["index"], at(everyone, axis=0), f"{op.name}: ranks")
    # One number a rank, and indices that count from the end.
    own = hpccomm.with_index(float(rank % 2), size - rank)
    result = comm.all_reduce(own, ReduceOp.MINLOC)
    assert result is own, "in place"
    last = (size - 1) // 2 * 2
    assert own.tolist() == (0.0, size - last), own
