"""Small calls that take a way of their own give what mpi4py's calls give, and NumPy where MPI says nothing."""

from array import array
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

SIZES = (1, 70, 65, 70, 0, 3000)
"""Elements, in turn: small ones, of one class of size in other orders, and such that an algorithm takes."""


def reductions(comm: Any, x: Any, keywords: dict[str, Any]) -> list[Any]:
    """Return the results of all reductions of `x`."""
    last = comm.size - 1
    wide = np.tile(x, comm.size)
    return [
        comm.all_reduce(x.copy(), **keywords),
        comm.reduce(x.copy(), last, **keywords),
        comm.scan(x.copy(), **keywords),
        comm.scan(x.copy(), exclusive=True, **keywords),
        comm.reduce_scatter(wide, **keywords),
        comm.all_reduce(x.copy(), async_op=True, **keywords).wait(),
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.complex128])
def test_contributions_are_folded_in_rank_order(comm: Any, mpi_comm: MPI.Comm, dtype: type) -> None:
    random = np.random.default_rng([3, comm.rank])
    planned = np.ones(70, dtype)
    plan = comm.plan("all_reduce", planned, deterministic=True)
    for count in SIZES:
        x = (random.normal(size=count) * 10.0 ** random.integers(-3, 4, count)).astype(dtype)
        everyone = np.stack(mpi_comm.allgather(x))
        wide = everyone.astype(np.float32) if dtype is np.float16 else everyone
        with np.errstate(over="ignore"):
            sums = [each.astype(dtype) for each in accumulate(wide)]
        rank, zeros = comm.rank, np.zeros_like(x)
        whole, prefix, before = sums[-1], sums[rank], sums[rank - 1] if rank else zeros
        at_last = whole if rank == comm.size - 1 else None
        expected = [whole, at_last, prefix, before, whole, whole]
        for mine, truth in zip(reductions(comm, x, {"deterministic": True}), expected, strict=True):
            np.testing.assert_array_equal(mine, truth)
        planned[:] = 1
        np.testing.assert_array_equal(plan(), np.full(70, comm.size, dtype))


ROWS = (2, 0, 5, 90, 3, 700, 1)
"""Rows of rank 0 in one call after the other."""
DTYPES = (np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16), np.dtype([("a", "i4"), ("b", "f8")]))


def same(x: Any, y: Any) -> bool:
    """Return whether two arrays are alike in every bit."""
    return (x.tobytes(), x.shape, x.dtype) == (y.tobytes(), y.shape, y.dtype)


@pytest.mark.parametrize("rest", [(), (3,), (2, 0), (1, 2)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_counts_rows_arrive_as_mpi4py_moves_them(comm, mpi_comm, dtype, rest) -> None:
    rank, size = comm.rank, comm.size
    root = size - 1
    for number, most in enumerate(ROWS):
        counts = tuple((each + number) % size * (most // size) + most % 2 for each in range(size))
        bits = np.arange(counts[rank] * int(np.prod(rest)) * dtype.itemsize) * (rank + 3) % 64
        x = bits.astype(np.uint8).view(dtype).reshape(counts[rank], *rest)
        parts = mpi_comm.allgather(x)
        whole = np.concatenate(parts)
        every = [
            (True, *comm.all_gather_v(x, return_counts=True)),
            (True, comm.all_gather_v(x, out=np.zeros_like(whole)), counts),
            (rank == root, *comm.gather_v(x, root, return_counts=True)),
        ]
        for at, result, told in every:
            assert told == counts
            assert same(result, whole) if at else result is None
        given = whole if rank == root else None
        for own in (None, np.zeros_like(x)):
            out = own if rank == root else np.zeros_like(x)
            part, told = comm.scatter_v(given, root, out=out, return_counts=True)
            assert same(part, x)
            assert told == counts
        sent = [counts[(rank + each) % size] for each in range(size)]
        blocks = np.resize(whole, (sum(sent), *rest))
        came, told = comm.all_to_all_v(blocks, sent, return_counts=True)
        truth = mpi_comm.alltoall(np.split(blocks, np.cumsum(sent)[:-1]))
        assert same(came, np.concatenate(truth))
        assert told == tuple(map(len, truth))


def test_an_array_that_is_no_numpy_array_meets_those_that_are(comm: Any) -> None:
    mine = [float(comm.rank)] * (comm.rank + 1)
    for _ in range(3):
        result = comm.all_gather_v(array("d", mine) if comm.rank else np.array(mine))
        assert (result == np.repeat(np.arange(comm.size), np.arange(comm.size) + 1)).all()
