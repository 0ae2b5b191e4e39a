"""The shared-memory state of a process, common to all its communicators.

`node` and `probe` get heap, peers and leases here.
"""

import os
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.transport import MemoryUse
from hpccomm.memory.foreign import AddressedBytes
from hpccomm.memory.shared import libc
from hpccomm.memory.shared.heap import NAME, Heap

_ANOTHER = "descriptor {} of process {} is no longer a segment of hpccomm: it was closed there"


class PeerSegments:
    """Peers' segments in this process. Each is mapped once and stays.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def find(self, pid: int, key: int) -> NDArray[np.uint8]:
        """Return a segment's bytes.

        Parameters
        ----------
        pid : int
            Its process.
        key : int
            Its `HeapSegment.key`.

        Raises
        ------
        OSError
            If it cannot be mapped.
        """
        with self._lock:
            segment = self._mapped.get((pid, key))
            if segment is None:
                segment = self._mapped[pid, key] = _map(pid, key)
            return segment


def _map(pid: int, key: int) -> NDArray[np.uint8]:
    serial, number = key >> 32, key & 0xFFFFFFFF
    path = f"/proc/{pid}/fd/{number}"
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # A program may close descriptors that are not its own, and reuse the number for another file.
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not name.startswith(f"/memfd:{NAME.format(serial)} "):
            raise OSError(0, _ANOTHER.format(number, pid))
        size = os.fstat(descriptor).st_size
        at = libc.map_file(descriptor, size)
    finally:
        os.close(descriptor)
    return AddressedBytes(at, size).array()


class Leases:
    """Memory that calls use for a while. Returned memory is kept for later calls.

    Any thread may use it.

    Parameters
    ----------
    heap : Heap
        Source of the memory.

    Attributes
    ----------
    total : int
        Bytes in use or kept.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._lock = threading.Lock()
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        self.total = 0

    def take(self, nbytes: int, limit: int) -> NDArray[np.uint8] | None:
        """Return leased memory; None if the process would exceed `limit`.

        Raises
        ------
        MemoryError
            If the system has no more.
        """
        with self._lock:
            same = self._kept.get(nbytes)
            if same:
                return same.pop()
            if self.total + nbytes > limit:
                # Kept memory of other sizes returns to the heap.
                self.total -= sum(size * len(kept) for size, kept in self._kept.items())
                self._kept.clear()
                if self.total + nbytes > limit:
                    return None
            lease = self._heap.empty(nbytes)
            self.total += nbytes
            return lease

    def give(self, lease: NDArray[np.uint8]) -> None:
        """Take back what `take` returned."""
        with self._lock:
            self._kept.setdefault(lease.nbytes, []).append(lease)


class ProcessMemory(NamedTuple):
    """The registered memory of this process, and its mappings of peers' memory."""

    heap: Heap
    leases: Leases
    peers: PeerSegments
    use: MemoryUse


_of_process: dict[int, ProcessMemory] = {}
"""By process: a forked child must not hand out its parent's memory, nor wait for its locks."""


def process_memory() -> ProcessMemory:
    """Return that of this process; the first call makes it. No system call is made before."""
    process = os.getpid()
    memory = _of_process.get(process)
    if memory is None:
        heap = Heap(commit=_strict())
        # Where two threads make one, both get the first.
        made = ProcessMemory(heap, Leases(heap), PeerSegments(), MemoryUse())
        memory = _of_process.setdefault(process, made)
    return memory


def _strict() -> bool:
    """Whether the system grants no more memory than it has."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text() == "2\n"
    except OSError:
        return False
