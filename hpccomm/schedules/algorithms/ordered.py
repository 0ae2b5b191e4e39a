"""Reductions in rank order: the same bits from every algorithm, placement and run.

Each rank owns a block. It receives all contributions to its block directly and folds them in rank order, so
that each element is ((c0 + c1) + c2) + ... for every algorithm. The algorithms differ in how the folded
blocks move on. See R. Thakur, R. Rabenseifner, W. Gropp,
"Optimization of collective communication operations in MPICH", 2005, for pairwise exchange.

==============  ====================  ==============================
collective      rounds                elements sent by a rank
==============  ====================  ==============================
reduce_scatter  ⌈(n-1)/8⌉             (n-1)/n of the array
all_reduce      as many, plus those   as many, plus those of the
                of the all-gather     all-gather
reduce          as many, plus those   as many, plus those of the
                of the gather         gather
==============  ====================  ==============================

Scratch holds n contributions to one segment, not n arrays.

`ALGORITHMS` lists them for ``deterministic=True``; `hierarchical` uses the all_reduce.
"""

from hpccomm.schedules.algorithms import ring
from hpccomm.schedules.algorithms.partition import AllGather, Blocks, Gather, Scattering
from hpccomm.schedules.schedule import (
    SCRATCH,
    SEND,
    Build,
    Group,
    LocalStep,
    Place,
    Round,
    Rounds,
    copies,
    folds,
    transfers,
)

AT_ONCE = 8
"""Most messages that a rank has under way in each direction: enough to keep links busy, but few if there are thousands
of ranks."""


def reduce_scatter_rounds(
    group: Group, blocks: Blocks, target: Place, slot: int, *, final: bool, source: str = SEND
) -> Rounds:
    """Return the rounds in which each rank folds its block of all ranks' `source`, in rank order, into `target`."""
    n, at, rank = group.size, group.at, group.rank
    start, count = blocks.at(at)
    own = Place(source, start)
    # The own contribution is copied to scratch, so that all contributions lie there in rank order.
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
        local: tuple[LocalStep, ...] = (join,) if first == 1 else ()
        if first + AT_ONCE >= n:
            local = (*local, fold)
        yield Round(tuple(receives), tuple(sends), local)


def _scattering(all_gather_rounds: AllGather) -> Scattering:
    return Scattering(
        reduce_scatter_rounds, all_gather_rounds, lambda size, largest: size * largest
    )


def all_reduce(all_gather_rounds: AllGather) -> Build:
    """Return the build of the all-reduce in rank order. `all_gather_rounds` distributes the folded blocks."""
    return _scattering(all_gather_rounds).all_reduce().in_pieces


def reduce(gather_rounds: Gather) -> Build:
    """Return the build of the reduce in rank order. `gather_rounds` collects the folded blocks."""
    return _scattering(ring.all_gather_rounds).reduce(gather_rounds).in_pieces


reduce_scatter = _scattering(ring.all_gather_rounds).reduce_scatter_in_pieces()
"""The build of the reduce-scatter in rank order, which is the same for every algorithm."""
