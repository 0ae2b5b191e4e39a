"""Device memory, as CuPy has it: from a pool, each block for the stream that it was allocated for."""

import sys
from typing import Any

from cupy.cuda import runtime
from cupy.cuda.device import Device
from cupy.cuda.stream import get_current_stream
from standin import heap, streams


class BaseMemory:
    """Memory on a device."""

    ptr = 0
    size = 0
    device_id = 0

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Device:
        return Device(self.device_id)


class Memory(BaseMemory):
    """Memory straight from CUDA."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        self.ptr = runtime.malloc(size) if size > 0 else 0

    def __del__(self, finalizing: Any = sys.is_finalizing) -> None:
        if self.ptr and not finalizing():
            runtime.free(self.ptr)


class PooledMemory(BaseMemory):
    """Memory from the pool."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        self._lent = None
        if size > 0:
            stream = streams.find(get_current_stream().ptr, self.device_id)
            self._lent = heap.Lent(size, stream)
            self.ptr = self._lent.pointer

    def free(self) -> None:
        self._lent = None
        self.ptr = 0


class UnownedMemory(BaseMemory):
    """Memory of somebody else."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        if device_id < 0:
            if ptr == 0:
                raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")
            device_id = runtime.pointerGetAttributes(ptr).device
        self.ptr = ptr
        self.size = size
        self.device_id = device_id
        self._owner = owner


class MemoryPointer:
    """A place in memory, which it keeps."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        if not isinstance(mem, BaseMemory):
            raise TypeError(f"Argument 'mem' has incorrect type (got {type(mem).__name__})")
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> "MemoryPointer":
        return self + -offset

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    def _copy(self, dst: int, src: int, size: int, kind: int, stream: Any) -> None:
        chosen = get_current_stream() if stream is None else stream
        runtime.memcpyAsync(dst, src, size, kind, chosen.ptr)

    def copy_from_device_async(self, src: "MemoryPointer", size: int, stream: Any = None) -> None:
        self._copy(self.ptr, src.ptr, size, runtime.memcpyDeviceToDevice, stream)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        address = mem if isinstance(mem, int) else mem.value
        self._copy(self.ptr, address, size, runtime.memcpyHostToDevice, stream)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        address = mem if isinstance(mem, int) else mem.value
        self._copy(address, self.ptr, size, runtime.memcpyDeviceToHost, stream)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        chosen = get_current_stream() if stream is None else stream
        runtime.memsetAsync(self.ptr, value, size, chosen.ptr)


class MemoryPool:
    """The pool that all allocations come from."""

    def malloc(self, size: int) -> MemoryPointer:
        return MemoryPointer(PooledMemory(size), 0)

    def free_all_blocks(self, stream: Any = None) -> None:
        heap.free_unused()

    def used_bytes(self) -> int:
        return self.total_bytes() - self.free_bytes()

    def free_bytes(self) -> int:
        return heap.unused()

    def total_bytes(self) -> int:
        return sum(heap.used(number) for number in range(runtime.getDeviceCount()))


_pool = MemoryPool()


def alloc(size: int) -> MemoryPointer:
    return _pool.malloc(size)
