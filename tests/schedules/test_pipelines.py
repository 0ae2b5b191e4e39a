"""The two trees share the work out, and pipelines keep their channels busy."""

import numpy as np
import pytest

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Phase
from hpccomm.schedules.algorithms.pipeline import Tree, in_streams
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
