"""Each of hpccomm's own algorithms has the right result, for every call that it takes, on any number of ranks.

Segments are small here, so that arrays of few elements are moved in many pieces.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, product
from typing import Any

import numpy as np

import hpccomm
from hpccomm import CommOptions, Communicator, ReduceOp, loc_dtype
from hpccomm.contracts.collectives import BLOCKWISE, REDUCTIONS, ROOTED
from hpccomm.dtypes import BFLOAT16
from hpccomm.schedules.algorithms import ALGORITHMS as KNOWN
from hpccomm.testing.conformance.case import Behaviours, equal
from hpccomm.testing.conformance.collectives import FORMS, another, trial
from hpccomm.testing.conformance.oracle import IN_PLACE, MOVABLE, OUT, Spec

ALGORITHMS = Behaviours("algorithms")

Method = tuple[str, ...]
"""A collective, an algorithm for it, and where it differs `CommOptions.shared_memory`."""

MOVES: tuple[tuple[str, str], ...] = tuple(
    (collective, name)
    for collective in KNOWN
    for name in KNOWN[collective]
    if collective != "barrier"
)
"""Collectives that move data, and each algorithm for them."""

STAGED = tuple((*each, "staging") for each in MOVES if KNOWN[each[0]][each[1]].staged is not None)
"""The algorithms that work on scratch shared between ranks."""

METHODS: tuple[Method, ...] = (*MOVES, *STAGED)

SEGMENT = 32
"""Bytes: eight elements of float32, or two of a value with its index."""


@contextmanager
def cut(
    comm: Communicator, segment: int, shared_memory: str | None = None
) -> Iterator[Communicator]:
    """Give a communicator that moves `segment` bytes at a time; collective over `comm`."""
    options = CommOptions(self_check=False, segment=segment, shared_memory=shared_memory)
    with another(comm, options=options) as other:
        yield other


def attempt(comm: Communicator, algorithm: str, spec: Spec, form: str = "call", **how: Any) -> None:
    """Make the call that is asked for, by `algorithm`, unless it takes no uneven blocks, or no ranks of several nodes."""
    kind = KNOWN[spec.collective][algorithm]
    uneven = spec.call != spec.collective
    if not (kind.uniform and uneven) and not (kind.shared and comm.num_nodes > 1):
        trial(comm, spec).run(comm, form, algorithm=algorithm, **how)


OPS: tuple[tuple[Any, Any], ...] = (
    (ReduceOp.SUM, BFLOAT16),
    (ReduceOp.PROD, np.float64),
    (ReduceOp.MAX, np.float32),
    (ReduceOp.BXOR, np.int32),
    (hpccomm.premul_sum(0.5), np.float32),
    (np.fmax, np.float32),
    (ReduceOp.AVG, np.float32),  # averages are divided once
    (ReduceOp.AVG, np.int64),
    (ReduceOp.AVG, BFLOAT16),
    (ReduceOp.MINLOC, loc_dtype(np.uint64)),
    (ReduceOp.MAXLOC, loc_dtype(BFLOAT16)),
    (ReduceOp.MINLOC, np.dtype([("value", np.int16), ("index", np.int64)], align=True)),
    (ReduceOp.MAXLOC, np.dtype([("index", np.uint8), ("value", np.bool_)])),
)
"""Reductions, by name or by a function, with a dtype for each."""


@ALGORITHMS.behaviour(method=METHODS)
def every_way(comm: Communicator, method: Method) -> None:
    """Each dtype is moved, and each reduction made, in each form of a call, of even and uneven blocks, in rank order.

    Proofs in `tests/schedules` show where the elements go, for any root, order and placement of the ranks.
    """
    collective, algorithm, *shared = method
    size, turns = comm.size, cycle(product(FORMS, (OUT, IN_PLACE)))
    ordered = KNOWN[collective][algorithm].ordered is not None
    some = OPS if collective in REDUCTIONS else [(ReduceOp.SUM, dtype) for dtype in MOVABLE]
    with cut(comm, SEGMENT, *shared) as chosen:
        for number, (op, dtype) in enumerate(some):
            form, result = next(turns)
            if op is ReduceOp.AVG and collective == "scan":
                continue
            how: dict[str, Any] = {"results": (IN_PLACE if op is ReduceOp.AVG else result,)}
            if collective in ROOTED:
                how["root"] = number % size
            spec = Spec(collective, 2 * size + 1, np.dtype(dtype), op, **how)
            attempt(chosen, algorithm, spec, form)
            if collective in BLOCKWISE and form != FORMS[1]:
                uneven = Spec(collective, tuple(range(size)), np.dtype(dtype), op, **how)
                attempt(chosen, algorithm, uneven, form)
            if ordered and not spec.dtype.isalignedstruct:  # padding has no bits to keep
                attempt(chosen, algorithm, spec, form, deterministic=True)
        if collective == "scan":
            for each in (OUT, IN_PLACE):
                left = Spec(collective, 7, np.dtype(np.int32), exclusive=True, results=(each,))
                attempt(chosen, algorithm, left)


@ALGORITHMS.behaviour(collective=tuple(KNOWN), min_size=3)
def ranks_in_another_order(comm: Communicator, collective: str) -> None:
    """In a group with the ranks in another order, so that ranks of one node are not consecutive."""
    turned = comm.split(0, key=(comm.rank % 2) * comm.size - comm.rank)
    assert turned is not None, "every rank is in it"
    for algorithm in KNOWN[collective]:
        if collective == "barrier":
            turned.barrier(algorithm=algorithm)
        else:
            attempt(turned, algorithm, Spec(collective, 2 * comm.size + 1, root=1))
    turned.finalize()


LOCATIONS = Behaviours("locations")


@LOCATIONS.behaviour()
def where_the_best_value_is(comm: Communicator) -> None:
    """The best value of all ranks, with the rank that has it: the first one of equals, and of NaN."""
    rank, size = comm.rank, comm.size
    x = np.random.default_rng(rank).integers(0, 3, 40).astype(np.float32)
    x[5 * rank % 40] = np.nan
    everyone = np.stack(comm.all_gather_object(x))
    for op, best, at in (
        (ReduceOp.MINLOC, np.min, np.argmin),
        (ReduceOp.MAXLOC, np.max, np.argmax),
    ):
        result = comm.all_reduce(hpccomm.with_index(x, rank), op)
        equal(result["value"], best(everyone, axis=0), f"{op.name}: values")
        equal(result["index"], at(everyone, axis=0), f"{op.name}: ranks")
    own = hpccomm.with_index(float(rank % 2), size - rank)
    assert comm.all_reduce(own, ReduceOp.MINLOC) is own, "in place"
    assert own.tolist() == (0.0, size - (size - 1) // 2 * 2), own
