"""Shared memory where ranks reach only each other's scratch: each rank copies the data that peers need to its scratch.

The array goes through scratch piece by piece. In each round a rank copies one piece to scratch, works on
the previous piece, and copies the piece before that to the result. A barrier ends the round. So scratch has
two slots, used in turn, and there is one barrier for each piece:

- Round t fills slot t mod 2. Peers read the slot in round t + 1, while the other slot is filled. The slot is
  filled again in round t + 2, after the barrier that ends the reading.
- A slot has a block for each rank. A rank puts no contribution into the block for itself, so the result of its
  fold goes there. That block is written one round after the rest of the slot, read one round later, and written
  again two rounds later.

However large the array, each rank has two slots of at most ``SLOT_BYTES``, and smaller ones if scratch is
smaller. The slots stay in the cache. So the array passes through memory as often as without staging, and
through the cache once or twice more.

Contributions are folded in rank order. In a scan the prefix goes from rank to rank, and each rank adds its
contribution. In the other reductions each rank folds its slice, as in `hpccomm.schedules.algorithms.shm`.

There are at least two ranks: a single rank has nothing to stage. `ALGORITHMS` lists these functions as the ``staged``
form of ``shm``.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Blocks, Even, Listed, clipped
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
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

SLOT_BYTES = 1 << 20
"""Bytes of the largest slot: two such slots and the copied data fit a core's second-level cache."""

LEAST_BYTES = 64 << 10
"""An array is not cut into smaller pieces than this to let ranks begin earlier: copying so much takes as long as a
barrier."""

SLOTS = 2

Steps = Iterator[LocalStep]
Stage = Callable[[int], Steps]
"""Takes the number of a piece and returns the steps for that piece."""


class _Slots:
    """The pieces of an array's blocks, their places in the slots, and the stages that move them.

    Parameters
    ----------
    group : Group
        The ranks.
    blocks : Blocks
        The blocks of the array, one for each rank, or a single one.
    kept : int
        Number of blocks that a slot has room for.
    call, tuning : Signature, Tuning
        The call and its parameters, as for any algorithm.
    in_turn : bool
        Whether some ranks wait until others have filled a slot. Then the array is cut into several pieces, so that
        they wait less.

    Attributes
    ----------
    length : int
        Most elements of a block in one piece.
    pieces : list of Blocks
        The pieces: parts of all blocks that fit a slot together.
    """

    def __init__(
        self,
        group: Group,
        blocks: Blocks,
        kept: int,
        call: Signature,
        tuning: Tuning,
        *,
        in_turn: bool = False,
    ) -> None:
        itemsize = call.dtype.itemsize
        most = min(tuning.room // SLOTS, SLOT_BYTES // itemsize) // kept
        length = min(tuning.segment, most)
        if in_turn:
            length = min(length, max(-(-blocks.largest // 8), LEAST_BYTES // itemsize))
        self.length = min(max(length, 1), max(blocks.largest, 1))
        self.pieces = clipped(blocks, self.length)
        self._group, self._kept, self._slot = group, kept, kept * self.length

    def place(
        self, number: Column | int, block: Column | int = 0, peer: Column | None = None
    ) -> Place:
        """Return the place in scratch of a block of piece `number`, of this rank or of `peer`.

        If a slot has room for one block only, all ranks use that.
        """
        start = number % SLOTS * self._slot + block % self._kept * self.length
        return Place(SCRATCH, start, peer)

    def schedule(self, *stages: Stage) -> Schedule:
        """Return the schedule whose round t runs stage k on piece t - k."""
        number = len(self.pieces)

        def steps(turn: int) -> Steps:
            for delay, stage in enumerate(stages):
                if 0 <= turn - delay < number:
                    yield from stage(turn - delay)

        return self.in_turns(number + len(stages) - 1, steps)

    def in_turns(self, number: int, steps: Stage) -> Schedule:
        """Return the schedule of `number` rounds with the steps of each; each round ends with a barrier."""

        def channel() -> Rounds:
            for turn in range(number):
                yield Round(local=tuple(steps(turn)), barrier=self._group)

        segment = self.length if len(self.pieces) > 1 else None
        return Schedule((channel,), SLOTS * self._slot, segment)

    def put(self, where: Mask | None = None) -> Stage:
        """Return the stage in which each rank copies the blocks for the other ranks from `SEND` to its scratch.

        `where` says which ranks do so; by default all.
        """
        n, at, rank = self._group.size, self._group.at, self._group.rank

        def stage(number: int) -> Steps:
            for distance in range(1, n):
                position = (at + distance) % n
                start, count = self.pieces[number].at(position)
                yield copies(rank, Place(SEND, start), self.place(number, position), count, where)

        return stage

    def put_block(
        self, whole: Blocks, aside: Mask | None = None, kept: Mask | None = None
    ) -> Stage:
        """Return the stage in which ranks copy their block of `whole` to scratch and to their result.

        `aside` says which ranks copy to scratch, `kept` which copy to their result; by default all.
        """
        at, rank = self._group.at, self._group.rank
        begin = whole.at(at)[0]

        def stage(number: int) -> Steps:
            start, count = self.pieces[number].at(at)
            own = Place(SEND, start - begin)
            yield copies(rank, own, self.place(number), count, aside)
            yield copies(rank, own, Place(RECV, start), count, kept)

        return stage

    def fold(self, number: int, target: Callable[[int], Place]) -> Steps:
        """Yield the folds of a piece: each rank folds its contribution in `SEND` and its peers' in scratch.

        ``target(position)`` returns where the rank at a position puts the result.
        """
        group, at = self._group, self._group.at
        start, count = self.pieces[number].at(at)
        every = (group.peer(np.full_like(at, position)) for position in range(group.size))
        peers = [self.place(number, at, peer) for peer in every]
        # A rank's own contribution has its place in the rank order, so each rank needs its own list of sources.
        for own in np.unique(at).tolist():
            sources = (*peers[:own], Place(SEND, start), *peers[own + 1 :])
            yield folds(group.rank, sources, target(own), count, final=True, where=at == own)

    def take(self, where: Mask | None = None, *, own: bool = False) -> Stage:
        """Return the stage in which ranks copy from the other ranks' scratch into their results.

        By default a rank's data are the same for all, and lie in that rank's block of its slot. With `own`, a rank
        has different data for each reader, in the reader's block.
        """
        group, n, at = self._group, self._group.size, self._group.at

        def stage(number: int) -> Steps:
            for distance in range(1, n):
                position = (at + distance) % n
                start, count = self.pieces[number].at(position)
                theirs = self.place(number, at if own else position, group.peer(position))
                yield copies(group.rank, theirs, Place(RECV, start), count, where)

        return stage


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its slice, and all others copy the slice from its scratch."""
    n, at = group.size, group.at
    slots = _Slots(group, Even(0, call.counts[0], n), n, call, tuning)

    def fold(number: int) -> Steps:
        start, count = slots.pieces[number].at(at)
        result = Place(RECV, start)
        yield from slots.fold(number, lambda _: result)
        yield copies(group.rank, result, slots.place(number, at), count)

    return slots.schedule(slots.put(), fold, slots.take())


def reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its slice, and the root copies the slices.

    With two ranks, the root folds all.
    """
    n, at, root = group.size, group.at, call.root
    count = call.counts[0]
    blocks = Even(0, count, n) if n > 2 else Listed([count * (p == root) for p in range(n)])
    slots = _Slots(group, blocks, n, call, tuning, in_turn=n == 2)

    def fold(number: int) -> Steps:
        result, aside = Place(RECV, slots.pieces[number].at(at)[0]), slots.place(number, at)
        return slots.fold(number, lambda own: result if own == root else aside)

    return slots.schedule(slots.put(), fold, *([slots.take(at == root)] if n > 2 else []))


def reduce_scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds its block."""
    at, blocks = group.at, Listed(call.counts)
    begin = blocks.at(at)[0]
    slots = _Slots(group, blocks, group.size, call, tuning)

    def fold(number: int) -> Steps:
        result = Place(RECV, slots.pieces[number].at(at)[0] - begin)
        return slots.fold(number, lambda _: result)

    return slots.schedule(slots.put(), fold)


def all_gather(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank copies its block to scratch; all others copy it from there."""
    blocks = Listed(call.counts)
    slots = _Slots(group, blocks, 1, call, tuning)
    return slots.schedule(slots.put_block(blocks), slots.take())


def broadcast(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which the root copies its array to scratch; all others copy it from there."""
    at, rank, is_root = group.at, group.rank, group.at == call.root
    slots = _Slots(group, Even(0, call.counts[0], 1), 1, call, tuning, in_turn=True)
    root = group.peer(np.full_like(at, call.root))

    def put(number: int) -> Steps:
        start, count = slots.pieces[number].at(0 * at)
        yield copies(rank, Place(RECV, start), slots.place(number), count, is_root)

    def take(number: int) -> Steps:
        start, count = slots.pieces[number].at(0 * at)
        yield copies(rank, slots.place(number, peer=root), Place(RECV, start), count, ~is_root)

    return slots.schedule(put, take)


def all_to_all(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank copies the blocks for others to scratch; they copy them from there."""
    slots = _Slots(group, Listed(call.counts), group.size, call, tuning)
    put_others = slots.put()

    def put(number: int) -> Steps:
        start, count = slots.pieces[number].at(group.at)
        yield from put_others(number)
        yield copies(group.rank, Place(SEND, start), Place(RECV, start), count)

    return slots.schedule(put, slots.take(own=True))


def gather(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank copies its block to scratch; the root copies it from there."""
    is_root, blocks = group.at == call.root, Listed(call.counts)
    slots = _Slots(group, blocks, 1, call, tuning, in_turn=True)
    return slots.schedule(slots.put_block(blocks, ~is_root, is_root), slots.take(is_root))


def scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which the root copies all blocks to scratch; other ranks copy theirs from there."""
    at, rank, is_root = group.at, group.rank, group.at == call.root
    blocks = Listed(call.counts)
    begin = blocks.at(at)[0]
    slots = _Slots(group, blocks, group.size, call, tuning, in_turn=True)
    root = group.peer(np.full_like(at, call.root))
    put_others = slots.put(is_root)

    def put(number: int) -> Steps:
        own, count = slots.pieces[number].at(at)
        yield copies(rank, Place(SEND, own), Place(RECV, own - begin), count, is_root)
        yield from put_others(number)

    def take(number: int) -> Steps:
        own, count = slots.pieces[number].at(at)
        theirs = slots.place(number, at, root)
        yield copies(rank, theirs, Place(RECV, own - begin), count, ~is_root)

    return slots.schedule(put, take)


def scan(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank reads the previous rank's prefix from scratch and adds its contribution.

    Rank r has piece t - r in round t: a chain, as in `hpccomm.schedules.algorithms.scan.linear`.
    """
    n, at, rank, total = group.size, group.at, group.rank, call.counts[0]
    slots = _Slots(group, Even(0, total, 1), 1, call, tuning, in_turn=True)
    before = group.peer(np.maximum(at - 1, 0))
    first, hands_on = at == 0, at < n - 1

    def steps(turn: int) -> Steps:
        start = (turn - at) * slots.length
        count = np.where(start < 0, 0, np.clip(total - start, 0, slots.length))
        own, result, aside = Place(SEND, start), Place(RECV, start), slots.place(turn - at)
        prefix = slots.place(turn - at, peer=before)
        yield copies(rank, own, aside, count, first)
        if call.exclusive:
            # In place, the result overwrites the contribution, so the fold for the next rank comes first.
            yield folds(rank, (prefix, own), aside, count, final=False, where=~first & hands_on)
            yield copies(rank, prefix, result, count, ~first)
            return
        yield copies(rank, own, result, count, first)
        yield folds(rank, (prefix, own), result, count, final=False, where=~first)
        yield copies(rank, result, aside, count, ~first & hands_on)

    return slots.in_turns(len(slots.pieces) + n - 1, steps)
