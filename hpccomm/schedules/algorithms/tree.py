"""Double binary tree: two trees, each of which carries half of the array.

In one binary tree half of the ranks are leaves, which never send (broadcast) or never fold (reduce),
and the others carry twice the array. Two trees in which a leaf of the one is an inner rank of the
other share the work out, so that with many segments the links are as busy as a ring's, while the
number of messages one after the other grows with log2 n. See P. Sanders, J. Speck, J. L. Träff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL's tree rests on
the same construction.

With s segments in each half:

==============  ====================  =======================
collective      rounds                elements sent by a rank
==============  ====================  =======================
broadcast       s + ⌈log2 n⌉ - 1      at most the array
reduce          s + ⌈log2 n⌉ - 1      at most the array
all_reduce      s + 2⌈log2 n⌉ - 1     at most 2 times the array
==============  ====================  =======================
"""

from collections.abc import Callable

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.channels import side_by_side
from hpccomm.schedules.algorithms.partition import Range
from hpccomm.schedules.algorithms.pipeline import (
    Segments,
    Tree,
    down,
    down_after_up,
    streams,
    up,
    up_scratch,
)
from hpccomm.schedules.schedule import RECV, SEND, Column, Group, Rounds, Schedule, Tuning

Renumber = Callable[[Column], Column]


def two_trees(group: Group, root: Column | int) -> tuple[Tree, Tree]:
    """Return the two trees of a group; the position `root` is the root of both.

    Positions are numbered from the root on. The root has one child in each tree; the n-1 others
    stand there in the order of their numbers, odd ones as leaves. In the second tree the numbers are
    mirrored or, where that would leave odd ones odd, shifted by one.
    """
    n = group.size
    others = n - 1
    relative = (group.at - root) % n

    def mirrored(number: Column) -> Column:
        return (n - number) % n

    def shifted(number: Column) -> Column:
        return np.where(number == 0, 0, (number - 2) % max(others, 1) + 1)

    def unshifted(number: Column) -> Column:
        return np.where(number == 0, 0, number % max(others, 1) + 1)

    def tree(there: Renumber, back: Renumber) -> Tree:
        number = there(relative)
        depth, *found = _in_order(number, n)
        parent, *children = (np.where(at < 0, at, (back(at) + root) % n) for at in found)
        return Tree(others.bit_length(), depth, parent, tuple(children))

    second = (shifted, unshifted) if others % 2 else (mirrored, mirrored)
    return tree(np.copy, np.copy), tree(*second)


def _in_order(number: Column, n: int) -> tuple[Column, Column, Column, Column]:
    """Place `number` in the binary tree that has 1, ..., n-1 in order, below 0.

    Returns
    -------
    depth, parent, first, second : Column
        Messages from 0, and the numbers of the parent and the children; -1 where there is none.
    """
    # In a complete tree, whoever has k zeros at the end has 2^k - 1 numbers below it on either side.
    # Numbers from n on are not there: then the nearest above, or below, that is takes their place.
    side = np.where(number == 0, 1 << (n - 1).bit_length(), number & -number) // 2
    beyond = np.minimum(side, n - 1 - number)
    left = np.where((side > 0) & (number > 0), number - side, -1)
    right = np.where(beyond > 0, number + _power_of_two(beyond), -1)
    depth = np.zeros_like(number)
    above = number
    while above.any():
        depth += above > 0
        above = np.maximum(_parent(above, n), 0)
    return (
        depth,
        np.where(number == 0, -1, _parent(number, n)),
        np.where(left < 0, right, left),
        np.where(left < 0, -1, right),
    )


def _parent(number: Column, n: int) -> Column:
    """Return the number above each one of the binary tree; that of 0 means nothing."""
    lowest = number & -number
    following = number + lowest
    is_left = (number & (2 * lowest) == 0) & (following < n)
    return np.where(is_left, following, number - lowest)


def _power_of_two(value: Column) -> Column:
    """Return the largest power of two that is not above `value`, which is at least 1."""
    exponent = np.frexp(np.maximum(value, 1).astype(np.float64))[1]
    return np.left_shift(np.int64(1), exponent.astype(np.int64) - 1)


def _halves(start: Column | int, count: Column | int, segment: int) -> tuple[Segments, Segments]:
    """Return what the first tree carries, and what the second one."""
    later = count // 2
    sooner = count - later
    return Segments(start, sooner, segment), Segments(start + sooner, later, segment)


def reduce_scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `reduce_rounds` takes."""
    return 2 * up_scratch(2, count - count // 2, segment) if size > 1 else 0


def all_reduce_scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `all_reduce_rounds` takes."""
    return reduce_scratch(size, count, segment)


def reduce_rounds(
    group: Group,
    root: Column | int,
    start: Column | int,
    count: Column | int,
    slot: int,
    *,
    segment: int,
    final: bool,
    target: str,
    source: str = SEND,
) -> Rounds:
    """Fold `source` up both trees, into `target` at the root."""
    halves = _halves(start, count, segment)
    slots = (slot, slot + up_scratch(2, halves[0].length, segment))
    return side_by_side(
        *(
            up(group, tree, half, own, final=final, source=source, target=target)
            for tree, half, own in zip(two_trees(group, root), halves, slots, strict=True)
        )
    )


def broadcast_rounds(
    group: Group,
    root: Column | int,
    start: Column | int,
    count: Column | int,
    *,
    segment: int,
    buffer: str = RECV,
) -> Rounds:
    """Hand the root's `buffer` down both trees."""
    halves = _halves(start, count, segment)
    return side_by_side(
        *(
            down(group, tree, half, buffer)
            for tree, half in zip(two_trees(group, root), halves, strict=True)
        )
    )


def all_reduce_rounds(
    group: Group,
    start: Column | int,
    count: Column | int,
    slot: int,
    *,
    segment: int,
    final: bool,
    source: str = SEND,
) -> Rounds:
    """Fold `source` up both trees and hand the result down, while later segments are on their way up."""
    trees, halves = two_trees(group, 0), _halves(start, count, segment)
    slots = (slot, slot + up_scratch(2, halves[0].length, segment))
    return side_by_side(
        *(
            up(group, tree, half, own, final=final, source=source, target=RECV)
            for tree, half, own in zip(trees, halves, slots, strict=True)
        ),
        *(down_after_up(group, tree, half, RECV) for tree, half in zip(trees, halves, strict=True)),
    )


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Up both trees and down again."""

    def run(share: Range, slot: int) -> Rounds:
        return all_reduce_rounds(
            group, share.start, share.count, slot, segment=tuning.segment, final=True
        )

    def scratch(count: int) -> int:
        return all_reduce_scratch(group.size, count, tuning.segment)

    return streams(call.counts[0], run, tuning, scratch, parts=2)


def broadcast(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Down both trees."""

    def run(share: Range, _slot: int) -> Rounds:
        return broadcast_rounds(group, call.root, share.start, share.count, segment=tuning.segment)

    return streams(call.counts[0], run, tuning, parts=2)


def reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Up both trees."""

    def run(share: Range, slot: int) -> Rounds:
        return reduce_rounds(
            group,
            call.root,
            share.start,
            share.count,
            slot,
            segment=tuning.segment,
            final=True,
            target=RECV,
        )

    def scratch(count: int) -> int:
        return reduce_scratch(group.size, count, tuning.segment)

    return streams(call.counts[0], run, tuning, scratch, parts=2)
