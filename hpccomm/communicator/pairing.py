"""Whether the lists of calls in which each rank has its own fit together."""

from collections.abc import Sequence
from typing import NamedTuple

from hpccomm.contracts.collectives import NOBODY, counterpart
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError


class Exchanged(NamedTuple):
    """What one rank exchanges.

    Attributes
    ----------
    peers : sequence of int
        The peer of each block, or `NOBODY`; empty where the blocks are those of all ranks.
    sent, received : sequence of int
        Elements of each block.
    """

    peers: Sequence[int]
    sent: Sequence[int]
    received: Sequence[int]


def exchanged(call: Signature) -> Exchanged:
    """Return what the rank of a call exchanges."""
    return Exchanged(call.peers, call.counts, call.recv_counts)


def unpaired(everyone: Sequence[Exchanged], *, listed: bool) -> tuple[str, tuple[int, ...]] | None:
    """Return what does not fit, and the ranks concerned; None if all does.

    Parameters
    ----------
    everyone : sequence of Exchanged
        That of each rank.
    listed : bool
        Whether ranks list their peers.
    """
    everybody = range(len(everyone))
    for rank, mine in enumerate(everyone):
        for block, peer in enumerate(mine.peers if listed else everybody):
            if peer == NOBODY:
                continue
            try:
                theirs = (
                    counterpart(rank, block, lambda each: everyone[each].peers) if listed else rank
                )
            except UsageError as error:
                return str(error), (rank, peer)
            sent, expected = everyone[peer].sent[theirs], mine.received[block]
            if sent != expected:
                return (
                    f"rank {peer} sends {sent} elements to rank {rank}, which expects {expected} "
                    f"as its block {block}; let send_counts of one be recv_counts of the other",
                    (rank, peer),
                )
    return None
