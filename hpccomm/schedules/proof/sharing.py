"""Checks accesses to peers' memory: only a barrier orders them. `machine` reports to it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.proof.memory import Cells, spread
from hpccomm.schedules.schedule import Column, Group, Mask

Refuse = Callable[[int, int, int, int, int], Exception]
"""``refuse(cell, one, at, other, then)``: the error for two ranks that touch a cell, and their rounds."""

NEVER = 1 << 62
"""A round after all others."""


def arrivals(group: Group) -> list[tuple[NDArray[np.int64], Column]]:
    """Return the groups that meet, and which ranks of the rows arrive at each."""
    members, which = group.meetings()
    known, which = np.unique(members[which], axis=0, return_inverse=True)
    return [(ranks, group.rank[which.reshape(-1) == i]) for i, ranks in enumerate(known)]


@dataclass(slots=True, eq=False)
class Accesses:
    """The accesses of ranks to cells in the rounds of a channel, and the barriers between."""

    _touched: list[tuple[Cells, Column, int, bool]] = field(default_factory=list)
    _met: list[tuple[int, Column]] = field(default_factory=list)

    def note(self, cells: Cells, actor: Column, at: int, *, writes: bool) -> None:
        """Note that each of `cells` was read, or written, by its `actor` in round `at`."""
        self._touched.append((cells, actor, at, writes))

    def meet(self, at: int, label: Column) -> None:
        """Note a barrier at the end of round `at` among ranks of one `label`; -1 is in none."""
        self._met.append((at, label))

    def check(self, owner: Column, refuse: Refuse) -> None:
        """Raise unless barriers separate what ranks do with one cell.

        Between a rank's write of a cell and another rank's access, both meet in a barrier. They
        also meet before a rank accesses a peer's cell, and afterwards: otherwise the peer may not
        have begun the call yet, or may have left it. Two accesses in one round have no barrier
        between.

        Parameters
        ----------
        owner : ndarray
            The rank of each cell.
        refuse : callable
            Makes the exception from: a cell, a rank that accesses it and its round, the other rank and
            its round (-1 is before the first round, `NEVER` after the last).
        """
        if not self._touched:
            return
        cell = np.concatenate([cells for cells, *_ in self._touched])
        rank = np.concatenate([actor for _, actor, *_ in self._touched])
        lengths = [len(cells) for cells, *_ in self._touched]
        at = np.repeat([at for *_, at, _ in self._touched], lengths)
        writes = np.repeat([writes for *_, writes in self._touched], lengths)

        foreign = np.flatnonzero(owner[cell] != rank)
        own, its, then = cell[foreign], rank[foreign], at[foreign]
        for when in (-1, NEVER):
            theirs = np.full(len(own), when)
            self._check_apart(own, its, then, owner[own], theirs, refuse)

        order = np.argsort(cell, kind="stable")
        cell, rank, at, writes = cell[order], rank[order], at[order], writes[order]
        # Each write with all accesses of its cell.
        write = np.flatnonzero(writes)
        low = np.searchsorted(cell, cell[write], side="left")
        many = np.searchsorted(cell, cell[write], side="right") - low
        write, other = np.repeat(write, many), spread(low, many)
        pairs = rank[write] != rank[other]
        write, other = write[pairs], other[pairs]
        self._check_apart(cell[write], rank[write], at[write], rank[other], at[other], refuse)

    def _check_apart(
        self, cell: Cells, one: Column, at: Column, other: Column, then: Column, refuse: Refuse
    ) -> None:
        earlier, later = np.minimum(at, then), np.maximum(at, then)
        separated: Mask = np.zeros(len(cell), np.bool_)
        for met_at, label in self._met:
            together = (label[one] == label[other]) & (label[one] >= 0)
            separated |= together & (earlier <= met_at) & (met_at < later)
        if not separated.all():
            i = int(np.argmin(separated))
            raise refuse(int(cell[i]), int(one[i]), int(at[i]), int(other[i]), int(then[i]))
