"""Which ranks share a node: made with a communicator, and read by dispatch and schedules."""

import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hpccomm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of a communicator's ranks.

    Attributes
    ----------
    node_of : tuple of int
        For each rank, the number of its node. Nodes are numbered by their lowest rank.
    """

    node_of: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.node_of)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return max(self.node_of) + 1

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Return the ranks on `node`, ascending."""
        return tuple(rank for rank, at in enumerate(self.node_of) if at == node)

    def neighbors(self, rank: int) -> tuple[int, ...]:
        """Return the ranks on the node of `rank`, itself included."""
        return self.ranks_of(self.node_of[rank])

    def local_rank(self, rank: int) -> int:
        """Return the index of `rank` among the ranks of its node."""
        return self.neighbors(rank).index(rank)

    def restrict(self, ranks: Sequence[int]) -> "Topology":
        """Return the topology of the group of `ranks`, in that order."""
        return arrange([self.node_of[rank] for rank in ranks])


def arrange(keys: Sequence[Hashable]) -> Topology:
    """Number the nodes, from one key per rank.

    Parameters
    ----------
    keys : sequence of hashable
        One for each rank; ranks with equal keys share a node.

    Returns
    -------
    Topology
        Nodes are numbered by their lowest rank.
    """
    numbers: dict[Hashable, int] = {}
    return Topology(tuple(numbers.setdefault(key, len(numbers)) for key in keys))


def check_rank(name: str, value: object, size: int) -> int:
    """Return `value` as a rank.

    Raises
    ------
    UsageError
        If it is not a rank of this communicator.
    """
    try:
        rank = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        rank = -1
    if not 0 <= rank < size:
        given, more = repr(value), ""
        if getattr(value, "ndim", 0):
            given, more = "an array", "; the array comes before it, and one for the result is out="
        elif "Op" in type(value).__name__ or callable(value):
            more = "; the reduction is op="
        raise UsageError(f"{name} is {given}; give a rank from 0 to {size - 1}{more}")
    return rank
