"""Chain: each rank passes the array on to the next rank, segment by segment.

A rank receives the array from one neighbor and sends it to the other, each once. No broadcast or reduce needs
fewer elements. But n-1 messages follow each other before the last rank has any data. So a chain suits large
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

`ALGORITHMS` lists the three; `hierarchical` uses the phases within nodes.
"""

import numpy as np

from hpccomm.schedules.algorithms.pipeline import Pipeline, Tree
from hpccomm.schedules.schedule import Column, Group


def _chain(group: Group, root: Column | int, step: int) -> Tree:
    """Return the chain of positions that begins at `root` and goes on in steps of +1 or -1, round the end."""
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
"""The pipelines through the chain. A reduction starts at the position after the root and goes round the end; an
all_reduce goes through the positions in their order."""

ALL_REDUCE, BROADCAST, REDUCE = PIPELINE.all_reduce(), PIPELINE.broadcast(), PIPELINE.reduce()
all_reduce, broadcast, reduce = PIPELINE.builds()
