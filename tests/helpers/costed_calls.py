"""Example calls for tests of prices."""

from itertools import product

import numpy as np

from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS, REDUCTIONS, ROOTED
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS

REGISTERED = [
    (collective, name)
    for collective, named in ALGORITHMS.items()
    if not DESCRIPTIONS[collective].peers
    for name in named
]
"""Algorithms of collectives in which one rank's call stands for all of them."""


def in_turn(networks, sizes, algorithm, *, everything):
    """Each network with each size; or each with one, which is another for the next algorithm."""
    if everything:
        return list(product(networks, sizes))
    begin = REGISTERED.index(algorithm)
    return [(net, sizes[(begin + i) % len(sizes)]) for i, net in enumerate(networks)]


def call_of(collective, ranks, nbytes):
    """A float32 call whose larger array has about so many bytes."""
    elements = max(nbytes // 4, 1)
    if collective == "barrier":
        counts = (0,)
    elif collective not in BLOCKWISE:
        counts = (elements,)
    else:
        counts = (max(elements // ranks, 1),) * ranks
    return Signature(
        collective,
        np.dtype(np.float32),
        counts,
        counts if collective == "all_to_all" else (),
        op=ReduceOp.SUM if collective in REDUCTIONS else None,
        root=0 if collective in ROOTED else -1,
    )
