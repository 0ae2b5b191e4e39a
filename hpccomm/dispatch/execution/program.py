"""Compiles one rank's schedule into a program that can be run repeatedly.

`hpccomm.dispatch.algorithms` and `hpccomm.dispatch.device_schedules` compile; the
runners of this package run it.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Copies,
    Folds,
    Group,
    Place,
    Schedule,
    Transfers,
)

OWN = (SEND, RECV, SCRATCH)
"""This rank's buffers, by number. Rank p's buffers begin at ``len(OWN) * (p + 1)``."""

_NUMBER = {name: number for number, name in enumerate(OWN)}


class Slice(NamedTuple):
    """Elements of the buffer of that number; None for all of them, which spares a view."""

    buffer: int
    where: slice | None


Where = TypeVar("Where")
"""What names elements of a buffer: a `Slice`, or a place in device memory."""


class Transit(NamedTuple, Generic[Where]):
    """A message to or from `peer`."""

    peer: int
    data: Where


class Step(NamedTuple, Generic[Where]):
    """Fold `sources` into `target`, `final` or not; if `final` is None, copy the only source."""

    sources: tuple[Where, ...]
    target: Where
    final: bool | None


class LocalRound(NamedTuple, Generic[Where]):
    """What this rank does in one round, or in a step of the barrier at its end.

    Attributes
    ----------
    receives, sends : tuple of Transit
        Under way at once.
    local : tuple of Step
        In their order, once those are complete.
    """

    receives: tuple[Transit[Where], ...]
    sends: tuple[Transit[Where], ...]
    local: tuple[Step[Where], ...] = ()


class Program(NamedTuple):
    """What one rank does in a collective.

    Attributes
    ----------
    channels : tuple
        The turns of each, without this rank's empty ones. An empty channel stays: a channel's place
        is its number on every rank.
    scratch : int
        Elements of its scratch.

    Ranks that reach each other's memory must have met before it begins: barriers at the beginning
    of a channel are left out.
    """

    channels: tuple[tuple[LocalRound[Slice], ...], ...]
    scratch: int


class MemoryRound(NamedTuple):
    """What this rank does in one round where nothing but barriers is sent.

    Attributes
    ----------
    local : tuple of Step
        In their order.
    barrier : tuple of (int, int)
        The steps of the barrier that follows: the rank to hear, and the rank to signal.
    """

    local: tuple[Step[Slice], ...]
    barrier: tuple[tuple[int, int], ...]


class MemoryProgram(NamedTuple):
    """What one rank does in a collective on memory that ranks share, without messages.

    Attributes
    ----------
    rounds : tuple of MemoryRound
        In order, without the barrier at the beginning of the schedule.
    scratch : int
        Elements of its scratch.
    """

    rounds: tuple[MemoryRound, ...]
    scratch: int


Placed = Callable[[int, int, int], Where]
"""``placed(buffer, start, count)`` names elements of the buffer of that number."""


def compiled(schedule: Schedule, lengths: tuple[int, int]) -> Program:
    """Return the program of the one rank for which `schedule` was made.

    Parameters
    ----------
    schedule : Schedule
        Built for one rank.
    lengths : tuple of int
        Elements of this rank's `SEND` and `RECV`.
    """
    return Program(local_rounds(schedule, _slices(schedule, lengths)), schedule.scratch)


def compiled_in_memory(schedule: Schedule, lengths: tuple[int, int]) -> MemoryProgram | None:
    """Return the program of a schedule that sends nothing but barriers; None for any other.

    Parameters are as of `compiled`.
    """
    if len(schedule.channels) != 1:
        return None
    placed = _slices(schedule, lengths)
    rounds: list[MemoryRound] = []
    opening = True
    for each in schedule.channels[0]():
        if each.receives or each.sends:
            return None
        opening = opening and not each.local
        if opening:
            continue  # the runner performs this barrier
        local = tuple(step for table in each.local for step in _steps(table, placed))
        barrier = () if each.barrier is None else tuple(_meetings(each.barrier))
        if local or barrier:
            rounds.append(MemoryRound(local, barrier))
    return MemoryProgram(tuple(rounds), schedule.scratch)


def _slices(schedule: Schedule, lengths: tuple[int, int]) -> "Placed[Slice]":
    sizes = (*lengths, schedule.scratch)

    def placed(buffer: int, start: int, count: int) -> Slice:
        whole = buffer < len(OWN) and start == 0 and count == sizes[buffer]
        return Slice(buffer, None if whole else slice(start, start + count))

    return placed


def local_rounds(
    schedule: Schedule, placed: Placed[Where]
) -> tuple[tuple[LocalRound[Where], ...], ...]:
    """Return the turns of the one rank of `schedule`, for each channel."""
    channels = []
    for channel in schedule.channels:
        turns: list[LocalRound[Where]] = []
        opening = True
        for each in channel():
            opening = opening and not (each.receives or each.sends or each.local)
            if opening:
                continue  # the runner performs this barrier
            turn = LocalRound(
                tuple(message for table in each.receives for message in _messages(table, placed)),
                tuple(message for table in each.sends for message in _messages(table, placed)),
                tuple(step for table in each.local for step in _steps(table, placed)),
            )
            if any(turn):
                turns.append(turn)
            if each.barrier is not None:
                turns.extend(_met(each.barrier, placed))
        channels.append(tuple(turns))
    return tuple(channels)


def _messages(table: Transfers, placed: Placed[Where]) -> Iterator[Transit[Where]]:
    buffer = _NUMBER[table.buffer]
    columns = (table.peer.tolist(), table.start.tolist(), table.count.tolist())
    for peer, start, count in zip(*columns, strict=True):
        yield Transit(peer, placed(buffer, start, count))


def _steps(table: Folds | Copies, placed: Placed[Where]) -> Iterator[Step[Where]]:
    sources = (table.source,) if isinstance(table, Copies) else table.sources
    final = None if isinstance(table, Copies) else table.final
    for row, (rank, count) in enumerate(
        zip(table.rank.tolist(), table.count.tolist(), strict=True)
    ):
        at = tuple(_at(source, row, rank, count, placed) for source in sources)
        yield Step(at, _at(table.target, row, rank, count, placed), final)


def _at(place: Place, row: int, rank: int, count: int, placed: Placed[Where]) -> Where:
    start = int(place.start[row]) if isinstance(place.start, np.ndarray) else place.start
    number = _NUMBER[place.buffer]
    peer = rank if place.peer is None else int(place.peer[row])
    return placed(number if peer == rank else len(OWN) * (peer + 1) + number, start, count)


def _met(group: Group, placed: Placed[Where]) -> Iterator[LocalRound[Where]]:
    """Return the turns of a barrier."""
    nothing = placed(_NUMBER[SCRATCH], 0, 0)  # scratch, since that can be written
    for hears, tells in _meetings(group):
        yield LocalRound((Transit(hears, nothing),), (Transit(tells, nothing),))


def _meetings(group: Group) -> Iterator[tuple[int, int]]:
    """Return whom the one rank hears, and whom it tells, in each step of a dissemination barrier.

    After ⌈log2 n⌉ steps all know of all. D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
    synchronization", 1988.
    """
    distance = 1
    while len(group.rank) and distance < group.size:
        ahead, behind = ((group.at + step) % group.size for step in (distance, -distance))
        yield int(group.peer(behind)[0]), int(group.peer(ahead)[0])
        distance *= 2
