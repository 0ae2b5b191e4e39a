"""Binomial tree: the ranks that have the data double in each round."""

from hpccomm.contracts.schedule import RECV, Round, Schedule, Slice, Transfer
from hpccomm.contracts.signature import Signature


def binomial(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent of `rank` in a binomial tree, and its children, nearest first.

    The child at distance b has the subtree of the b ranks that begin with it, counted from the root.
    """
    # Ranks are renumbered so that the root is 0. A rank's parent is itself without its lowest set
    # bit; its children are itself with a lower bit set.
    relative = (rank - root) % size
    children = []
    bit = 1
    while bit < size and not relative & bit:
        if relative + bit < size:
            children.append((relative + bit + root) % size)
        bit <<= 1
    return (None if relative == 0 else (relative - bit + root) % size), children


def broadcast(rank: int, size: int, call: Signature) -> Schedule:
    """Hand the root's array down a binomial tree: at most ⌈log2 n⌉ messages on any path."""
    data = Slice(RECV, 0, call.counts[0])
    if not data.count:
        return Schedule(())
    parent, children = binomial(rank, size, call.root)
    receive = () if parent is None else (Round(receives=(Transfer(parent, data),)),)
    # The largest subtree first: it has the longest way to go.
    sends = tuple(Transfer(child, data) for child in reversed(children))
    return Schedule((*receive, Round(sends=sends)) if sends else receive)
