"""Pairwise exchange: every pair of ranks exchanges what it owes each other, directly.

For reductions each rank owns a block. It receives that block from every peer and folds the n
contributions in rank order, so that the result has the same bits whatever the timing. A rank sends
(n-1)/n of the array, and as much again where the blocks are gathered: as many bytes as a ring, in
n-1 messages a phase. See R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005, for pairwise exchange.
"""

from hpccomm.algorithms.partition import even, slices
from hpccomm.contracts.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Copy,
    Fold,
    Round,
    Schedule,
    Slice,
    Transfer,
)
from hpccomm.contracts.signature import Signature


def all_to_all(rank: int, size: int, call: Signature) -> Schedule:
    """Each rank sends its block j to rank j."""
    targets = slices(RECV, call.recv_counts)
    if call.in_place:  # the blocks that are to be sent must survive those that come in
        total = sum(call.counts)
        sources = slices(SCRATCH, call.counts)
        first = Round(local=(Copy(Slice(SEND, 0, total), Slice(SCRATCH, 0, total)),))
        exchange = _exchange(rank, size, sources, targets)
        return Schedule((first, exchange), scratch=total)
    sources = slices(SEND, call.counts)
    exchange = _exchange(rank, size, sources, targets)
    return Schedule((exchange._replace(local=(Copy(sources[rank], targets[rank]),)),))


def _exchange(
    rank: int, size: int, sources: tuple[Slice, ...], targets: tuple[Slice, ...]
) -> Round:
    # Each rank begins with its right neighbour, so that not all of them crowd on rank 0.
    right = [(rank + step) % size for step in range(1, size)]
    left = [(rank - step) % size for step in range(1, size)]
    return Round(
        receives=tuple(Transfer(peer, targets[peer]) for peer in left if targets[peer].count),
        sends=tuple(Transfer(peer, sources[peer]) for peer in right if sources[peer].count),
    )


def _fold_own_block(
    rank: int, size: int, counts: tuple[int, ...], target: Slice
) -> tuple[Round, int]:
    """Receive the own block from all, and fold the contributions in rank order into `target`."""
    own = counts[rank]
    sources = slices(SEND, counts)
    if size == 1:
        return Round(local=(Fold((sources[0],), target),)), 0
    landing = [Slice(SCRATCH, own * (i if i < rank else i - 1), own) for i in range(size)]
    contributions = tuple(sources[i] if i == rank else landing[i] for i in range(size))
    exchange = _exchange(rank, size, sources, contributions)
    return exchange._replace(local=(Fold(contributions, target),)), own * (size - 1)


def reduce_scatter(rank: int, size: int, call: Signature) -> Schedule:
    """Fold block j of all ranks on rank j."""
    target = Slice(RECV, 0, call.counts[rank])
    exchange, scratch = _fold_own_block(rank, size, call.counts, target)
    return Schedule((exchange,), scratch)


def all_reduce(rank: int, size: int, call: Signature) -> Schedule:
    """Fold a block on each rank, then hand the blocks round."""
    counts = even(call.counts[0], size)
    blocks = slices(RECV, counts)
    exchange, scratch = _fold_own_block(rank, size, counts, blocks[rank])
    gather = _exchange(rank, size, (blocks[rank],) * size, blocks)
    return Schedule((exchange, gather), scratch)


def reduce(rank: int, size: int, call: Signature) -> Schedule:
    """Fold a block on each rank, then collect the blocks at the root."""
    counts = even(call.counts[0], size)
    blocks = slices(RECV, counts)
    at_root = rank == call.root
    folded = blocks[rank] if at_root else Slice(SCRATCH, 0, counts[rank])
    exchange, scratch = _fold_own_block(rank, size, counts, folded)
    if at_root:
        collect = Round(
            receives=tuple(Transfer(i, blocks[i]) for i in range(size) if i != rank and counts[i])
        )
    elif counts[rank]:
        collect = Round(sends=(Transfer(call.root, folded),))
    else:
        collect = Round()
    return Schedule((exchange, collect), max(scratch, folded.count))
