"""Prices: a simulation comes to the same, and what a price is made of.

With one channel both walk through the same rounds, whose truth is in `tests/tools/simulate`: test_events.py has times by
hand, one_by_one.py another implementation. The simulation leaves out what repeats, and takes channels together.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from costed_calls import REGISTERED, call_of, in_turn

from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network, load
from hpccomm.schedules.cost.rounds import linear_price, price, simulate
from hpccomm.schedules.schedule import RECV, Round, Schedule, Tuning, transfers, whole, world

FLAT = Level(latency=10.0, bandwidth=2.0, ports=1)
LINE = Network("line", 3, 1, reduce=4.0, inner=None, across=FLAT, copy=8.0)


CALLS = ((8, whole), (1 << 20, 8 << 10), (1 << 20, whole), (8 << 20, 32 << 10), (1 << 30, whole))
"""Bytes, and elements of a segment."""


@pytest.mark.parametrize(("collective", "algorithm"), REGISTERED)
def test_rounds_that_repeat_come_to_the_same(collective, algorithm, pytestconfig):
    found, everything = ALGORITHMS[collective][algorithm], pytestconfig.getoption("--all")
    far = Network("far", 12, 4, 5e9, Level(5e-7, 50e9, 4), Level(2e-5, 1e9, 4, gap=1e-6), copy=8e9)
    networks = [load("nvlink8"), load("lab1g"), load("ib400x32").resized(24), far]
    networks += [replace(far, ranks=ranks, ranks_per_node=ranks) for ranks in (2, 3, 7)]
    networks += [load("ethernet100").resized(64), load("ib400x32")] if everything else []
    fitting = [net for net in networks if net.nodes == 1 or not found.shared]
    which = collective, algorithm
    for net, (nbytes, segment) in in_turn(fitting, CALLS, which, everything=everything):
        tuning, call = Tuning(segment, 1, net.topology()), call_of(collective, net.ranks, nbytes)
        schedule = found.build(world(net.ranks), call, tuning)
        wanted = simulate(schedule, net, call.dtype.itemsize).seconds
        assert price(net, call, algorithm, tuning) == pytest.approx(wanted, rel=1e-9), net


THROUGH_SCRATCH = ("reduce hierarchical", "reduce_scatter hierarchical", "all_to_all bruck")


@pytest.mark.parametrize(("collective", "algorithm"), REGISTERED)
def test_one_rank_copies(collective, algorithm):
    alone = Network("alone", 1, 1, 5e9, None, None, copy=8e9)
    call = call_of(collective, 1, 1 << 20)
    times = 2 if f"{collective} {algorithm}" in THROUGH_SCRATCH else 1
    times *= collective not in ("broadcast", "barrier")
    found = price(alone, call, algorithm, Tuning(whole, 1, alone.topology()))
    assert found == times * (1 << 20) / alone.copy


def test_nothing_to_move_costs_nothing():
    call = Signature("all_reduce", np.dtype(np.float32), (0,), op=ReduceOp.SUM)
    assert price(load("nvlink8"), call, "ring", Tuning(whole, 1)) == 0


def test_what_has_no_price_is_refused():
    net, tuning = load("ib400x32"), Tuning(whole, 1)
    with pytest.raises(UsageError, match="has no algorithm 'none'"):
        price(net, call_of("all_reduce", 256, 8), "none", tuning)
    with pytest.raises(UsageError, match="share memory"):
        price(net, call_of("all_reduce", 256, 8), "shm", tuning)


def test_channels_fill_a_link_by_hand():
    def rounds():
        yield Round(sends=(transfers(np.array([0]), np.array([1]), RECV, 0, 100),))

    # One alone takes 50 + 10 seconds; the port is taken for 50 by each, one after the other.
    call = Signature("broadcast", np.dtype(np.int8), (100,), root=0)
    found = price(LINE, call, lambda *_: Schedule((rounds, rounds)), Tuning(whole, 2))
    assert found == 110


@pytest.mark.parametrize(("collective", "algorithm"), REGISTERED)
def test_two_channels_take_about_as_long_as_simulated(collective, algorithm, pytestconfig):
    found, everything = ALGORITHMS[collective][algorithm], pytestconfig.getoption("--all")
    inner, across = Level(2e-6, 100e9, 4, gap=1e-7), Level(5e-6, 25e9, 1, gap=2e-7)
    two = Network("test", 8, 4, 200e9, inner, across, copy=50e9, overhead=1e-6)
    one = replace(two, ranks_per_node=8, inner=replace(inner, ports=8))
    networks = (two, one, *((replace(two, ranks=12),) if everything else ()))
    sizes = (8, 1 << 20, 8 << 20)
    for net, nbytes in in_turn(networks, sizes, (collective, algorithm), everything=everything):
        tuning, call = Tuning(32 << 10, 2, net.topology()), call_of(collective, net.ranks, nbytes)
        if found.shared and net.nodes > 1:
            with pytest.raises(UsageError, match="share memory"):
                price(net, call, found, tuning)
            continue
        schedule = found.build(world(net.ranks), call, tuning)
        wanted = simulate(schedule, net, call.dtype.itemsize).seconds
        assert price(net, call, found.build, tuning) == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize(("collective", "algorithm"), REGISTERED)
def test_a_price_is_the_sum_of_what_it_is_made_of(collective, algorithm, pytestconfig):
    found = ALGORITHMS[collective][algorithm]
    networks = [load("nvlink8"), load("ib400x32").resized(24), load("lab1g").resized(6)]
    fitting = [net for net in networks if net.nodes == 1 or not found.shared]
    everything = pytestconfig.getoption("--all")
    # Without --all each network has one number of channels, another for the next algorithm.
    for net, channels in in_turn(fitting, (1, 2), (collective, algorithm), everything=everything):
        tuning = Tuning(64 << 10, channels, net.topology())
        call = call_of(collective, net.ranks, 2 << 20)
        seconds, counts = linear_price(net, call, found, tuning)
        assert seconds == pytest.approx(price(net, call, found, tuning), rel=1e-9)
        across = net.across or Level(0.0, math.inf, 1)
        parameters = [net.inner.latency, 1 / net.inner.bandwidth, across.latency]
        parameters += [1 / across.bandwidth, 1 / net.reduce, 1 / net.copy]
        # What is left are gaps, and links that ports share.
        left = seconds - counts @ parameters
        assert (counts >= 0).all()
        assert left >= -1e-9 * seconds
        if not net.inner.gap and net.nodes == 1 and net.inner.node_bandwidth == math.inf:
            assert left == pytest.approx(0, abs=1e-9 * seconds)


@pytest.mark.parametrize(
    "collective", [of for of, name in REGISTERED if name == "hierarchical" and of != "barrier"]
)
@pytest.mark.parametrize("ranks", [4, 6])
def test_it_agrees_with_a_simulation_of_steps_in_memory(collective, ranks):
    net = replace(load("lab1g"), ranks=ranks)
    direct = ALGORITHMS[collective]["hierarchical"].direct
    tuning = Tuning(64 << 10, 4, net.topology())
    call = call_of(collective, ranks, 16 << 20)
    schedule = direct(world(ranks), call, tuning)
    found = simulate(schedule, net, call.dtype.itemsize).seconds
    assert price(net, call, direct, tuning) == pytest.approx(found, rel=0.05)


def test_the_overhead_of_a_call_is_counted_once():
    build = ALGORITHMS["all_reduce"]["ring"].build
    call, tuning = call_of("all_reduce", 3, 1 << 20), Tuning(whole, 1)
    seconds = price(LINE, call, build, tuning)
    assert price(replace(LINE, overhead=7.0), call, build, tuning) == seconds + 7
