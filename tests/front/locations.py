"""MINLOC and MAXLOC of every dtype, by every algorithm, and refusals."""

from itertools import cycle

import numpy as np

import hpccomm
from front.algorithms import METHODS, SEGMENT, Method, attempt, cut
from hpccomm import Communicator, ReduceOp, loc_dtype
from hpccomm.contracts.collectives import REDUCTIONS
from hpccomm.dtypes import BFLOAT16
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import Behaviours, equal
from hpccomm.testing.conformance.collectives import FORMS
from hpccomm.testing.conformance.oracle import OUT, Spec

LOCATIONS = Behaviours("locations")

OPS = (ReduceOp.MINLOC, ReduceOp.MAXLOC)

LOCATED = {
    "float64": loc_dtype(np.float64),
    "float32": loc_dtype(np.float32),
    "int8": loc_dtype(np.int8),
    "uint64": loc_dtype(np.uint64),
    "bfloat16": loc_dtype(BFLOAT16),
    "float16": loc_dtype(np.float16, np.int32),
    "padded": np.dtype([("value", np.int16), ("index", np.int64)], align=True),
    "turned": np.dtype([("index", np.uint8), ("value", np.bool_)]),
}
"""Dtypes of values with their indices."""

DTYPES = tuple(LOCATED.values())


@LOCATIONS.behaviour(method=tuple(method for method in METHODS if method[0] in REDUCTIONS))
def algorithms(comm: Communicator, method: Method) -> None:
    """Each algorithm gives the result, also planned, asynchronous and in the order of the ranks."""
    collective, algorithm, *shared = method
    orders: tuple[dict[str, bool], ...] = ({}, {"deterministic": True})
    orders = orders[: 1 if ALGORITHMS[collective][algorithm].ordered is None else 2]
    with cut(comm, 4 * SEGMENT, *shared) as small:
        for form, how, op, dtype in zip(
            cycle(FORMS), cycle(orders), cycle((*OPS, *OPS[::-1])), DTYPES
        ):
            spec = Spec(collective, 2 * comm.size + 1, dtype, op, comm.size - 1, results=(OUT,))
            attempt(small, algorithm, spec, form, **how)


@LOCATIONS.behaviour()
def where_the_best_value_is(comm: Communicator) -> None:
    """The best value of all ranks, with the rank that has it: the first one of equals, and of NaN."""
    rank, size = comm.rank, comm.size
    x = np.random.default_rng(rank).integers(0, 3, 40).astype(np.float32)
    x[5 * rank % 40] = np.nan
    everyone = np.stack(comm.all_gather_object(x))
    for op, best, at in ((OPS[0], np.min, np.argmin), (OPS[1], np.max, np.argmax)):
        result = comm.all_reduce(hpccomm.with_index(x, rank), op)
        equal(result["value"], best(everyone, axis=0), f"{op.name}: values")
        equal(result["index"], at(everyone, axis=0), f"{op.name}: ranks")
    own = hpccomm.with_index(float(rank % 2), size - rank)
    assert comm.all_reduce(own, ReduceOp.MINLOC) is own, "in place"
    assert own.tolist() == (0.0, size - (size - 1) // 2 * 2), own
