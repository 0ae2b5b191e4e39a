"""Linear algorithms: everything at once, over each rank's one port.

A rank sends n-1 messages, or takes as many: α + (n-1) S/β on one level. Nothing else is at work
there; see R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations
in MPICH", 2005, for where it is used.
"""

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.formulas.shifts import collecting
from hpccomm.schedules.cost.path import Path, Reach, Stage, after, copy, fold


def _everyone(case: Case, elements: float, local: Path) -> list[Stage]:
    """Return the stages in which everyone sends `elements` to everyone, then does `local` steps."""
    width = case.per_node
    smallest = case.ranks - (case.network.nodes - 1) * width
    others = {Reach.INNER: width - 1, Reach.ACROSS: case.ranks - smallest}
    paths = []
    for reach in case.reaches:
        # The last one to have its turn at a port waits for its own latency too.
        last = case.step(reach, elements)
        ports = others[reach] * case.inject(reach, elements, width)
        paths.append(ports + last.hop + -1 * last.port)
    return [after(local, tuple(paths))]


def all_reduce(case: Case) -> list[Stage]:
    """Everyone's array to everyone."""
    count = case.call.counts[0]
    return _everyone(case, count, copy(count) + (case.ranks - 1) * fold(count))


def all_gather(case: Case) -> list[Stage]:
    """Everyone's block to everyone."""
    block = max(case.call.counts)
    return _everyone(case, block, copy(block))


def all_to_all(case: Case) -> list[Stage]:
    """To everyone the block for it."""
    block = max(case.call.counts)
    return _everyone(case, block, copy(block))


def gather(case: Case) -> list[Stage]:
    """Each rank's block to the root, whose port takes them one after the other."""
    block = max(case.call.counts)
    return [after(copy(block), collecting(case, block))]


def scatter(case: Case) -> list[Stage]:
    """From the root, whose port they leave one after the other."""
    block = max(case.call.counts)
    paths = collecting(case, block)
    # The root copies its own once all others have left.
    own = after(copy(block), tuple(path.without_latency for path in paths))
    return [(*paths, *own)]
