"""The memory of all ranks, which holds symbols instead of numbers.

A cell is one element of memory. The cells of all ranks are numbered through, so that a whole round
is a few operations on arrays of cell numbers. A cell holds several integers, which describe the contributions
folded in it.

`machine` computes on the memory, and notes accesses to peers' memory, which only barriers order. `prove` checks the
results, and `hpccomm.tools.runs.trace` reads the memory for pictures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.proof.case import ProofCase, RankSchedule, Unproven, expected, within
from hpccomm.schedules.schedule import RECV, SCRATCH, SEND, Column, Group, Mask
from hpccomm.units import ranks_named

Cells = NDArray[np.int64]
"""Numbers of cells."""

CODES = {SEND: 0, RECV: 1, SCRATCH: 2}
NAMES = tuple(CODES)

FIRST, NUMBER, ORIGIN, FLAGS, BITS = range(5)
"""The integers of a cell: the lowest rank of its contributions (in an ordered fold), the number of
contributions, the index of the folded element, flags, and from `BITS` on a bit for each rank, 64 to an
integer."""

WRITTEN = 1
"""Set once the cell was written, or if it is an input."""

FINAL = 2
"""Set by a fold that is `final`."""

ORDERED = 4
"""Set while the cell is the left fold of contributions of consecutive ranks, in their order."""


def spread(first: Column, count: Column) -> Cells:
    """Return `count` consecutive numbers from each `first`, one after the other."""
    return np.repeat(first, count) + within(count)


class SymbolicMemory:
    """The buffers of the ranks of several cases. Ranks are numbered through all cases.

    Parameters
    ----------
    cases : sequence of ProofCase
        The cases.
    parts : sequence of sequences of RankSchedule
        The schedules of each case.

    Attributes
    ----------
    cases : sequence of ProofCase
        The cases, in the order of their ranks.
    offset : ndarray of shape (cases + 1,)
        The number of each case's first rank.
    position : ndarray of shape (ranks,)
        The number of each rank in its case.
    base : ndarray of shape (3, ranks)
        The first cell of each buffer; rows are indexed by `CODES`.
    length : ndarray of shape (3, ranks)
        Elements of each buffer.
    state : ndarray of shape (cells, BITS + words), int64
        The integers of each cell.
    protected : ndarray of shape (cells,), bool
        Whether a cell is an input that is not a result, and must not be written.
    owner : ndarray of shape (cells,)
        The rank of each cell.
    read, wrote : ndarray of shape (cells,), bool
        Whether the channel under way has read, or written, each cell.
    others_read, others_wrote : ndarray of shape (cells,), bool
        Whether an earlier channel has read, or written, each cell.
    mark : ndarray of shape (cells,)
        Working memory of `Checks.overlaps`; -1 otherwise.
    heard : ndarray of shape (ranks, words), int64
        A bit for each rank of the same case that the row's rank knows to have begun the call.
    """

    def __init__(self, cases: Sequence[ProofCase], parts: Sequence[Sequence[RankSchedule]]) -> None:
        self.cases = cases
        self.offset = np.cumsum([0, *(case.size for case in cases)])
        self.position = within(np.diff(self.offset))
        ranks = int(self.offset[-1])
        self.base, self.length = np.zeros((2, 3, ranks), np.int64)
        taken = self._lay_out(parts)
        self.owner = np.repeat(np.arange(ranks), taken)
        cells, words = len(self.owner), -(-int(np.diff(self.offset).max()) // 64)
        self.state = np.zeros((cells, BITS + words), np.int64)
        self.protected, self.read, self.wrote, self.others_read, self.others_wrote = (
            np.zeros(cells, np.bool_) for _ in range(5)
        )
        self.mark = np.full(cells, -1)
        self.heard = one_bit(self.position, words)
        self._fill()

    def _lay_out(self, parts: Sequence[Sequence[RankSchedule]]) -> Column:
        """Place the buffers, and return the number of cells of each rank."""
        user = np.zeros_like(self.base[0])
        placed = zip(self.offset.tolist(), parts, strict=False)
        for first, (local, call, schedule) in (
            (first, part) for first, its in placed for part in its
        ):
            rank = local + first
            send, recv = call.lengths(local)
            self.length[:, rank] = send, recv, np.full(len(local), schedule.scratch)
            user[rank] = np.maximum(send, recv) if call.in_place else send + recv
            counts = np.array(call.counts, np.int64)
            before = (np.cumsum(counts) - counts)[local % len(counts)] if len(counts) else 0
            if not call.in_place:
                self.base[CODES[RECV], rank] = send
            elif call.description.sends == "block":  # send is the own block of recv
                self.base[CODES[SEND], rank] = before
            elif call.description.receives == "block":  # recv is the own block of send
                self.base[CODES[RECV], rank] = before
        self.base[CODES[SCRATCH]] = user
        taken: Column = user + self.length[CODES[SCRATCH]]
        self.base += np.cumsum(taken) - taken
        return taken

    def _fill(self) -> None:
        """Write the ranks' inputs into the cells."""
        count, first = self.length[CODES[SEND]].copy(), self.base[CODES[SEND]].copy()
        results = self.length[CODES[RECV]].copy()
        for begins, case in zip(self.offset.tolist(), self.cases, strict=False):
            if case.calls[0].description.in_place == "always":  # only the root has an input
                root = begins + case.calls[0].root
                count[root], results[root] = self.length[CODES[RECV], root], 0
                first[root] = self.base[CODES[RECV], root]
        cells, rank = spread(first, count), np.repeat(self.position, count)
        state = self.state
        state[cells, FIRST] = rank
        state[cells, NUMBER] = 1
        state[cells, ORIGIN] = within(count)
        state[cells, FLAGS] = WRITTEN | ORDERED
        state[cells, BITS:] = one_bit(rank, state.shape[1] - BITS)
        self.protected[cells] = True
        self.protected[spread(self.base[CODES[RECV]], results)] = False

    def local(self, rank: int) -> tuple[ProofCase, int]:
        """Return the case of a rank, and the rank's number in that case."""
        which = int(np.searchsorted(self.offset, rank, side="right")) - 1
        return self.cases[which], rank - int(self.offset[which])

    def name(self, cell: int) -> str:
        """Return the name of a cell: buffer, index and rank; in place, its index in `recv`."""
        rank = int(self.owner[cell])
        for code in (CODES[RECV], CODES[SEND], CODES[SCRATCH]):
            at = cell - int(self.base[code, rank])
            if 0 <= at < self.length[code, rank]:
                return f"{NAMES[code]}[{at}] of rank {self.local(rank)[1]}"
        raise IndexError(cell)

    def holding(self, cell: int) -> str:
        """Return the contents of a cell, in words."""
        _, _, origin, flags = self.state[cell, :BITS].tolist()
        if not flags & WRITTEN:
            return "nothing"
        words = self.state[cell, BITS:].tolist()
        bits = [rank for rank in range(64 * len(words)) if words[rank // 64] >> rank % 64 & 1]
        return f"element {origin} of {ranks_named(bits)}"


def one_bit(rank: Column, words: int) -> NDArray[np.int64]:
    """Return rows with only the bit of each rank set, of shape (len(rank), words)."""
    bits = np.zeros((len(rank), words), np.int64)
    bits[np.arange(len(rank)), rank // 64] = np.left_shift(np.int64(1), rank % 64)
    return bits


def check_results(memory: SymbolicMemory, parts: Sequence[Sequence[RankSchedule]]) -> None:
    """Raise `Unproven` unless each element of the results is the fold that the calls require."""
    words = memory.state.shape[1] - BITS
    # Row k has the bits of the ranks below k.
    below = np.zeros((64 * words + 1, words), np.int64)
    np.bitwise_or.accumulate(one_bit(np.arange(64 * words), words), out=below[1:])
    wanted = []
    for begins, case, its in zip(memory.offset.tolist(), memory.cases, parts, strict=False):
        for local, call, _ in its:
            description = call.description
            folded = case.size > 1 and description.reduces
            demanded = WRITTEN
            demanded |= FINAL if folded and not description.prefix else 0
            demanded |= ORDERED if folded and case.in_rank_order else 0
            rank = local + begins
            cells = spread(memory.base[CODES[RECV], rank], memory.length[CODES[RECV], rank])
            contents = expected(case, call, local)
            wanted.append((cells, *contents, np.full(len(cells), demanded)))
    cells, first, number, origin, flags = (np.concatenate(c) for c in zip(*wanted, strict=True))
    state = memory.state[cells]
    bits = below[first + number] ^ below[first]
    empty = number == 0
    right = (state[:, BITS:] == bits).all(axis=1)
    right &= np.where(empty, state[:, FLAGS] == 0, state[:, ORIGIN] == origin)
    has = state[:, FLAGS] & flags
    right &= empty | (has == flags)
    if right.all():
        return
    row = int(np.argmin(right))
    cell = int(cells[row])
    case, _ = memory.local(int(memory.owner[cell]))
    missing = int(flags[row] & ~has[row])
    problem = f"{memory.name(cell)} holds {memory.holding(cell)} in the end"
    last = int(first[row] + number[row]) - 1
    ranks = f"rank {last}" if number[row] == 1 else f"each of ranks {int(first[row])} to {last}"
    if empty[row]:
        problem += ", and must be left as it was"
    elif not (state[row, BITS:] == bits[row]).all() or state[row, ORIGIN] != origin[row]:
        problem += f", and must hold element {int(origin[row])} of {ranks}"
    elif missing & FINAL:
        problem += ", which passed no final fold"
    else:
        problem += ", which were not folded from left to right in the order of ranks"
    raise Unproven(f"{case.title}: {problem}")


def check_barriers(memory: SymbolicMemory) -> None:
    """Raise `Unproven` if a rank may leave a barrier before another rank has arrived."""
    words = memory.state.shape[1] - BITS
    for first, case in zip(memory.offset.tolist(), memory.cases, strict=False):
        if case.calls[0].description.sends != "nothing":
            continue
        everyone = np.bitwise_or.reduce(one_bit(np.arange(case.size), words))
        deaf = (memory.heard[first : first + case.size] != everyone).any(axis=1)
        if deaf.any():
            raise Unproven(
                f"{case.title}: rank {int(np.argmax(deaf))} may leave before all others have come"
            )


Refuse = Callable[[int, int, int, int, int], Exception]
"""``refuse(cell, one, at, other, then)`` returns the error for ranks `one` and `other` that touch `cell` in the rounds
`at` and `then`."""

NEVER = 1 << 62
"""The number of a round after all others."""


def arrivals(group: Group) -> list[tuple[NDArray[np.int64], Column]]:
    """Return, for each group that meets, its ranks, and the ranks among the rows, which arrive."""
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
        """Note barriers at the end of round `at`: ranks with the same `label` meet; -1 is in no barrier."""
        self._met.append((at, label))

    def check(self, owner: Column, refuse: Refuse) -> None:
        """Raise unless barriers separate conflicting accesses to a cell.

        Between a rank's write of a cell and another rank's access, both must meet in a barrier. A rank and its peer
        must also meet before the rank accesses the peer's cell, and afterwards: otherwise the peer may not
        have begun the call yet, or may have left it. No barrier lies between two accesses in the same round.

        Parameters
        ----------
        owner : ndarray
            The rank of each cell.
        refuse : callable
            Makes the exception; see `Refuse`. Round -1 is before the first round, `NEVER` after the last.
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
        # Pairs of each write with all accesses to its cell.
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
