"""Compiles one rank's schedule into a program that can be run repeatedly, also on the memory of peers.

Peers' memory is mapped here, or reached through the kernel.

A call on memory that the ranks of a node share has several forms (`Variants`). Which one runs depends on
what the ranks reach of each other's arrays, and the call itself finds that out: the ranks of the node
exchange records of their arrays, by messages. So they have met, which replaces the barrier at the
beginning of such schedules, and all have the same facts. The chosen form is kept for later calls in
which all publish the same records. It depends on nothing else, and holds no array: a peer's registered
memory stays mapped, and the array at that place is the one that the peer publishes in that call.

`hpccomm.calls.algorithms` and `hpccomm.calls.on_device` compile; `hpccomm.calls.runner` runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.pairing import odd_ones
from hpccomm.contracts.transport import Exposure, Pages, Reach, Record, SharedMemory
from hpccomm.dtypes import DType
from hpccomm.errors import RankMismatch
from hpccomm.memory.folding import Folder
from hpccomm.memory.views import ScratchBuffer, address
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Folds,
    Group,
    LocalStep,
    Place,
    Schedule,
    Transfers,
)
from hpccomm.units import ranks_named

OWN = (SEND, RECV, SCRATCH)
"""This rank's buffers, by number. Rank p's buffers begin at ``len(OWN) * (p + 1)``."""

_NUMBER = {name: number for number, name in enumerate(OWN)}


class Slice(NamedTuple):
    """Elements of the buffer of that number; None for all of them, which spares a view."""

    buffer: int
    where: slice | None


class Transit(NamedTuple):
    """A message to or from `peer`."""

    peer: int
    data: Slice


class Step(NamedTuple):
    """Fold `sources` into `target`, `final` or not; if `final` is None, copy the only source."""

    sources: tuple[Slice, ...]
    target: Slice
    final: bool | None


class LocalRound(NamedTuple):
    """The actions of this rank in one round, or in a step of the barrier at its end.

    Attributes
    ----------
    receives, sends : tuple of Transit
        Under way at once.
    local : tuple of Step
        In their order, once those are complete.
    """

    receives: tuple[Transit, ...]
    sends: tuple[Transit, ...]
    local: tuple[Step, ...] = ()


ChannelRounds = tuple[LocalRound, ...]
"""What a rank does in a channel."""


class Program(NamedTuple):
    """One rank's actions in a collective.

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

    channels: tuple[ChannelRounds, ...]
    scratch: int


class MemoryRound(NamedTuple):
    """The actions of this rank in one round without messages except barriers.

    Attributes
    ----------
    local : tuple of Step
        In their order.
    barrier : tuple of (int, int)
        The steps of the barrier that follows: the rank to hear, and the rank to signal.
    """

    local: tuple[Step, ...]
    barrier: tuple[tuple[int, int], ...]


class MemoryProgram(NamedTuple):
    """One rank's actions in a collective on memory that ranks share, without messages.

    Attributes
    ----------
    rounds : tuple of MemoryRound
        In order, without the barrier at the beginning of the schedule.
    scratch : int
        Elements of its scratch.
    """

    rounds: tuple[MemoryRound, ...]
    scratch: int


Placed = Callable[[int, int, int], Slice]
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
    placed, channels = _slices(schedule, lengths), list[ChannelRounds]()
    for channel in schedule.channels:
        turns: list[LocalRound] = []
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
    return Program(tuple(channels), schedule.scratch)


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


def _slices(schedule: Schedule, lengths: tuple[int, int]) -> Placed:
    sizes = (*lengths, schedule.scratch)

    def placed(buffer: int, start: int, count: int) -> Slice:
        whole = buffer < len(OWN) and start == 0 and count == sizes[buffer]
        return Slice(buffer, None if whole else slice(start, start + count))

    return placed


def _messages(table: Transfers, placed: Placed) -> Iterator[Transit]:
    buffer = _NUMBER[table.buffer]
    columns = (table.peer.tolist(), table.start.tolist(), table.count.tolist())
    for peer, start, count in zip(*columns, strict=True):
        yield Transit(peer, placed(buffer, start, count))


def _steps(table: LocalStep, placed: Placed) -> Iterator[Step]:
    final = table.final if isinstance(table, Folds) else None
    for row, (rank, count) in enumerate(
        zip(table.rank.tolist(), table.count.tolist(), strict=True)
    ):
        at = tuple(_at(source, row, rank, count, placed) for source in table.sources)
        yield Step(at, _at(table.target, row, rank, count, placed), final)


def _at(place: Place, row: int, rank: int, count: int, placed: Placed) -> Slice:
    start = int(place.start[row]) if isinstance(place.start, np.ndarray) else place.start
    number = _NUMBER[place.buffer]
    peer = rank if place.peer is None else int(place.peer[row])
    return placed(number if peer == rank else len(OWN) * (peer + 1) + number, start, count)


def _met(group: Group, placed: Placed) -> Iterator[LocalRound]:
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


Array = NDArray[Any]
Action = Callable[[], object]
"""Does one step on its bound memory."""


class Peers(dict[int, Array | Pages]):
    """The buffers of peers, by a program's numbers, as they lay when the ranks met.

    Parameters
    ----------
    exposure : Exposure
        Leads to them.
    dtype : dtype
        Of the elements.
    """

    def __init__(self, exposure: Exposure, dtype: DType) -> None:
        super().__init__()
        self._exposure = exposure
        self._dtype = dtype

    def __missing__(self, number: int, /) -> Array | Pages:
        """Reach the buffer of that number, when it is first needed."""
        peer, buffer = divmod(number - len(OWN), len(OWN))
        reached = self[number] = self._exposure.peer_buffer(peer, buffer, self._dtype)
        return reached


@dataclass(slots=True, eq=False)
class Reached:
    """The buffers of a rank and of its peers, by a program's numbers.

    Attributes
    ----------
    own : sequence of ndarray
        This rank's.
    peers : Peers
        The others'.
    results : ScratchBuffer
        Where a result is made that a peer gets through the kernel.
    """

    own: Sequence[Array]
    peers: Peers
    results: ScratchBuffer

    def __getitem__(self, number: int, /) -> Array:
        """Return this rank's buffer of that number: transfers have no other."""
        return self.own[number]

    def _part(self, where: Slice) -> Array | Pages:
        number, elements = where
        if number < len(OWN):
            own = self.own[number]
            return own if elements is None else own[elements]
        peer = self.peers[number]
        if elements is None:
            return peer
        return peer[elements] if isinstance(peer, np.ndarray) else peer.part(elements)

    def _action(self, step: Step, fold: Folder | None) -> Action | None:
        """Return the function for one step, to be called repeatedly; None for an empty step."""
        sources = [self._part(source) for source in step.sources]
        target = self._part(step.target)
        if step.final is None:
            source = sources[0]
            if not isinstance(source, np.ndarray):
                assert isinstance(target, np.ndarray)  # of the two, one is this rank's
                return partial(source.read, target)
            if not isinstance(target, np.ndarray):
                return partial(target.write, source)
            return None if same(source, target) else partial(np.copyto, target, source)
        assert fold is not None
        if not isinstance(target, np.ndarray):
            return partial(self._folded_far, fold, sources, target, step.final)
        if fold.pair is not None and len(sources) == 2:
            left, right = sources
            if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
                return partial(fold.pair, left, right, target)
        return partial(fold, sources, target, step.final)

    def _folded_far(
        self, fold: Folder, sources: Sequence[Array | Pages], target: Pages, final: bool
    ) -> None:
        """Fold into memory of this rank, and write that to the peer's through the kernel."""
        result = self.results.take(target.size, self.own[-1].dtype)
        fold(sources, result, final)
        target.write(result)

    def actions(self, steps: Iterable[Step], fold: Folder | None) -> Iterator[Action]:
        """Return the function for local steps in order, each bound at its turn."""
        for step in steps:
            action = self._action(step, fold)
            if action is not None:
                yield action


def copy(source: Array, target: Array) -> None:
    """Copy elements, unless the two are the same memory: to copy that would take as long as any."""
    if not same(source, target):
        target[:] = source


def same(source: Array, target: Array) -> bool:
    """Return whether two arrays of the same size are the same memory."""
    return np.may_share_memory(source, target) and address(source) == address(target)


KEPT = 64
"""Number of different sets of arrays whose results are kept."""

BOUND_STEPS = 1024
"""Programs of more steps are bound anew in each call, since bound steps take memory."""

_NOTHING = np.empty(0, np.uint8)

_Places = tuple[int, int, int, int]
"""Address and bytes of the sent array, and of the received one."""

Turns = Iterable[tuple[Iterable[Action], tuple[tuple[int, int], ...]]]
"""The rounds of a program on memory: the steps, and the steps of the barrier that follows."""


class ReachedForm(NamedTuple):
    """The facts of ranks that have met, and have published these records.

    Attributes
    ----------
    reach : Reach
        The reach of each other's memory.
    program : Program or MemoryProgram
        Of the matching form.
    peers : Peers
        The buffers of the peers.
    turns : Turns or None
        The program, bound to all published memory; None if it is bound in each call.
    """

    reach: Reach
    program: Program | MemoryProgram
    peers: Peers
    turns: Turns | None


class _Recent(NamedTuple):
    """References to the arrays of the last call, and how they are exposed in every call."""

    send: Callable[[], object]
    recv: Callable[[], object]
    exposure: Exposure


@dataclass(slots=True, eq=False)
class Variants:
    """The programs of one rank for calls of one signature.

    Attributes
    ----------
    members : tuple of int
        The ranks of its node in an order that is the same on all, but beginning with this rank.
    fingerprint : int
        Of the call: different where calls differ.
    programs : mapping of Reach to callable
        Returns the program of each form, made when it is first needed.
    dtype : dtype
        Of the elements.
    fold : Folder or None
        The reduction, if there is one.
    scratch : int
        Bytes of scratch that peers reach, as the staged form needs; 0 for none.
    plain : bool
        Whether plain arrays may be reached, where they can be.
    room : int
        Bytes of such scratch that this process may have in use for all its calls.
    """

    members: tuple[int, ...]
    fingerprint: int
    programs: Mapping[Reach, Callable[[], Program | MemoryProgram]]
    dtype: DType
    fold: Folder | None
    scratch: int
    plain: bool
    room: int
    _found: dict[bytes, ReachedForm] = field(init=False, default_factory=dict)
    _recent: _Recent | None = field(init=False, default=None)
    _registered: dict[_Places, Exposure] = field(init=False, default_factory=dict)

    def exposed(self, shared: SharedMemory, send: Buffer, recv: Buffer) -> Exposure:
        """Let the peers reach this rank's arrays."""
        recent = self._recent
        if recent is not None and recent.send() is send and recent.recv() is recv:
            shared.housekeep()
            return recent.exposure
        exposure = None
        if self._registered:
            # Other views of the same registered memory come again, and other arrays in turn.
            exposure = self._registered.get(_places(send, recv))
        if exposure is not None:
            shared.housekeep()
        else:
            arrays = [_NOTHING if send is None else send, _NOTHING if recv is None else recv]
            once = shared.expose(
                arrays, self.fingerprint, self.scratch, plain=self.plain, room=self.room
            )
            exposure = once.detached()
            if exposure is None:
                return once
            if len(self._registered) >= KEPT:
                self._registered.clear()
            self._registered[_places(send, recv)] = exposure
        references = [(lambda: None) if each is None else ref(each) for each in (send, recv)]
        self._recent = _Recent(references[0], references[1], exposure)
        return exposure

    def learned(self, table: Record, exposure: Exposure, results: ScratchBuffer) -> ReachedForm:
        """Return the result for a table of the members' published records, in order.

        Parameters
        ----------
        table : ndarray of int64, shape (ranks of the node, RECORD)
            Their records.
        exposure : Exposure
            Of this call.
        results : ScratchBuffer
            As in `Reached`.

        Raises
        ------
        RankMismatch
            On all members alike, if they do not make the same call.
        """
        published = table.tobytes()
        form = self._found.get(published)
        if form is None:
            self._check(table)
            # What later calls have as well may learn other records.
            exposure = exposure.detached() or exposure
            reach = exposure.take_records(dict(zip(self.members, table, strict=True)))
            program, peers = self.programs[reach](), Peers(exposure, self.dtype)
            turns = self._bound(program, reach, exposure, peers, results)
            form = ReachedForm(reach, program, peers, turns)
            if not exposure.lasting:
                return form
            if len(self._found) >= KEPT:
                self._found.clear()
            self._found[published] = form
        return form

    def _bound(
        self,
        program: Program | MemoryProgram,
        reach: Reach,
        exposure: Exposure,
        peers: Peers,
        results: ScratchBuffer,
    ) -> Turns | None:
        """Return a program bound to memory that is the same where all publish the same; else None."""
        registered = exposure.registered
        if reach is not Reach.DIRECT or registered is None or not exposure.lasting:
            return None
        # Scratch is the next call's as well, which may need more of it.
        if not isinstance(program, MemoryProgram) or program.scratch:
            return None
        if sum(len(each.local) for each in program.rounds) > BOUND_STEPS:
            return None
        own = [each.view(self.dtype) for each in registered]
        memory = Reached([*own, np.empty(0, self.dtype)], peers, results)
        return tuple(
            (tuple(memory.actions(each.local, self.fold)), each.barrier) for each in program.rounds
        )

    def _check(self, table: Record) -> None:
        """Raise unless all members make the same call."""
        theirs = table[:, 0]
        if (theirs == self.fingerprint).all():
            return
        odd = odd_ones(dict(zip(self.members, theirs.tolist(), strict=True)))
        everyone = len(odd) == len(self.members)
        fault = "all make different calls" if everyone else "made another call than the others"
        raise RankMismatch(
            f"{ranks_named(odd)} {fault}; "
            "give arrays of the same size, dtype and memory (of comm.empty, or not), and the same op, root and "
            "algorithm, on all ranks",
            ranks=odd,
        )


def _places(send: Buffer, recv: Buffer) -> _Places:
    sent = (0, 0) if send is None else (address(send), send.nbytes)
    received = (0, 0) if recv is None else sent if recv is send else (address(recv), recv.nbytes)
    return *sent, *received
