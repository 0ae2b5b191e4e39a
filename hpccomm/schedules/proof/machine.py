"""Runs rounds on the symbolic memory, and raises at the first fault.

`Checks` has the conditions that each row of a round must satisfy, and makes the error that names a bad row.
`prove` runs the machine, and `hpccomm.tools.runs.trace` watches it for the pictures of ``hpccomm plot``.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.schedules.proof.case import ProofCase, Unproven
from hpccomm.schedules.proof.memory import (
    BITS,
    CODES,
    FINAL,
    FIRST,
    FLAGS,
    NAMES,
    NEVER,
    NUMBER,
    ORDERED,
    ORIGIN,
    WRITTEN,
    Accesses,
    Cells,
    SymbolicMemory,
    arrivals,
    one_bit,
    spread,
)
from hpccomm.schedules.schedule import (
    Column,
    Folds,
    Group,
    LocalStep,
    Mask,
    Place,
    Round,
    Transfers,
)


def _nodes(case: ProofCase) -> Column:
    """Return the node of each rank; without a topology, all are on one node."""
    topology = case.tuning.topology
    return np.array(topology.node_of if topology else [0] * case.size)


class Checks:
    """Checks of one channel.

    Ranks are numbered through all cases, except in methods with the parameters `first` and `size`.

    Attributes
    ----------
    channel, round : int
        The channel and the round of the checked rows.
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
        """Raise for the first row that is not `good`: `what` gives the fault in words, and `ranks` the row's rank."""
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
        """Check that the schedule names ranks of its case, which has `size` ranks from rank `first` on."""
        self.demand(
            (rank >= 0) & (rank < size),
            np.broadcast_to(first, rank.shape),
            lambda i: f"the schedule names rank {rank[i]}",
        )

    def neighbors(self, actor: Column, place: Place, first: Column, size: Column) -> None:
        """Check that each `actor` may access the place's buffer of the place's peer."""
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
        """Check that the slices lie in their buffers; `code` has the buffers' numbers, `holder` their ranks."""
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
        """Check that the step reads a written cell only for the element that it writes there."""
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
        """Return whether each of `target` is the last equal one there, and the index in `target` of each of `source`.

        The index is -1 if the cell is not in `target`.
        """
        mark, index = self._memory.mark, np.arange(len(target))
        mark[target] = index
        alone, place = mark[target] == index, mark[source]
        mark[target] = -1
        return alone, place

    def matched(self, receives: Column, sends: Column) -> None:
        """Check that each message has both ends. A message is a number: source * number of ranks + target."""
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


AnyTable = Transfers | LocalStep
CaseMessages = list[tuple[int, int, Transfers]]
CaseSteps = list[tuple[int, int, LocalStep]]

Stream = tuple[int, int, Iterator[Round]]
"""First rank of a case, number of its ranks, and the rounds of one channel for some of them."""


class _Rows(NamedTuple):
    """The rows of the tables of several cases, one table after the other.

    Attributes
    ----------
    verb : str
        The action of the rows, for errors.
    lengths : list of int
        Number of rows of each table.
    first, size : Column
        First rank and number of ranks of each row's case.
    rank : Column
        The rank of each row, numbered through all cases.
    counts : Column
        Elements of each row.
    """

    verb: str
    lengths: list[int]
    first: Column
    size: Column
    rank: Column
    counts: Column


_NONE = np.zeros(0, np.int64)


class SymbolicMachine:
    """Runs one channel of several cases at once, round by round.

    Parameters
    ----------
    memory : SymbolicMemory
        The memory of all cases.
    channel : int
        Number of the channel.
    """

    def __init__(self, memory: SymbolicMemory, channel: int) -> None:
        self._memory = memory
        self._checks = Checks(memory, channel)
        self._ranks = int(memory.offset[-1])
        self._accesses = Accesses() if any(case.reaches for case in memory.cases) else None
        barriers = any(case.calls[0].description.sends == "nothing" for case in memory.cases)
        words = memory.heard.shape[1]
        self._heard = one_bit(memory.position, words) if barriers else None

    def run(self, streams: Sequence[Stream]) -> None:
        """Run the channel to its end."""
        firsts = [(first, size) for first, size, _ in streams]
        for number, rounds in enumerate(zip_longest(*(rounds for *_, rounds in streams))):
            pairs = zip(firsts, rounds, strict=True)
            self.take(number, [(first, size, it) for (first, size), it in pairs if it is not None])
        self.end()

    def take(self, number: int, each: Sequence[tuple[int, int, Round]]) -> None:
        """Run round `number`. `each` has tuples of a case's first rank, its number of ranks, and the round."""
        self._checks.round = number
        self._exchange(
            [(first, size, t) for first, size, it in each for t in it.receives],
            [(first, size, t) for first, size, it in each for t in it.sends],
        )
        for step in zip_longest(*(it.local for *_, it in each)):
            self._carry_out(
                [
                    (first, size, table)
                    for (first, size, _), table in zip(each, step, strict=True)
                    if table is not None and len(table.rank)
                ]
            )
        met = [(f, size, it.barrier) for f, size, it in each if it.barrier is not None]
        if met:
            self._meet(met)

    # Hooks for subclasses that observe a single case. They get the cells after the checks and before the write.

    def see_messages(self, source: Column, target: Column, count: Column, cells: Cells) -> None:
        """Observe the messages of a round.

        Parameters
        ----------
        source, target : Column
            The sending and the receiving rank of each message.
        count : Column
            Elements of each message.
        cells : Cells
            The cells that are read, one message after the other.
        """

    def see_step(self, table: LocalStep, count: Column, sources: Cells, target: Cells) -> None:
        """Observe a local step.

        Parameters
        ----------
        table : Copies or Folds
            The step. It has at least one row.
        count : Column
            Elements of each row.
        sources : Cells of shape (sources, rows)
            The first cell that each row reads from each source.
        target : Cells
            The first cell that each row writes.
        """

    def _rows(self, tables: Sequence[tuple[int, int, AnyTable]], verb: str) -> _Rows:
        """Return the rows of tables, joined, after a check of their ranks."""
        lengths = [len(t.rank) for *_, t in tables]
        first = np.repeat([first for first, *_ in tables], lengths)
        size = np.repeat([size for _, size, _ in tables], lengths)
        rank = np.concatenate([t.rank for *_, t in tables])
        self._checks.ranks(rank, first, size)
        count = np.concatenate([t.count for *_, t in tables])
        return _Rows(verb, lengths, first, size, rank + first, count)

    # Messages.

    def _exchange(self, receives: CaseMessages, sends: CaseMessages) -> None:
        if not receives and not sends:
            return
        dst, src, into, expects = self._messages(receives, "receives from")
        sender, receiver, out, sent = self._messages(sends, "sends to")
        if not len(dst) and not len(sender):
            return
        demand = self._checks.demand
        # Both ends of a message have the same key; messages of one pair keep their order.
        key, other = src * self._ranks + dst, sender * self._ranks + receiver
        order, other_order = np.argsort(key, kind="stable"), np.argsort(other, kind="stable")
        if not np.array_equal(key[order], other[other_order]):
            self._checks.matched(key, other)
        dst, src = dst[order], src[order]
        into, expects = into[order], expects[order]
        out, sent = out[other_order], sent[other_order]
        demand(
            expects == sent,
            dst,
            lambda i: (
                f"expects {expects[i]} elements from rank {self._checks.local(src[i])}, "
                f"which sends {sent[i]}"
            ),
        )
        if self._heard is not None:
            before = self._heard.copy()
            np.bitwise_or.at(self._heard, dst, before[src])
        target, source = spread(into, expects), spread(out, expects)
        reader, writer = np.repeat(src, expects), np.repeat(dst, expects)
        self._checks.written(source, reader, "sends")
        alone, received = self._checks.overlaps(source, target)
        demand(
            alone, writer, lambda i: f"receives into {self._memory.name(target[i])} twice at once"
        )
        demand(
            received == -1,
            reader,
            lambda i: f"sends {self._memory.name(source[i])} while it receives there",
        )
        self._touch(source, target, reader, writer)
        self.see_messages(src, dst, expects, source)
        self._memory.state[target] = self._memory.state[source]

    def _messages(self, tables: CaseMessages, verb: str) -> tuple[Column, Column, Column, Column]:
        """Return rank, peer, first cell and count of each message, after checks."""
        tables = [each for each in tables if len(each[2].rank)]
        if not tables:
            return _NONE, _NONE, _NONE, _NONE
        rows = self._rows(tables, verb.split()[0])
        peer = np.concatenate([t.peer for *_, t in tables])
        self._checks.demand(
            (peer >= 0) & (peer < rows.size) & (peer + rows.first != rows.rank),
            rows.rank,
            lambda i: f"{verb} rank {peer[i]} of {rows.size[i]}",
        )
        cells = self._places(rows, [Place(t.buffer, t.start) for *_, t in tables])
        return rows.rank, peer + rows.first, cells, rows.counts

    # Local steps.

    def _carry_out(self, tables: CaseSteps) -> None:
        """Run one local step of each case; steps of the same kind run at once."""
        kinds: dict[tuple[int, bool], CaseSteps] = {}
        for each in tables:
            table = each[2]
            kind = (len(table.sources), table.final) if isinstance(table, Folds) else (0, False)
            kinds.setdefault(kind, []).append(each)
        for (sources, final), alike in kinds.items():
            self._step(alike, sources, final=final)

    def _step(self, tables: CaseSteps, folded: int, *, final: bool) -> None:
        rows = self._rows(tables, "folds" if folded else "copies")
        sources = zip(*(t.sources for *_, t in tables), strict=True)
        out = np.stack([self._places(rows, places) for places in sources])
        into = self._places(rows, [t.target for *_, t in tables])
        self.see_step(tables[0][2], rows.counts, out, into)
        row = np.repeat(np.arange(len(rows.rank)), rows.counts)
        target = spread(into, rows.counts)
        source: Cells = out[:, row] + (target - into[row])
        actor = rows.rank[row]
        for cells in source:
            self._checks.written(cells, actor, rows.verb)
        self._checks.apart(source, target, actor, rows.verb)
        moved = source[0] != target
        if not folded and not moved.all():  # in place, a copy may copy elements to themselves
            source, target, actor = source[:, moved], target[moved], actor[moved]
        self._touch(source.ravel(), target, np.tile(actor, len(source)), actor)
        state = self._memory.state
        if folded:
            state[target] = self._fold(state[source], actor, source)
            if final:
                state[target, FLAGS] |= FINAL
        else:
            state[target] = state[source[0]]

    def _places(self, rows: "_Rows", places: Sequence[Place]) -> Column:
        """Return the first cell of each row's place, after checks; `places` has one place for each table."""
        starts, holders = [], []
        done = 0
        for length, place in zip(rows.lengths, places, strict=True):
            part = slice(done, done + length)
            done += length
            start = place.start
            starts.append(
                start if isinstance(start, np.ndarray) else np.full(length, start, np.int64)
            )
            if place.peer is None:
                holders.append(rows.rank[part])
                continue
            actor, size = rows.rank[part], rows.size[part]
            self._checks.neighbors(actor, place, rows.first[part], size)
            holders.append(place.peer + rows.first[part])
        start, holder = np.concatenate(starts), np.concatenate(holders)
        code = np.repeat([CODES[place.buffer] for place in places], rows.lengths)
        self._checks.bounds(rows.rank, holder, code, start, rows.counts, rows.verb)
        cells: Column = self._memory.base[code, holder] + start
        return cells

    def _fold(self, parts: NDArray[np.int64], actor: Column, source: Cells) -> NDArray[np.int64]:
        """Return the fold of `parts`, of shape (sources, elements, state)."""
        demand = self._checks.demand
        demand(self._checks.folding[actor], actor, "folds in a collective that does not reduce")

        def described(i: int) -> str:
            held = " with ".join(self._memory.holding(int(cell)) for cell in source[:, i])
            return f"folds {held}"

        flags, number = parts[..., FLAGS], parts[..., NUMBER]
        whole = ~((flags & FINAL) != 0).any(axis=0)
        demand(whole, actor, lambda i: f"{described(i)}, and one passed its final fold")
        same = (parts[..., ORIGIN] == parts[0, :, ORIGIN]).all(axis=0)
        demand(same, actor, lambda i: f"{described(i)}: different elements")
        bits = parts[..., BITS:]
        so_far = np.bitwise_or.accumulate(bits, axis=0)
        twice = ((so_far[:-1] & bits[1:]) != 0).any(axis=(0, 2))
        demand(~twice, actor, lambda i: f"{described(i)}: a contribution twice")
        once = (number == 1).all(axis=0) | ~self._checks.once[actor]
        demand(once, actor, lambda i: f"{described(i)}: a narrow float is rounded twice")
        follows = parts[0, :, FIRST] + parts[0, :, NUMBER] + np.arange(len(parts) - 1)[:, None]
        ordered = ((flags[0] & ORDERED) != 0) & (
            (number[1:] == 1) & (parts[1:, :, FIRST] == follows)
        ).all(axis=0)
        result: NDArray[np.int64] = parts[0].copy()
        result[:, NUMBER] = number.sum(axis=0)
        result[:, FLAGS] = np.where(ordered, WRITTEN | ORDERED, WRITTEN)
        result[:, BITS:] = so_far[-1]
        return result

    # Barriers.

    def _meet(self, groups: list[tuple[int, int, Group]]) -> None:
        demand = self._checks.demand
        arrived: dict[bytes, tuple[Column, list[Column]]] = {}
        for first, size, group in groups:
            if not len(group.rank):
                continue
            self._checks.ranks(group.rank, first, size)
            for met, present in arrivals(group):
                self._checks.ranks(met, first, size)
                ranks = met + first
                arrived.setdefault(ranks.tobytes(), (ranks, []))[1].append(present + first)
        label = np.full(self._ranks, -1)
        for number, (ranks, tables) in enumerate(arrived.values()):
            cells = np.concatenate(tables)
            demand(np.isin(cells, ranks), cells, "is in a barrier that is not its group's")
            demand(np.isin(ranks, cells), ranks, "does not come to its group's barrier")
            demand(label[ranks] == -1, ranks, "is in two barriers at once")
            label[ranks] = number
            if self._heard is not None:
                self._heard[ranks] = np.bitwise_or.reduce(self._heard[ranks], axis=0)
        if self._accesses is not None:
            self._accesses.meet(self._checks.round, label)

    # Touched cells.

    def _touch(self, source: Cells, target: Cells, reader: Column, writer: Column) -> None:
        memory = self._memory
        self._checks.demand(
            ~memory.protected[target],
            writer,
            lambda i: f"overwrites what was given: {memory.name(target[i])}",
        )
        memory.read[source] = True
        memory.wrote[target] = True
        if self._accesses is not None:
            self._accesses.note(source, reader, self._checks.round, writes=False)
            self._accesses.note(target, writer, self._checks.round, writes=True)

    def end(self) -> None:
        """Compare the cells that this channel touched with those that earlier channels touched."""
        memory = self._memory
        clash = (memory.wrote & (memory.others_wrote | memory.others_read)) | (
            memory.read & memory.others_wrote
        )
        if clash.any():
            cell = int(np.argmax(clash))
            case, _ = memory.local(int(memory.owner[cell]))
            raise Unproven(
                f"{case.title}: channel {self._checks.channel} and one before it touch "
                f"{memory.name(cell)}, and one of them writes it"
            )
        memory.others_read |= memory.read
        memory.others_wrote |= memory.wrote
        if self._heard is not None:
            memory.heard |= self._heard
        memory.read[:] = False
        memory.wrote[:] = False
        if self._accesses is not None:
            self._accesses.check(memory.owner, self._race)

    def _race(self, cell: int, rank: int, at: int, other: int, then: int) -> Unproven:
        peer = f"rank {self._checks.local(other)}"
        when = f"{peer} touches it in round {then}"
        if then == -1:
            when = f"{peer} may not have come to the call"
        elif then == NEVER:
            when = f"{peer} may have left the call"
        self._checks.round = at
        return self._checks.unproven(
            rank, f"touches {self._memory.name(cell)} with no barrier between: {when}"
        )
