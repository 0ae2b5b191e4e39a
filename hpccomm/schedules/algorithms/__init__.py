"""hpccomm's own algorithms: pure functions from a call to a `Schedule`.

Each is a function ``build(group, call, tuning) -> Schedule``. It returns the programs of the ranks in
`group`: one rank where the schedule runs, all ranks where it is proved, simulated or drawn. To add an
algorithm, write the function and list it in `ALGORITHMS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpccomm.contracts.collectives import REDUCTIONS
from hpccomm.contracts.signature import Signature
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
from hpccomm.schedules.schedule import Build, Group, Schedule, Tuning


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


# In rank order: named for how the folded blocks move on.
_ALL_REDUCE_RING = ordered.all_reduce(ring.all_gather_rounds)
_ALL_REDUCE_DOUBLING = ordered.all_reduce(bruck.all_gather_rounds)
_REDUCE_BINOMIAL = ordered.reduce(binomial.gather_rounds)
_REDUCE_LINEAR = ordered.reduce(linear.gather_rounds)


def _shared(collective: str, build: Build, among_several: Build) -> Algorithm:
    """Return the algorithm in shared memory, whose reductions are in rank order."""

    def staged(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        return (build if group.size == 1 else among_several)(group, call, tuning)

    return Algorithm(
        build,
        ordered=build if collective in REDUCTIONS else None,
        uniform=collective == "all_to_all",
        shared=True,
        staged=staged,
    )


def _in_two_levels(collective: str, ordered: Build | None = None) -> Algorithm:
    """Return the algorithm in two levels, whose ranks of a node may reach each other's arrays."""
    levels = hierarchical.DEFAULT
    return Algorithm(levels.messages(collective), ordered=ordered, direct=levels.direct(collective))


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
            "shm": _shared("all_reduce", shm.all_reduce, shm_staged.all_reduce),
            "hierarchical": _in_two_levels("all_reduce", hierarchical.DEFAULT.ordered_all_reduce),
        },
        "broadcast": {
            "tree": Algorithm(tree.broadcast),
            "binomial": Algorithm(binomial.broadcast),
            "chain": Algorithm(chain.broadcast),
            "scatter_all_gather": Algorithm(scatter_all_gather.broadcast),
            "shm": _shared("broadcast", shm.broadcast, shm_staged.broadcast),
            "hierarchical": _in_two_levels("broadcast"),
        },
        "reduce": {
            "tree": Algorithm(tree.reduce, ordered=_REDUCE_BINOMIAL),
            "binomial": Algorithm(binomial.reduce, ordered=_REDUCE_BINOMIAL),
            "chain": Algorithm(chain.reduce, ordered=_REDUCE_LINEAR),
            "halving_doubling": Algorithm(halving_doubling.reduce, ordered=_REDUCE_BINOMIAL),
            "pairwise": Algorithm(pairwise.reduce, ordered=_REDUCE_LINEAR),
            "shm": _shared("reduce", shm.reduce, shm_staged.reduce),
            "hierarchical": _in_two_levels("reduce", _REDUCE_LINEAR),
        },
        "all_gather": {
            "ring": Algorithm(ring.all_gather),
            "bruck": Algorithm(bruck.all_gather),
            "recursive_doubling": Algorithm(recursive_doubling.all_gather),
            "pairwise": Algorithm(pairwise.all_gather),
            "linear": Algorithm(linear.all_gather),
            "shm": _shared("all_gather", shm.all_gather, shm_staged.all_gather),
            "hierarchical": _in_two_levels("all_gather"),
        },
        "reduce_scatter": {
            "ring": Algorithm(ring.reduce_scatter, ordered=ordered.reduce_scatter),
            "halving_doubling": Algorithm(
                halving_doubling.reduce_scatter, ordered=ordered.reduce_scatter
            ),
            "pairwise": Algorithm(pairwise.reduce_scatter, ordered=ordered.reduce_scatter),
            "shm": _shared("reduce_scatter", shm.reduce_scatter, shm_staged.reduce_scatter),
            "hierarchical": _in_two_levels("reduce_scatter", ordered.reduce_scatter),
        },
        "all_to_all": {
            "pairwise": Algorithm(pairwise.all_to_all),
            "bruck": Algorithm(bruck.all_to_all, uniform=True),
            "linear": Algorithm(linear.all_to_all),
            "shm": _shared("all_to_all", shm.all_to_all, shm_staged.all_to_all),
            "hierarchical": _in_two_levels("all_to_all"),
        },
        "neighbor_all_to_all": {"linear": Algorithm(linear.neighbor_all_to_all)},
        "gather": {
            "linear": Algorithm(linear.gather),
            "binomial": Algorithm(binomial.gather),
            "shm": _shared("gather", shm.gather, shm_staged.gather),
        },
        "scatter": {
            "linear": Algorithm(linear.scatter),
            "binomial": Algorithm(binomial.scatter),
            "shm": _shared("scatter", shm.scatter, shm_staged.scatter),
        },
        "scan": {
            "linear": Algorithm(scan.linear, ordered=scan.linear),
            "binomial": Algorithm(scan.binomial, ordered=scan.pairwise),
            "pairwise": Algorithm(scan.pairwise, ordered=scan.pairwise),
            "shm": _shared("scan", shm.scan, shm_staged.scan),
        },
        "barrier": {
            "dissemination": Algorithm(dissemination.barrier),
            "binomial": Algorithm(binomial.barrier),
            "hierarchical": Algorithm(hierarchical.DEFAULT.messages("barrier")),
        },
    }
)
"""The algorithms of each collective, by name."""
