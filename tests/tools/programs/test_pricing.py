"""A program on a described network: by hand, and by the command."""

from dataclasses import replace

import numpy as np
import pytest
from damage import called, output
from programs_made import message, of, overlapped
from recordings_made import MICRO, all_reduce, repeated, stepped

from hpccomm.contracts.collectives import CALLS
from hpccomm.results.recording import waits
from hpccomm.results.recording_file import write
from hpccomm.schedules.cost.network import load
from hpccomm.tools.programs.model import BLOCK, START, five_numbers, gradients, predict
from hpccomm.tools.programs.pricing import collective, grown, on_network
from hpccomm.tools.programs.steps import HIDDEN, PARTS, shares, steps


def even(ranks=4, steps=6, nbytes=1 << 20):
    return stepped(ranks, steps, lambda _rank, _step: 1000 * MICRO, 50 * MICRO, nbytes)


def test_a_ring_between_two_nodes_takes_what_its_links_need():
    """2 ranks, each with the port of a node: the halves pass it twice, with a latency and a gap each."""
    network = load("lab1g").placed(2, 1, load("lab1g"))
    priced = on_network(of(even(2)), network, "ring")
    half, link = 1 << 19, network.across
    folded = half / network.reduce
    expected = 2 * (link.latency + link.gap + half / link.bandwidth) + folded
    assert priced.events["seconds"][0] == pytest.approx(expected, rel=0.1)
    assert predict(priced).seconds == pytest.approx(1e-3 + priced.events["seconds"][0])


@pytest.mark.parametrize("operation", sorted(set(CALLS) - {"barrier", "neighbor_all_to_all"}))
def test_faster_links_are_never_slower(operation):
    network = load("ethernet100").resized(16)
    fast = replace(network, across=replace(network.across, bandwidth=2 * network.across.bandwidth))
    for nbytes in (64, 1 << 20):
        exchange = "pairwise" if operation in ("all_to_all", "scan") else "ring"
        algorithm = "binomial" if CALLS[operation].rooted else exchange
        times = [
            collective(each, CALLS[operation], nbytes, algorithm).seconds
            for each in (network, fast)
        ]
        assert times[0] >= times[1] > 0


def test_messages_take_latency_and_bandwidth():
    """Rank 0 sends 1 MiB to rank 1 on another node and goes on when the bytes have passed its port."""
    network, size = load("lab1g").placed(2, 1, load("lab1g")), 1 << 20
    ranks = [(message("dst", 1, size), 0, 1)], [(message("src", 0, size), 0, 3)]
    priced = on_network(of(repeated(*ranks, mark=9)), network)
    link = network.across
    passed = link.gap + size / link.bandwidth
    assert priced.events["seconds"] == pytest.approx(passed + link.latency)
    assert priced.acts["own"][priced.acts["kind"] == START] == pytest.approx(passed)
    assert not priced.acts["own"][priced.acts["kind"] == BLOCK].any()


def test_a_collective_of_one_rank_has_nothing_to_transfer():
    alone = on_network(grown(of(even(2)), 1), load("lab1g").resized(1))
    assert predict(alone).seconds == pytest.approx(1e-3)


def test_further_ranks_do_what_the_recorded_ones_did():
    both, own = all_reduce(1 << 20), replace(all_reduce(64), group=1)
    ranks = [(both, 10, 20), (own, 30, 40)], [(both, 11, 20)]
    # Of a communicator of all ranks there is one; of that of rank 0, each copy has its own.
    one = of(repeated(*ranks, mark=50, groups=[(0,)]))
    many = grown(one, 5)
    assert many.ranks == 5
    members = {each: [] for each in range(len(many.events))}
    for event, rank in zip(many.acts["event"], many.rank(), strict=True):
        if event >= 0:
            members[event].append(int(rank))
    sets = {tuple(each) for each in members.values() if each}
    assert sets == {(0, 1, 2, 3, 4), (0,), (2,), (4,)}
    assert predict(many).seconds == pytest.approx(predict(one).seconds, rel=0.02)
    assert predict(grown(one, 1)).seconds == pytest.approx(one.seconds, rel=0.1)


def test_the_five_numbers_of_a_prediction_are_those_of_the_recording():
    recording = overlapped(number=6)
    waiting = waits(recording)
    expected = shares(recording, steps(recording, waiting.collectives), waiting)
    five = five_numbers(predict(of(recording)), np.zeros(len(of(recording).events)))
    assert five.sum(axis=1) == pytest.approx(100e-6)
    typical = expected.typical * 1e-9
    # A recording cannot tell when a transfer begins, and counts the time before the last arrival: 1 us of rank 0.
    assert five[:, :3] == pytest.approx(typical[:, :3], abs=1.01e-6)
    assert five[:, 3] == pytest.approx(typical[:, 3:].sum(axis=1), abs=1e-8)


def test_gradients_are_hidden_behind_the_backward_pass():
    behind = gradients(100 << 20, 0.1, 8, overlap=False)
    beside = gradients(100 << 20, 0.1, 8, overlap=True)
    network = load("ethernet100").resized(8)
    whole, hidden = (predict(on_network(each, network)) for each in (behind, beside))
    price = collective(network, CALLS["all_reduce"], 100 << 20).seconds
    assert whole.seconds == pytest.approx(0.1 + price)
    last = collective(network, CALLS["all_reduce"], 25 << 20).seconds
    assert hidden.seconds == pytest.approx(0.1 + last, rel=0.05)
    assert five_numbers(hidden, np.zeros(4)).mean(axis=0)[HIDDEN] == pytest.approx(3 * last)


def test_the_command_predicts_a_recorded_program_elsewhere(tmp_path):
    path = tmp_path / "t.h5"
    write(path, even())
    where = "simulate", "--cluster", "lab1g", "--trace"
    text = output(*where, path, "--ranks", "8")
    assert "4 ranks, 5 steps, by marks" in text
    assert "on lab1g for 8 ranks on 4 nodes, each with the work of rank r modulo 4" in text
    rows = {line[2:28].strip(): line[28:].split() for line in text.splitlines()}
    assert rows["compute"][:1] + rows["compute"][3:4] == ["1.000", "1.000"]
    assert rows["step"][0] == "1.050"
    total = sum(float(rows[each][3]) for each in PARTS)
    assert total == pytest.approx(float(rows["step"][3]), abs=0.01)
    assert "Expected error: 0.0%" in text
    assert "Bound by exposed transfer, most of all all_reduce of 1 MiB" in text
    output(*where, path, "--algorithm", "ring")
    refused = called(*where, path, "--algorithm", "bruck")[2]
    assert "no call has --algorithm bruck; give one of" in refused
    write(tmp_path / "silent.h5", repeated([], mark=1))
    assert "Bound by compute" in output(*where, tmp_path / "silent.h5")
