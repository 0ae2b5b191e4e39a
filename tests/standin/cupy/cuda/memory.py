"""Device memory, as CuPy has it: from a pool, each block for the stream that it was allocated for."""

from cupy.cuda import runtime
from cupy.cuda.device import Device
from cupy.cuda.stream import get_current_stream
from standin import heap, streams


class BaseMemory:
    """Memory on a device."""

    ptr = 0
    size = 0
    device_id = 0


class PooledMemory(BaseMemory):
    """Memory from the pool."""

    def __init__(self, size):
        self.size = size
        self.device_id = runtime.getDevice()
        self._lent = None
        if size > 0:
            stream = streams.find(get_current_stream().ptr, self.device_id)
            self._lent = heap.Lent(size, stream)
            self.ptr = self._lent.pointer


class UnownedMemory(BaseMemory):
    """Memory of somebody else."""

    def __init__(self, ptr, size, owner, device_id=-1):
        if device_id < 0:
            device_id = runtime.pointerGetAttributes(ptr).device
        self.ptr = ptr
        self.size = size
        self.device_id = device_id
        self._owner = owner


class MemoryPointer:
    """A place in memory, which it keeps."""

    def __init__(self, mem, offset):
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    @property
    def device(self):
        return Device(self.device_id)


class MemoryPool:
    """The pool that all allocations come from."""

    def malloc(self, size):
        return MemoryPointer(PooledMemory(size), 0)

    def free_all_blocks(self, stream=None):
        heap.free_unused()


_pool = MemoryPool()


def alloc(size):
    return _pool.malloc(size)
