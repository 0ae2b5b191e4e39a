"""Curves with the shape known from practice, and the memory that simulating many ranks takes."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from alone import python

from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import load
from hpccomm.schedules.cost.rounds import simulate
from hpccomm.schedules.schedule import Tuning, world
from hpccomm.settings import DEFAULT_SEGMENT

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@cache
def all_reduce(algorithm, ranks, nbytes):
    """The outcome of a float32 all-reduce on nodes of ib400x32."""
    network = load("ib400x32").resized(ranks)
    call = Signature("all_reduce", np.dtype(np.float32), (nbytes // 4,), op=ReduceOp.SUM)
    tuning = Tuning(DEFAULT_SEGMENT // 4, topology=network.topology())
    schedule = ALGORITHMS["all_reduce"][algorithm].build(world(ranks), call, tuning)
    return simulate(schedule, network, 4)


@pytest.mark.parametrize("nbytes", [8, 64 * KIB, 4 * MIB])
def test_tree_beats_ring_below_a_few_mib(nbytes):
    assert all_reduce("tree", 256, nbytes).seconds < 0.75 * all_reduce("ring", 256, nbytes).seconds


def test_ring_beats_tree_from_some_tens_of_mib_on():
    for nbytes in (64 * MIB, 256 * MIB):
        assert all_reduce("ring", 256, nbytes).seconds < all_reduce("tree", 256, nbytes).seconds


def test_latency_of_the_tree_grows_with_the_logarithm_and_that_of_the_ring_with_the_number(
    pytestconfig,
):
    ranks = [64, 128, 256, 512, 1024, 2048][: 6 if pytestconfig.getoption("--all") else 4]
    tree = np.array([all_reduce("tree", n, 8).seconds for n in ranks])
    ring = np.array([all_reduce("ring", n, 8).seconds for n in ranks])
    # Each doubling adds the same to the tree: a message up and one down.
    assert np.diff(tree) == pytest.approx(np.diff(tree).mean(), rel=0.1)
    assert ring / np.array(ranks) == pytest.approx(ring[-1] / ranks[-1], rel=0.05)


def test_bus_bandwidth_of_the_ring_is_that_of_its_narrowest_link():
    seconds = all_reduce("ring", 256, GIB).seconds
    busbw = 2 * 255 / 256 * GIB / seconds
    assert busbw == pytest.approx(load("ib400x32").across.bandwidth, rel=0.03)
    assert all_reduce("ring", 256, GIB).bottleneck == "across port out 7 of node 0"


HERE = Path(__file__).parent


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "ranks", "nbytes"),
    [("ring", 4096, GIB), ("tree", 65536, 256 * MIB), ("hierarchical", 65536, GIB)],
)
def test_many_ranks_take_little_memory(algorithm, ranks, nbytes):
    """Under 2 GiB, in a process of its own: what this one takes says nothing."""
    program = f"""
import resource, sys
sys.path[:0] = {[str(HERE), str(HERE.parents[1] / "helpers")]!r}
from test_shape import all_reduce
all_reduce({algorithm!r}, {ranks}, {nbytes})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    run = python("-c", program, check=True, timeout=100)
    assert int(run.stdout) < 2 * GIB
