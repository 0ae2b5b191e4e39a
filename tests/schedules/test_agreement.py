"""The price by rounds is the time of the same schedule in a simulation: `tests/tools/simulate/test_events.py` has its truth."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from costed_calls import REGISTERED, call_of, in_turn

from hpccomm.contracts.collectives import ROOTED
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network, load
from hpccomm.schedules.cost.rounds import price, simulate
from hpccomm.schedules.schedule import Tuning, whole, world

SIZES = (8, 32 << 10, 1 << 20, 1 << 30)

FAST_WITHIN = (Level(2e-6, 100e9, 1, gap=1e-7), Level(5e-6, 25e9, 1, gap=2e-7), 200e9, math.inf)
SLOW_FOLDS = (Level(1e-6, 10e9, 1), Level(1e-6, 10e9, 1), 5e9, 8e9)
FAR_NODES = (Level(5e-7, 50e9, 1), Level(20e-6, 1e9, 1, gap=1e-6), 50e9, 100e9)


def network(ranks, per_node, kind):
    """A network with a port for each rank."""
    inner, across, reduce, copy = kind
    ported = [replace(level, ports=per_node) for level in (inner, across)]
    levels = ported[0] if per_node > 1 else None, ported[1] if ranks > per_node else None
    return Network("test", ranks, per_node, reduce, *levels, copy=copy)


def networks():
    for kind in (FAST_WITHIN, SLOW_FOLDS, FAR_NODES):
        for ranks in (2, 3, 8, 32, 64, *((5, 6, 7, 12, 24) if kind is SLOW_FOLDS else ())):
            yield network(ranks, ranks, kind)
        for ranks, per_node in ((3, 1), (8, 1), (8, 4), (32, 4), (32, 8), (64, 8)):
            yield network(ranks, per_node, kind)
    yield network(256, 8, FAST_WITHIN)
    yield load("nvlink8")
    yield load("ib400x32")


def agree(net, collective, algorithm, nbytes, *, segment=whole, root=0):
    """Compare the price of a call with the time of its schedule in a simulation."""
    tuning = Tuning(segment, 1, net.topology())
    call = call_of(collective, net.ranks, nbytes, root=root)
    schedule = ALGORITHMS[collective][algorithm].build(world(net.ranks), call, tuning)
    wanted = simulate(schedule, net, call.dtype.itemsize).seconds
    found = price(net, call, algorithm, tuning)
    assert found == pytest.approx(wanted, rel=1e-9), (net, nbytes)


@pytest.mark.parametrize(
    "large", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["few", "many"]
)
@pytest.mark.parametrize(("collective", "algorithm"), REGISTERED)
def test_price_is_the_simulated_time(collective, algorithm, large, pytestconfig):
    shared = ALGORITHMS[collective][algorithm].shared
    fit = [net for net in networks() if (net.ranks > 8) == large and not (shared and net.nodes > 1)]
    sizes = SIZES[:1] if collective == "barrier" else SIZES
    everything = pytestconfig.getoption("--all")
    for net, nbytes in in_turn(fit, sizes, (collective, algorithm), everything=everything):
        root = sizes.index(nbytes) * 7 % net.ranks if collective in ROOTED else 0
        agree(net, collective, algorithm, nbytes, root=root)


PIPELINED = [
    *product(("broadcast", "reduce"), ("chain", "binomial")),
    *product(("all_gather", "all_reduce"), ("ring", "hierarchical")),
    *(("scan", "linear"), ("reduce_scatter", "ring"), ("all_reduce", "recursive_doubling")),
]


@pytest.mark.parametrize(("collective", "algorithm"), PIPELINED)
@pytest.mark.parametrize("nbytes", [1 << 20, pytest.param(8 << 20, marks=pytest.mark.thorough)])
def test_segments_follow_each_other(collective, algorithm, nbytes):
    for kind in (FAST_WITHIN, SLOW_FOLDS, FAR_NODES):
        for ranks, per_node in ((2, 2), (8, 8), (8, 4), (32, 8)):
            net = network(ranks, per_node, kind)
            agree(net, collective, algorithm, nbytes, segment=32 << 10)


THROUGH_SCRATCH = ("reduce hierarchical", "reduce_scatter hierarchical", "all_to_all bruck")


@pytest.mark.parametrize(("collective", "algorithm"), REGISTERED)
def test_one_rank_copies(collective, algorithm):
    alone = network(1, 1, SLOW_FOLDS)
    call = call_of(collective, 1, 1 << 20)
    times = 2 if f"{collective} {algorithm}" in THROUGH_SCRATCH else 1
    times *= collective not in ("broadcast", "barrier")
    found = price(alone, call, algorithm, Tuning(whole, 1, alone.topology()))
    assert found == times * (1 << 20) / alone.copy


def test_nothing_to_move_costs_nothing():
    call = Signature("all_reduce", np.dtype(np.float32), (0,), op=ReduceOp.SUM)
    assert price(load("nvlink8"), call, "ring", Tuning(whole, 1)) == 0


def test_many_ranks_share_a_port():
    # Two ranks share 1 Gb/s.
    agree(load("lab1g"), "all_reduce", "recursive_doubling", 64 << 20)


@pytest.mark.parametrize("duplex", ["full", "half"])
@pytest.mark.parametrize("shared", ["inner node", "across node", "across total"])
def test_what_ports_share_is_passed_as_often_as_in_a_simulation(shared, duplex):
    where, what = shared.split()
    levels = {"inner": Level(1e-6, 10e9, 4, duplex), "across": Level(5e-6, 2e9, 4, duplex)}
    speed = {"inner node": 6e9, "across node": 2e9, "across total": 4e9}[shared]
    levels[where] = replace(levels[where], **{f"{what}_bandwidth": speed})
    net = Network("shared", 16, 4, math.inf, **levels)
    for collective, algorithm in (
        ("all_reduce", "recursive_doubling"),
        ("all_reduce", "halving_doubling"),
        ("all_gather", "recursive_doubling"),
        ("all_to_all", "linear"),
    ):
        agree(net, collective, algorithm, 64 << 20)


def test_what_has_no_price_is_refused():
    net, tuning = load("ib400x32"), Tuning(whole, 1)
    with pytest.raises(UsageError, match="give one of 'ring'"):
        price(net, call_of("all_reduce", 256, 8), "none", tuning)
    with pytest.raises(UsageError, match="share memory"):
        price(net, call_of("all_reduce", 256, 8), "shm", tuning)


def test_a_root_that_writes_a_share_of_its_array():
    for kind in (FAST_WITHIN, SLOW_FOLDS):
        agree(network(4, 4, kind), "broadcast", "shm", 1 << 20, segment=16 << 10)
