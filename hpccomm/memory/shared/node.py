"""Arrays that the ranks of a node expose to each other in a call.

`NodeMemory` implements `SharedMemory` of `hpccomm.contracts.transport`. The MPI backend makes it, and the runner of
schedules uses it.

When a communicator is made, its processes test whether they reach each other's memory; the doctor tests it too.
Processes in different containers may see different processes under the same process id. So each process offers a random
token, and a peer writes to the process only after it has read the token there.

If Yama's ``ptrace_scope`` is 1, a process can read the pages of another process only if that process has permitted it
(``PR_SET_PTRACER``). Like Open MPI and MPICH, and unlike UCX, ranks do not permit it. They would be open to every
process of the user for good, and not be faster than with registered memory, which does not need this permission.
"""

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.transport import Pages, Reach, Record
from hpccomm.dtypes import DType
from hpccomm.errors import CommunicationError
from hpccomm.memory.folding import FAR_BLOCK_BYTES
from hpccomm.memory.foreign import AddressedBytes
from hpccomm.memory.shared.heap import Heap, ProcessMemory, RegisteredBytes, process_memory
from hpccomm.memory.shared.pages import PeerPages, RemoteMemory, ended
from hpccomm.memory.views import ScratchBuffer, address

logger = logging.getLogger("hpccomm")

Array = NDArray[Any]

BUFFERS = 3
"""Number of buffers of each rank: the sent array, the received array, and scratch."""

SCRATCH = 2
"""Index of the scratch buffer."""

PLACE = 4
"""Number of integers for each buffer in a record, after the fingerprint: address, key of the segment (-1 for plain
memory), offset in the segment, bytes."""

KEPT = 256
"""Most own records that are kept, and most decoded records of a peer on average."""

_NOWHERE = (0, -1, 0, 0)


class _PeerRecord:
    """The content of a record of one peer, and the views of its buffers made so far."""

    __slots__ = ("mapped", "places", "staged", "views")

    def __init__(self, _peer: int, record: bytes) -> None:
        numbers = np.frombuffer(record, np.int64).tolist()
        self.places = [tuple(numbers[1 + PLACE * i :][:PLACE]) for i in range(BUFFERS)]
        self.mapped = all(key >= 0 or not nbytes for _, key, _, nbytes in self.places[:SCRATCH])
        self.staged = self.places[SCRATCH][1] >= 0
        self.views: dict[tuple[int, DType], Array | Pages] = {}


class NodeMemory:
    """The memory of the processes of a node, for the ranks of one communicator.

    It serves one call at a time.

    Parameters
    ----------
    rank : int
        This rank.
    pids : mapping of int to int
        Process id of each rank of the node, including this one.
    fullest : int
        The largest number of ranks on a node of the job.
    plain : bool
        Whether ranks reach plain arrays, on all nodes.
    how : str
        How plain arrays are reached, or why they are not, in words.
    process : ProcessMemory, optional
        The registered memory of this process.

    Attributes
    ----------
    rank : int
        This rank.
    """

    def __init__(
        self,
        rank: int,
        pids: Mapping[int, int],
        fullest: int,
        *,
        plain: bool,
        how: str,
        process: ProcessMemory | None = None,
    ) -> None:
        self.plain, self.how, self.rank = plain, how, rank
        self._fullest, self._pids, self._remotes = fullest, pids, dict[int, RemoteMemory]()
        self._heap, self._leases, self._segments, self.use = process or process_memory()
        self.housekeep = self._heap.housekeep
        self._bounce = ScratchBuffer(FAR_BLOCK_BYTES)
        self._told = False
        # Programs repeat calls, so that the same records come again.
        self._own = lru_cache(KEPT)(partial(_own, self._heap))
        self._seen = lru_cache(KEPT * len(pids))(_PeerRecord)

    def another(self) -> "NodeMemory":
        """Return another `NodeMemory` of the same ranks, for calls at the same time."""
        return self._of(self._pids, self.rank)

    def group(self, ranks: Sequence[int], rank: int) -> "NodeMemory":
        """Return the `NodeMemory` of a group of the communicator's ranks, in which this process is `rank`."""
        there = {new: self._pids[old] for new, old in enumerate(ranks) if old in self._pids}
        return self._of(there, rank)

    def _of(self, pids: Mapping[int, int], rank: int) -> "NodeMemory":
        return NodeMemory(rank, pids, self._fullest, plain=self.plain, how=self.how)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return registered memory."""
        self.use.registered = True
        return self._heap.empty(nbytes)

    def share(self, room: int) -> int:
        """Return the bytes of a rank if the ranks of the fullest node share `room` bytes."""
        return room // self._fullest

    def holds(self, data: Array) -> bool:
        """Return whether an array lies in registered memory of this process."""
        owner: object = data.base
        while owner.__class__ is np.ndarray:
            owner = owner.base
        if owner is None or owner.__class__ is RegisteredBytes:  # NumPy's own memory, or the heap's
            return owner is not None
        return self._heap.where(address(data)) is not None

    def expose(
        self, buffers: Sequence[Array], fingerprint: int, scratch: int, *, plain: bool, room: int
    ) -> "NodeExposure":
        """Let the peers reach this rank's buffers of one call."""
        self._heap.housekeep()
        lease = self._lease(scratch, room) if scratch else None
        held = buffers if lease is None else (*buffers, lease)
        key: list[int] = [fingerprint, self._heap.segments]
        for data in held:
            key += (address(data), data.nbytes)
        return NodeExposure(self, buffers, *self._own(*key), lease, plain and self.plain)

    def _lease(self, nbytes: int, room: int) -> NDArray[np.uint8] | None:
        why = f"all calls of this process together may use {room} bytes"
        try:
            lease = self._leases.take(nbytes, room)
        except MemoryError as error:
            lease, why = None, str(error)
        if lease is None and not self._told:
            self._told = True
            logger.info("no %d bytes for staging: %s; messages are sent instead", nbytes, why)
        return lease

    def see(self, peer: int, record: Record) -> _PeerRecord:
        """Return the content of a peer's record."""
        return self._seen(peer, record.tobytes())

    def view(self, peer: int, place: tuple[int, ...], dtype: DType, plain: bool) -> Array | Pages:
        """Return a peer's buffer.

        Raises
        ------
        PeerLost
            If the peer's process has ended.
        CommunicationError
            If the buffer is in registered memory that this process cannot map.
        """
        at, key, offset, nbytes = place
        if not nbytes:
            return np.empty(0, dtype)
        if key >= 0:
            pid = self._pids[peer]
            try:
                segment = self._segments.find(pid, key)
            except OSError as error:
                # The program may also have closed the descriptor and still run.
                if error.errno == errno.ENOENT and not Path(f"/proc/{pid}").exists():
                    raise ended(peer) from error
                if not plain:
                    raise CommunicationError(
                        f"registered memory of rank {peer} cannot be mapped: {error.strerror}; "
                        "raise the limits on address space (ulimit -v) and open files (ulimit -n), "
                        "and close no descriptors but the program's own",
                        ranks=(peer,),
                    ) from error
                logger.warning(
                    "registered memory of rank %d cannot be mapped (%s); the kernel copies from it",
                    peer,
                    error.strerror,
                )
            else:
                return segment[offset : offset + nbytes].view(dtype)
        remote = self._remotes.get(peer)
        if remote is None:
            remote = self._remotes[peer] = RemoteMemory(self._pids[peer], peer)
        return PeerPages(remote, self._bounce, at, nbytes // dtype.itemsize, dtype)

    def end(self, lease: NDArray[np.uint8]) -> None:
        """Return the scratch of a call."""
        self._leases.give(lease)


def _own(
    heap: Heap, fingerprint: int, _segments: int, *buffers: int
) -> tuple[Record, tuple[Array, ...] | None]:
    """Return `record` and `registered` of an exposure, from the address and the bytes of each buffer.

    The number of segments is a part of the cache's key: with a new segment, an address may be registered.
    """
    numbers = [fingerprint]
    registered: list[Array] = []
    for at, nbytes in zip(buffers[::2], buffers[1::2], strict=True):
        segment = heap.where(at) if nbytes else None
        inside = (-1, 0) if segment is None else (segment.key, at - segment.at)
        numbers += (at, *inside, nbytes)
        if not nbytes:
            registered.append(np.empty(0, np.uint8))
        elif segment is not None:
            registered.append(AddressedBytes(at, nbytes).array())
    given = len(buffers) // 2
    record = np.array(numbers + [*_NOWHERE] * (BUFFERS - given), np.int64)
    return record, tuple(registered[:SCRATCH]) if len(registered) == given else None


@dataclass(slots=True, eq=False)
class NodeExposure:
    """The buffers that one rank exposes in one call; it implements `Exposure` of the contracts.

    Attributes
    ----------
    memory : NodeMemory
        The memory of the communicator's ranks.
    buffers : sequence of ndarray
        This rank's buffers.
    record : Record
        The places of this rank's buffers.
    registered : sequence of ndarray of uint8, or None
        The sent and the received array, if both are in registered memory. They keep no user's array alive,
        since segments stay mapped.
    scratch : ndarray of uint8, or None
        This rank's scratch, which peers reach.
    plain : bool
        Whether peers may reach plain arrays.
    sights : dict of int to _PeerRecord
        The content of each rank's record, once `take_records` was called.
    lasting : bool
        True: the same records lead to the same memory in a later call.
    """

    memory: NodeMemory
    buffers: Sequence[Array]
    record: Record
    registered: Sequence[Array] | None
    scratch: NDArray[np.uint8] | None
    plain: bool
    sights: dict[int, _PeerRecord] = field(init=False, repr=False)
    lasting = True

    def detached(self) -> "NodeExposure | None":
        """Return an exposure for every later call on the same registered memory; None without one."""
        known = self.registered
        if known is None or self.scratch is not None:
            return None
        return _Detached(self.memory, known, self.record, known, None, self.plain)

    def take_records(self, records: Mapping[int, Record]) -> Reach:
        """Take the records of all ranks of the node, and return the memory that they reach of each other."""
        see = self.memory.see
        self.sights = sights = {peer: see(peer, record) for peer, record in records.items()}
        if self.plain or all(sight.mapped for sight in sights.values()):
            return Reach.DIRECT
        staged = all(sight.staged for sight in sights.values())
        return Reach.STAGED if staged else Reach.NONE

    def peer_buffer(self, peer: int, buffer: int, dtype: DType) -> Array | Pages:
        """Return buffer number `buffer` of `peer` in the same call, as elements of `dtype`."""
        if peer == self.memory.rank:
            own = (*self.buffers, self.scratch)[buffer]
            assert own is not None
            return own.view(dtype)
        sight = self.sights[peer]
        view = sight.views.get((buffer, dtype))
        if view is None:
            view = self.memory.view(peer, sight.places[buffer], dtype, self.plain)
            sight.views[buffer, dtype] = view
        return view

    def release(self) -> None:
        """Drop the buffers, and return the scratch."""
        self.buffers = ()
        if self.scratch is not None:
            self.memory.end(self.scratch)
            self.scratch = None


class _Detached(NodeExposure):
    """The exposure for all calls on the same registered memory."""

    __slots__ = ()

    def release(self) -> None:
        """Do nothing: later calls use this exposure too."""


TOKEN = 16
"""Bytes of a token."""

_ANOTHER = "another process has its number here: they run in containers of their own"


class Offer(NamedTuple):
    """Memory of a process that its neighbors try to reach. Plain data.

    Attributes
    ----------
    pid : int
        Id of the process.
    token : bytes
        The bytes that neighbors must find.
    key, offset : int
        The segment and the offset of the token in the process's registered memory.
    at : int
        Address of the token in plain memory.
    problem : str
        Why the process has no registered memory; empty if it has.
    """

    pid: int
    token: bytes
    key: int
    offset: int
    at: int
    problem: str


class ProbeResult(NamedTuple):
    """The reasons why a process could not reach the memory of its neighbors; empty if it could.

    Attributes
    ----------
    mapped : str
        Why it could not map their registered memory.
    plain : str
        Why it could not copy from and to their plain memory.
    """

    mapped: str
    plain: str


@cache
def _token() -> NDArray[np.uint8]:
    return np.frombuffer(os.urandom(TOKEN), np.uint8).copy()


@cache
def _registered() -> NDArray[np.uint8]:
    memory = process_memory().heap.empty(TOKEN)
    memory[:] = _token()
    return memory


def offer() -> Offer:
    """Return this process's offer. Local."""
    plain = _token()
    try:
        at = address(_registered())
    except MemoryError as error:
        return Offer(os.getpid(), plain.tobytes(), -1, 0, address(plain), str(error))
    segment = process_memory().heap.where(at)
    assert segment is not None
    return Offer(os.getpid(), plain.tobytes(), segment.key, at - segment.at, address(plain), "")


def tried(offers: Mapping[int, Offer], rank: int) -> ProbeResult:
    """Try to reach the memory of the other ranks of this node, and return the result. Local.

    Parameters
    ----------
    offers : mapping of int to Offer
        The offers of all ranks of the node, by rank.
    rank : int
        This rank.
    """
    mapped, plain = "", ""
    for peer, offered in offers.items():
        if peer == rank:
            continue
        mapped = mapped or _map(peer, offered)
        plain = plain or _read(peer, offered)
    return ProbeResult(mapped, plain)


def _map(peer: int, offered: Offer) -> str:
    """Return why a peer's registered memory is not reached, or an empty string."""
    if offered.problem:
        return f"rank {peer} has no token: {offered.problem}"
    try:
        segment = process_memory().peers.find(offered.pid, offered.key)
    except OSError as error:
        return f"that of rank {peer} cannot be mapped: {error.strerror}"
    token = segment[offered.offset : offered.offset + TOKEN].tobytes()
    return "" if token == offered.token else f"that of rank {peer} is not there: {_ANOTHER}"


def _read(peer: int, offered: Offer) -> str:
    """Return why a peer's pages are not reached, or an empty string."""
    remote = RemoteMemory(offered.pid, peer)
    token = np.zeros(TOKEN, np.uint8)
    try:
        remote.read(offered.at, address(token), TOKEN)
        if token.tobytes() != offered.token:
            return f"rank {peer} is not there: {_ANOTHER}"
        remote.write(offered.at, address(token), TOKEN)  # writes the same bytes
    except CommunicationError as error:
        return f"{error}"
    return ""


def agreed(findings: Sequence[ProbeResult]) -> tuple[str, str, str]:
    """Return why registered memory and plain memory are not reached, and how plain arrays are.

    Parameters
    ----------
    findings : sequence of ProbeResult
        The result of each rank of the communicator.

    Returns
    -------
    mapped, plain : str
        Why registered memory, and plain memory, are not reached; empty if they are.
    how : str
        How plain arrays are reached, or why they are not, in words.
    """
    mapped = _first([each.mapped for each in findings])
    plain = _first([each.plain for each in findings])
    if not plain:
        return mapped, plain, "peers' pages are read and written (process_vm_readv)"
    return mapped, plain, f"peers' pages are not read: {plain}"


def _first(problems: Sequence[str]) -> str:
    """Return the first problem, with the rank that has it."""
    return next(
        (f"on rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), ""
    )
