"""Shared memory: each rank reads and writes its peers' arrays in place.

No messages are sent. In a reduction each rank owns a slice of the array. It folds the contributions to
its slice in rank order, block by block, and writes each block to all results while it is in the cache. So
the array passes through memory once, whatever the number of ranks. See J. M. Hashmi, S. Chakraborty,
M. Bayatpour, H. Subramoni, D. K. Panda, "Designing efficient shared address space reduction
collectives for multi-/many-cores", 2018.

==============  ============================  =============================
collective      elements read by a rank       elements written by a rank
==============  ============================  =============================
all_reduce      the array                     the array
reduce          the array                     1/n of the array
reduce_scatter  the array                     its block
all_gather      the result                    the result
broadcast       (n-1)/n of the array          (n-1)/n of the array
all_to_all      its array; twice in place     its array; twice in place
gather          its block                     its block
scatter         its block                     its block
scan            the array                     the array
==============  ============================  =============================

A schedule begins with a barrier, since a peer's array may be accessed only once the peer takes part in
the call. It ends with a barrier, since before that a peer may still access this rank's arrays.

A peer's array may be accessible only through a copy by the kernel. So one side of each copy is the
rank's own memory. Data that is only moved goes in one piece, unless it has to wait in scratch.

In place too, no rank reads elements that another rank overwrites: a rank accesses only the elements that it folds
or moves, and reads them before it writes them.

`ALGORITHMS` lists these functions for ranks of one node; `shm_staged` is the form for arrays that peers do not reach.
`hierarchical` and `pairwise` use the steps within nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Blocks, Even, Listed, clipped
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Copies,
    Group,
    LocalStep,
    Mask,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    folds,
)

SHARE_BYTES = 32 << 10
"""Least bytes that the root of a broadcast writes to each peer; they take some microseconds."""

Part = TypeVar("Part")
Steps = Sequence[LocalStep]


def _schedule(
    group: Group,
    parts: Sequence[Part],
    steps: Callable[[Part], Steps],
    segment: int | None = None,
    scratch: int = 0,
) -> Schedule:
    """Return a schedule with a round for the steps of each part, between two barriers.

    It has one channel, since a processor does one thing at a time.
    """
    barrier = group if group.size > 1 else None

    def channel() -> Rounds:
        yield Round(barrier=barrier)
        for part in parts:
            yield Round(local=tuple(steps(part)))
        yield Round(barrier=barrier)

    return Schedule((channel,), scratch, segment)


def _cut(
    group: Group,
    blocks: Blocks,
    tuning: Tuning,
    steps: Callable[[Blocks], Steps],
    slots: int = 0,
) -> Schedule:
    """Return the schedule that runs `steps` on each piece of `blocks`, with scratch for `slots` pieces of a block."""
    pieces = clipped(blocks, tuning.segment)
    segment = tuning.segment if len(pieces) > 1 else None
    return _schedule(group, pieces, steps, segment, slots * pieces[0].largest)


def _of(group: Group, position: Column | int) -> Column | None:
    """Return the rank at `position` for each row; None, the own memory, if there is only one rank."""
    return None if group.size == 1 else group.peer(np.broadcast_to(position, group.at.shape))


def folded(
    group: Group, start: Column, count: Column, target: Place, *, final: bool = True
) -> LocalStep:
    """Return the step that folds the elements from `start` on of all contributions into `target`."""
    if group.size == 1:
        return copies(group.rank, Place(SEND, start), target, count)
    contributions = tuple(Place(SEND, start, _of(group, each)) for each in range(group.size))
    return folds(group.rank, contributions, target, count, final=final)


def to_others(
    group: Group, start: Column, count: Column, but: Column | int = -1
) -> Iterator[Copies]:
    """Yield the steps that write a part of `RECV` to the same place on all other ranks, except on the rank `but`.

    Each rank begins with its right neighbor, so that not all ranks access the same memory at once.
    """
    for distance in range(1, group.size):
        peer = group.at_distance(distance)
        yield copies(group.rank, Place(RECV, start), Place(RECV, start, peer), count, peer != but)


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its slice of all contributions and writes it to all results."""

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(group.at)
        own = folded(group, start, count, Place(RECV, start))
        return (own, *to_others(group, start, count))

    return _cut(group, Even(0, call.counts[0], group.size), tuning, steps)


def reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its slice of all contributions into the root's result.

    If arrays are not mapped, the other ranks have one copy through the kernel more than the root: they read
    n - 1 slices and write one. So the root's slice is larger, by n + 1 to n.
    """
    root, n = _of(group, call.root), group.size
    parts = np.cumsum([0, *(n + (position == call.root) for position in range(n))])
    blocks = Listed(np.diff(parts * call.counts[0] // (n * n + 1)).tolist())

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(group.at)
        return (folded(group, start, count, Place(RECV, start, root)),)

    return _cut(group, blocks, tuning, steps)


def reduce_scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its block of all contributions."""
    blocks = Listed(call.counts)
    own = blocks.at(group.at)[0]

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(group.at)
        return (folded(group, start, count, Place(RECV, start - own)),)

    return _cut(group, blocks, tuning, steps)


def all_gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank reads all blocks: its own, then its right neighbor's, and so on."""
    blocks = Listed(call.counts)

    def steps(distance: int) -> Steps:
        position = (group.at + distance) % group.size
        start, count = blocks.at(position)
        source = Place(SEND, 0, _of(group, position))
        return (copies(group.rank, source, Place(RECV, start), count),)

    return _schedule(group, range(group.size), steps)


def broadcast(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank reads the root's array, and the root writes a part of it to all others.

    The root writes the last n-th of the array, if that is large enough to be worth the steps.
    """
    n, at, rank, count = group.size, group.at, group.rank, call.counts[0]
    worth = min(tuning.segment, SHARE_BYTES // call.dtype.itemsize)
    written = count // n if count // n >= worth else 0
    read = count - written
    others = at != call.root
    source = Place(RECV, 0, _of(group, call.root))
    step = copies(rank, source, Place(RECV, 0), read, others)

    def to_peer(distance: int) -> Copies:
        target = Place(RECV, read, _of(group, (at + distance) % n))
        return copies(rank, Place(RECV, read), target, written, ~others)

    steps = (step, *(to_peer(distance) for distance in range(1, n) if written))
    return _schedule(group, [steps], tuple)


def exchanged(
    rank: Column,
    peer: Column,
    mine: Column,
    theirs: Column,
    count: Column,
    aside: Place | None,
    where: Mask | None = None,
) -> tuple[Copies, ...]:
    """Return the steps that exchange `count` elements with the peer, by reading one part and writing the other.

    The elements for this rank lie at `mine` of the peer's `SEND` and go to `theirs` of the own `RECV`. The elements
    for the peer lie at `theirs` of the own `SEND` and go to `mine` of the peer's `RECV`.

    A rank that is in place receives over its own block, so that block waits in `aside`. Any other rank
    reads before it writes, since the peer may be in place.
    """
    out, target = Place(SEND, theirs), Place(RECV, mine, peer)
    read = copies(rank, Place(SEND, mine, peer), Place(RECV, theirs), count, where)
    if aside is None:
        return read, copies(rank, out, target, count, where)
    return copies(rank, out, aside, count, where), read, copies(rank, aside, target, count, where)


def all_to_all(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each of two ranks moves one half of the two blocks that they exchange."""
    n, at, rank = group.size, group.at, group.rank
    block = max(call.counts, default=0)
    halves = Even(0, block, 2)
    pieces = clipped(halves, tuning.segment) if call.in_place else [halves]

    aside = Place(SCRATCH, 0) if call.in_place else None

    def steps(distance: int) -> Steps:
        position = (at + distance) % n
        own, theirs = at * block, position * block
        if distance == 0:
            return (copies(rank, Place(SEND, own), Place(RECV, own), block),)
        peer = group.peer(position)
        moves: list[Copies] = []
        for piece in pieces:
            first, count = piece.at((at > position).astype(np.int64))
            moves += exchanged(rank, peer, own + first, theirs + first, count, aside)
        return moves

    waits = call.in_place and n > 1
    segment = tuning.segment if len(pieces) > 1 else None
    return _schedule(group, range(n), steps, segment, pieces[0].largest if waits else 0)


def gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank writes its block to the root's result."""
    start, count = Listed(call.counts).at(group.at)
    target = Place(RECV, start, _of(group, call.root))
    write = copies(group.rank, Place(SEND, 0), target, count)
    return _schedule(group, [[write]], list)


def scatter(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank reads its block from the root's array."""
    start, count = Listed(call.counts).at(group.at)
    source = Place(SEND, start, _of(group, call.root))
    read = copies(group.rank, source, Place(RECV, 0), count)
    return _schedule(group, [[read]], list)


def scan(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its slice of all contributions in order, and writes each prefix."""
    n, at, rank = group.size, group.at, group.rank
    slices = Even(0, call.counts[0], n)
    width = min(slices.largest, tuning.segment)

    def steps(piece: Blocks) -> Steps:
        start, count = piece.at(at)
        if n == 1:
            local = copies(rank, Place(SEND, start), Place(RECV, start), count)
            return () if call.exclusive else (local,)
        folded, spare = Place(SCRATCH, 0), Place(SCRATCH, width)
        moves: list[LocalStep] = [copies(rank, Place(SEND, start, _of(group, 0)), folded, count)]
        if not call.exclusive:
            moves.append(copies(rank, folded, Place(RECV, start, _of(group, 0)), count))
        for position in range(1, n):
            peer = _of(group, position)
            own, result = Place(SEND, start, peer), Place(RECV, start, peer)
            write = copies(rank, folded, result, count)
            if not call.exclusive:
                moves += [folds(rank, (folded, own), folded, count, final=False), write]
                continue
            # In place, the result overwrites the contribution, which the next prefix needs: so fold before.
            if position < n - 1:
                moves.append(folds(rank, (folded, own), spare, count, final=False))
            moves.append(write)
            folded, spare = spare, folded
        return moves

    return _cut(group, slices, tuning, steps, 2 if n > 1 else 0)
