"""What all communicators of a process have in common."""

import os
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


_of_process: dict[int, ProcessMemory] = {}
"""By process: a forked child must not hand out its parent's memory. There is no lock, which a thread
of the parent might have held."""


def process_memory() -> ProcessMemory:
    """Return that of this process; the first call makes it. No system call is made before."""
    process = os.getpid()
    memory = _of_process.get(process)
    if memory is None:
        heap = Heap(commit=_strict())
        # Where two threads make one, both get the first.
        memory = _of_process.setdefault(process, ProcessMemory(heap, Leases(heap), PeerSegments()))
    return memory


def _strict() -> bool:
    """Whether the system grants no more memory than it has."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text() == "2\n"
    except OSError:
        return False
