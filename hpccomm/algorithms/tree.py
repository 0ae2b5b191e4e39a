"""Binomial tree: the ranks that have the data double in each round."""

from hpccomm.contracts.schedule import RECV, Round, Schedule, Slice, Transfer
from hpccomm.contracts.signature import Signature


def broadcast(rank: int, size: int, call: Signature) -> Schedule:
    """Hand the root's array down a binomial tree: at most ⌈log2 n⌉ messages on any path."""
    data = Slice(RECV, 0, call.counts[0])
    if not data.count:
        return Schedule(())
    # Ranks are renumbered so that the root is 0. A rank's parent is itself without its lowest set
    # bit; its children are itself with a lower bit set, the largest subtree first.
    relative = (rank - call.root) % size
    rounds: list[Round] = []
    bit = 1
    while bit < size and not relative & bit:
        bit <<= 1
    if relative:
        parent = (relative - bit + call.root) % size
        rounds.append(Round(receives=(Transfer(parent, data),)))
    bit >>= 1
    sends: list[Transfer] = []
    while bit:
        if relative + bit < size:
            sends.append(Transfer((relative + bit + call.root) % size, data))
        bit >>= 1
    if sends:
        rounds.append(Round(sends=tuple(sends)))
    return Schedule(tuple(rounds))
