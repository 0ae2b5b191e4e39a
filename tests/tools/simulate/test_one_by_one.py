"""The simulator against the same rules, taken one message at a time."""

import numpy as np
import pytest
from one_by_one import ends
from proofs import scheduled

from hpccomm.contracts.collectives import BLOCKWISE
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.rounds import simulate
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import Tuning

FLAT = Network("flat", 13, 1, 1e10, None, Level(5e-6, 1e10, 1, gap=1e-7), overhead=1e-6)
INNER, HALF_INNER = Level(1e-6, 8e9, 4, node_bandwidth=2e10), Level(1e-6, 8e9, 4, duplex="half")
SPINE = Level(9e-6, 1e9, 2, gap=3e-7, total_bandwidth=3e9)
NODES = Network("nodes", 13, 4, 3e9, INNER, SPINE, copy=5e9)
UPLINK = Level(9e-6, 1e9, 1, duplex="half", node_bandwidth=1.5e9)
HALF = Network("half", 13, 4, 3e9, HALF_INNER, UPLINK)


@pytest.mark.pairs
@pytest.mark.parametrize("skew", [0.0, 1e-4])
@pytest.mark.parametrize("network", [FLAT, NODES, HALF], ids=lambda network: network.name)
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, name)
        for collective, named in ALGORITHMS.items()
        for name, algorithm in named.items()
        if not algorithm.shared
    ],
)
def test_both_come_to_the_same(collective, algorithm, network, skew):
    n, size = network.ranks, 200_000
    count = size // n if collective in BLOCKWISE else size if collective != "barrier" else 0
    calls = signatures(collective, n, count, root=3, dtype=np.dtype(np.float32))
    tuning = Tuning(8192, channels=1, topology=network.topology())
    schedule = scheduled(ALGORITHMS[collective][algorithm].build, calls, tuning)
    if len(schedule.channels) != 1:
        pytest.skip("channels that share ports are taken together")
    starts = np.random.default_rng(5).random(n) * skew
    expected = ends(schedule, network, 4, starts + network.overhead) - starts.min()
    assert simulate(schedule, network, 4, starts).ends == pytest.approx(expected, rel=1e-9)
