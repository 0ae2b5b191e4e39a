"""The virtual clock, against times worked out by hand; test_one_by_one.py has another implementation of the rules."""

import numpy as np
import pytest

from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost import rounds as repeats
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.rounds import simulate
from hpccomm.schedules.schedule import (
    RECV,
    SEND,
    Group,
    Place,
    Round,
    Schedule,
    Tuning,
    copies,
    folds,
    signals,
    transfers,
    whole,
    world,
)

LATENCY = 10.0
FLAT = Level(latency=LATENCY, bandwidth=2.0, ports=1)


def flat(ranks, level=FLAT, **facts):
    """One rank a node; a byte takes half a second, a fold a quarter."""
    return Network("flat", ranks, 1, **{"reduce": 4.0, "inner": None, "across": level, **facts})


def messages(*rows, local=()):
    """A round of messages (sender, receiver, bytes), and what ranks do behind them."""
    sender, receiver, count = (np.array(column) for column in zip(*rows, strict=True))
    return Round(
        receives=(transfers(receiver, sender, RECV, 0, count),),
        sends=(transfers(sender, receiver, SEND, 0, count),),
        local=local,
    )


def fold(rank, count, sources=2):
    ranks = np.array([rank])
    return folds(ranks, (Place(SEND, 0),) * sources, Place(RECV, 0), count, final=True)


def channels(*several):
    return Schedule(tuple(lambda rounds=rounds: iter(rounds) for rounds in several))


def ends(schedule, network, starts=None):
    return simulate(schedule, network, 1, starts).ends.tolist()


def test_one_message_leaves_its_sender_when_it_is_passed_and_arrives_a_latency_later():
    assert ends(channels([messages((0, 1, 6))]), flat(3)) == [3.0, 13.0, 0.0]


def test_each_message_takes_a_port_for_the_gap_and_a_signal_for_nothing_else():
    level = Level(LATENCY, 2.0, 1, gap=1.0)
    assert ends(channels([messages((0, 1, 6))]), flat(2, level)) == [4.0, 14.0]
    signal = Round(sends=(signals(np.array([0]), np.array([1])),))
    assert ends(channels([signal]), flat(2, level)) == [1.0, 11.0]


def test_a_message_to_oneself_is_there_at_once():
    assert ends(channels([messages((1, 1, 6))]), flat(2)) == [0.0, 0.0]


def nodes_of_two(ports=2, **across):
    inner, across = Level(1.0, 6.0, ports=2), Level(LATENCY, 2.0, ports, **across)
    return Network("pairs", 4, 2, reduce=4.0, inner=inner, across=across)


def test_channels_share_ports_and_the_engine_and_overlap_otherwise():
    piece = messages((0, 1, 6), local=(fold(1, 8),))
    # Passed at 3 and 6, there at 13 and 16; folded from 13 to 15 and from 16 to 18.
    assert ends(channels([piece], [piece]), flat(2)) == [6.0, 18.0]
    # A slow engine is what they wait for: from 13 to 21, and to 29.
    assert ends(channels([piece], [piece]), flat(2, reduce=1.0)) == [6.0, 29.0]
    # In one channel the second is sent after the first, and received after the first is folded.
    assert ends(channels([piece, piece]), flat(2, reduce=1.0)) == [6.0, 29.0]


def test_a_port_takes_the_messages_of_a_channel_round_by_round():
    late, early = messages((1, 2, 6)), messages((0, 2, 6))
    starts = np.array([0.0, 100.0, 0.0])
    # Rank 2 takes what is of the second round after what is of the first, as it asks for it.
    assert ends(channels([late, early]), flat(3), starts) == [106.0, 103.0, 116.0]
    # Another channel need not wait.
    assert ends(channels([late], [early]), flat(3), starts) == [3.0, 103.0, 113.0]


def test_what_is_ready_first_of_several_channels_is_taken_first():
    later = [Round(local=(fold(0, 40),)), messages((0, 1, 6))]
    sooner = [messages((1, 0, 6)), messages((0, 2, 6))]
    # The first channel's message is ready at 10, the second one's at 3 + 10.
    assert ends(channels(later, sooner), flat(3)) == [16.0, 23.0, 26.0]
    # Folds of two channels follow each other: until 1 and 11. So are the messages ready.
    quick = [Round(local=(fold(0, 4),)), messages((0, 2, 6))]
    assert ends(channels(quick, later), flat(3)) == [14.0, 24.0, 14.0]


def test_every_call_has_its_overhead():
    assert ends(channels([messages((0, 1, 6))]), flat(3, overhead=7.0)) == [10.0, 20.0, 7.0]
    assert ends(Schedule(()), flat(2, overhead=7.0)) == [7.0, 7.0]


def test_starts_of_other_ranks_are_refused():
    with pytest.raises(UsageError, match=r"shape \(3,\).*2 ranks"):
        simulate(channels([]), flat(2), 1, np.zeros(3))


def test_a_barrier_holds_all_of_each_group_for_its_last_one():
    members, places = np.array([[0, 1], [2, 3]]), np.array([0, 1, 0, 1])
    group = Group(np.arange(4), places, 2, members, np.array([0, 0, 1, 1]))
    meet = channels([Round(barrier=group)])
    assert ends(meet, nodes_of_two(), np.array([0.0, 5.0, 2.0, 0.0])) == [6.0, 6.0, 3.0, 3.0]
    assert ends(channels([Round(barrier=world(4))]), nodes_of_two()) == [20.0] * 4


def test_peers_memory_is_read_and_written_through_the_nodes_ports():
    own, of_0 = (SEND, 0), np.array([0])
    for step in (
        copies(np.array([1]), Place(*own, of_0), Place(RECV, 0), 6),
        copies(np.array([1]), Place(*own), Place(RECV, 0, of_0), 6),
        # Two that read from rank 0 share its way out: 1 s each.
        copies(np.array([1, 0]), Place(*own, np.array([0, 0])), Place(RECV, 0), 6),
    ):
        assert ends(channels([Round(local=(step,))]), nodes_of_two()) == [0.0, 2.0, 0.0, 0.0]


def test_what_was_busiest_is_named():
    both = channels([messages((0, 2, 6), (1, 3, 6))])
    found = simulate(both, nodes_of_two(ports=1), 1)
    assert (found.bottleneck, found.busy) == ("across port out of node 0", 6.0)
    found = simulate(channels([messages((1, 0, 6))]), nodes_of_two(), 1)
    assert (found.bottleneck, found.busy) == ("inner port out 1 of node 0", 1.0)
    found = simulate(channels([Round(local=(fold(1, 8),))]), nodes_of_two(), 1)
    assert (found.bottleneck, found.busy) == ("folds and copies of rank 1", 2.0)
    assert simulate(Schedule(()), flat(1), 1).bottleneck == ""


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ring_all_reduce(n):
    call = Signature("all_reduce", np.dtype(np.float32), (n * 5,), op=ReduceOp.SUM)
    schedule = ALGORITHMS["all_reduce"]["ring"].build(world(n), call, Tuning(whole))
    found = simulate(schedule, flat(n), 4).seconds
    # n-1 times 20 bytes are sent and folded, and n-1 times sent.
    assert found == pytest.approx((n - 1) * (2 * (10 + LATENCY) + 5))


def test_rounds_that_are_not_worked_out_again_come_to_the_same(monkeypatch):
    inner = Level(1e-6, 5e9, 4, gap=1e-7, node_bandwidth=9e9)
    across = Level(7e-6, 1e9, 2, total_bandwidth=4e9)
    network = Network("shared", 24, 4, reduce=3e9, inner=inner, across=across)
    call = Signature("all_reduce", np.dtype(np.float32), (1 << 20,), op=ReduceOp.SUM)
    schedule = ALGORITHMS["all_reduce"]["ring"].build(world(24), call, Tuning(4096, 3))
    starts = np.random.default_rng(1).random(24) * 1e-4
    quick = simulate(schedule, network, 4, starts)
    # The same run, in which every round is worked out: the oracle of one message at a time has no channels.
    monkeypatch.setattr(repeats, "_shift", lambda before, now: None)
    slow = simulate(schedule, network, 4, starts)
    assert quick.ends == pytest.approx(slow.ends, rel=1e-9)
    assert (quick.bottleneck, quick.busy) == (slow.bottleneck, pytest.approx(slow.busy))
