"""The terms of the algorithms against the prices of their schedules."""

import math
from dataclasses import replace
from functools import cache

import pytest
from costed_calls import REGISTERED, call_of, in_turn

from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network, load
from hpccomm.schedules.cost.rounds import price
from hpccomm.schedules.cost.terms import COMPOSED, LINES, estimate, has_terms, rounds_of
from hpccomm.schedules.schedule import Tuning, whole

BY_MESSAGES = [each for each in REGISTERED if not ALGORITHMS[each[0]][each[1]].shared]

SIZES = (4 << 10, 256 << 10, 16 << 20)
"""Every rank has a block of them."""

SEGMENT = 512 << 10


def flat(ranks, *, nodes=False):
    """A network of one level, on which copies take no time."""
    level = Level(2e-6, 10e9, 1 if nodes else ranks, gap=1e-7)
    inner, across = (None, level) if nodes else (level, None)
    return Network("flat", ranks, 1 if nodes else ranks, 20e9, inner, across, copy=math.inf)


@cache
def exact(net, collective, algorithm, nbytes, segment):
    """The price of a call, of which several tests ask."""
    call = call_of(collective, net.ranks, nbytes)
    elements = whole if segment == whole else segment // call.dtype.itemsize
    return price(net, call, algorithm, Tuning(elements, 1, net.topology()))


def ratios(networks, collective, algorithm, segment, config):
    """The estimate over the price, on each network at some sizes; with the network."""
    sizes = SIZES[:1] if collective == "barrier" else SIZES
    everything = config.getoption("--all")
    for net, nbytes in in_turn(networks, sizes, (collective, algorithm), everything=everything):
        held = call_of(collective, net.ranks, nbytes).nbytes
        estimated = estimate(net, collective, held, algorithm, segment)
        yield net, estimated / exact(net, collective, algorithm, nbytes, segment)


def test_every_algorithm_has_terms_and_nothing_else():
    assert sorted([*LINES, *COMPOSED]) == sorted(REGISTERED)
    known = ("all_reduce", "ring"), ("all_reduce", "hierarchical")
    others = ("all_reduce", "new"), ("gather", "hierarchical")
    assert [has_terms(*each) for each in (*known, *others)] == [True, True, False, False]


@pytest.mark.parametrize(("collective", "algorithm"), BY_MESSAGES)
def test_terms_are_the_price_on_one_level_and_near_it_elsewhere(
    collective, algorithm, pytestconfig
):
    powers = [flat(ranks, nodes=nodes) for ranks in (2, 4, 8, 32) for nodes in (False, True)]
    for net, ratio in ratios(powers, collective, algorithm, whole, pytestconfig):
        assert ratio == pytest.approx(1, rel=0.07), net
    networks = [flat(ranks) for ranks in (3, 6, 12)]
    networks += [load("ib400x32").resized(64), load("ethernet100").resized(32), load("lab1g")]
    for net, ratio in ratios(networks, collective, algorithm, SEGMENT, pytestconfig):
        assert 0.4 < ratio < 2.6, net


def test_bytes_of_shared_memory_move_once():
    net = flat(8)
    ring = estimate(net, "all_gather", 1 << 30, "ring", whole)
    shared = estimate(net, "all_gather", 1 << 30, "shm", whole)
    assert shared == pytest.approx(ring / 2, rel=0.02)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather", "reduce_scatter"])
def test_ranks_of_a_node_share_its_port_in_two_levels(collective):
    net, nbytes = load("lab1g"), SIZES[-1]
    held = call_of(collective, net.ranks, nbytes).nbytes
    estimated = estimate(net, collective, held, "hierarchical", SEGMENT)
    exactly = exact(net, collective, "hierarchical", nbytes, SEGMENT)
    assert estimated == pytest.approx(exactly, rel=0.1)


@pytest.mark.parametrize(
    "more", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["few", "more"]
)
@pytest.mark.parametrize("collective", list(dict(REGISTERED)))
def test_what_the_terms_choose_is_about_as_fast_as_the_best(collective, more):
    networks = [flat(ranks) for ranks in ((2, 8, 32) if more else (3, 6))]
    networks += [load("ethernet100").resized(32)] if more else [load("ib400x32").resized(64)]
    networks += [] if more else [load("lab1g")]
    names = [name for of, name in BY_MESSAGES if of == collective]
    for net in networks:
        for nbytes in SIZES[:1] if collective == "barrier" else SIZES:
            call = call_of(collective, net.ranks, nbytes)
            takes = {name: exact(net, collective, name, nbytes, SEGMENT) for name in names}
            chosen = min(
                names, key=lambda name: estimate(net, collective, call.nbytes, name, SEGMENT)
            )
            assert takes[chosen] <= 1.5 * min(takes.values()), (net.name, net.ranks, nbytes)


def test_what_moves_nothing_takes_no_more_than_a_call():
    net = replace(flat(8), overhead=3.0)
    assert estimate(net, "all_reduce", 0, "ring", SEGMENT) == 3
    assert estimate(replace(net, ranks=1), "all_reduce", 8, "ring", SEGMENT) == 3


def test_thousands_of_ranks_are_estimated():
    net = load("ib400x32").resized(65536)
    size = ("all_reduce", 1 << 20)
    assert estimate(net, *size, "ring", SEGMENT) > 100 * estimate(net, *size, "tree", SEGMENT)
    assert rounds_of(net, *size, "ring", SEGMENT) == 2 * 65535
    assert rounds_of(net, *size, "recursive_doubling", whole) == 16
