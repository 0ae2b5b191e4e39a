"""The settings of memory that ranks share: how arrays are reached, and how much room there is."""

from itertools import cycle

import numpy as np

from front.algorithms import attempt, cut
from hpccomm import CommOptions, Communicator
from hpccomm.contracts.collectives import REDUCTIONS
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import FORMS, another
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, Spec

SHARED_MEMORY = Behaviours("shared_memory_settings", "shared memory")

METHODS = tuple(
    (collective, algorithm)
    for collective, own in ALGORITHMS.items()
    for algorithm in ("shm", "hierarchical")
    if collective != "barrier" and algorithm in own
)
"""Collectives, and the algorithms that may reach into memory of peers."""


@SHARED_MEMORY.behaviour(method=METHODS, reached=("auto", "staging", "off"))
def ways_and_room(comm: Communicator, method: tuple[str, str], reached: str) -> None:
    """Each way, with any room for staging, has the same results."""
    collective, algorithm = method
    forms, results = cycle(FORMS), cycle(((OUT,), (IN_PLACE, OUT)))
    for room in (1, 100 * comm.size, 1 << 20):
        options = CommOptions(self_check=False, shared_memory=reached, shared_memory_room=room)
        with another(comm, options=options) as other:
            for dtype in (np.float32, np.complex128):
                count, form = 4 * comm.size + 1, next(forms)
                spec = Spec(collective, count, np.dtype(dtype), results=next(results))
                attempt(other, algorithm, spec, form)
                if collective in REDUCTIONS:
                    attempt(other, algorithm, spec, form, deterministic=True)


@SHARED_MEMORY.behaviour()
def no_memory_is_reached(comm: Communicator) -> None:
    """Switched off, the algorithm that needs it is refused; registered arrays are as good as others."""
    with cut(comm, None, "off") as unshared:
        x = unshared.empty(4, np.float32)
        x.fill(1)
        with raises(UsageError, "'shm'", "auto"):
            unshared.all_reduce(x, algorithm="shm")
        equal(unshared.all_reduce(x), np.full(4, comm.size, np.float32))
