"""Threads that are ranks reach each other's arrays."""

import weakref

import numpy as np
import pytest
from ranked import on_threads

from hpccomm import CommOptions, Communicator
from hpccomm.errors import RankMismatch
from hpccomm.testing import run_ranks


@on_threads(2)
def test_arrays_are_let_go_of(comm: Communicator) -> None:
    class Seen(np.ndarray):
        """An array to which there may be weak references."""

    x = np.ones(5000).view(Seen)
    known = weakref.ref(x)
    comm.all_reduce(x, algorithm="shm")
    comm.barrier()
    del x
    assert known() is None


SMALLEST = CommOptions(shared_memory="staging", shared_memory_room=64, self_check=False)


@pytest.mark.parametrize(
    ("count", "way"), [(500, "through a staging buffer"), (40_000, "are sent as messages")]
)
@on_threads(2, options=SMALLEST)
def test_what_a_room_cuts_into_too_many_pieces_is_sent(comm, count: int, way: str) -> None:
    x = np.ones(count)
    assert way in str(comm.explain("all_reduce", x, algorithm="shm"))
    assert (comm.all_reduce(x, algorithm="shm") == 2).all()


SHARED = {
    "all_reduce": lambda comm, x, out: comm.all_reduce(x),
    "all_reduce into one array": lambda comm, x, out: comm.all_reduce(x.copy(), out=out),
    "reduce at the root": lambda comm, x, out: comm.reduce(x),
    "all_gather": lambda comm, x, out: comm.all_gather(x[:400], out=out),
    "scatter": lambda comm, x, out: comm.scatter(x if comm.rank == 0 else None, out=out[:400]),
    "reduce_scatter": lambda comm, x, out: comm.reduce_scatter(x, out=out[:400]),
    # In parts that overlap.
    "scan": lambda comm, x, out: comm.scan(x[comm.rank :][:2], out=x[comm.rank :][:2]),
    "of registered memory": lambda comm, x, out: comm.all_reduce(x, algorithm="shm"),
}


@pytest.mark.parametrize("name", SHARED)
def test_ranks_that_close_over_one_array_raise_before_anything_is_written(name: str) -> None:
    x, out = np.arange(1200.0), np.zeros(1200)

    def on_rank(comm: Communicator) -> None:
        comm.all_reduce(np.ones(3))
        with pytest.raises(RankMismatch, match=r"writes to memory that rank.*x\.copy\(\)"):
            SHARED[name](comm, x, out)

    run_ranks(3, on_rank)
    assert x.tolist() == list(range(1200))
    assert not out.any()


def test_ranks_may_read_one_array_and_write_parts_of_one() -> None:
    x, out = np.arange(6.0), np.zeros((3, 6))

    def on_rank(comm: Communicator) -> None:
        comm.all_reduce(x, out=out[comm.rank])
        assert (comm.all_gather(x) == x).all()
        comm.broadcast(x)
        parts = comm.reduce_scatter(x, out=np.empty(2))
        comm.gather(x, out=np.empty((3, 6)) if comm.rank == 0 else None)
        comm.all_gather_v(x[:0], out=x[3:3])
        assert parts.tolist() == (3 * x[2 * comm.rank :][:2]).tolist()

    run_ranks(3, on_rank)
    assert (out == 3 * x).all()
