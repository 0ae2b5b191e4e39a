"""Proves schedules by running them on symbols instead of numbers.

Each element holds where it came from: the (rank, index) of every contribution, in the order in which
they were folded. Messages are as unhelpful as a backend may be: a send is complete only once its
receive is there, so what ends here ends on every backend. Since ranks meet in nothing but messages,
whose order between two ranks is fixed, one order of running stands for all.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpccomm.contracts.schedule import RECV, SCRATCH, SEND, Copy, Fold, Round, Schedule, Slice
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp

Element = tuple[tuple[int, int], ...]
"""The contributions that an element was made of."""

Cells = list[Element | None]
"""Memory; None was never written."""

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "scan")
IN_PLACE = (*REDUCTIONS, "all_gather", "all_to_all", "gather", "scatter")


class Unproven(AssertionError):
    """What a schedule does wrong."""


def ask(
    collective: str,
    counts: Sequence[Any],
    *,
    root: int = -1,
    exclusive: bool = False,
    in_place: bool = False,
) -> list[Signature]:
    """Return the call of each rank.

    `counts` holds a number for each rank, equal ones where the call has but one; for all_to_all a
    row for each rank: what it sends to each.
    """
    size = len(counts)
    calls = []
    for rank in range(size):
        sent: tuple[Any, ...] = tuple(counts)
        received: tuple[int, ...] = ()
        if collective == "all_to_all":
            sent, received = tuple(counts[rank]), tuple(row[rank] for row in counts)
        elif collective in ("all_reduce", "broadcast", "reduce", "scan", "barrier"):
            sent = sent[:1]
        calls.append(
            Signature(
                collective,
                np.dtype(np.int64),
                sent,
                received,
                uniform=len({*sent, *received}) == 1,
                op=ReduceOp.SUM if collective in REDUCTIONS else None,
                root=root,
                exclusive=exclusive,
                in_place=in_place and root in (-1, rank),
            )
        )
    return calls


def prove(
    schedules: Sequence[Schedule], calls: Sequence[Signature], *, in_rank_order: bool = True
) -> None:
    """Raise `Unproven` unless the ranks' schedules together do what is asked.

    `in_rank_order` demands that contributions are folded so, else each exactly once in any order.
    """
    ranks = [Rank(rank, calls, schedule) for rank, schedule in enumerate(schedules)]
    mail = Mail()
    programs = {each.rank: each.program(mail) for each in ranks}
    while programs:
        before = mail.events
        programs = {rank: p for rank, p in programs.items() if next(p, "ended") != "ended"}
        if programs and mail.events == before:
            raise Unproven(f"ranks {sorted(programs)} wait for ever: {mail.open()}")
    if unmatched := mail.open():
        raise Unproven(f"never received: {unmatched}")
    for each in ranks:
        each.check_result(in_rank_order)


@dataclass
class Message:
    """One end of a message."""

    rank: int
    cells: list[tuple[Cells, int]]
    heard: frozenset[int] = frozenset()
    done: bool = False


class Mail:
    """Messages under way, matched for each pair of ranks in their order."""

    def __init__(self) -> None:
        self.events = 0  # counts whatever moves somebody on
        self._sends: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._receives: dict[tuple[int, int], deque[Message]] = defaultdict(deque)

    def send(self, message: Message, dst: int) -> None:
        self._sends[message.rank, dst].append(message)
        self._match(message.rank, dst)

    def receive(self, message: Message, src: int) -> None:
        self._receives[src, message.rank].append(message)
        self._match(src, message.rank)

    def _match(self, src: int, dst: int) -> None:
        sends, receives = self._sends[src, dst], self._receives[src, dst]
        if not sends or not receives:
            return
        sent, received = sends.popleft(), receives.popleft()
        if len(sent.cells) != len(received.cells):
            raise Unproven(
                f"rank {src} sends {len(sent.cells)} elements and rank {dst} expects "
                f"{len(received.cells)}"
            )
        for (source, i), (target, j) in zip(sent.cells, received.cells, strict=True):
            target[j] = source[i]
        received.heard = sent.heard
        sent.done = received.done = True
        self.events += 1

    def open(self) -> str:
        sends = [f"send {src} to {dst}" for (src, dst), queue in self._sends.items() for _ in queue]
        receives = [
            f"receive {dst} from {src}"
            for (src, dst), queue in self._receives.items()
            for _ in queue
        ]
        return ", ".join(sends + receives)


@dataclass
class Rank:
    """One rank's memory and program."""

    rank: int
    calls: Sequence[Signature]
    schedule: Schedule
    buffers: dict[str, list[tuple[Cells, int]]] = field(init=False)
    heard: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.call = self.calls[self.rank]
        self.heard = {self.rank}  # who is known to have begun, for barriers
        send, recv = lengths(self.call, self.rank, len(self.calls))
        source: Cells = [((self.rank, i),) for i in range(send)]
        target: Cells = [None] * recv
        own = sum(self.call.counts[: self.rank])
        self.given = list(source)
        if self.call.collective == "broadcast" and self.rank == self.call.root:
            target = [((self.rank, i),) for i in range(recv)]
        sends, receives = places(source), places(target)
        if self.call.in_place and send < recv:  # the own block of the result
            target[own : own + send] = source
            sends = receives[own : own + send]
        elif self.call.in_place:  # all of it, or the own block of what is sent
            receives = sends[own : own + recv] if recv < send else sends
        scratch: Cells = [None] * self.schedule.scratch
        self.buffers = {SEND: sends, RECV: receives, SCRATCH: places(scratch)}

    def program(self, mail: Mail) -> Iterator[None]:
        """Run the schedule; each `next` goes as far as it can."""
        for number, each in enumerate(self.schedule.rounds):
            self.check_exchange(each, number)
            messages = []
            for peer, data in each.receives:
                messages.append(message := Message(self.rank, self.at(data)))
                mail.receive(message, peer)
            for peer, data in each.sends:
                self.check_written(data, f"sends in round {number}")
                messages.append(message := Message(self.rank, self.at(data), frozenset(self.heard)))
                mail.send(message, peer)
            while not all(message.done for message in messages):
                yield
            mail.events += 1
            self.heard.update(*(message.heard for message in messages))
            for step in each.local:
                self.carry_out(step)

    def carry_out(self, step: Copy | Fold) -> None:
        sources = (step.source,) if isinstance(step, Copy) else step.sources
        target = step.target
        for source in sources:
            if source.count != target.count:
                raise Unproven(f"rank {self.rank}: {step} has different counts")
            self.check_written(source, f"reads in {step}")
            if self.keys(source) != self.keys(target) and self.keys(source) & self.keys(target):
                raise Unproven(f"rank {self.rank}: {step} overlaps in part")
        columns = zip(*([cells[i] for cells, i in self.at(each)] for each in sources), strict=True)
        results = [sum(column, ()) for column in columns]
        for (cells, i), result in zip(self.at(target), results, strict=True):
            cells[i] = result

    def at(self, where: Slice) -> list[tuple[Cells, int]]:
        buffer = self.buffers[where.buffer]
        if where.start < 0 or where.count < 0 or where.start + where.count > len(buffer):
            raise Unproven(f"rank {self.rank}: {where} is outside of {len(buffer)} elements")
        return buffer[where.start : where.start + where.count]

    def keys(self, where: Slice) -> set[tuple[int, int]]:
        return {(id(cells), i) for cells, i in self.at(where)}

    def check_written(self, where: Slice, what: str) -> None:
        if any(cells[i] is None for cells, i in self.at(where)):
            raise Unproven(f"rank {self.rank} {what}: {where} was never written")

    def check_exchange(self, each: Round, number: int) -> None:
        """What is received may touch nothing else that is under way."""
        for peer, _ in (*each.receives, *each.sends):
            if peer == self.rank or not 0 <= peer < len(self.calls):
                raise Unproven(f"rank {self.rank}, round {number}: peer {peer}")
        received = [self.keys(data) for _, data in each.receives]
        sent = [self.keys(data) for _, data in each.sends]
        if sum(map(len, received)) + len(set().union(*sent)) != len(set().union(*received, *sent)):
            raise Unproven(f"rank {self.rank}, round {number}: transfers overlap: {each}")

    def check_result(self, in_rank_order: bool) -> None:
        if self.call.collective == "barrier" and len(self.heard) < len(self.calls):
            raise Unproven(f"rank {self.rank} leaves the barrier having heard of {self.heard} only")
        shown = [cells[i] for cells, i in self.buffers[RECV]]
        for index, (got, right) in enumerate(zip(shown, self.expected(), strict=True)):
            same = got == right if in_rank_order or got is None else tuple(sorted(got)) == right
            if not same:
                raise Unproven(f"rank {self.rank}, element {index}: {got}, not {right}")
        results = {(id(cells), i) for cells, i in self.buffers[RECV]}
        for (cells, i), given in zip(self.buffers[SEND], self.given, strict=True):
            if cells[i] != given and (id(cells), i) not in results:
                raise Unproven(f"rank {self.rank} overwrites what it was given")

    def expected(self) -> Cells:
        """Return what `recv` must hold in the end."""
        call, size = self.call, len(self.calls)
        _, recv = lengths(call, self.rank, size)
        if call.collective in REDUCTIONS:
            start = sum(call.counts[: self.rank]) if call.collective == "reduce_scatter" else 0
            last = size
            if call.collective == "scan":
                last = self.rank + (not call.exclusive)
            if not last:  # rank 0 of an exclusive scan: recv is left as it was
                return [((0, i),) if call.in_place else None for i in range(recv)]
            return [tuple((rank, start + i) for rank in range(last)) for i in range(recv)]
        if call.collective in ("broadcast", "scatter"):
            start = sum(call.counts[: self.rank]) if call.collective == "scatter" else 0
            return [((call.root, start + i),) for i in range(recv)]
        if call.collective == "all_to_all":
            return [
                ((peer, sum(theirs.counts[: self.rank]) + i),)
                for peer, theirs in enumerate(self.calls)
                for i in range(theirs.counts[self.rank])
            ]
        blocks = enumerate(call.counts) if recv else ()
        return [((rank, i),) for rank, count in blocks for i in range(count)]


def lengths(call: Signature, rank: int, size: int) -> tuple[int, int]:
    """Return the elements of `send` and `recv`, after the table of `Signature`."""
    total, own = sum(call.counts), call.counts[rank % len(call.counts)]
    at_root = total if rank == call.root else 0
    return {
        "all_reduce": (total, total),
        "broadcast": (0, total),
        "reduce": (total, at_root),
        "all_gather": (own, total),
        "reduce_scatter": (total, own),
        "all_to_all": (total, sum(call.recv_counts)),
        "gather": (own, at_root),
        "scatter": (at_root, own),
        "scan": (total, total),
        "barrier": (0, 0),
    }[call.collective]


def places(cells: Cells) -> list[tuple[Cells, int]]:
    return [(cells, i) for i in range(len(cells))]
