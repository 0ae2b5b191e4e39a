"""hpccomm's own algorithms: pure functions from a call to a `Schedule`.

Each is a function ``build(group, call, tuning) -> Schedule``. It returns the programs of the ranks in
`group`: one rank where the schedule runs, all ranks where it is proved, simulated or drawn. To add an
algorithm, write the function and list it in `ALGORITHMS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpccomm.schedules.algorithms import (
    binomial,
    bruck,
    chain,
    dissemination,
    halving_doubling,
    hierarchical,
    linear,
    ordered,
    pairwise,
    recursive_doubling,
    ring,
    scan,
    scatter_all_gather,
    shm,
    shm_staged,
    tree,
)
from hpccomm.schedules.schedule import Build


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A way to carry out one collective.

    Attributes
    ----------
    build : callable
        Makes its schedule, which consists of messages, or of steps on peers' arrays if it is `shared`.
    ordered : callable or None
        For a reduction: makes the schedule that folds contributions in rank order, for
        ``deterministic=True``.
    uniform : bool
        Whether all blocks must have one size.
    shared : bool
        Whether all ranks must be able to reach each other's memory.
    direct : callable or None
        Makes the schedule where the ranks of a node reach each other's arrays, of an algorithm that
        can do without.
    staged : callable or None
        Makes the schedule where they reach only each other's scratch, of which there are
        ``tuning.room`` elements at most. Contributions are folded in rank order.
    """

    build: Build
    ordered: Build | None = None
    uniform: bool = False
    shared: bool = False
    direct: Build | None = None
    staged: Build | None = None


_TWO_LEVELS = hierarchical.DEFAULT

# In rank order: named for how the folded blocks move on.
_ALL_REDUCE_RING = ordered.all_reduce(ring.all_gather_rounds)
_ALL_REDUCE_DOUBLING = ordered.all_reduce(bruck.all_gather_rounds)
_REDUCE_BINOMIAL = ordered.reduce(binomial.gather_rounds)
_REDUCE_LINEAR = ordered.reduce(linear.gather_rounds)

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "all_reduce": {
            "ring": Algorithm(ring.all_reduce, ordered=_ALL_REDUCE_RING),
            "recursive_doubling": Algorithm(
                recursive_doubling.all_reduce, ordered=_ALL_REDUCE_DOUBLING
            ),
            "halving_doubling": Algorithm(
                halving_doubling.all_reduce, ordered=_ALL_REDUCE_DOUBLING
            ),
            "pairwise": Algorithm(
                pairwise.all_reduce, ordered=ordered.all_reduce(pairwise.all_gather_rounds)
            ),
            "linear": Algorithm(
                linear.all_reduce, ordered=ordered.all_reduce(linear.all_gather_rounds)
            ),
            "tree": Algorithm(tree.all_reduce, ordered=_ALL_REDUCE_DOUBLING),
            "binomial": Algorithm(binomial.all_reduce, ordered=_ALL_REDUCE_DOUBLING),
            "chain": Algorithm(chain.all_reduce, ordered=_ALL_REDUCE_RING),
            "shm": Algorithm(
                shm.all_reduce, ordered=shm.all_reduce, shared=True, staged=shm_staged.all_reduce
            ),
            "hierarchical": Algorithm(
                _TWO_LEVELS.messages("all_reduce"),
                ordered=_TWO_LEVELS.ordered_all_reduce,
                direct=_TWO_LEVELS.direct("all_reduce"),
            ),
        },
        "broadcast": {
            "tree": Algorithm(tree.broadcast),
            "binomial": Algorithm(binomial.broadcast),
            "chain": Algorithm(chain.broadcast),
            "scatter_all_gather": Algorithm(scatter_all_gather.broadcast),
            "shm": Algorithm(shm.broadcast, shared=True, staged=shm_staged.broadcast),
            "hierarchical": Algorithm(
                _TWO_LEVELS.messages("broadcast"), direct=_TWO_LEVELS.direct("broadcast")
            ),
        },
        "reduce": {
            "tree": Algorithm(tree.reduce, ordered=_REDUCE_BINOMIAL),
            "binomial": Algorithm(binomial.reduce, ordered=_REDUCE_BINOMIAL),
            "chain": Algorithm(chain.reduce, ordered=_REDUCE_LINEAR),
            "halving_doubling": Algorithm(halving_doubling.reduce, ordered=_REDUCE_BINOMIAL),
            "pairwise": Algorithm(pairwise.reduce, ordered=_REDUCE_LINEAR),
            "shm": Algorithm(shm.reduce, ordered=shm.reduce, shared=True, staged=shm_staged.reduce),
            "hierarchical": Algorithm(
                _TWO_LEVELS.messages("reduce"),
                ordered=_REDUCE_LINEAR,
                direct=_TWO_LEVELS.direct("reduce"),
            ),
        },
        "all_gather": {
            "ring": Algorithm(ring.all_gather),
            "bruck": Algorithm(bruck.all_gather),
            "recursive_doubling": Algorithm(recursive_doubling.all_gather),
            "pairwise": Algorithm(pairwise.all_gather),
            "linear": Algorithm(linear.all_gather),
            "shm": Algorithm(shm.all_gather, shared=True, staged=shm_staged.all_gather),
            "hierarchical": Algorithm(
                _TWO_LEVELS.messages("all_gather"), direct=_TWO_LEVELS.direct("all_gather")
            ),
        },
        "reduce_scatter": {
            "ring": Algorithm(ring.reduce_scatter, ordered=ordered.reduce_scatter),
            "halving_doubling": Algorithm(
                halving_doubling.reduce_scatter, ordered=ordered.reduce_scatter
            ),
            "pairwise": Algorithm(pairwise.reduce_scatter, ordered=ordered.reduce_scatter),
            "shm": Algorithm(
                shm.reduce_scatter,
                ordered=shm.reduce_scatter,
                shared=True,
                staged=shm_staged.reduce_scatter,
            ),
            "hierarchical": Algorithm(
                _TWO_LEVELS.messages("reduce_scatter"),
                ordered=ordered.reduce_scatter,
                direct=_TWO_LEVELS.direct("reduce_scatter"),
            ),
        },
        "all_to_all": {
            "pairwise": Algorithm(pairwise.all_to_all),
            "bruck": Algorithm(bruck.all_to_all, uniform=True),
            "linear": Algorithm(linear.all_to_all),
            "shm": Algorithm(
                shm.all_to_all, uniform=True, shared=True, staged=shm_staged.all_to_all
            ),
            "hierarchical": Algorithm(
                _TWO_LEVELS.messages("all_to_all"), direct=_TWO_LEVELS.direct("all_to_all")
            ),
        },
        "neighbor_all_to_all": {"linear": Algorithm(linear.neighbor_all_to_all)},
        "gather": {
            "linear": Algorithm(linear.gather),
            "binomial": Algorithm(binomial.gather),
            "shm": Algorithm(shm.gather, shared=True, staged=shm_staged.gather),
        },
        "scatter": {
            "linear": Algorithm(linear.scatter),
            "binomial": Algorithm(binomial.scatter),
            "shm": Algorithm(shm.scatter, shared=True, staged=shm_staged.scatter),
        },
        "scan": {
            "linear": Algorithm(scan.linear, ordered=scan.linear),
            "binomial": Algorithm(scan.binomial, ordered=scan.pairwise),
            "pairwise": Algorithm(scan.pairwise, ordered=scan.pairwise),
            "shm": Algorithm(shm.scan, ordered=shm.scan, shared=True, staged=shm_staged.scan),
        },
        "barrier": {
            "dissemination": Algorithm(dissemination.barrier),
            "binomial": Algorithm(binomial.barrier),
            "hierarchical": Algorithm(_TWO_LEVELS.messages("barrier")),
        },
    }
)
"""The algorithms of each collective, by name."""
