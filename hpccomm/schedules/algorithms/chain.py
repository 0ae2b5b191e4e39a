"""Chain: each rank passes the array on to the next one, segment by segment.

A rank sends the array once and receives it once, as few elements as any broadcast or reduce needs,
to neighbours only. The price is n-1 messages before the last rank has anything: for large arrays on
few ranks. See R. van de Geijn, "On global combine operations", 1994; J. Watts, R. van de Geijn, "A
pipelined broadcast for multidimensional meshes", 1995.

With s segments:

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
broadcast       s + n - 2        the array, or none
reduce          s + n - 2        the array, or none
all_reduce      s + 2n - 3       at most 2 times the array
==============  ===============  =======================
"""

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.channels import side_by_side
from hpccomm.schedules.algorithms.partition import Range
from hpccomm.schedules.algorithms.pipeline import (
    Segments,
    Tree,
    down,
    down_after_up,
    streams,
    up,
    up_scratch,
)
from hpccomm.schedules.schedule import RECV, SEND, Column, Group, Rounds, Schedule, Tuning


def _chain(group: Group, root: Column | int, step: int) -> Tree:
    """Return the chain that leads away from `root` in steps of +1 or -1, round the end."""
    n, at = group.size, group.at
    depth = (at - root) * step % n
    parent = np.where(depth == 0, -1, (at - step) % n)
    child = np.where(depth == n - 1, -1, (at + step) % n)
    return Tree(n - 1, depth, parent, (child,))


def reduce_scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `reduce_rounds` takes."""
    return up_scratch(1, count, segment) if size > 1 else 0


def all_reduce_scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `all_reduce_rounds` takes."""
    return reduce_scratch(size, count, segment)


def reduce_rounds(
    group: Group,
    root: Column | int,
    start: Column | int,
    count: Column | int,
    slot: int,
    *,
    segment: int,
    final: bool,
    target: str,
    source: str = SEND,
) -> Rounds:
    """Fold `source` from the position after `root` on, round the end, into `target` at the root."""
    tree, segments = _chain(group, root, -1), Segments(start, count, segment)
    return up(group, tree, segments, slot, final=final, source=source, target=target)


def broadcast_rounds(
    group: Group,
    root: Column | int,
    start: Column | int,
    count: Column | int,
    *,
    segment: int,
    buffer: str = RECV,
) -> Rounds:
    """Hand the root's `buffer` on, from each position to the next one."""
    return down(group, _chain(group, root, 1), Segments(start, count, segment), buffer)


def all_reduce_rounds(
    group: Group,
    start: Column | int,
    count: Column | int,
    slot: int,
    *,
    segment: int,
    final: bool,
    source: str = SEND,
) -> Rounds:
    """Fold `source` in the order of the positions, and hand the result back, from the last one."""
    tree, segments = _chain(group, group.size - 1, -1), Segments(start, count, segment)
    return side_by_side(
        up(group, tree, segments, slot, final=final, source=source, target=RECV),
        down_after_up(group, tree, segments, RECV),
    )


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Along the chain and back."""

    def run(share: Range, slot: int) -> Rounds:
        return all_reduce_rounds(
            group, share.start, share.count, slot, segment=tuning.segment, final=True
        )

    def scratch(count: int) -> int:
        return all_reduce_scratch(group.size, count, tuning.segment)

    return streams(call.counts[0], run, tuning, scratch)


def broadcast(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Along the chain, from the root."""

    def run(share: Range, _slot: int) -> Rounds:
        return broadcast_rounds(group, call.root, share.start, share.count, segment=tuning.segment)

    return streams(call.counts[0], run, tuning)


def reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Along the chain, to the root."""

    def run(share: Range, slot: int) -> Rounds:
        return reduce_rounds(
            group,
            call.root,
            share.start,
            share.count,
            slot,
            segment=tuning.segment,
            final=True,
            target=RECV,
        )

    def scratch(count: int) -> int:
        return reduce_scratch(group.size, count, tuning.segment)

    return streams(call.counts[0], run, tuning, scratch)
