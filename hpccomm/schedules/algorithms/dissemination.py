"""Dissemination barrier: in each round a rank signals to a rank twice as far away as before.

After ⌈log2 n⌉ rounds every rank knows that all have arrived, for any n and without a root.
See D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", 1988.

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
barrier         ⌈log2 n⌉         none
==============  ===============  =======================

`ALGORITHMS` lists it; the barrier of `hierarchical` uses it across nodes.
"""

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import doublings
from hpccomm.schedules.schedule import Group, Round, Rounds, Schedule, Tuning, signals


def barrier_rounds(group: Group) -> Rounds:
    """Return the rounds: in round k each rank signals to the rank 2^k further on."""
    for distance in doublings(group.size):
        to, of = group.at_distance(distance), group.at_distance(-distance)
        yield Round(receives=(signals(group.rank, of),), sends=(signals(group.rank, to),))


def barrier(group: Group, _call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule of the barrier: a rank completes it once every rank has begun it."""
    return Schedule((lambda: barrier_rounds(group),))
