"""Pairwise exchange: every two ranks exchange their data for each other directly.

Each element crosses the network once, but each rank sends n-1 messages. In a reduction each rank owns a
block, and receives the contributions to its block from one peer after the other. See R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of collective communication operations in MPICH", 2005.

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
all_to_all      ⌊n/2⌋            (n-1)/n of its array
reduce          n                the array; the root (n-1)/n
==============  ===============  =======================

In one round of all_to_all a rank exchanges with the two ranks at one distance, one on each side.

`ALGORITHMS` lists both; `hierarchical` uses the all_to_all.
"""

from dataclasses import replace

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import ring, shm
from hpccomm.schedules.algorithms.linear import gather_rounds
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Even,
    Listed,
    Scattering,
    clip,
    in_channels,
)
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    folds,
    transfers,
)


def reduce_scatter_rounds(
    group: Group, blocks: Blocks, target: Place, slot: int, *, final: bool, source: str = SEND
) -> Rounds:
    """Return the rounds that fold the blocks of `source` over the group.

    Each rank gets the folded block of its position in `target`. A received block takes the elements of the largest
    block in scratch, from `slot` on. `source` is only read; its block for this rank is read only before `target` is
    written.
    """
    n, at, rank = group.size, group.at, group.rank
    start, count = blocks.at(at)
    so_far, landing = Place(source, start), Place(SCRATCH, slot)
    for step in range(1, n):
        to, of = (at + step) % n, (at - step) % n
        complete = final and step == n - 1
        yield Round(
            receives=(transfers(rank, group.peer(of), SCRATCH, slot, count),),
            sends=(transfers(rank, group.peer(to), source, *blocks.at(to)),),
            local=(folds(rank, (so_far, landing), target, count, final=complete),),
        )
        so_far = target


_SCATTERING = Scattering(
    reduce_scatter_rounds, ring.all_gather_rounds, lambda _size, largest: largest
)

reduce = _SCATTERING.reduce(gather_rounds).in_pieces
"""The build of a reduce-scatter, after which the root collects the blocks."""


def all_to_all(
    group: Group, call: Signature, tuning: Tuning, node: Column | None = None
) -> Schedule:
    """Return the schedule in which ranks exchange with those at distance 1, then at distance 2, ..., on both sides.

    In place, a received block overwrites one to be sent. If sent and received blocks have the same
    sizes, a received block waits in scratch until the block in its place has been sent. Otherwise the
    whole array is copied to scratch first.

    Parameters
    ----------
    group : Group
        All ranks, in any order. Positions at one distance exchange at the same time.
    call, tuning
        The call and its parameters, as for any algorithm.
    node : ndarray of int64, or None
        The node of each rank, if ranks of one node move their blocks in each other's memory. Then all blocks have
        one size. None for messages only.
    """
    n, at, rank = group.size, group.at, group.rank
    sent, received = Listed(call.counts), Listed(call.recv_counts)
    alike = call.counts == call.recv_counts
    through = call.in_place and alike
    saved = call.in_place and not alike
    source = SCRATCH if saved else SEND
    largest = max(sent.largest, received.largest)
    segment = max(min(tuning.segment, largest), 1)
    steps = n // 2 + 1

    def run(index: int, slot: int) -> Rounds:
        # Ranks may have different numbers of pieces. So each step of each piece has a fixed index on all ranks.
        piece, step = divmod(index, steps)
        out = clip(sent, piece * segment, segment)
        into = clip(received, piece * segment, segment)
        if step == 0:
            everything = sum(call.counts) if saved and piece == 0 else 0
            save = copies(rank, Place(SEND, 0), Place(SCRATCH, 0), everything)
            target, count = into.at(rank)
            own = copies(rank, Place(source, out.at(rank)[0]), Place(RECV, target), count)
            yield Round(local=(save,) if through else (save, own))
            return
        receives, sends, local = [], [], []
        sides = ((at + step) % n, (at - step) % n)
        for side, position in enumerate(sides[:1] if 2 * step == n else sides):
            peer = group.peer(position)
            far = None if node is None else node[rank] != node[peer]
            sends.append(transfers(rank, peer, source, *out.at(peer), far))
            target, count = into.at(peer)
            aside = Place(SCRATCH, slot + side * segment)
            landing = aside if through else Place(RECV, target)
            receives.append(transfers(rank, peer, *landing[:2], count, far))
            if through:
                local.append(copies(rank, landing, Place(RECV, target), count, far))
            if far is not None:
                # This rank moves one half of both blocks, and the peer the other half.
                theirs, whole = out.at(peer)
                first, part = Even(0, whole, 2).at((rank > peer).astype(np.int64))
                waits = aside if through else None
                mine = out.at(rank)[0] + first
                local += shm.exchanged(rank, peer, mine, theirs + first, part, waits, ~far)
        yield Round(tuple(receives), tuple(sends), tuple(local))

    # Uneven blocks take one channel, since the array must be saved before any block is received.
    under_way = tuning if call.uniform else replace(tuning, channels=1)
    scratch = 2 * segment if through else sum(call.counts) if saved else 0
    schedule = in_channels(range(-(-largest // segment) * steps), run, under_way, scratch)
    return replace(schedule, segment=segment if segment < largest else None)
