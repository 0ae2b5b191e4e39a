"""Linear algorithms: one rank after the other, or everyone with one."""

from hpccomm.algorithms.partition import slices
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


def gather(rank: int, size: int, call: Signature) -> Schedule:
    """Each rank sends its block to the root: n-1 messages there, one elsewhere."""
    blocks = slices(RECV, call.counts)
    own = Slice(SEND, 0, call.counts[rank])
    if rank != call.root:
        return Schedule((Round(sends=(Transfer(call.root, own),) if own.count else ()),))
    receives = tuple(
        Transfer(peer, blocks[peer]) for peer in range(size) if peer != rank and blocks[peer].count
    )
    return Schedule((Round(receives=receives, local=(Copy(own, blocks[rank]),)),))


def scatter(rank: int, size: int, call: Signature) -> Schedule:
    """The root sends each rank its block."""
    blocks = slices(SEND, call.counts)
    own = Slice(RECV, 0, call.counts[rank])
    if rank != call.root:
        return Schedule((Round(receives=(Transfer(call.root, own),) if own.count else ()),))
    sends = tuple(
        Transfer(peer, blocks[peer]) for peer in range(size) if peer != rank and blocks[peer].count
    )
    return Schedule((Round(sends=sends, local=(Copy(blocks[rank], own),)),))


def all_reduce(rank: int, size: int, call: Signature) -> Schedule:
    """Everyone sends all it has to everyone, and folds in rank order.

    One round of n-1 messages: for small arrays, since it takes n times the array's memory.
    """
    count = call.counts[0]
    own = Slice(SEND, 0, count)
    landing = [Slice(SCRATCH, count * (i if i < rank else i - 1), count) for i in range(size)]
    contributions = tuple(own if i == rank else landing[i] for i in range(size))
    peers = [(rank + step) % size for step in range(1, size)] if count else []
    exchange = Round(
        receives=tuple(Transfer(peer, contributions[peer]) for peer in peers),
        sends=tuple(Transfer(peer, own) for peer in peers),
        local=(Fold(contributions, Slice(RECV, 0, count)),),
    )
    return Schedule((exchange,), count * (size - 1))


def scan(rank: int, size: int, call: Signature) -> Schedule:
    """Each rank receives the prefix of those before it, folds its own in and passes it on.

    n-1 messages one after the other. On rank 0 an exclusive scan leaves `recv` alone.
    """
    count = call.counts[0]
    own, result = Slice(SEND, 0, count), Slice(RECV, 0, count)
    before, passed = Slice(SCRATCH, 0, count), Slice(SCRATCH, count, count)
    rounds: list[Round] = []
    if rank == 0:
        passed = own
        if not call.exclusive:
            rounds.append(Round(local=(Copy(own, result),)))
    else:
        folded = passed if call.exclusive else result
        local: tuple[Copy | Fold, ...] = (Fold((before, own), folded),)
        if call.exclusive:
            local = (*local, Copy(before, result))
        else:
            passed = result
        receives = (Transfer(rank - 1, before),) if count else ()
        rounds.append(Round(receives=receives, local=local))
    if rank + 1 < size and count:
        rounds.append(Round(sends=(Transfer(rank + 1, passed),)))
    return Schedule(tuple(rounds), 0 if rank == 0 else 2 * count if call.exclusive else count)
