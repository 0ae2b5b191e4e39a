"""Rounds of pairs: every pair once, no rank twice, no link shared."""

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hpccomm.tools.perf.pairs import again, rounds

placements = st.lists(st.integers(0, 6), min_size=2, max_size=24)


def judged(nodes, planned):
    """Raise unless pairs of a round share neither ranks nor links."""
    for pairs in planned:
        links = Counter(node for a, b in pairs for node in {nodes[a], nodes[b]})
        assert max(links.values()) == 1


@given(placements)
def test_every_pair_is_measured_once_and_shares_no_link(nodes):
    planned = rounds(nodes)
    judged(nodes, planned)
    # A node's memory is not shared with a link either.
    assert all(len({nodes[a] == nodes[b] for a, b in pairs}) == 1 for pairs in planned)
    pairs = Counter(pair for each in planned for pair in each)
    assert pairs == Counter(combinations(range(len(nodes)), 2))


@given(placements, st.randoms())
def test_pairs_that_are_measured_again_share_no_link(nodes, chance):
    every = list(combinations(range(len(nodes)), 2))
    some = chance.sample(every, chance.randint(0, len(every)))
    planned = again(some, nodes)
    judged(nodes, planned)
    assert sorted(pair for each in planned for pair in each) == sorted(some)


def test_of_512_ranks_the_first_rounds_cover_all_nodes_and_then_all_ranks():
    nodes = [rank // 8 for rank in range(512)]
    planned = rounds(nodes)
    judged(nodes, planned)
    outside = [each for each in planned if nodes[each[0][0]] != nodes[each[0][1]]]
    met = {(nodes[a], nodes[b]) for each in outside[:63] for a, b in each}
    assert len({frozenset(each) for each in met}) == 64 * 63 // 2
    assert {rank for each in outside[: 8 * 63] for pair in each for rank in pair} == set(range(512))
    assert max(map(len, outside)) == 32
