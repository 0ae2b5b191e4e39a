"""Small calls that take a way of their own give what mpi4py's calls give, and NumPy where MPI says nothing."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hpccomm
from hpccomm import ReduceOp

if TYPE_CHECKING:
    from mpi4py import MPI

SIZES = (1, 64, 3000)
"""Elements: small ones, and such that an algorithm takes."""


@pytest.fixture
def comm(mpi_comm: "MPI.Comm") -> Any:
    """Give a communicator."""
    with hpccomm.new_comm(mpi_comm=mpi_comm) as made:
        yield made


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


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", ["MAX", "MIN"])
def test_the_maximum_of_floats_is_mpi4pys(
    comm: Any, mpi_comm: "MPI.Comm", name: str, count: int
) -> None:
    from mpi4py import MPI

    op, last = getattr(MPI, name), comm.size - 1
    x = np.random.default_rng([7, comm.rank]).normal(size=count)
    whole, prefix, before, block = (np.empty_like(x) for _ in range(4))
    mpi_comm.Allreduce(x, whole, op)
    mpi_comm.Scan(x, prefix, op)
    mpi_comm.Exscan(x, before, op)
    mpi_comm.Reduce_scatter_block(np.tile(x, comm.size), block, op)
    if comm.rank == 0:  # MPI leaves it undefined
        before.fill(-np.inf if name == "MAX" else np.inf)
    at_last = whole if comm.rank == last else None
    expected = [whole, at_last, prefix, before, block, whole]
    for mine, truth in zip(reductions(comm, x, {"op": ReduceOp[name]}), expected, strict=True):
        np.testing.assert_array_equal(mine, truth)


@pytest.mark.parametrize("count", SIZES)
def test_a_nan_of_one_rank_reaches_all(comm: Any, count: int) -> None:
    x = np.full(count, float(comm.rank))
    if comm.rank == comm.size - 1:
        x[-1] = np.nan
    for op in (ReduceOp.MAX, ReduceOp.MIN):
        result = comm.all_reduce(x, op, out=np.empty_like(x))
        assert np.flatnonzero(np.isnan(result)).tolist() == [count - 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.complex128])
@pytest.mark.parametrize("count", SIZES)
def test_contributions_are_folded_in_rank_order(
    comm: Any, mpi_comm: "MPI.Comm", count: int, dtype: type
) -> None:
    random = np.random.default_rng([3, comm.rank])
    x = (random.normal(size=count) * 10.0 ** random.integers(-3, 4, count)).astype(dtype)
    everyone = np.stack(mpi_comm.allgather(x))
    wide = everyone.astype(np.float32) if dtype is np.float16 else everyone
    with np.errstate(over="ignore"):
        folded = [wide[0]]
        for each in wide[1:]:
            folded.append(folded[-1] + each)
        sums = [each.astype(dtype) for each in folded]
    rank, zeros = comm.rank, np.zeros_like(x)
    whole, prefix, before = sums[-1], sums[rank], sums[rank - 1] if rank else zeros
    at_last = whole if rank == comm.size - 1 else None
    expected = [whole, at_last, prefix, before, whole, whole]
    for mine, truth in zip(reductions(comm, x, {"deterministic": True}), expected, strict=True):
        np.testing.assert_array_equal(mine, truth)
