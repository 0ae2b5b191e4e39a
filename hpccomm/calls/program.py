"""Compiles one rank's schedule into a program that can be run repeatedly, also on the memory of peers.

Peers' memory is mapped here, or the kernel copies from and to it.

A call on memory that the ranks of a node share has several forms (`Variants`). The memory of each other that
the ranks reach determines the form. The call itself finds that out: the ranks of the node
exchange records of their arrays, by messages. By that they have met, which replaces the barrier at the
beginning of such schedules, and all have the same facts. The chosen form is kept for later calls in
which all ranks publish the same records. It depends on nothing else, and holds no array: a peer's registered
memory stays mapped, and the array at that place is the array that the peer publishes in the later call.

`algorithms` and `on_device` compile programs; `runner` runs them.
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
"""This rank's buffers, in the order of their numbers. The numbers of rank p's buffers begin at
``len(OWN) * (p + 1)``."""

_NUMBER = {name: number for number, name in enumerate(OWN)}


class Slice(NamedTuple):
    """Elements of the buffer with that number. `where` is None for all of them, which saves a view."""

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
        The messages, which are under way at the same time.
    local : tuple of Step
        The local steps, which follow in their order once the messages are complete.
    """

    receives: tuple[Transit, ...]
    sends: tuple[Transit, ...]
    local: tuple[Step, ...] = ()


ChannelRounds = tuple[LocalRound, ...]
"""The rounds of a rank in a channel."""


Meetings = tuple[tuple[int, int], ...]
"""The steps of a barrier: the rank to wait for, and the rank to signal."""


class Program(NamedTuple):
    """One rank's actions in a collective.

    Ranks that reach each other's memory must have met before a program begins: barriers at the beginning
    of a channel are left out.

    Attributes
    ----------
    channels : tuple of ChannelRounds
        The rounds of each channel, without this rank's empty ones. An empty channel stays, since all ranks number
        channels alike.
    scratch : int
        Elements of scratch.
    in_memory : tuple of (tuple of Step, Meetings), or None
        The same rounds for memory that ranks share, if the only messages are those of barriers: the local steps in
        their order, and the barrier that follows. None for other schedules.
    """

    channels: tuple[ChannelRounds, ...]
    scratch: int
    in_memory: tuple[tuple[tuple[Step, ...], Meetings], ...] | None = None


Placed = Callable[[int, int, int], Slice]
"""``placed(buffer, start, count)`` returns the slice of the buffer with that number."""


def compiled(schedule: Schedule, lengths: tuple[int, int]) -> Program:
    """Return the program of the one rank for which `schedule` was made.

    Parameters
    ----------
    schedule : Schedule
        The schedule of one rank.
    lengths : tuple of int
        Elements of this rank's `SEND` and `RECV`.
    """
    placed, channels = _slices(schedule, lengths), list[ChannelRounds]()
    nothing = placed(_NUMBER[SCRATCH], 0, 0)  # scratch, since that can be written
    in_memory, memory_alone = list[tuple[tuple[Step, ...], Meetings]](), len(schedule.channels) == 1
    for channel in schedule.channels:
        turns: list[LocalRound] = []
        opening = True
        for each in channel():
            opening = opening and not (each.receives or each.sends or each.local)
            if opening:
                continue  # the runner performs this barrier
            memory_alone = memory_alone and not (each.receives or each.sends)
            turn = LocalRound(
                tuple(message for table in each.receives for message in _messages(table, placed)),
                tuple(message for table in each.sends for message in _messages(table, placed)),
                tuple(step for table in each.local for step in _steps(table, placed)),
            )
            meetings = () if each.barrier is None else tuple(_meetings(each.barrier))
            if any(turn):
                turns.append(turn)
            for hears, tells in meetings:
                turns.append(LocalRound((Transit(hears, nothing),), (Transit(tells, nothing),)))
            if turn.local or meetings:
                in_memory.append((turn.local, meetings))
        channels.append(tuple(turns))
    return Program(tuple(channels), schedule.scratch, tuple(in_memory) if memory_alone else None)


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


def _meetings(group: Group) -> Iterator[tuple[int, int]]:
    """Yield the rank to wait for and the rank to signal, in each step of a dissemination barrier.

    After ⌈log2 n⌉ steps all ranks know of all. See D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
    synchronization", 1988.
    """
    distance = 1
    while len(group.rank) and distance < group.size:
        ahead, behind = ((group.at + step) % group.size for step in (distance, -distance))
        yield int(group.peer(behind)[0]), int(group.peer(ahead)[0])
        distance *= 2


Array = NDArray[Any]
Action = Callable[[], object]
"""Carries out one step on the memory that it is bound to."""


class Peers(dict[int, Array | Pages]):
    """The buffers of peers, keyed by a program's numbers, at their places when the ranks met.

    Parameters
    ----------
    exposure : Exposure
        The access to the buffers.
    dtype : dtype
        Type of the elements.
    """

    def __init__(self, exposure: Exposure, dtype: DType) -> None:
        super().__init__()
        self._exposure = exposure
        self._dtype = dtype

    def __missing__(self, number: int, /) -> Array | Pages:
        """Look up the buffer with that number when it is first needed."""
        peer, buffer = divmod(number - len(OWN), len(OWN))
        reached = self[number] = self._exposure.peer_buffer(peer, buffer, self._dtype)
        return reached


@dataclass(slots=True, eq=False)
class Reached:
    """The buffers of a rank and of its peers, keyed by a program's numbers.

    Attributes
    ----------
    own : sequence of ndarray
        This rank's buffers.
    peers : Peers
        The buffers of the peers.
    results : ScratchBuffer
        Memory for a result that the kernel copies to a peer.
    """

    own: Sequence[Array]
    peers: Peers
    results: ScratchBuffer

    def __getitem__(self, number: int, /) -> Array:
        """Return this rank's buffer with that number; messages use no others."""
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
                assert isinstance(target, np.ndarray)  # one of the two is this rank's memory
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
        """Fold into memory of this rank, and write the result to the peer's memory through the kernel."""
        result = self.results.take(target.size, self.own[-1].dtype)
        fold(sources, result, final)
        target.write(result)

    def actions(self, steps: Iterable[Step], fold: Folder | None) -> Iterator[Action]:
        """Yield the functions for local steps in order; each is bound when it is requested."""
        for step in steps:
            action = self._action(step, fold)
            if action is not None:
                yield action


def copy(source: Array, target: Array) -> None:
    """Copy elements, unless the two arrays are the same memory, since such a copy would take as long."""
    if not same(source, target):
        target[:] = source


def same(source: Array, target: Array) -> bool:
    """Return whether two arrays of the same size are the same memory."""
    return np.may_share_memory(source, target) and address(source) == address(target)


KEPT = 64
"""Most sets of arrays whose exposures and forms are kept."""

BOUND_STEPS = 1024
"""Most steps of a program that stays bound to its memory. Programs of more steps are bound anew in each call, since
bound steps take memory."""

_NOTHING = np.empty(0, np.uint8)

_Places = tuple[int, int, int, int]
"""Address and bytes of the sent array, and address and bytes of the received array."""

Turns = Iterable[tuple[Iterable[Action], Meetings]]
"""The rounds of a program on memory: the bound steps, and the steps of the barrier that follows."""


class ReachedForm(NamedTuple):
    """The form that runs after the ranks have published certain records.

    Attributes
    ----------
    reach : Reach
        The memory that the ranks reach of each other.
    program : Program
        The program of the matching form.
    peers : Peers
        The buffers of the peers.
    turns : Turns or None
        The program, bound to all published memory; None if it is bound in each call.
    """

    reach: Reach
    program: Program
    peers: Peers
    turns: Turns | None


class _Recent(NamedTuple):
    """Weak references to the arrays of the last call, and their exposure for every call."""

    send: Callable[[], object]
    recv: Callable[[], object]
    exposure: Exposure


@dataclass(slots=True, eq=False)
class Variants:
    """The programs of one rank for calls of one signature.

    Attributes
    ----------
    members : tuple of int
        The ranks of the node. They have the same cyclic order on all ranks, and begin with this rank.
    fingerprint : int
        The fingerprint of the call, which differs between different calls.
    programs : mapping of Reach to callable
        Functions that return the program of each form, and make it when it is first needed.
    dtype : dtype
        Type of the elements.
    fold : Folder or None
        The reduction, if there is one.
    scratch : int
        Bytes of scratch that peers reach, for the staged form; 0 for none.
    plain : bool
        Whether peers may reach plain arrays, if they can.
    room : int
        Most bytes of such scratch that this process may have in use for all its calls.
    """

    members: tuple[int, ...]
    fingerprint: int
    programs: Mapping[Reach, Callable[[], Program]]
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
            # Programs make new views of the same registered memory, and use several arrays in turn.
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
        """Return the form for a table of the members' published records, in order.

        Parameters
        ----------
        table : ndarray of int64, shape (ranks of the node, RECORD)
            The records.
        exposure : Exposure
            The exposure of this rank's arrays in this call.
        results : ScratchBuffer
            As in `Reached`.

        Raises
        ------
        RankMismatch
            If the members do not make the same call; the same on all members.
        """
        published = table.tobytes()
        form = self._found.get(published)
        if form is None:
            self._check(table)
            # An exposure that later calls use may learn other records, so a new one is taken.
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
        program: Program,
        reach: Reach,
        exposure: Exposure,
        peers: Peers,
        results: ScratchBuffer,
    ) -> Turns | None:
        """Return the program bound to its memory; None if the same records may mean other memory in later calls."""
        registered = exposure.registered
        if reach is not Reach.DIRECT or registered is None or not exposure.lasting:
            return None
        rounds = program.in_memory
        # Later calls use the same scratch, and may need more of it.
        if rounds is None or program.scratch:
            return None
        if sum(len(local) for local, _ in rounds) > BOUND_STEPS:
            return None
        own = [each.view(self.dtype) for each in registered]
        memory = Reached([*own, np.empty(0, self.dtype)], peers, results)
        return tuple(
            (tuple(memory.actions(local, self.fold)), barrier) for local, barrier in rounds
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
