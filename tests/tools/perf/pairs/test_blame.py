"""Slow parts are located: a planted slow node, rank or pair is named and nothing else, and noise names nothing."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccomm.results.facts import Others
from hpccomm.results.pairs import MeasuredPairs, PairLink, Thresholds, locate_slow, text


def measured(nodes, seed, slow=lambda a, b: 1.0, part=1.0, noise=0.03):
    """Make pairs of 10 GB/s and 2 us between nodes, 4 times better inside, with some noise."""
    chance, links = np.random.default_rng(seed), []
    for a, b in combinations(range(len(nodes)), 2):
        if chance.random() > part:
            continue
        better = 4 if nodes[a] == nodes[b] else 1
        ways = np.array([slow(a, b), slow(b, a)])
        there, back = 1e10 * better * chance.normal(1, noise, 2) / ways
        links.append(PairLink(a, b, 2e-6 / better * chance.normal(1, noise), there, back))
    hosts = tuple(f"host{node}" for node in nodes)
    return MeasuredPairs(tuple(nodes), hosts, tuple(links), len(links), 8, 1 << 20, 1.0)


def placed(nodes, per_node):
    return [node for node in range(nodes) for _ in range(per_node)]


def by_node(places, bad, times):
    """How many times as long messages between nodes take where a bad one is at an end."""
    return lambda a, b: times if places[a] != places[b] and bad & {places[a], places[b]} else 1.0


def named(found, **thresholds):
    findings = locate_slow(found, Thresholds(**thresholds)).findings
    return [(each.kind, each.name) for each in findings]


sizes = st.tuples(st.integers(1, 12), st.integers(1, 4)).filter(lambda size: size[0] * size[1] > 1)


@given(sizes, st.integers(0, 99))
def test_noise_names_nobody(size, seed):
    assert named(measured(placed(*size), seed)) == []


def test_what_is_slow_on_a_busy_node_is_undecided_and_quiet_nodes_are_judged():
    # Node 1 is slow as others keep it busy; node 3 is slow and quiet.
    found = measured(range(6), 1, lambda a, b: 3.0 if {a, b} & {1, 3} else 1.0)
    before, during = [0.01] * 6, [0.02, 0.8, 0.02, 0.02, 0.02, -1.0]
    busy = replace(found, others=Others(found.hosts, before, during))
    verdict = locate_slow(busy, Thresholds())
    assert (verdict.drain, verdict.undecided) == (("host3",), ("host1",))
    assert text(busy, verdict).endswith("# UNDECIDED host1: busy\n# DRAIN host3\n")
    assert "80% of the cores of host1, 1% before; busy, above 10%" in text(busy, verdict)
    # As a file of an older version has it, nothing is known of others.
    alone = locate_slow(found, Thresholds())
    assert alone.drain == ("host3", "host1")
    assert text(found, alone).endswith("# DRAIN host3\n# DRAIN host1\n")


@given(st.integers(3, 12), st.integers(1, 4), st.integers(0, 99), st.floats(1.6, 10))
def test_a_slow_node_is_named_and_nobody_else(nodes, per_node, seed, times):
    bad, places = seed % nodes, placed(nodes, per_node)
    found = measured(places, seed, by_node(places, {bad}, times))
    assert named(found) == [("node", f"host{bad}")]
    verdict = locate_slow(found, Thresholds())
    assert verdict.drain == (f"host{bad}",)
    assert verdict.findings[0].slow == verdict.findings[0].pairs == (nodes - 1) * per_node**2
    assert verdict.findings[0].part == pytest.approx(1 / times, rel=0.2)


@settings(max_examples=30)
@given(st.integers(6, 12), st.integers(0, 99))
def test_two_slow_nodes_are_both_named_from_a_sample_of_the_pairs(nodes, seed):
    places, bad = placed(nodes, 4), {seed % nodes, (seed + 1) % nodes}
    found = measured(places, seed, by_node(places, bad, 2.0), part=0.5)
    assert sorted(named(found)) == sorted(("node", f"host{each}") for each in bad)


@given(st.integers(3, 8), st.integers(2, 4), st.integers(0, 99))
def test_a_rank_that_receives_slowly_is_named_and_its_node_is_not(nodes, per_node, seed):
    places = placed(nodes, per_node)
    bad = seed % len(places)
    found = measured(places, seed, lambda a, b: 4.0 if b == bad else 1.0)
    assert named(found) == [("rank", f"{bad} (host{places[bad]})")]


@given(st.integers(4, 10), st.integers(0, 99))
def test_a_single_slow_pair_is_named_as_a_pair(nodes, seed):
    a, b = seed % nodes, (seed + 1) % nodes
    found = measured(placed(nodes, 1), seed, lambda *pair: 3.0 if set(pair) == {a, b} else 1.0)
    low, high = sorted((a, b))
    assert named(found) == [("pair", f"{low} and {high} (host{low}, host{high})")]


def test_two_slow_pairs_of_a_rank_are_named_as_pairs():
    found = measured([0] * 4, 0, lambda *pair: 3.0 if set(pair) in ({0, 1}, {0, 2}) else 1.0)
    assert [kind for kind, _ in named(found)] == ["pair", "pair"]


def test_of_two_nodes_nobody_can_tell_which():
    places = placed(2, 2)
    found = measured(places, 0, by_node(places, {0, 1}, 3.0))
    assert named(found) == []  # nothing is known that is better
    assert named(found, expected_bandwidth=1e10) == [("nodes", "host0 and host1")]
    assert locate_slow(found, Thresholds(expected_bandwidth=1e10)).drain == ()
    assert named(found, expected_latency=0.5e-6)[0] == ("nodes", "host0 and host1")
