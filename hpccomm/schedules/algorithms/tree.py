"""Double binary tree: two trees, and each carries half of the array.

In one binary tree half of the ranks are leaves, which never send (broadcast) or never fold
(reduce), while each inner rank moves the array twice. Here every leaf of one tree is an inner rank of
the other, so ranks share the work evenly. With many segments the links are as busy as those of a
ring, while the longest path grows only with log2 n. See P. Sanders, J. Speck, J. L. Träff,
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

`ALGORITHMS` lists the three; `hierarchical` uses the phases across nodes.
"""

from collections.abc import Callable

import numpy as np

from hpccomm.schedules.algorithms.pipeline import Pipeline, Tree
from hpccomm.schedules.schedule import Column, Group

Renumber = Callable[[Column], Column]


def two_trees(group: Group, root: Column | int) -> tuple[Tree, Tree]:
    """Return the two trees of a group; the position `root` is the root of both.

    Positions are numbered from the root on. The root has one child in each tree. The n-1 other positions form a binary
    tree below the root, in the order of their numbers, and odd numbers are leaves. The second tree mirrors the
    numbers. If odd numbers would stay odd by that, it shifts the numbers by one instead.
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
        depth, *numbers = _in_order(number, n)
        parent, *children = (np.where(at < 0, at, (back(at) + root) % n) for at in numbers)
        return Tree(others.bit_length(), depth, parent, tuple(children))

    second = (shifted, unshifted) if others % 2 else (mirrored, mirrored)
    return tree(np.copy, np.copy), tree(*second)


def _in_order(number: Column, n: int) -> tuple[Column, Column, Column, Column]:
    """Return the place of `number` in the binary tree that has 1, ..., n-1 in order, below 0.

    Returns
    -------
    depth, parent, first, second : Column
        The depth below 0, and the numbers of the parent and of the two children; -1 for a missing one.
    """
    # In a complete tree, a number with k zeros at its end has 2^k - 1 numbers below it on either
    # side. Numbers from n on do not exist: the nearest existing number above or below takes the place of one.
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
    """Return the parent of each number in the binary tree; the result for 0 means nothing."""
    lowest = number & -number
    following = number + lowest
    is_left = (number & (2 * lowest) == 0) & (following < n)
    return np.where(is_left, following, number - lowest)


def _power_of_two(value: Column) -> Column:
    """Return the largest power of two that is not above `value`, which is at least 1."""
    exponent = np.frexp(np.maximum(value, 1).astype(np.float64))[1]
    return np.left_shift(np.int64(1), exponent.astype(np.int64) - 1)


PIPELINE = Pipeline(two_trees, two_trees, parts=2, children=2)
"""The pipelines through both trees; each tree carries half of the array."""

ALL_REDUCE, BROADCAST, REDUCE = PIPELINE.all_reduce(), PIPELINE.broadcast(), PIPELINE.reduce()
all_reduce, broadcast, reduce = PIPELINE.builds()
