"""Chain: each rank passes the array on to the next one, segment by segment.

A rank sends the array once and receives it once, to and from neighbors. No broadcast or reduce needs
fewer elements. But n-1 messages follow each other before the last rank has anything. So it suits large
arrays on few ranks. See R. van de Geijn, "On global combine operations", 1994; J. Watts, R. van de Geijn, "A
pipelined broadcast for multidimensional meshes", 1995.

With s segments:

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
broadcast       s + n - 2        the array, or none
reduce          s + n - 2        the array, or none
all_reduce      s + 2n - 3       at most 2 times the array
==============  ===============  =======================

`ALGORITHMS` lists it; hierarchical algorithms use its phases.
"""

import numpy as np

from hpccomm.schedules.algorithms.pipeline import Pipeline, Tree
from hpccomm.schedules.schedule import Column, Group


def _chain(group: Group, root: Column | int, step: int) -> Tree:
    """Return the chain that leads away from `root` in steps of +1 or -1, round the end."""
    n, at = group.size, group.at
    depth = (at - root) * step % n
    parent = np.where(depth == 0, -1, (at - step) % n)
    child = np.where(depth == n - 1, -1, (at + step) % n)
    return Tree(n - 1, depth, parent, (child,))


PIPELINE = Pipeline(
    to_root=lambda group, root: (_chain(group, root, -1),),
    from_root=lambda group, root: (_chain(group, root, 1),),
    parts=1,
    children=1,
    last=lambda size: size - 1,
)
"""From the position after the root on, round the end; all_reduce in the order of the positions."""

ALL_REDUCE, BROADCAST, REDUCE = PIPELINE.all_reduce(), PIPELINE.broadcast(), PIPELINE.reduce()
all_reduce, broadcast, reduce = PIPELINE.builds()
