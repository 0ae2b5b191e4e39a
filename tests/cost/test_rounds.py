"""The price of a schedule without a formula: by hand, and against the formulas."""

from dataclasses import replace

import numpy as np
import pytest
from cost.calls import call_of

from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.schedules.cost.formulas import FORMULAS
from hpccomm.schedules.cost.model import price
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.network_files import load
from hpccomm.schedules.cost.rounds import walked
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Place,
    Round,
    Schedule,
    Tuning,
    copies,
    folds,
    transfers,
    whole,
    world,
)
from hpccomm.schedules.simulate import simulate

FLAT = Level(latency=10.0, bandwidth=2.0, ports=1)
LINE = Network("line", 3, 1, reduce=4.0, inner=None, across=FLAT, copy=8.0)


def column(*values):
    return np.array(values, np.int64)


def message(sender, receiver, count):
    return transfers(column(sender), column(receiver), RECV, 0, count)


def test_a_path_by_hand():
    received = (Place(SEND, 0), Place(RECV, 0))

    def rounds():
        # Out of rank 0's port after 2 + 1 seconds, there at 13; rank 1 has folded at 14.
        yield Round(
            sends=(message(0, 1, 4), message(0, 2, 2)),
            local=(folds(column(1), received, Place(RECV, 0), 4, final=True),),
        )
        # Passes until 17, is there at 27, and copied at 28.
        yield Round(
            sends=(message(1, 2, 6),),
            local=(copies(column(2), Place(RECV, 0), Place(SCRATCH, 0), 8),),
        )

    assert walked(Schedule((rounds,)), LINE, itemsize=1) == 28


def test_a_port_that_is_still_taken_by_hand():
    def rounds():
        yield Round(sends=(message(0, 2, 8),))  # takes rank 2's port until 4
        yield Round(sends=(message(1, 2, 8),))  # so this one passes it at 8

    assert walked(Schedule((rounds,)), LINE, itemsize=1) == 18


def test_channels_fill_a_link_by_hand():
    def rounds():
        yield Round(sends=(message(0, 1, 100),))

    # One alone takes 50 + 10 seconds; the port is taken for 50 by each.
    assert walked(Schedule((rounds, rounds)), LINE, itemsize=1) == 100


def test_what_nodes_share_by_hand():
    half = replace(FLAT, ports=2, duplex="half", total_bandwidth=0.5)
    net = Network("pair", 4, 2, reduce=4.0, inner=replace(FLAT, ports=1), across=half)

    def rounds(*pairs):
        yield Round(sends=tuple(message(*pair, 2) for pair in pairs))

    def seconds(*pairs):
        return walked(Schedule((lambda: rounds(*pairs),)), net, itemsize=1)

    assert seconds((0, 1)) == seconds((0, 1), (1, 0), (2, 3)) / 12 * 11 == 11  # one port a node
    assert seconds((0, 2), (2, 0)) == 18  # the spine takes 4 seconds for each


AGREEING = [
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "hierarchical"),
    ("all_reduce", "shm"),
    ("broadcast", "chain"),
    ("reduce", "binomial"),
    ("all_gather", "bruck"),
    ("reduce_scatter", "halving_doubling"),
    ("all_to_all", "linear"),
    ("gather", "binomial"),
    ("scan", "linear"),
    ("barrier", "hierarchical"),
]


@pytest.mark.parametrize(("collective", "algorithm"), AGREEING)
@pytest.mark.parametrize(("ranks", "per_node"), [(8, 8), (32, 8)])
def test_it_agrees_with_the_formula_where_nothing_contends(collective, algorithm, ranks, per_node):
    inner, across = Level(2e-6, 100e9, per_node, gap=1e-7), Level(5e-6, 25e9, per_node, gap=2e-7)
    net = Network("test", ranks, per_node, 200e9, inner, across, copy=50e9, overhead=1e-6)
    found = ALGORITHMS[collective][algorithm]
    if found.shared and net.nodes > 1:
        with pytest.raises(UsageError, match="share memory"):
            price(net, call_of(collective, ranks, 8), found, Tuning(whole, 1, net.topology()))
        return
    tuning = Tuning(whole, 1, net.topology())
    for nbytes in (8, 32 << 10, 1 << 20, 1 << 30):
        call = call_of(collective, ranks, nbytes)
        formula = price(net, call, algorithm, tuning)
        assert price(net, call, found.build, tuning) == pytest.approx(formula, rel=0.05)


@pytest.mark.parametrize(
    "collective",
    ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"],
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


def test_a_name_without_a_formula_is_priced_by_its_schedule(monkeypatch):
    build = ALGORITHMS["all_reduce"]["ring"].build
    monkeypatch.setitem(ALGORITHMS["all_reduce"], "new", Algorithm(build))
    assert "new" not in FORMULAS["all_reduce"]
    call, tuning = call_of("all_reduce", 3, 1 << 20), Tuning(whole, 1)
    seconds = walked(build(world(3), call, tuning), LINE, itemsize=4)
    slow = replace(LINE, overhead=7.0)
    assert price(slow, call, "new", tuning) == price(slow, call, build, tuning) == seconds + 7


def test_one_rank_only_copies():
    alone = Network("alone", 1, 1, reduce=4.0, inner=None, across=None, copy=8.0)
    call, build = call_of("all_reduce", 1, 64), ALGORITHMS["all_reduce"]["ring"].build
    assert price(alone, call, build, Tuning(whole, 1)) == 8
