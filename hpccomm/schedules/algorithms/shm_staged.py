"""Shared memory where ranks reach only each other's scratch: each rank copies there what peers need.

The array goes through scratch piece by piece. In each round a rank copies one piece to scratch, works on
the piece before, and copies the piece before that to the result. A barrier ends the round. So there are
two slots, used in turn, and one barrier a piece:

- Round t fills slot t mod 2. Peers read that in round t + 1, while the other slot is filled. It is
  filled again in round t + 2, after the barrier that ends their reading.
- The result of a fold goes into the own block of the slot, where the rank that folds has no
  contribution. It is written one round after the rest of the slot, read one round later, and written
  again two rounds later.

However large the array, each rank has two slots of at most ``SLOT_BYTES``, and less where scratch is
smaller. They stay in the cache. So the array passes through memory as often as without staging, and
through the cache once or twice more.

Contributions are folded in rank order. In a scan the prefix goes from rank to rank, and each adds its
own contribution. In the other reductions each rank folds its slice, as in `hpccomm.schedules.algorithms.shm`.
"""

from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import shm
from hpccomm.schedules.algorithms.partition import Blocks, Even, Listed, clipped
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Build,
    Column,
    Copies,
    Folds,
    Group,
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
"""The largest slot: two of these and what is copied fit a core's second-level cache."""

LEAST_BYTES = 64 << 10
"""The smallest piece that is made only so that ranks begin earlier: a barrier takes as long as copying it."""

SLOTS = 2

Stage = Callable[[int], Sequence[Copies | Folds]]
"""Makes the steps for a piece, from the number of the piece."""


def _unless_alone(direct: Build) -> Callable[[Build], Build]:
    """Let a rank without peers use the `direct` build."""

    def decorate(staged: Build) -> Build:
        @wraps(staged)
        def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
            return (direct if group.size == 1 else staged)(group, call, tuning)

        return build

    return decorate


class _Pieces:
    """The blocks of an array, cut into pieces that fit a slot.

    Parameters
    ----------
    blocks : Blocks
        One for each rank.
    kept : int
        How many of these blocks a slot has room for.
    in_turn : bool
        Whether some ranks wait until others have filled a slot: then there are several pieces.

    Attributes
    ----------
    length : int
        Most elements of a block's piece.
    pieces : list of Blocks
        The pieces.
    segment : int or None
        `length`, if there are several.
    scratch : int
        Elements of the slots.
    """

    def __init__(
        self, blocks: Blocks, kept: int, call: Signature, tuning: Tuning, *, in_turn: bool = False
    ) -> None:
        itemsize = call.dtype.itemsize
        most = min(tuning.room // SLOTS, SLOT_BYTES // itemsize) // kept
        length = min(tuning.segment, most)
        if in_turn:
            length = min(length, max(-(-blocks.largest // 8), LEAST_BYTES // itemsize))
        self.length = min(max(length, 1), max(blocks.largest, 1))
        self.pieces = clipped(blocks, self.length)
        self.segment = self.length if len(self.pieces) > 1 else None
        self._kept = kept
        self._slot = kept * self.length
        self.scratch = SLOTS * self._slot

    def slot(self, number: Column | int, block: Column | int = 0) -> Column | int:
        """Return where in scratch a block of piece `number` begins; all ranks use it if there is only one."""
        return number % SLOTS * self._slot + block % self._kept * self.length


def _schedule(group: Group, pieces: _Pieces, *stages: Stage) -> Schedule:
    """Return the schedule whose round t runs stage k on piece t - k."""
    number = len(pieces.pieces)

    def channel() -> Rounds:
        for turn in range(number + len(stages) - 1):
            steps = [
                step
                for delay, stage in enumerate(stages)
                if 0 <= turn - delay < number
                for step in stage(turn - delay)
            ]
            yield Round(local=tuple(steps), barrier=group)

    return Schedule((channel,), pieces.scratch, pieces.segment)


def _put(group: Group, pieces: _Pieces, where: Mask | None = None) -> Stage:
    """Return the stage in which each rank copies to scratch what the others need of its array."""
    n, at = group.size, group.at

    def stage(number: int) -> list[Copies]:
        steps = []
        for distance in range(1, n):
            position = (at + distance) % n
            start, count = pieces.pieces[number].at(position)
            aside = Place(SCRATCH, pieces.slot(number, position))
            steps.append(copies(group.rank, Place(SEND, start), aside, count, where))
        return steps

    return stage


def _put_block(
    group: Group, pieces: _Pieces, begins: Column, aside: Mask | None, kept: Mask | None
) -> Stage:
    """Return the stage in which ranks copy their block to scratch and to their result.

    `begins` has where the block of each rank begins in the result; `aside` and `kept` say which ranks
    do the one and the other.
    """

    def stage(number: int) -> list[Copies]:
        start, count = pieces.pieces[number].at(group.at)
        own, scratch = Place(SEND, start - begins), Place(SCRATCH, pieces.slot(number))
        return [
            copies(group.rank, own, scratch, count, aside),
            copies(group.rank, own, Place(RECV, start), count, kept),
        ]

    return stage


def _folded(
    group: Group, pieces: _Pieces, number: int, target: Callable[[int], Place]
) -> list[Folds]:
    """Return the folds of a piece: each rank's own contribution, and those of its peers from scratch.

    `target(position)` is where the rank at a position puts the result.
    """
    at = group.at
    start, count = pieces.pieces[number].at(at)
    slot = pieces.slot(number, at)
    peers = [Place(SCRATCH, slot, group.peer(np.full_like(at, p))) for p in range(group.size)]
    # The own contribution comes at its place in the order, which is another one on each rank.
    return [
        folds(
            group.rank,
            (*peers[:own], Place(SEND, start), *peers[own + 1 :]),
            target(own),
            count,
            final=True,
            where=at == own,
        )
        for own in np.unique(at).tolist()
    ]


def _taken(group: Group, pieces: _Pieces, where: Mask | None = None, *, own: bool = False) -> Stage:
    """Return the stage in which ranks copy from the others' scratch into their results.

    What another rank has for all lies at that rank's block of the slot; if `own`, what it has for
    each rank lies at each one's block.
    """
    n, at = group.size, group.at

    def stage(number: int) -> list[Copies]:
        steps = []
        for distance in range(1, n):
            position = (at + distance) % n
            start, count = pieces.pieces[number].at(position)
            slot = pieces.slot(number, at if own else position)
            theirs = Place(SCRATCH, slot, group.peer(position))
            steps.append(copies(group.rank, theirs, Place(RECV, start), count, where))
        return steps

    return stage


@_unless_alone(shm.all_reduce)
def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its slice, and all others copy it from there."""
    n, at, rank = group.size, group.at, group.rank
    pieces = _Pieces(Even(0, call.counts[0], n), n, call, tuning)

    def fold(number: int) -> list[Copies | Folds]:
        start, count = pieces.pieces[number].at(at)
        result, aside = Place(RECV, start), Place(SCRATCH, pieces.slot(number, at))
        steps = _folded(group, pieces, number, lambda _: result)
        return [*steps, copies(rank, result, aside, count)]

    return _schedule(group, pieces, _put(group, pieces), fold, _taken(group, pieces))


@_unless_alone(shm.reduce)
def reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its slice, and the root copies it from there; of two ranks, the root folds all."""
    n, at, root = group.size, group.at, call.root
    count = call.counts[0]
    blocks = Even(0, count, n) if n > 2 else Listed([count * (p == root) for p in range(n)])
    pieces = _Pieces(blocks, n, call, tuning, in_turn=n == 2)

    def fold(number: int) -> list[Folds]:
        result = Place(RECV, pieces.pieces[number].at(at)[0])
        aside = Place(SCRATCH, pieces.slot(number, at))
        return _folded(group, pieces, number, lambda own: result if own == root else aside)

    stages = [_put(group, pieces), fold]
    if n > 2:
        stages.append(_taken(group, pieces, at == root))
    return _schedule(group, pieces, *stages)


@_unless_alone(shm.reduce_scatter)
def reduce_scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its block."""
    at = group.at
    blocks = Listed(call.counts)
    begins = blocks.at(at)[0]
    pieces = _Pieces(blocks, group.size, call, tuning)

    def fold(number: int) -> list[Folds]:
        result = Place(RECV, pieces.pieces[number].at(at)[0] - begins)
        return _folded(group, pieces, number, lambda _: result)

    return _schedule(group, pieces, _put(group, pieces), fold)


@_unless_alone(shm.all_gather)
def all_gather(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank copies its block to scratch, from which all others copy it."""
    blocks = Listed(call.counts)
    pieces = _Pieces(blocks, 1, call, tuning)
    put = _put_block(group, pieces, blocks.at(group.at)[0], None, None)
    return _schedule(group, pieces, put, _taken(group, pieces))


@_unless_alone(shm.broadcast)
def broadcast(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """The root copies its array to scratch, from which all others copy it."""
    at, rank = group.at, group.rank
    pieces = _Pieces(Even(0, call.counts[0], 1), 1, call, tuning, in_turn=True)
    root = group.peer(np.full_like(at, call.root))

    def put(number: int) -> list[Copies]:
        start, count = pieces.pieces[number].at(0 * at)
        aside = Place(SCRATCH, pieces.slot(number))
        return [copies(rank, Place(RECV, start), aside, count, at == call.root)]

    def take(number: int) -> list[Copies]:
        start, count = pieces.pieces[number].at(0 * at)
        aside = Place(SCRATCH, pieces.slot(number), root)
        return [copies(rank, aside, Place(RECV, start), count, at != call.root)]

    return _schedule(group, pieces, put, take)


@_unless_alone(shm.all_to_all)
def all_to_all(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank copies the blocks for the others to scratch, from which they copy them."""
    at, rank = group.at, group.rank
    pieces = _Pieces(Listed(call.counts), group.size, call, tuning)
    put_others = _put(group, pieces)

    def put(number: int) -> list[Copies | Folds]:
        start, count = pieces.pieces[number].at(at)
        return [*put_others(number), copies(rank, Place(SEND, start), Place(RECV, start), count)]

    return _schedule(group, pieces, put, _taken(group, pieces, own=True))


@_unless_alone(shm.gather)
def gather(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank copies its block to scratch, from which the root copies it."""
    is_root, blocks = group.at == call.root, Listed(call.counts)
    pieces = _Pieces(blocks, 1, call, tuning, in_turn=True)
    put = _put_block(group, pieces, blocks.at(group.at)[0], ~is_root, is_root)
    return _schedule(group, pieces, put, _taken(group, pieces, is_root))


@_unless_alone(shm.scatter)
def scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """The root copies all blocks to scratch, from which the others copy theirs."""
    at, rank, is_root = group.at, group.rank, group.at == call.root
    blocks = Listed(call.counts)
    begins = blocks.at(at)[0]
    pieces = _Pieces(blocks, group.size, call, tuning, in_turn=True)
    root = group.peer(np.full_like(at, call.root))
    put_others = _put(group, pieces, is_root)

    def put(number: int) -> list[Copies | Folds]:
        own, count = pieces.pieces[number].at(at)
        mine = copies(rank, Place(SEND, own), Place(RECV, own - begins), count, is_root)
        return [mine, *put_others(number)]

    def take(number: int) -> list[Copies]:
        start, count = pieces.pieces[number].at(at)
        aside = Place(SCRATCH, pieces.slot(number, at), root)
        return [copies(rank, aside, Place(RECV, start - begins), count, ~is_root)]

    return _schedule(group, pieces, put, take)


@_unless_alone(shm.scan)
def scan(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each rank folds its contribution to the prefix of the rank before, which it reads from scratch.

    Rank r has piece t - r in round t: a chain, as of `hpccomm.schedules.algorithms.scan.linear`.
    """
    n, at, rank, total = group.size, group.at, group.rank, call.counts[0]
    pieces = _Pieces(Even(0, total, 1), 1, call, tuning, in_turn=True)
    before = group.peer(np.maximum(at - 1, 0))
    first, hands_on = at == 0, at < n - 1

    def stage(turn: int) -> Sequence[Copies | Folds]:
        start = (turn - at) * pieces.length
        count = np.where(start < 0, 0, np.clip(total - start, 0, pieces.length))
        slot = pieces.slot(turn - at)
        own, result, aside = Place(SEND, start), Place(RECV, start), Place(SCRATCH, slot)
        come = Place(SCRATCH, slot, before)
        begin = copies(rank, own, aside, count, first)
        if call.exclusive:
            # In place the result lies where the contribution does, which is handed on before.
            hand = folds(rank, (come, own), aside, count, final=False, where=~first & hands_on)
            return begin, hand, copies(rank, come, result, count, ~first)
        fold = folds(rank, (come, own), result, count, final=False, where=~first)
        kept = copies(rank, own, result, count, first)
        return begin, kept, fold, copies(rank, result, aside, count, ~first & hands_on)

    def channel() -> Rounds:
        for turn in range(len(pieces.pieces) + n - 1):
            yield Round(local=tuple(stage(turn)), barrier=group)

    return Schedule((channel,), pieces.scratch, pieces.segment)
