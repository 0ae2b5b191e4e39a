"""hpccomm's own algorithms: pure functions from a call to a `Schedule`.

Each is ``algorithm(rank, size, signature) -> Schedule``. To add one, write the function and name
it in `ALGORITHMS`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpccomm.algorithms import dissemination, linear, pairwise, ring, tree
from hpccomm.contracts.schedule import Schedule
from hpccomm.contracts.signature import Signature

Algorithm = Callable[[int, int, Signature], Schedule]

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "all_reduce": {"pairwise": pairwise.all_reduce, "linear": linear.all_reduce},
        "broadcast": {"tree": tree.broadcast},
        "reduce": {"pairwise": pairwise.reduce},
        "all_gather": {"ring": ring.all_gather},
        "reduce_scatter": {"pairwise": pairwise.reduce_scatter},
        "all_to_all": {"pairwise": pairwise.all_to_all},
        "gather": {"linear": linear.gather},
        "scatter": {"linear": linear.scatter},
        "scan": {"linear": linear.scan},
        "barrier": {"dissemination": dissemination.barrier},
    }
)
"""For each collective its algorithms by name; the first serves arrays of any size."""
