"""Ranks that reach each other's memory: nothing but a barrier keeps them apart."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.schedule import Column, Group, Mask
from hpccomm.testing.proof.memory import Cells, spread


def arrivals(group: Group) -> list[tuple[NDArray[np.int64], Column]]:
    """Return the groups that meet, with those of the rows' ranks that come to each."""
    if group.members is None:
        return [(np.arange(group.size), group.rank)]
    known, which = np.unique(group.members[group.which], axis=0, return_inverse=True)
    return [(ranks, group.rank[which.reshape(-1) == i]) for i, ranks in enumerate(known)]


@dataclass(slots=True, eq=False)
class Accesses:
    """Which rank touched which cell in which round of a channel, and the barriers between."""

    _touched: list[tuple[Cells, Column, int, bool]] = field(default_factory=list)
    _met: list[tuple[int, Column]] = field(default_factory=list)

    def note(self, cells: Cells, actor: Column, at: int, *, writes: bool) -> None:
        """Note that each of `cells` was read, or written, by its `actor` in round `at`."""
        self._touched.append((cells, actor, at, writes))

    def meet(self, at: int, label: Column) -> None:
        """Note a barrier at the end of round `at` among ranks of one `label`; -1 is in none."""
        self._met.append((at, label))

    def check(self, refuse: Callable[[int, int, int, int, int], Exception]) -> None:
        """Raise unless there is a barrier between any two ranks' accesses, of which one writes.

        Two accesses of one round have none between them. `refuse` makes the exception of: a cell,
        the rank that writes it and in which round, the other rank and its round.
        """
        if not self._touched:
            return
        cell = np.concatenate([cells for cells, *_ in self._touched])
        rank = np.concatenate([actor for _, actor, *_ in self._touched])
        lengths = [len(cells) for cells, *_ in self._touched]
        at = np.repeat([at for *_, at, _ in self._touched], lengths)
        writes = np.repeat([writes for *_, writes in self._touched], lengths)
        order = np.argsort(cell, kind="stable")
        cell, rank, at, writes = cell[order], rank[order], at[order], writes[order]
        # Each write with all accesses of its cell.
        mine = np.flatnonzero(writes)
        low = np.searchsorted(cell, cell[mine], side="left")
        many = np.searchsorted(cell, cell[mine], side="right") - low
        write, other = np.repeat(mine, many), spread(low, many)
        pairs = rank[write] != rank[other]
        write, other = write[pairs], other[pairs]
        earlier = np.minimum(at[write], at[other])
        later = np.maximum(at[write], at[other])
        apart: Mask = np.zeros(len(write), np.bool_)
        for met_at, label in self._met:
            together = (label[rank[write]] == label[rank[other]]) & (label[rank[write]] >= 0)
            apart |= together & (earlier <= met_at) & (met_at < later)
        if not apart.all():
            i = int(np.argmin(apart))
            w, o = int(write[i]), int(other[i])
            raise refuse(int(cell[w]), int(rank[w]), int(at[w]), int(rank[o]), int(at[o]))
