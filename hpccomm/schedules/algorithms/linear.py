"""Linear algorithms: each rank sends to every other rank directly, all at once.

There is one round, so no message waits for another. But a rank has n-1 messages, and reductions need n
times the memory. These algorithms suit few ranks or small arrays. There is no source to cite: they follow
the definitions of the collectives.

===================  ===============  ============================
collective           rounds           elements sent by a rank
===================  ===============  ============================
all_reduce           1                n-1 times the array
all_gather           1                n-1 times its block
all_to_all           1                (n-1)/n of its array
neighbor_all_to_all  1                its blocks for other ranks
gather               1                its block; the root none
scatter              1                the root (n-1)/n of its array
===================  ===============  ============================

`ALGORITHMS` lists them; `hierarchical` uses them within nodes, and `pairwise` uses ``gather_rounds``.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from hpccomm.contracts.collectives import NOBODY
from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Listed,
    all_gather_in_pieces,
    backwards,
    offsets,
)
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Mask,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    folds,
    signals,
    transfers,
)


def with_others(group: Group, where: Mask | None = None) -> tuple[Group, Column]:
    """Pair each row of `group`, or each in `where`, with every other position of its group.

    Returns
    -------
    Group
        The group with n-1 rows for each rank.
    ndarray of int64
        The other position in each row. Each rank begins with its right neighbor, so that not all
        ranks begin with rank 0.
    """
    n = group.size
    rows = np.arange(len(group.rank)) if where is None else np.flatnonzero(where)
    many = np.repeat(rows, n - 1)
    which = None if group.which is None else group.which[many]
    pairs = Group(group.rank[many], group.at[many], n, group.members, which)
    return pairs, (pairs.at + np.tile(np.arange(1, n, dtype=np.int64), len(rows))) % n


def signal_rounds(group: Group) -> Rounds:
    """Return the round in which every other rank signals to the first."""
    firsts, others = with_others(group, group.at == 0)
    yield Round(
        receives=(signals(firsts.rank, firsts.peer(others)),),
        sends=(signals(group.rank, group.peer(0 * group.at), group.at > 0),),
    )


def gather_rounds(
    group: Group, root: Column | int, blocks: Blocks, _slot: int, source: Place, target: str
) -> Rounds:
    """Return the round that collects each rank's own block, from `source`, in the root's buffer `target`.

    If `source` is in that buffer, the root's own block is in its place before.
    """
    rank, is_root = group.rank, group.at == root
    roots, others = with_others(group, is_root)
    to = group.peer(np.broadcast_to(root, group.at.shape))
    start, count = blocks.at(group.at)
    own = copies(rank, source, Place(target, start), count, is_root)
    yield Round(
        receives=(transfers(roots.rank, roots.peer(others), target, *blocks.at(others)),),
        sends=(transfers(rank, to, source.buffer, source.start, count, ~is_root),),
        local=() if source.buffer == target else (own,),
    )


def all_gather_rounds(group: Group, blocks: Blocks) -> Rounds:
    """Return the round in which each rank sends its own block of `RECV` to every other rank."""
    n, at, rank = group.size, group.at, group.rank
    own = blocks.at(at)
    receives, sends = [], []
    for step in range(1, n):
        of, to = (at - step) % n, (at + step) % n
        receives.append(transfers(rank, group.peer(of), RECV, *blocks.at(of)))
        sends.append(transfers(rank, group.peer(to), RECV, *own))
    yield Round(tuple(receives), tuple(sends))


def all_reduce(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank sends its array to every other rank, and folds in rank order."""
    n, count = group.size, call.counts[0]
    own = Place(SEND, 0)

    def channel() -> Rounds:
        if n == 1:
            yield Round(local=(copies(group.rank, own, Place(RECV, 0), count),))
            return
        pairs, others = with_others(group)
        peer = pairs.peer(others)
        # The own contribution is copied to scratch, so that all contributions lie there in rank order.
        among = copies(group.rank, own, Place(SCRATCH, group.at * count), count)
        sources = tuple(Place(SCRATCH, i * count) for i in range(n))
        yield Round(
            receives=(transfers(pairs.rank, peer, SCRATCH, others * count, count),),
            sends=(transfers(pairs.rank, peer, SEND, 0, count),),
            local=(among, folds(group.rank, sources, Place(RECV, 0), count, final=True)),
        )

    return Schedule((channel,), 0 if n == 1 else n * count)


all_gather = all_gather_in_pieces(all_gather_rounds, cut=False)
"""The build of the all-gather in which each rank sends its block to every other rank."""


def all_to_all(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank sends every other rank its block.

    In place, the array is copied to scratch first.
    """
    sent, received = Listed(call.counts), Listed(call.recv_counts)

    def exchange(source: str) -> Round:
        pairs, others = with_others(group)
        peer = pairs.peer(others)
        own = Place(source, sent.at(group.at)[0])
        target, count = received.at(group.at)
        return Round(
            receives=(transfers(pairs.rank, peer, RECV, *received.at(others)),),
            sends=(transfers(pairs.rank, peer, source, *sent.at(others)),),
            local=(copies(group.rank, own, Place(RECV, target), count),),
        )

    return _after_saving(group, call, exchange)


def _after_saving(group: Group, call: Signature, exchange: Callable[[str], Round]) -> Schedule:
    """Return the schedule of one exchange of blocks, from scratch if the call is in place."""
    total = sum(call.counts) if call.in_place else 0

    def channel() -> Rounds:
        # A rank that is not in place has this round too: both ends of a message must be in the same round.
        yield Round(local=(copies(group.rank, Place(SEND, 0), Place(SCRATCH, 0), total),))
        yield exchange(SCRATCH if call.in_place else SEND)

    return Schedule((channel,), total)


def neighbor_all_to_all(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank sends each of its peers a block.

    In place, the array is copied to scratch first. All messages are in one round, since no rank knows the peers of
    others: a rank that waited for another round might wait for ever. Two ranks match their messages by the order of
    their lists of peers.
    """
    sent = tuple(zip(offsets(call.counts), call.counts, strict=True))
    received = tuple(zip(offsets(call.recv_counts), call.recv_counts, strict=True))

    def exchange(source: str) -> Round:
        rank = group.rank
        receives, sends, own = [], [], []
        for position, (start, count), (target, coming) in zip(
            call.peers, sent, received, strict=True
        ):
            if position == NOBODY:
                continue
            peer = group.peer(np.full(len(rank), position, np.int64))
            itself = peer == rank
            receives.append(transfers(rank, peer, RECV, target, coming, ~itself))
            sends.append(transfers(rank, peer, source, start, count, ~itself))
            own.append(copies(rank, Place(source, start), Place(RECV, target), count, itself))
        return Round(tuple(receives), tuple(sends), tuple(own))

    return _after_saving(group, call, exchange)


def gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank sends its block to the root."""
    blocks = Listed(call.counts)
    return Schedule((lambda: gather_rounds(group, call.root, blocks, 0, Place(SEND, 0), RECV),))


def scatter(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which the root sends each rank its block."""
    blocks = Listed(call.counts)
    gathering = partial(gather_rounds, group, call.root, blocks, 0, Place(RECV, 0), SEND)
    return Schedule((lambda: backwards(gathering()),))
