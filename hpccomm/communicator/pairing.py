"""Whether the lists of calls in which each rank has its own fit together."""

from collections.abc import Sequence

from hpccomm.communicator.resolving import Lists
from hpccomm.contracts.collectives import NOBODY, counterpart
from hpccomm.errors import UsageError


def unpaired(everyone: Sequence[Lists], *, listed: bool) -> tuple[str, tuple[int, ...]] | None:
    """Return what does not fit, and the ranks concerned; None if all does.

    Parameters
    ----------
    everyone : sequence of Lists
        Those of each rank, in elements instead of rows.
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
            sent, expected = everyone[peer].counts[theirs], mine.recv_counts[block]
            if sent != expected:
                return (
                    f"rank {peer} sends {sent} elements to rank {rank}, which expects {expected} "
                    f"as its block {block}; let send_counts of one be recv_counts of the other",
                    (rank, peer),
                )
    return None
