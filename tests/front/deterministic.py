"""`deterministic=True`: folds in rank order, and narrow floats round once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from front.algorithms import STAGED, Method, attempt, cut
from hpccomm import Communicator, ReduceOp
from hpccomm.dtypes import BFLOAT16, NARROW
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import Array, Behaviours
from hpccomm.testing.conformance.collectives import REDUCING, carry_out
from hpccomm.testing.conformance.oracle import FLOAT32, NEW, OUT, Inputs, Spec

DETERMINISTIC = Behaviours("deterministic")

FLOATS = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


def cancelling(size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
    """Return contributions whose sum depends on the order: large ones cancel, small ones stay."""
    arrays = []
    for rank in range(size):
        random = np.random.default_rng([size, rank])
        # The range of narrow floats is small, and so is the number of bits that an order can change.
        base, low, high = (2.0, -3, 3) if dtype in NARROW else (10.0, -6, 7)
        values = random.normal(size=shape) * base ** random.integers(low, high, shape)
        if dtype.kind == "c":
            values = values + 1j * random.permuted(values)
        arrays.append(values.astype(dtype))
    return arrays


def rounded(size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
    """Return factors near one, whose product depends on the order and stays in range."""
    unit = 1 + 1j if dtype.kind == "c" else 1
    large = [np.real(each.astype(np.complex128)) for each in cancelling(size, shape, dtype)]
    return [(1 + np.tanh(each) / 8 * unit).astype(dtype) for each in large]


ORDERED = tuple(
    (collective, name)
    for collective, algorithms in ALGORITHMS.items()
    for name, algorithm in algorithms.items()
    if algorithm.ordered is not None
)
"""Collectives and the algorithms for them that can keep the order."""

METHODS = (*ORDERED, *(method for method in STAGED if method[:2] in ORDERED))

SEGMENTS = (4, 12, 64, 1 << 20)
"""Bytes: one element of float32, three, sixteen, and more than there are."""


INPUTS: tuple[tuple[ReduceOp, np.dtype[Any], Inputs], ...] = (
    (ReduceOp.SUM, FLOAT32, lambda size, count: cancelling(size, (count,), FLOAT32)),
    (ReduceOp.AVG, FLOAT32, lambda size, count: cancelling(size, (count,), FLOAT32)),
    (ReduceOp.PROD, FLOAT32, lambda size, count: rounded(size, (count,), FLOAT32)),
    (ReduceOp.SUM, BFLOAT16, lambda size, count: cancelling(size, (count,), BFLOAT16)),
)
"""Operations and dtypes, with the function that makes each rank's contribution."""


def specs(whole: Spec, blocks: tuple[int | tuple[int, ...], ...]) -> Iterator[Spec]:
    """Give the calls of a collective in each of its forms; it scatters blocks of these counts."""
    last = whole.root
    if whole.collective == "all_reduce":
        yield from (whole, replace(whole, results=(OUT,)))
    elif whole.collective == "reduce":
        yield from (replace(whole, root=root) for root in {0, (last + 1) // 2, last})
    elif whole.collective == "reduce_scatter":
        yield from (replace(whole, count=count) for count in blocks)
    elif whole.op is not ReduceOp.AVG:  # a scan takes no average
        yield from (whole, replace(whole, exclusive=True))


@DETERMINISTIC.behaviour(segment=SEGMENTS, method=METHODS)
def neither_algorithm_nor_segment_matters(comm: Communicator, segment: int, method: Method) -> None:
    """By each algorithm, in segments of any size, on any placement: the bits of NumPy's left fold."""
    collective, algorithm, *shared = method
    few = [(5, 1)[rank % 2] for rank in range(comm.size - 1)]
    count = 4 * comm.size + 3
    blocks = (4, (*few, count - sum(few)))
    with cut(comm, segment, *shared) as small:
        # The cuts do not depend on the contents.
        for op, dtype, inputs in INPUTS if segment == SEGMENTS[1] else INPUTS[:1]:
            whole = Spec(collective, count, dtype, op, comm.size - 1, results=(NEW,), inputs=inputs)
            for spec in specs(whole, blocks):
                attempt(small, algorithm, spec, deterministic=True)


@DETERMINISTIC.behaviour(dtype=(*FLOATS, *NARROW), op=(ReduceOp.SUM, ReduceOp.PROD))
def the_order_is_the_ranks(comm: Communicator, dtype: np.dtype[Any], op: ReduceOp) -> None:
    """Every call gives the bits of a fold from rank 0 upwards, of a block of one element too."""
    make = rounded if op is ReduceOp.PROD else cancelling

    def inputs(size: int, count: int) -> list[Array]:
        return make(size, (count,), dtype)

    size = comm.size
    uneven = (1, *(66,) * (size - 2), 131) if size > 1 else (66,)
    for collective in REDUCING:
        whole = Spec(collective, 66 * size, dtype, op, size - 1, results=(NEW,), inputs=inputs)
        for spec in specs(whole, (66, uneven)):
            carry_out(comm, spec, deterministic=True)
