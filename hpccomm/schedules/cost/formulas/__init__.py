"""What each algorithm costs: a function of a `Case` for each, in a file for each family."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.formulas import (
    binomial,
    doubling,
    hierarchical,
    linear,
    pipelines,
    ring,
    shifts,
    shm,
    tree,
)
from hpccomm.schedules.cost.path import Stage

Formula = Callable[[Case], list[Stage]]

FORMULAS: Mapping[str, Mapping[str, Formula]] = MappingProxyType(
    {
        "all_reduce": {
            "ring": ring.all_reduce,
            "binomial": binomial.all_reduce,
            "tree": tree.all_reduce,
            "chain": pipelines.chain_all_reduce,
            "recursive_doubling": doubling.all_reduce,
            "halving_doubling": doubling.halving_all_reduce,
            "pairwise": shifts.all_reduce,
            "linear": linear.all_reduce,
            "hierarchical": hierarchical.all_reduce,
            "shm": shm.all_reduce,
        },
        "broadcast": {
            "tree": tree.broadcast,
            "binomial": binomial.broadcast,
            "chain": pipelines.chain_broadcast,
            "scatter_all_gather": ring.scatter_all_gather,
            "hierarchical": hierarchical.broadcast,
            "shm": shm.broadcast,
        },
        "reduce": {
            "tree": tree.reduce,
            "binomial": binomial.reduce,
            "chain": pipelines.chain_reduce,
            "halving_doubling": doubling.halving_reduce,
            "pairwise": shifts.reduce,
            "hierarchical": hierarchical.reduce,
            "shm": shm.reduce,
        },
        "all_gather": {
            "ring": ring.all_gather,
            "bruck": shifts.bruck_all_gather,
            "recursive_doubling": doubling.all_gather,
            "pairwise": shifts.all_gather,
            "linear": linear.all_gather,
            "hierarchical": hierarchical.all_gather,
            "shm": shm.all_gather,
        },
        "reduce_scatter": {
            "ring": ring.reduce_scatter,
            "halving_doubling": doubling.halving_reduce_scatter,
            "pairwise": shifts.reduce_scatter,
            "hierarchical": hierarchical.reduce_scatter,
            "shm": shm.reduce_scatter,
        },
        "all_to_all": {
            "pairwise": shifts.all_to_all,
            "bruck": shifts.bruck_all_to_all,
            "linear": linear.all_to_all,
            "hierarchical": hierarchical.all_to_all,
            "shm": shm.all_to_all,
        },
        "gather": {
            "linear": linear.gather,
            "binomial": binomial.gather,
            "shm": shm.to_or_from_root,
        },
        "scatter": {
            "linear": linear.scatter,
            "binomial": binomial.scatter,
            "shm": shm.to_or_from_root,
        },
        "scan": {
            "linear": pipelines.scan,
            "binomial": shifts.scan,
            "pairwise": shifts.exchanged_scan,
            "shm": shm.scan,
        },
        "barrier": {
            "dissemination": shifts.dissemination,
            "binomial": binomial.barrier,
            "hierarchical": hierarchical.barrier,
        },
    }
)
"""For each collective its algorithms' formulas by name."""
