"""Registered memory between processes: mapped once, for any life of arrays and communicators."""

import gc
from pathlib import Path

import numpy as np
import pytest
from one_size import by_default_on

from hpccomm import Communicator
from hpccomm.errors import UsageError
from hpccomm.memory.shared.heap import process_memory

pytestmark = pytest.mark.usefixtures("several_on_a_node")


def reduced(comm: Communicator, x: np.ndarray, out: np.ndarray) -> None:
    """All-reduce and look at the result."""
    x[:] = np.arange(x.size) % 1000 + comm.rank
    comm.all_reduce(x, out=out, algorithm="shm")
    expected = np.arange(x.size) % 1000 * comm.size + sum(range(comm.size))
    assert np.array_equal(out, expected.astype(x.dtype))


@by_default_on(3)
def test_arrays_come_and_go_on_each_rank_in_its_own_order(comm: Communicator, pytestconfig) -> None:
    draw = np.random.default_rng(comm.rank)
    size = np.random.default_rng(99)  # what all have to agree on
    kept: list[np.ndarray] = []
    for _ in range(60 if pytestconfig.getoption("--all") else 15):
        count = int(size.integers(1, 400_000))
        second = comm.empty if size.random() < 0.7 else np.empty
        pair = [make(count, np.float32) for make in (comm.empty, second)]
        reduced(comm, *pair)
        kept += pair if draw.random() < 0.4 else []
        if len(kept) > 8:
            for _ in range(6):
                kept.pop(int(draw.integers(len(kept))))
            gc.collect()


def held() -> tuple[int, int, int]:
    """Return how many segments, mappings and descriptors this process has."""
    mapped = Path("/proc/self/maps").read_text().count("memfd:hpccomm")
    return process_memory().heap.segments, mapped, len(list(Path("/proc/self/fd").iterdir()))


def test_a_segment_is_mapped_once_for_all_communicators(comm: Communicator) -> None:
    arrays = [comm.empty(1000, np.float32) for _ in range(2)]
    reduced(comm, *arrays)
    comm.dup().finalize()  # where ranks meet to make one, those that were dropped are ended
    before = held()
    others = [comm.dup(), comm.split(0), comm.split(0, key=-comm.rank), comm.dup()]
    for other in others:
        reduced(other, *arrays)
        reduced(other, *(other.empty(1000, np.float32) for _ in range(2)))
    for other in others:
        other.finalize()
    reduced(comm, *arrays)
    assert held() == before


def test_groups_of_single_ranks_share_nothing_and_take_such_arrays(comm: Communicator) -> None:
    alone = comm.split(comm.rank)
    x = comm.empty(10, np.float64)
    x[:] = 3
    alone.all_reduce(x)
    assert (x == 3).all()
    with pytest.raises(UsageError, match="'shm'"):
        alone.all_reduce(x, algorithm="shm")
    y = alone.empty(10, np.float64)
    y[:] = 1
    comm.all_reduce(y)
    assert (y == comm.size).all()
    alone.finalize()
