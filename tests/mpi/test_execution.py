"""The memory cost of running a schedule over MPI."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm
from hpccomm.schedules.algorithms import ALGORITHMS

SEGMENT = 1 << 16
SMALL = 60_000
"""Bytes that requests, views and other small objects may take at a time; less than a segment."""

ALGORITHM_NAMES = [name for name, each in ALGORITHMS["all_reduce"].items() if not each.shared]


def peak(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held at a time in `call` beyond what they held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@by_default_on(3)
@pytest.mark.values
@pytest.mark.parametrize("name", ALGORITHM_NAMES)
@pytest.mark.parametrize(
    ("dtype", "deterministic"), [(np.float32, False), (np.float16, False), (np.int32, True)]
)
def test_a_repeated_call_allocates_no_array(mpi_comm, name, dtype, deterministic) -> None:
    options = hpccomm.CommOptions(segment=SEGMENT, self_check=False)
    with hpccomm.new_comm(mpi_comm=mpi_comm, options=options) as comm:
        x = np.ones(1 << 18, dtype)
        out = np.empty_like(x)

        def call() -> None:
            average = hpccomm.ReduceOp.AVG
            comm.all_reduce(x, average, out=out, algorithm=name, deterministic=deterministic)

        call()
        # The least of several: the watchdog may look after a call that waits long.
        assert min(peak(call) for _ in range(3)) < SMALL
        np.testing.assert_array_equal(out, x)
