"""Device memory from NCCL's own allocator, which the ranks register together.

NCCL's behaviour is undefined if some ranks of a call pass registered memory and others do not, or
pass it at another offset. On a node with NVSwitch a rank then waits, and an abort does not reach
it. So memory is allocated by each rank alone, and registered when all ranks have agreed on it, with
a communicator that carries nothing else.

Memory is not freed when its last reference goes: the garbage collector runs at any moment, in any
thread, during the capture of a graph or after a fork. It is freed at the next request for memory, or
when the communicator is closed.

`Communicator.empty` gets device memory here, through `backend`.
"""

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
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
    number: int = 0  # of its registration, the same on all ranks; 0 where it is not registered
    handle: tuple[Any, int] | None = None  # the communicator that it is registered with, and NCCL's

    def register(self, communicator: Any) -> bool:
        """Return whether NCCL has it registered. It gives no handle where that is switched off."""
        handle = ctypes.c_void_p()
        status = libnccl.functions().ncclCommRegister(
            communicator.comm, self.pointer, self.nbytes, ctypes.byref(handle)
        )
        if status == 0 and handle.value:
            self.handle = communicator, handle.value
        return self.handle is not None

    def deregister(self) -> None:
        if self.handle is not None and self.handle[0].comm:  # else it has ended with it
            libnccl.functions().ncclCommDeregister(self.handle[0].comm, self.handle[1])
        self.number, self.handle = 0, None

    def free(self) -> None:
        self.deregister()
        libnccl.functions().ncclMemFree(self.pointer)


_orphans: deque[_Allocation] = deque()
"""Released after their communicator was closed; the next `sweep` of any registry frees them."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class NcclMemory:
    """Device memory that can be registered.

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
    """The memory of one communicator that can be registered.

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
        self._registered = 0  # blocks so far

    def empty(self, nbytes: int) -> NcclMemory:
        """Return new memory. Local.

        It may wait for work on the device, if it frees released memory.

        Raises
        ------
        UsageError
            During the capture of a graph.
        MemoryError
            If the device's memory is full.
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
        self._blocks[block.pointer] = block
        memory = NcclMemory(block.pointer, nbytes)
        # At exit the system frees the process's memory, and NCCL may have ended before.
        weakref.finalize(memory, self._release, block).atexit = False
        return memory

    def _release(self, block: _Allocation) -> None:
        self._blocks.pop(block.pointer, None)
        (_orphans if self._closed else self._released).append(block)

    def _block(self, pointer: int, nbytes: int) -> _Allocation | None:
        if self._closed:
            return None
        # A copy, because the garbage collector may release others at the same time.
        for block in tuple(self._blocks.values()):
            if block.pointer <= pointer and pointer + nbytes <= block.pointer + block.nbytes:
                return block
        return None

    def place(self, pointer: int, nbytes: int) -> tuple[int, int, int] | None:
        """Return where an address range lies: the number of the registration, the offset and the block's size.

        None if it does not lie within this memory. Local.
        """
        block = self._block(pointer, nbytes)
        return None if block is None else (block.number, pointer - block.pointer, block.nbytes)

    def register(self, pointers: Iterable[int], communicator: Any) -> bool:
        """Register the blocks of addresses, if NCCL does; return whether all are. Local."""
        blocks = [self._block(pointer, 1) for pointer in pointers]
        return all(
            each is not None and (each.handle or each.register(communicator)) for each in blocks
        )

    def settle(self, pointers: Iterable[int], *, everywhere: bool) -> None:
        """Number the blocks that all ranks have registered; else take those back that have no number yet."""
        for pointer in pointers:
            block = self._block(pointer, 1)
            if block is None or block.number:
                continue
            if everywhere:
                self._registered += 1
                block.number = self._registered
            else:
                block.deregister()

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
            block.handle = None
        self._released.clear()
