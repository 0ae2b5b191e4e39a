"""A power of two of ranks that work for all n ranks.

Algorithms that halve or double need a power of two of ranks. The active ranks are as many as
the largest power of two that is not above n. Each of the others, the passive ranks, has an active
neighbour that works for both: it takes over the contribution of the passive rank first, and hands it the
result in the end. See
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
2005.
"""

import numpy as np

from hpccomm.schedules.algorithms.partition import Blocks
from hpccomm.schedules.schedule import Column, Group


class ActiveRanks:
    """The active ranks of a group, and how they are numbered.

    With k passive ranks, the first 2k positions form pairs, of which the first one is active.

    Parameters
    ----------
    group : Group
        All ranks.
    root : ndarray of int64 or int
        The position that has number 0; positions are counted from it.

    Attributes
    ----------
    size : int
        How many are active: the largest power of two that is not above the group's size.
    extra : int
        How many are passive.
    passive, active : ndarray of bool
        Which rows are passive ranks, and which are active ones.
    helps : ndarray of bool
        Which rows work for a passive neighbour too.
    neighbour : ndarray of int64
        The rank of the other one of a pair; the own rank where there is no pair.
    number : ndarray of int64
        The number among the active ranks; a passive rank has the number of its neighbour.
    """

    def __init__(self, group: Group, root: Column | int = 0) -> None:
        n = group.size
        at: Column = (group.at - root) % n
        self.size = 1 << (n.bit_length() - 1)
        self.extra = n - self.size
        paired = at < 2 * self.extra
        self.passive = paired & (at % 2 == 1)
        self.active = ~self.passive
        self.helps = paired & self.active
        other: Column = np.where(paired, at ^ 1, at)
        self.neighbour = group.peer((other + root) % n)
        self.number = np.where(paired, at // 2, at - self.extra)
        self._group = group
        self._root = root

    def first(self, number: Column) -> Column:
        """Return the first position, counted from the root, for which `number` works."""
        position: Column = number + np.minimum(number, self.extra)
        return position

    def peer(self, number: Column) -> Column:
        """Return the rank that has `number`, for each row."""
        return self._group.peer((self.first(number) + self._root) % self._group.size)


class Spans:
    """The blocks of all positions as blocks of the active ranks, each of one or two positions.

    The blocks must lie one after the other.
    """

    def __init__(self, blocks: Blocks, core: ActiveRanks) -> None:
        self._blocks = blocks
        self._core = core
        self.largest = blocks.largest * (2 if core.extra else 1)

    def at(self, number: Column) -> tuple[Column, Column]:
        """Return first element and count of the block of `number`, for each row."""
        return span(self._blocks, self._core.first(number), self._core.first(number + 1))


def span(blocks: Blocks, first: Column, end: Column) -> tuple[Column, Column]:
    """Return first element and count of the blocks from `first` to before `end`, at least one.

    The blocks must lie one after the other.
    """
    start, _ = blocks.at(first)
    last, count = blocks.at(end - 1)
    return start, last + count - start
