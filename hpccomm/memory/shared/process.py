"""What all communicators of a process have in common."""

import os
import threading
from pathlib import Path
from typing import NamedTuple

from hpccomm.memory.shared.heap import Heap
from hpccomm.memory.shared.leases import Leases
from hpccomm.memory.shared.peers import PeerSegments


class ProcessMemory(NamedTuple):
    """The registered memory of this process, and what it has mapped of its peers'."""

    heap: Heap
    leases: Leases
    peers: PeerSegments


_lock = threading.Lock()
_found: ProcessMemory | None = None
_watched = False


def process_memory() -> ProcessMemory:
    """Return that of this process; the first call makes it. No system call is made before."""
    global _found, _watched
    with _lock:
        if _found is None:
            heap = Heap(commit=_strict())
            _found = ProcessMemory(heap, Leases(heap), PeerSegments())
            if not _watched:
                _watched = True
                os.register_at_fork(after_in_child=_forget)
        return _found


def _strict() -> bool:
    """Whether the system grants no more memory than it has."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text() == "2\n"
    except OSError:
        return False


def _forget() -> None:
    """In a forked process: its parent's memory is not for it to hand out."""
    global _found, _lock
    _lock = threading.Lock()  # another thread of the parent may have had it
    if _found is not None:
        _found.heap.abandon()
        _found = None
