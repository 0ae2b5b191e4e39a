"""Device memory from NCCL's own allocator, registered with communicators.

Memory is not freed when its last reference goes: the garbage collector runs at any moment, in any
thread, during the capture of a graph or after a fork. It is freed at the next request for memory, or
when the communicator is closed.
"""

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hpccomm.backends.nccl import libnccl
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.library import cupy

NEEDED = frozenset(("ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"))
"""Functions that registered memory needs (NCCL 2.19 and later)."""


@dataclass(slots=True)
class _Allocation:
    pointer: int
    nbytes: int
    device: int
    handles: list[tuple[Any, int]] = field(default_factory=list)

    def register(self, communicator: Any) -> int:
        handle = ctypes.c_void_p()
        status: int = libnccl.functions().ncclCommRegister(
            communicator.comm, self.pointer, self.nbytes, ctypes.byref(handle)
        )
        if status == 0:
            self.handles.append((communicator, handle.value or 0))
        return status

    def free(self) -> None:
        library = libnccl.functions()
        for communicator, handle in self.handles:
            if communicator.comm:  # else its registrations have ended with it
                library.ncclCommDeregister(communicator.comm, handle)
        library.ncclMemFree(self.pointer)


_orphans: deque[_Allocation] = deque()
"""Released after their communicator was closed; the next `sweep` of any registry frees them."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class NcclMemory:
    """Registered device memory.

    Attributes
    ----------
    pointer : int
        Its address.
    nbytes : int
        Its size.
    """

    pointer: int
    nbytes: int


class Registry:
    """The registered memory of one communicator.

    Parameters
    ----------
    device : int
        CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._blocks: dict[int, _Allocation] = {}
        self._released: deque[_Allocation] = deque()
        self._closed = False

    def empty(self, nbytes: int, communicators: Iterable[Any]) -> NcclMemory | None:
        """Return new memory, registered with `communicators`; None if NCCL refuses. Local.

        It may wait for work on the device, if it frees released memory.

        Raises
        ------
        UsageError
            During the capture of a graph.
        MemoryError
            If the device has none left.
        """
        size = max(nbytes, 1)
        pointer = ctypes.c_void_p()
        with streams.on_device(self._device):
            if not streams.undisturbed(cupy().cuda.get_current_stream().ptr):
                raise UsageError(
                    "comm.empty with device= would end the capture of a CUDA graph that is under way; "
                    "make arrays before the capture"
                )
            self.sweep()
            status = libnccl.functions().ncclMemAlloc(ctypes.byref(pointer), size)
            if status or not pointer.value:
                raise MemoryError(
                    f"device {self._device} has no {nbytes} bytes for comm.empty "
                    f"(NCCL: {libnccl.last_error() or status}); free arrays, or the memory that CuPy's "
                    "pool keeps: cupy.get_default_memory_pool().free_all_blocks()"
                )
            block = _Allocation(pointer.value, size, self._device)
            if any(block.register(communicator) for communicator in communicators):
                block.free()
                return None
        self._blocks[block.pointer] = block
        memory = NcclMemory(block.pointer, nbytes)
        # At exit the system frees the process's memory, and NCCL may have ended before.
        weakref.finalize(memory, self._release, block).atexit = False
        return memory

    def _release(self, block: _Allocation) -> None:
        self._blocks.pop(block.pointer, None)
        (_orphans if self._closed else self._released).append(block)

    def register(self, communicator: Any) -> None:
        """Register all memory with a communicator that was made later."""
        for block in list(self._blocks.values()):
            block.register(communicator)

    def holds(self, pointer: int, nbytes: int) -> bool:
        """Return whether an address range lies within registered memory. Local."""
        # A copy, because the garbage collector may release others meanwhile.
        return not self._closed and any(
            block.pointer <= pointer and pointer + nbytes <= block.pointer + block.nbytes
            for block in tuple(self._blocks.values())
        )

    def sweep(self) -> None:
        """Free released memory after all work on the device is done. Blocks."""
        left = []
        for queue in (self._released, _orphans):
            while queue:
                left.append(queue.popleft())
        for device in {block.device for block in left}:
            with streams.on_device(device):
                cupy().cuda.runtime.deviceSynchronize()
                for block in left:
                    if block.device == device:
                        block.free()

    def forget(self) -> None:
        """Drop all registrations, because the communicators are about to end. Memory in use lives on."""
        self._closed = True
        _orphans.extend(self._released)
        for block in (*self._blocks.values(), *self._released):
            block.handles.clear()
        self._released.clear()
