"""A power of two of ranks that work for all n.

Algorithms that halve or double need a power of two of ranks. The largest one that n holds leaves
fewer ranks over than it has; so each of those that are left over, the passive ones, has a neighbour
that speaks for both: first it takes the passive one's part, in the end it hands over the result. See
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
2005.
"""

import numpy as np

from hpccomm.schedules.algorithms.partition import Blocks
from hpccomm.schedules.schedule import Column, Group


class ActiveRanks:
    """The ranks of a group that speak, and how they are numbered.

    With k ranks too many, the first 2k positions form pairs, of which the first speaks.

    Parameters
    ----------
    group : Group
        All ranks.
    root : ndarray of int64 or int
        The position from which positions are counted: it has number 0.

    Attributes
    ----------
    size : int
        How many speak: the largest power of two that is not above the group's size.
    extra : int
        How many do not.
    passive, active : ndarray of bool
        Whose program is one that does not speak, or does.
    speaks : ndarray of bool
        Who speaks for a neighbour too.
    neighbour : ndarray of int64
        The rank of the other one of a pair; of others the own rank.
    number : ndarray of int64
        The number among those who speak; of a passive rank that of its neighbour.
    """

    def __init__(self, group: Group, root: Column | int = 0) -> None:
        n = group.size
        at: Column = (group.at - root) % n
        self.size = 1 << (n.bit_length() - 1)
        self.extra = n - self.size
        paired = at < 2 * self.extra
        self.passive = paired & (at % 2 == 1)
        self.active = ~self.passive
        self.speaks = paired & self.active
        other: Column = np.where(paired, at ^ 1, at)
        self.neighbour = group.peer((other + root) % n)
        self.number = np.where(paired, at // 2, at - self.extra)
        self._group = group
        self._root = root

    def first(self, number: Column) -> Column:
        """Return the first position, counted from the root, that `number` speaks for."""
        position: Column = number + np.minimum(number, self.extra)
        return position

    def peer(self, number: Column) -> Column:
        """Return the rank that has `number`, for each row."""
        return self._group.peer((self.first(number) + self._root) % self._group.size)


class Spans:
    """The blocks of all positions as blocks of those who speak, each for one or two positions.

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
