"""Threads of one process as ranks, without MPI: for tests and notebooks.

A `World` holds the messages under way. A send copies its message, so that it completes at once. Messages with the same
context (the communicator), sender, receiver and tag match in their order. Ranks also reach each other's arrays: a
`World` lists the arrays exposed in a call. `new_comm("loopback")` and `hpccomm.testing.run_ranks` open this backend.
"""

import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends import refuse_hints, seat
from hpccomm.contracts.backend import (
    ANSWERED,
    Answer,
    Facts,
    Implementation,
    SideChannel,
    Split,
    Survival,
    group_uid,
)
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import (
    DTYPES,
    RECORD,
    Arrival,
    BoundSet,
    MemoryUse,
    Packet,
    Persistent,
    Reach,
    Receiving,
    Record,
    Request,
    SharedMemory,
    Steps,
    Transport,
    Wanted,
    begun_anew,
    mismatch,
    other_dtype,
)
from hpccomm.dtypes import DType
from hpccomm.errors import HpccommError, UsageError
from hpccomm.memory.views import as_bytes
from hpccomm.runtime.answering import answer
from hpccomm.runtime.waiting import completed, polled, received
from hpccomm.topology import Topology, arrange

T = TypeVar("T")
Context = tuple[object, ...]
_Key = tuple[Context, int, int, int]
_Message = tuple[int, int, NDArray[Any]]
"""A message's number among all of its world, its tag and its bytes."""
Buffers = Sequence[NDArray[Any]]
Exposed = dict[int, Buffers]
"""The arrays that ranks expose in one call, by rank, for the ranks that have begun the call."""


@dataclass(slots=True)
class Mailbox:
    """Messages that wait for a receive, or receives that wait for a message; never both."""

    messages: deque[_Message] = field(default_factory=deque)
    receives: "deque[_Receive]" = field(default_factory=deque)


@dataclass(slots=True)
class Shared:
    """A window's memory and locks, by rank."""

    memory: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    locks: dict[int, threading.Lock] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class World:
    """The ranks of one process.

    Attributes
    ----------
    topology : Topology
        The ranks that count as sharing a node.
    token : str
        A name that no other world has.
    mailboxes : dict
        The messages and receives that wait, by context, sender, receiver and tag.
    numbers : iterator of int
        Numbers of messages, as they leave. A receive of any tag takes the first one.
    exposed : dict
        The exposed arrays of a call, by context and number of the call, until all ranks have begun the call.
    windows : dict
        The memory of windows, by context, until all ranks have made the window.
    lock : Lock
        Guards the dictionaries.
    transport : callable
        Takes the arguments of `LoopbackTransport` and returns a rank's transport in a communicator.
    """

    topology: Topology
    token: str = field(default_factory=lambda: os.urandom(8).hex())
    mailboxes: dict[_Key, Mailbox] = field(default_factory=lambda: defaultdict(Mailbox))
    numbers: Iterator[int] = field(default_factory=count)
    exposed: dict[tuple[Context, int], Exposed] = field(default_factory=lambda: defaultdict(dict))
    windows: dict[Context, "Shared"] = field(default_factory=lambda: defaultdict(Shared))
    lock: threading.Lock = field(default_factory=threading.Lock)
    transport: "Callable[..., LoopbackTransport]" = field(default_factory=lambda: LoopbackTransport)

    @contextmanager
    def box(self, key: _Key) -> Iterator[Mailbox]:
        """Hold a mailbox during the block, and delete it if it is empty then: a program may use a tag only once."""
        with self.lock:
            box = self.mailboxes[key]
            yield box
            if not (box.messages or box.receives):
                del self.mailboxes[key]


def make_world(ranks: int, ranks_per_node: int | None = None) -> World:
    """Return a world of `ranks` ranks, on nodes of `ranks_per_node`; None puts all on one node."""
    return World(arrange([rank // (ranks_per_node or ranks) for rank in range(ranks)]))


_NO_BYTES = np.empty(0, np.uint8)


def _sent() -> bool:
    """Return True: a send completes at once."""
    return True


def _copied(message: NDArray[Any], data: NDArray[Any] | None) -> Steps:
    """Copy an arrived message at once, and return empty steps."""
    if data is not None:
        as_bytes(data)[:] = message
    return iter(())


@dataclass(slots=True, eq=False)
class _Receive:
    """A receive that waits for its message."""

    data: NDArray[Any]
    src: int
    tag: int
    message: _Message | None = None

    def test(self) -> bool:
        """Return whether the message has arrived."""
        if self.message is None:
            return False
        _, tag, message = self.message
        if tag != self.tag:
            raise other_dtype(self.src, tag, self.tag)
        if message.nbytes != self.data.nbytes:
            raise mismatch(self.src, message.nbytes, self.data.nbytes)
        as_bytes(self.data)[:] = message
        return True


class LoopbackExposure:
    """One rank's view of the arrays that the ranks expose in one call.

    It refers to the arrays of all ranks, so that they stay alive while a rank can reach them.
    """

    lasting = False
    registered = None

    def __init__(
        self,
        exposed: Exposed,
        fingerprint: int,
        scratch: NDArray[np.uint8] | None,
        plain: bool,
    ) -> None:
        self._exposed = exposed
        self._plain = plain
        self.record: Record = np.zeros(RECORD, np.int64)
        self.record[:2] = fingerprint, scratch is not None
        self.scratch = scratch

    def take_records(self, records: Mapping[int, Record]) -> Reach:
        """Return how threads reach each other's arrays: directly if allowed, else by scratch if all ranks have it."""
        if self._plain:
            return Reach.DIRECT
        return Reach.STAGED if all(record[1] for record in records.values()) else Reach.NONE

    def peer_buffer(self, peer: int, buffer: int, dtype: DType) -> NDArray[Any]:
        """Return buffer number `buffer` of `peer`, as an array of `dtype`."""
        return self._exposed[peer][buffer].view(dtype)

    def detached(self) -> None:
        """Return None: the arrays of each call are exposed anew."""

    def release(self) -> None:
        """Release the arrays."""
        self._exposed = {}


@dataclass(slots=True, eq=False)
class LoopbackMemory:
    """The shared memory of the threads of one communicator, for one rank."""

    world: World
    context: Context
    rank: int
    size: int
    calls: int = 0
    plain: bool = True
    how: str = "ranks are threads of one process"
    use: MemoryUse = field(default_factory=MemoryUse)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return ordinary memory, which threads share."""
        return np.empty(nbytes, np.uint8)

    def share(self, room: int) -> int:
        """Return a rank's part of a node's `room`."""
        return room // max(Counter(self.world.topology.node_of).values())

    def holds(self, data: NDArray[Any]) -> bool:
        """Return False: no memory is special here."""
        return False

    def housekeep(self) -> None:
        """Do nothing: no memory is special here."""

    def expose(
        self, buffers: Buffers, fingerprint: int, scratch: int, *, plain: bool, room: int
    ) -> LoopbackExposure:
        """Let the peers reach `buffers` in their call of the same number."""
        self.calls += 1
        key = (self.context, self.calls)
        staging = np.empty(scratch, np.uint8) if 0 < scratch <= room else None
        if staging is not None:
            buffers = (*buffers, staging)
        with self.world.lock:
            exposed = self.world.exposed[key]
            exposed[self.rank] = buffers
            if len(exposed) == self.size:  # all ranks refer to it
                del self.world.exposed[key]
        return LoopbackExposure(exposed, fingerprint, staging, plain)


class LoopbackTransport:
    """Messages between the threads of one communicator."""

    largest_tag = 2**31 - 1
    persistent: Persistent | None = None

    def __init__(
        self, world: World, context: Context, members: Sequence[int], rank: int, codes: int = 1
    ) -> None:
        self._codes = codes  # a tag modulo this is the code of a dtype
        self._world = world
        self.context = context
        self._members = members
        self.rank = rank
        self.size = len(members)
        self.shared: SharedMemory | None = LoopbackMemory(world, context, rank, self.size)

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Send a copy of `data`."""
        return self._send(as_bytes(data), dst, tag, tag // self._codes, [])

    def issend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Send a copy of `data`; complete once a receive has it."""
        box, left = tag // self._codes, list[Any]()
        sent = self._send(as_bytes(data), dst, tag, box, left)

        def taken() -> bool:
            with self._world.box((self.context, self.rank, dst, box)) as mailbox:
                return bool(left) and all(each is not left[0] for each in mailbox.messages)

        return polled(completed([sent, self.moving(taken)]))

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive into `data`."""
        return self.moving(self._begun(_Receive(data, src, tag), tag // self._codes).test)

    def isend_packet(self, data: bytes, dst: int, tag: int) -> Request:
        """Send the bytes."""
        return self._send(np.frombuffer(data, np.uint8), dst, tag, ~tag, [])

    def irecv_packet(self, src: int, tag: int) -> Packet:
        """Begin to receive."""
        receive = self._begun(_Receive(_NO_BYTES, src, tag), ~tag)
        return self.moving(lambda: receive.message and receive.message[2].tobytes())

    def moving(self, test: Callable[[], T]) -> Callable[[], T]:
        """Return the test of a request or a packet unchanged; subclasses may move messages on in it."""
        return test

    def leaving(self, leave: Callable[[], object]) -> Request:
        """Let a message leave at once, and return its request; subclasses may delay it."""
        leave()
        return _sent

    def _send(self, data: Any, dst: int, tag: int, box: int, left: list[Any]) -> Request:
        def leave() -> None:
            left.append(message := (next(self._world.numbers), tag, data.copy()))
            with self._world.box((self.context, self.rank, dst, box)) as mailbox:
                if mailbox.receives:
                    mailbox.receives.popleft().message = message
                else:
                    mailbox.messages.append(message)

        return self.leaving(leave)

    def _begun(self, receive: _Receive, box: int) -> _Receive:
        with self._world.box((self.context, receive.src, self.rank, box)) as mailbox:
            if mailbox.messages:
                receive.message = mailbox.messages.popleft()
            else:
                mailbox.receives.append(receive)
        return receive

    def receiving(self, src: int, tag: int) -> Receiving:
        """Return the function that begins to receive a message with this source and tag, and returns the steps."""
        return received(self.irecv, src, tag)

    def isend_again(self, data: NDArray[Any], dst: int, tag: int) -> BoundSet:
        """Return the messages that send this array at each start."""
        return begun_anew(partial(self.isend, data, dst, tag))

    def irecv_again(self, data: NDArray[Any], src: int, tag: int) -> BoundSet:
        """Return the messages that receive into this array at each start."""
        return begun_anew(partial(self.irecv, data, src, tag))

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Return False: a receive finds a message of another size itself."""
        return False

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Return a wanted message that has arrived, or None. Never waits."""
        yield from ()
        with self._world.lock:
            boxes = self._world.mailboxes
            first = min(
                (
                    (box.messages[0], key)
                    for key, box in boxes.items()
                    if (key[0], key[2]) == (self.context, self.rank)
                    and box.messages
                    and wanted.src in (None, key[1])
                    and wanted.fits(box.messages[0][1])
                ),
                default=None,
            )
            if first is None:
                return None
            (_, tag, message), key = first
            boxes[key].messages.popleft()
            if not boxes[key].messages:
                del boxes[key]
        return Arrival(key[1], tag, message.nbytes, partial(_copied, message))

    def forget(self) -> None:
        """Drop the messages to this rank that were not received."""
        with self._world.lock:
            boxes = self._world.mailboxes
            for key in [k for k in boxes if k[0] == self.context and k[2] == self.rank]:
                del boxes[key]


class LoopbackOneSided:
    """One window of the threads of one communicator. Each thread reaches the memory of all."""

    def __init__(self, signals: LoopbackTransport, shared: Shared) -> None:
        self.signals: Transport = signals
        self._mailboxes = signals
        self._shared = shared

    def attach(self, memory: NDArray[np.uint8] | None) -> None:
        """Let all threads reach the memory. Does not block."""
        if memory is not None:
            self._shared.memory[self.signals.rank] = memory

    def put(self, data: NDArray[Any], dst: int, start: int) -> Request:
        """Write at once."""
        source = as_bytes(data)
        self._shared.memory[dst][start : start + source.size] = source
        return _sent

    def get(self, into: NDArray[Any], src: int, start: int) -> Request:
        """Read at once."""
        target = as_bytes(into)
        target[:] = self._shared.memory[src][start : start + target.size]
        return _sent

    def flush(self, dst: int) -> None:
        """Do nothing: writes complete at once."""

    def acquire(self, dst: int) -> Request:
        """Begin to take the lock."""
        lock = self._shared.locks[dst]
        return lambda: lock.acquire(blocking=False)

    def release(self, dst: int) -> Request:
        """Give the lock back."""
        self._shared.locks[dst].release()
        return _sent

    def order(self) -> None:
        """Do nothing: the interpreter orders the accesses of its threads."""

    def free(self) -> None:
        """Release the memory."""
        self._shared = Shared()
        self._mailboxes.forget()


class LoopbackSideChannel:
    """Answers in place of the other ranks, which are threads of this process."""

    def ask(self, ranks: Sequence[int], question: Facts, seconds: float) -> dict[int, Answer]:
        """Return each rank's answer. Does not block."""
        return {rank: Answer(ANSWERED, answer({**question, "rank": rank})) for rank in ranks}


class LoopbackBackend:
    """Ranks that are threads. All collectives run by hpccomm's algorithms."""

    name = "loopback"
    thread_restriction = ""
    shares_process = True
    mpi_comm: object = None
    survival: Survival | None = None
    recovery = ""
    split: Split | None = None

    def __init__(self, world: World, context: Context, members: Sequence[int], rank: int) -> None:
        self.world = world
        self._context = context
        self.members = tuple(members)
        self._windows = 0  # made so far, by all ranks
        self.rank = rank
        self.size = len(self.members)
        self.topology: Topology = world.topology.restrict(self.members)
        self._transports = [
            world.transport(world, (*context, use), self.members, rank, codes)
            for use, codes in (("collectives", 1), ("messages", DTYPES))
        ]
        self.collectives: Transport = self._transports[0]
        self.messages: Transport = self._transports[1]
        self.arrivals = self._transports[1]
        self.uid = group_uid(world.token, members, context)
        self.side: SideChannel | None = LoopbackSideChannel()

    def native(self, signature: Signature, *, apart: bool = False) -> Implementation | None:
        """Return None: threads have no windows."""
        return None

    def group(self, ranks: Sequence[int], label: int) -> "LoopbackBackend":
        """Return the backend of the group of `ranks`. Does not block."""
        members = [self.members[rank] for rank in ranks]
        # Every member makes the same context from facts that all know, so nothing is exchanged.
        context = (*self._context, label, tuple(members))
        return LoopbackBackend(self.world, context, members, list(ranks).index(self.rank))

    def planned(self) -> LoopbackTransport:
        """Return a transport for the messages of plans. Does not block."""
        context = (*self._context, "planned", len(self._transports))
        transport = self.world.transport(self.world, context, self.members, self.rank, DTYPES)
        self._transports.append(transport)
        return transport

    def window(self) -> LoopbackOneSided:
        """Return one-sided communication. Does not block."""
        self._windows += 1
        context = (*self._context, "window", self._windows)
        signals = self.world.transport(self.world, context, self.members, self.rank)
        with self.world.lock:
            shared = self.world.windows[context]
            shared.locks[self.rank] = threading.Lock()
            if len(shared.locks) == self.size:  # all ranks refer to it
                del self.world.windows[context]
        return LoopbackOneSided(signals, shared)

    def translate(self, error: Exception) -> HpccommError | None:
        """Return None: no library raises errors here."""
        return None

    def end_job(self, reason: str) -> None:
        """Do nothing: the ranks are threads of the user's process."""

    def abandon(self) -> None:
        """Do nothing: nothing here needs a peer to end."""

    def close(self) -> None:
        """Forget this rank's mailboxes."""
        for transport in self._transports:
            transport.forget()


def open_backend(mpi_comm: object, hints: Mapping[str, str]) -> LoopbackBackend:
    """Return the backend of the current thread's rank; outside a world, the backend of a single rank.

    Raises
    ------
    UsageError
        If an MPI communicator or an unknown hint is given.
    """
    if mpi_comm is not None:
        raise UsageError("backend 'loopback' takes no mpi_comm: its ranks are threads")
    refuse_hints("loopback", hints)
    world = seat.world
    if world is None:
        return LoopbackBackend(make_world(1), (), (0,), 0)
    seat.opened += 1
    return LoopbackBackend(world, (seat.opened,), range(world.topology.size), seat.rank)
