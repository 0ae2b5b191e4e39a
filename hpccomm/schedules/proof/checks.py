"""Conditions that each row of a round must satisfy, and the error that names a bad row.

`machine` checks every round by it.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from hpccomm import dtypes
from hpccomm.schedules.proof.case import ProofCase, Unproven
from hpccomm.schedules.proof.memory import FLAGS, NAMES, Cells, SymbolicMemory
from hpccomm.schedules.schedule import Column, Mask, Place


def _nodes(case: ProofCase) -> Column:
    """Return the node of each rank; one where no topology is given."""
    topology = case.tuning.topology
    return np.array(topology.node_of if topology else [0] * case.size)


class Checks:
    """Checks of one channel. Ranks are numbered through, except where `first` and `size` are parameters.

    Attributes
    ----------
    channel, round : int
        Where the checked rows are.
    folding : ndarray of shape (ranks,), bool
        Whether the collective folds.
    once : ndarray of shape (ranks,), bool
        Whether an element may be rounded only once.
    """

    def __init__(self, memory: SymbolicMemory, channel: int) -> None:
        self._memory = memory
        self.channel = channel
        self.round = 0
        cases, sizes = memory.cases, np.diff(memory.offset)
        once = [case.in_rank_order and dtypes.is_narrow(case.calls[0].dtype) for case in cases]
        self.once = np.repeat(once, sizes)
        self.folding = np.repeat([case.calls[0].op is not None for case in cases], sizes)
        self._reaches = {
            name: np.repeat([name in case.reaches for case in cases], sizes) for name in NAMES
        }
        self._node = np.concatenate([_nodes(case) for case in cases])

    def demand(self, good: Mask, ranks: Column, what: str | Callable[[int], str]) -> None:
        """Raise for the first bad row: `what` names its action, and `ranks` its rank."""
        if not good.all():
            row = int(np.argmin(good))
            raise self.unproven(int(ranks[row]), what if isinstance(what, str) else what(row))

    def unproven(self, rank: int, problem: str) -> Unproven:
        """Return the error for a problem of `rank` in this round."""
        case, local = self._memory.local(rank)
        where = f"rank {local}, channel {self.channel}, round {self.round}"
        return Unproven(f"{case.title}: {where}: {problem}")

    def local(self, rank: int) -> int:
        """Return a rank's number in its case."""
        return self._memory.local(int(rank))[1]

    def ranks(self, rank: Column, first: Column | int, size: Column | int) -> None:
        """Check that the schedule names ranks of its case, which begins at rank `first`."""
        self.demand(
            (rank >= 0) & (rank < size),
            np.broadcast_to(first, rank.shape),
            lambda i: f"the schedule names rank {rank[i]}",
        )

    def neighbors(self, actor: Column, place: Place, first: Column, size: Column) -> None:
        """Check that each `actor` may access that buffer of the place's peer."""
        peer = place.peer
        assert peer is not None
        self.demand(
            (peer >= 0) & (peer < size),
            actor,
            lambda i: f"reaches into the memory of rank {peer[i]} of {size[i]}",
        )
        self.demand(
            self._reaches[place.buffer][actor],
            actor,
            lambda i: f"reaches into {place.buffer} of rank {peer[i]}, which it may not here",
        )
        self.demand(
            self._node[actor] == self._node[peer + first],
            actor,
            lambda i: f"reaches into the memory of rank {peer[i]}, on another node",
        )

    def bounds(
        self, actor: Column, holder: Column, code: Column, start: Column, count: Column, verb: str
    ) -> None:
        """Check that the slices lie in the buffers, of numbers `code`, of their holders."""
        length = self._memory.length[code, holder]
        self.demand(
            (start >= 0) & (count >= 0) & (start + count <= length),
            actor,
            lambda i: (
                f"{verb} {count[i]} elements at {start[i]} of {NAMES[code[i]]}, "
                f"which has {length[i]}"
            ),
        )

    def written(self, cells: Cells, actor: Column, verb: str) -> None:
        """Check that the cells that each `actor` reads were written."""
        self.demand(
            self._memory.state[cells, FLAGS] != 0,
            actor,
            lambda i: f"{verb} {self._memory.name(cells[i])}, which was never written",
        )

    def apart(self, source: Cells, target: Cells, actor: Column, verb: str) -> None:
        """Check that a written cell is read only for the element that goes there."""
        alone, read = self.overlaps(source, target)
        own = (read == -1) | (read == np.arange(len(target)))
        self.demand(
            alone & own.all(axis=0),
            actor,
            lambda i: (
                f"{verb} into {self._memory.name(target[i])}, which another row of the same "
                "step reads or writes"
            ),
        )

    def overlaps(self, source: Cells, target: Cells) -> tuple[Mask, Cells]:
        """Return which of `target` no later one equals, and for each of `source` its place there, or -1."""
        mark, index = self._memory.mark, np.arange(len(target))
        mark[target] = index
        alone, place = mark[target] == index, mark[source]
        mark[target] = -1
        return alone, place

    def matched(self, receives: Column, sends: Column) -> None:
        """Check that each message has both ends. A message is a number: source times all ranks plus target."""
        waiting, under_way = Counter(receives.tolist()), Counter(sends.tolist())
        lost = sorted((waiting - under_way) | (under_way - waiting))
        if not lost:
            return
        src, dst = divmod(lost[0], len(self._node))
        if waiting[lost[0]] > under_way[lost[0]]:
            what = f"waits for a message of rank {self.local(src)}, which sends none in this round"
            raise self.unproven(dst, what)
        what = f"sends to rank {self.local(dst)}, which receives nothing from it in this round"
        raise self.unproven(src, what)
