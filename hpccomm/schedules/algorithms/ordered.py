"""Reductions in rank order: the same bits from every algorithm, placement and run.

Each rank owns a block. It receives all contributions to it, directly, and folds them in rank order,
so that each element is ((c0 + c1) + c2) + ... and is rounded once. What is left to choose is how the
folded blocks move on: that is the algorithm's part. See R. Thakur, R. Rabenseifner, W. Gropp,
"Optimization of collective communication operations in MPICH", 2005, for pairwise exchange.

==============  ====================  ==============================
collective      rounds                elements sent by a rank
==============  ====================  ==============================
reduce_scatter  ⌈(n-1)/8⌉             (n-1)/n of the array
all_reduce      as many, and those    as many, and those of the
                of the all-gather     all-gather
reduce          as many, and those    as many, and those of the
                of the gather         gather
==============  ====================  ==============================

Scratch holds n contributions to a segment, never n arrays.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.channels import dealt
from hpccomm.schedules.algorithms.partition import Blocks, Even, Listed, Range, clipped, ranges
from hpccomm.schedules.schedule import (
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
    transfers,
)

if TYPE_CHECKING:
    from hpccomm.schedules.algorithms import Build

AT_ONCE = 8
"""Messages that a rank has under way each way: enough to keep links busy, and few for thousands."""

AllGather = Callable[[Group, Blocks], Rounds]
"""Hands each rank all blocks of `RECV`, of which it has its own."""


class Gather(Protocol):
    """Collects each rank's own block, from `source`, in the root's buffer `target`.

    Scratch from `slot` on has room for all blocks.
    """

    def __call__(
        self,
        group: Group,
        root: Column | int,
        blocks: Blocks,
        slot: int,
        source: Place,
        target: str,
    ) -> Rounds:
        """Make the rounds."""
        ...


def reduce_scatter_scratch(size: int, count: int, _segment: int) -> int:
    """Return the elements of scratch that `reduce_scatter_rounds` takes."""
    return 0 if size == 1 else size * Even(0, count, size).largest


def reduce_scatter_rounds(
    group: Group,
    blocks: Blocks,
    target: Place,
    slot: int,
    *,
    final: bool,
    source: str = SEND,
) -> Rounds:
    """Fold the own block of all ranks' `source`, in rank order, into `target`."""
    n, at, rank = group.size, group.at, group.rank
    start, count = blocks.at(at)
    own = Place(source, start)
    if n == 1:
        yield Round(local=(copies(rank, own, target, count),))
        return
    # The own contribution joins the others, so that each lies at its place in the order.
    join = copies(rank, own, Place(SCRATCH, slot + at * blocks.largest), count)
    contributions = tuple(Place(SCRATCH, slot + i * blocks.largest) for i in range(n))
    fold = folds(rank, contributions, target, count, final=final)
    for first in range(1, n, AT_ONCE):
        receives, sends = [], []
        for step in range(first, min(first + AT_ONCE, n)):
            of, to = (at - step) % n, (at + step) % n
            landing = slot + of * blocks.largest
            receives.append(transfers(rank, group.peer(of), SCRATCH, landing, count))
            sends.append(transfers(rank, group.peer(to), source, *blocks.at(to)))
        local: tuple[Copies | Folds, ...] = (join,) if first == 1 else ()
        if first + AT_ONCE >= n:
            local = (*local, fold)
        yield Round(tuple(receives), tuple(sends), local)


def all_reduce(all_gather_rounds: AllGather) -> "Build":
    """Return the all-reduce in rank order whose blocks `all_gather_rounds` hands on."""

    def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        n = group.size
        pieces = _pieces(group, call, tuning)

        def run(piece: Range, slot: int) -> Rounds:
            blocks = Even(piece.start, piece.count, n)
            own = Place(RECV, blocks.at(group.at)[0])
            yield from reduce_scatter_rounds(group, blocks, own, slot, final=True)
            yield from all_gather_rounds(group, blocks)

        scratch = reduce_scatter_scratch(n, pieces[0].count, tuning.segment)
        return dealt(pieces, run, tuning, scratch)

    return build


def reduce(gather_rounds: Gather) -> "Build":
    """Return the reduce in rank order whose blocks `gather_rounds` collects."""

    def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        n = group.size
        pieces = _pieces(group, call, tuning)
        contributions = reduce_scatter_scratch(n, pieces[0].count, tuning.segment)

        def run(piece: Range, slot: int) -> Rounds:
            blocks = Even(piece.start, piece.count, n)
            # Root's array too is written only by what is gathered: elsewhere there is none.
            own = Place(SCRATCH, slot + contributions)
            yield from reduce_scatter_rounds(group, blocks, own, slot, final=True)
            # The contributions have been folded: their memory is free.
            yield from gather_rounds(group, call.root, blocks, slot, own, RECV)

        folded = Even(0, pieces[0].count, n).largest
        return dealt(pieces, run, tuning, contributions + folded)

    return build


def reduce_scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Fold each block where it is to be: whatever the algorithm, contributions go there directly."""
    n = group.size
    blocks = Listed(call.counts)
    pieces = clipped(blocks, tuning.segment)
    own = blocks.at(group.at)[0]

    def run(piece: Blocks, slot: int) -> Rounds:
        target = Place(RECV, piece.at(group.at)[0] - own)
        yield from reduce_scatter_rounds(group, piece, target, slot, final=True)

    scratch = reduce_scatter_scratch(n, n * pieces[0].largest, tuning.segment)
    return dealt(pieces, run, tuning, scratch)


def _pieces(group: Group, call: Signature, tuning: Tuning) -> list[Range]:
    """Cut the array so that each rank's block of a piece is a segment."""
    return ranges(call.counts[0], min(tuning.segment, call.counts[0]) * group.size)
