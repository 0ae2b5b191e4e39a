"""Shared memory: each rank reads its peers' arrays and writes to them, where they lie.

Nothing is sent. In a reduction each rank owns a slice of the array: it folds the contributions to it
in rank order, block by block, and writes each block to all who want it while it is in the cache. So
the array passes once through memory, whatever the number of ranks. See J. M. Hashmi, S. Chakraborty,
M. Bayatpour, H. Subramoni, D. K. Panda, "Designing efficient shared address space reduction
collectives for multi-/many-cores", 2018.

==============  ============================  =============================
collective      elements read by a rank       elements written by a rank
==============  ============================  =============================
all_reduce      the array                     the array
reduce          the array                     1/n of the array
reduce_scatter  the array                     its block
all_gather      the result                    the result
broadcast       the array; the root none      the array; the root none
all_to_all      3/2 of its array              3/2 of its array
gather          its block                     its block
scatter         its block                     its block
==============  ============================  =============================

A barrier begins each schedule, since a peer's array may be touched only once the peer takes part in the
call; another ends it, since until then a peer may be at work on this rank's arrays.

In place too nobody reads what another one overwrites: of all arrays a rank touches the elements
that are its own to fold or to move, and it reads them before it writes them.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from hpccomm.algorithms.partition import Blocks, Even, Listed, clipped
from hpccomm.contracts.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Copies,
    Folds,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    folds,
)
from hpccomm.contracts.signature import Signature

Part = TypeVar("Part")
Steps = Sequence[Copies | Folds]


def _schedule(
    group: Group,
    parts: Sequence[Part],
    steps: Callable[[Part], Steps],
    segment: int | None = None,
    scratch: int = 0,
) -> Schedule:
    """Return a channel with a round for the steps of each part, between two barriers.

    One channel: the processor does one thing at a time anyhow.
    """
    barrier = group if group.size > 1 else None

    def channel() -> Rounds:
        yield Round(barrier=barrier)
        for part in parts:
            yield Round(local=tuple(steps(part)))
        yield Round(barrier=barrier)

    return Schedule((channel,), scratch, segment)


def _cut(blocks: Blocks, tuning: Tuning) -> tuple[list[Blocks], int | None]:
    """Return the pieces of `blocks` and their segment, if there are several."""
    pieces = clipped(blocks, tuning.segment)
    return pieces, tuning.segment if len(pieces) > 1 else None


def _of(group: Group, position: Column | int) -> Column | None:
    """Return for each row the rank at `position`; None where there is but one."""
    return None if group.size == 1 else group.peer(np.broadcast_to(position, group.at.shape))


def _contributions(group: Group, start: Column) -> tuple[Place, ...]:
    """Return where the contributions from element `start` on lie, in rank order."""
    return tuple(Place(SEND, start, _of(group, position)) for position in range(group.size))


def _folded(group: Group, start: Column, count: Column, target: Place) -> Copies | Folds:
    """Return the steps that leave in `target` the fold of all contributions from `start` on."""
    if group.size == 1:
        return copies(group.rank, Place(SEND, start), target, count)
    return folds(group.rank, _contributions(group, start), target, count, final=True)


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its slice of all contributions and writes it to all results."""
    n, at, rank = group.size, group.at, group.rank

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(at)
        own = Place(RECV, start)
        # Each begins with its right neighbour, so that not all of them crowd on one memory.
        to_peers = (
            copies(rank, own, Place(RECV, start, _of(group, (at + step) % n)), count)
            for step in range(1, n)
        )
        return (_folded(group, start, count, own), *to_peers)

    pieces, segment = _cut(Even(0, call.counts[0], n), tuning)
    return _schedule(group, pieces, steps, segment)


def reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its slice of all contributions into the root's result."""
    root = _of(group, call.root)

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(group.at)
        return (_folded(group, start, count, Place(RECV, start, root)),)

    pieces, segment = _cut(Even(0, call.counts[0], group.size), tuning)
    return _schedule(group, pieces, steps, segment)


def reduce_scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its block of all contributions."""
    blocks = Listed(call.counts)
    own = blocks.at(group.at)[0]

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(group.at)
        return (_folded(group, start, count, Place(RECV, start - own)),)

    pieces, segment = _cut(blocks, tuning)
    return _schedule(group, pieces, steps, segment)


def all_gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Each rank reads the blocks of all, its own and its right neighbours' first."""
    blocks = Listed(call.counts)

    def steps(distance: int) -> Steps:
        position = (group.at + distance) % group.size
        start, count = blocks.at(position)
        source = Place(SEND, 0, _of(group, position))
        return (copies(group.rank, source, Place(RECV, start), count),)

    return _schedule(group, range(group.size), steps)


def broadcast(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Each rank reads the root's array."""
    source = Place(RECV, 0, _of(group, call.root))
    others = group.at != call.root
    read = copies(group.rank, source, Place(RECV, 0), call.counts[0], others)
    return _schedule(group, [[read]], list)


def all_to_all(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """One of each two ranks moves both of the blocks that they owe each other.

    Where one of the two is in place its block is overwritten by the other's: that waits in scratch
    meanwhile, piece by piece. Only the rank that moves them touches the two places.
    """
    n, at, rank = group.size, group.at, group.rank
    blocks = Listed(call.counts)
    pieces, segment = _cut(blocks, tuning)

    def steps(part: tuple[int, Blocks]) -> Steps:
        distance, piece = part
        position = (at + distance) % n
        theirs, count = piece.at(position)
        if distance == 0:
            return (copies(rank, Place(SEND, theirs), Place(RECV, theirs), count),)
        peer, mine, aside = group.peer(position), piece.at(at)[0], Place(SCRATCH, 0)
        # The rank opposite is at this distance on both sides.
        moves = at < position if 2 * distance == n else None
        return (
            copies(rank, Place(SEND, theirs), aside, count, moves),
            copies(rank, Place(SEND, mine, peer), Place(RECV, theirs), count, moves),
            copies(rank, aside, Place(RECV, mine, peer), count, moves),
        )

    parts = [(distance, piece) for distance in range(n // 2 + 1) for piece in pieces]
    return _schedule(group, parts, steps, segment, pieces[0].largest if n > 1 else 0)


def gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Each rank writes its block to the root's result."""
    start, count = Listed(call.counts).at(group.at)
    target = Place(RECV, start, _of(group, call.root))
    write = copies(group.rank, Place(SEND, 0), target, count)
    return _schedule(group, [[write]], list)


def scatter(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Each rank reads its block from the root's array."""
    start, count = Listed(call.counts).at(group.at)
    source = Place(SEND, start, _of(group, call.root))
    read = copies(group.rank, source, Place(RECV, 0), count)
    return _schedule(group, [[read]], list)
