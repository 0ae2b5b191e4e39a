"""The two trees share the work out, and pipelines keep their channels busy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.phases import Phase
from hpccomm.schedules.algorithms.pipeline import Segments, Tree, in_streams
from hpccomm.schedules.algorithms.tree import two_trees
from hpccomm.schedules.schedule import Tuning, whole, world

SIZES = [*range(1, 70), 127, 128, 129, 1000, 4096]


def inner(tree: Tree) -> np.ndarray:
    """Which positions other than the root have children."""
    return (tree.children[0] >= 0) & (tree.parent >= 0)


@pytest.mark.parametrize("size", SIZES)
def test_no_rank_has_children_in_both_trees(size: int) -> None:
    first, second = two_trees(world(size), size // 3)
    assert not (inner(first) & inner(second)).any()


@pytest.mark.parametrize("size", SIZES)
def test_trees_are_as_low_as_a_binary_tree_can_be(size: int) -> None:
    for tree in two_trees(world(size), size - 1):
        assert tree.height == (size - 1).bit_length()
        assert tree.depth.max() == tree.height


@pytest.mark.parametrize("size", SIZES)
def test_parents_and_children_know_each_other(size: int) -> None:
    root = size // 2
    for tree in two_trees(world(size), root):
        children = np.zeros(size, int)
        for child in tree.children:
            at = np.flatnonzero(child >= 0)
            assert (tree.parent[child[at]] == at).all()
            assert (tree.depth[child[at]] == tree.depth[at] + 1).all()
            np.add.at(children, child[at], 1)
        assert tree.parent[root] == -1
        assert tree.depth[root] == 0
        assert children[root] == 0
        assert (np.delete(children, root) == 1).all()


@given(st.integers(1, 300), st.data())
def test_a_rank_alone_finds_the_same_place(size: int, data: st.DataObject) -> None:
    root, rank = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    trees = two_trees(world(size), root)
    alone = two_trees(world(size, np.array([rank])), root)
    for among_all, one in zip(trees, alone, strict=True):
        assert one.height == among_all.height
        assert one.depth == among_all.depth[rank]
        assert one.parent == among_all.parent[rank]
        assert [int(c[0]) for c in one.children] == [int(c[rank]) for c in among_all.children]


@given(st.integers(0, 1000), st.integers(1, 1200))
def test_segments_cover_a_range(count: int, segment: int) -> None:
    segments = Segments(5, count, segment)
    assert segments.length <= segment
    assert (segments.number - 1) * segments.length < max(count, 1)
    assert segments.number * segments.length >= count


@pytest.mark.parametrize(
    ("count", "segment", "parts", "channels", "cut"),
    [
        (0, 4, 1, 1, None),
        (7, whole, 1, 1, None),
        (4, 4, 1, 1, None),
        (7, 4, 1, 1, 4),
        (8, 4, 1, 2, 4),
        (8, 4, 2, 1, None),
        (100, 4, 2, 3, 4),
    ],
)
def test_channels_that_would_have_no_whole_segment_are_left_out(
    count: int, segment: int, parts: int, channels: int, cut: int | None
) -> None:
    build = in_streams(Phase(lambda piece: iter(())), parts)
    call = Signature("broadcast", np.dtype(np.float32), (count,), root=0)
    schedule = build(world(2), call, Tuning(segment, 3))
    assert len(schedule.channels) == channels
    assert schedule.segment == cut
