"""Scan: each rank gets the fold of the contributions of the ranks up to itself, in their order.

"linear" passes the prefix from rank to rank, segment by segment. In "binomial" a rank sends its fold so far
to the rank 1, 2, 4, ... further on, so that the number of contributions in the fold doubles in each
round. In "pairwise" each rank folds one slice of the array for all ranks: ranks exchange slices, and
then prefixes. See W. D. Hillis, G. L. Steele, "Data parallel algorithms", 1986, for "binomial".

With s segments:

==============  ===============  ==============================
algorithm       rounds           elements sent by a rank
==============  ===============  ==============================
linear          s + n - 2        the array; the last rank none
binomial        ⌈log2 n⌉         at most ⌈log2 n⌉ arrays
pairwise        2(n-1)           2(n-1)/n of the array
==============  ===============  ==============================

Linear and pairwise add one contribution to the prefix at a time, in rank order, so that their
results have the same bits. Prefixes are results and are passed on as well, so a scan
cannot take AVG, which divides at the end. On rank 0 an exclusive scan does not write `RECV`.

`ALGORITHMS` lists all three; `shm_staged` has a scan of its own.
"""

from collections.abc import Callable
from functools import partial

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Even, Phase, PhasePiece, Scratch, doublings
from hpccomm.schedules.algorithms.pipeline import SegmentRows, Segments, in_streams, pipelined
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Copies,
    Folds,
    Group,
    LocalStep,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    folds,
    transfers,
)


def _linear_rounds(piece: PhasePiece, *, exclusive: bool) -> Rounds:
    group, slot = piece.group, piece.slot
    segments = Segments(piece.start, piece.count, piece.segment)
    n, at = group.size, group.at
    right, left = group.at_distance(1), group.at_distance(-1)
    landing, passed = slot, slot + segments.length
    before = Place(SCRATCH, landing)
    middle = (at > 0) & (at < n - 1)
    heads = SegmentRows(group, segments, at, at == 0)
    receivers = SegmentRows(group, segments, at - 1, at > 0)
    passing = SegmentRows(group, segments, at - 1, middle)
    senders = SegmentRows(group, segments, at, middle)
    first = heads.messages(right, SEND)
    others = senders.messages(right, *((SCRATCH, passed) if exclusive else (RECV,)))

    def begin(rows: slice, start: Column, count: Column) -> Copies:
        return copies(heads.rank[rows], Place(SEND, start), Place(RECV, start), count)

    def hand_on(rows: slice, start: Column, count: Column) -> Folds:
        sources = before, Place(SEND, start)
        return folds(passing.rank[rows], sources, Place(SCRATCH, passed), count, final=False)

    def result(rows: slice, start: Column, count: Column) -> LocalStep:
        rank, into = receivers.rank[rows], Place(RECV, start)
        if exclusive:
            return copies(rank, before, into, count)
        return folds(rank, (before, Place(SEND, start)), into, count, final=False)

    # In place, the result overwrites the own contribution, so that is handed on first.
    earlier = passing.each(hand_on) if exclusive else heads.each(begin)
    yield from pipelined(
        segments.number + n - 2,
        [receivers.messages(left, SCRATCH, landing)],
        [first, others],
        [earlier, receivers.each(result)],
    )


def _binomial_rounds(piece: PhasePiece, *, exclusive: bool) -> Rounds:
    group, start, count, slot = piece.group, piece.start, piece.count, piece.slot
    n, at, rank = group.size, group.at, group.rank
    landing, own, result = Place(SCRATCH, slot), Place(SEND, start), Place(RECV, start)
    # The prefix to hand on includes the own contribution.
    span = Place(SCRATCH, slot + count) if exclusive else result
    for distance in doublings(n):
        first = distance == 1
        to, of = group.at_distance(distance), group.at_distance(-distance)
        sender, receiver = at + distance < n, at >= distance
        untouched = first | (exclusive & (at == 0))  # the fold so far is the own contribution alone
        further = receiver & (at + 2 * distance < n) if exclusive else receiver
        sources = landing, own if first else span
        local: list[LocalStep] = [folds(rank, sources, span, count, final=False, where=further)]
        if exclusive and first:
            # After the fold, since in place the result overwrites the own contribution.
            local.append(copies(rank, landing, result, count, receiver))
        elif exclusive:
            both = landing, result
            local.append(folds(rank, both, result, count, final=False, where=receiver))
        elif first:
            local.append(copies(rank, own, result, count, at == 0))
        yield Round(
            receives=(transfers(rank, of, SCRATCH, slot, count, receiver),),
            sends=(
                transfers(rank, to, SEND, start, count, sender & untouched),
                transfers(rank, to, span.buffer, span.start, count, sender & ~untouched),
            ),
            local=tuple(local),
        )


def _pairwise_rounds(piece: PhasePiece, *, exclusive: bool) -> Rounds:
    group, slot = piece.group, piece.slot
    n, at, rank = group.size, group.at, group.rank
    blocks = Even(piece.start, piece.count, n)
    start, own = blocks.at(at)
    back = int(exclusive)

    def place(position: Column | int) -> Place:
        """Return the place in scratch of a position's contribution, and later of its prefix."""
        return Place(SCRATCH, slot + position * blocks.largest)

    for step in range(1, n):
        right, left = (at + step) % n, (at - step) % n
        local: list[LocalStep] = []
        if step == 1:
            local.append(copies(rank, Place(SEND, start), place(at), own))
        if step == n - 1:
            for i in range(1, n):
                both = place(i - 1), place(i)
                local.append(folds(rank, both, place(i), own, final=False))
        yield Round(
            receives=(transfers(rank, group.peer(left), SCRATCH, place(left).start, own),),
            sends=(transfers(rank, group.peer(right), SEND, *blocks.at(right)),),
            local=tuple(local),
        )
    for step in range(1, n):
        right, left = (at + step) % n, (at - step) % n
        mine = copies(rank, place(at - back), Place(RECV, start), own, at >= back)
        prefix = place(right - back)
        yield Round(
            receives=(transfers(rank, group.peer(left), RECV, *blocks.at(left), at >= back),),
            sends=(transfers(rank, group.peer(right), *prefix[:2], own, right >= back),),
            local=(mine,) if step == 1 else (),
        )


def _phase(rounds: Callable[..., Rounds], scratch: Scratch, call: Signature) -> Phase:
    """Return the phase of a scan. In an exclusive scan, a rank that is alone has no result."""
    rounds = partial(rounds, exclusive=call.exclusive)
    return Phase(rounds, scratch, copies_alone=not call.exclusive)


def linear(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule that passes the prefix from each rank to the next."""
    slots = 1 + call.exclusive

    def scratch(_size: int, count: int, segment: int) -> int:
        return slots * Segments(0, count, segment).length

    return in_streams(_phase(_linear_rounds, scratch, call))(group, call, tuning)


def binomial(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank sends its fold to the ranks 1, 2, 4, ... further on, piece by piece."""
    slots = 1 + call.exclusive
    phase = _phase(_binomial_rounds, lambda _size, count, _segment: slots * count, call)
    return phase.in_pieces(group, call, tuning)


def pairwise(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank gets a slice of each piece from all ranks, and sends the prefixes back."""

    def scratch(size: int, count: int, _segment: int) -> int:
        return size * Even(0, count, size).largest

    phase = _phase(_pairwise_rounds, scratch, call)._replace(segments=lambda size: size)
    return phase.in_pieces(group, call, tuning)
