"""Memory of a device's calls: temporary, pinned on the host, and which library may use it.

- `claim` notes which library communicates from a device's memory in this process: NCCL or a CUDA-aware MPI. The two
  never use one device at the same time, because each could wait for work that the other delays.
- `Scratch` is the temporary device memory of a communicator's calls; `copy` copies within device memory.
- `Pool` lends pinned host memory, from and to which a device copies while the host continues.

The device dispatches of `hpccomm.calls` and the NCCL backend use it.
"""

import threading
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np

from hpccomm.dtypes import DType
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda.arrays import aliased
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.streams import on_device

NCCL = "NCCL"
MPI = "CUDA-aware MPI"


_communicators: Counter[tuple[int, str]] = Counter()
"""By device and library, the communicators that use them."""

_lock = threading.Lock()


def claim(device: int, user: str) -> str:
    """Note that a communicator uses a device; `release` must follow. Local, from any thread.

    Parameters
    ----------
    device : int
        CUDA device.
    user : str
        `NCCL` or `MPI`.

    Returns
    -------
    str
        Empty if it may. Otherwise the reason and the remedy, and nothing is noted.
    """
    other = MPI if user == NCCL else NCCL
    with _lock:
        if _communicators[device, other]:
            return (
                f"device {device} is in use by {other} in another communicator of this process, "
                f"and {user} must not use it at the same time; finalize that communicator first"
            )
        _communicators[device, user] += 1
        return ""


def release(device: int, user: str) -> None:
    """Note that a communicator no longer uses the device that it claimed."""
    with _lock:
        if _communicators[device, user]:
            _communicators[device, user] -= 1


_BYTES = np.dtype(np.uint8)


class Scratch:
    """Memory of CuPy's pool, for calls on any stream.

    The pool reuses dropped memory only for later work on the same stream, so no call waits for the
    end of another. A captured graph uses its memory at each replay, so that memory lives until
    `free`.
    """

    __slots__ = ("_captured",)

    def __init__(self) -> None:
        self._captured: list[Any] = []

    def empty(self, count: int, dtype: DType = _BYTES) -> Any:
        """Return a 1-D CuPy array of `count` elements, for work on CuPy's current stream alone.

        Local. It may be dropped as soon as that work is on the stream.

        Raises
        ------
        UsageError
            If a graph is captured from the stream, and the pool needs more memory from CUDA.
        """
        module = cupy()
        runtime = module.cuda.runtime
        if not runtime.streamIsCapturing(module.cuda.get_current_stream().ptr):
            return module.empty(count, dtype)
        try:
            taken = module.empty(count, dtype)
        except (runtime.CUDARuntimeError, MemoryError) as error:
            raise UsageError(
                f"the call needs {count * dtype.itemsize} bytes of scratch, which CUDA does not give "
                f"while a graph is captured ({error}); make the call once on the same stream before"
            ) from error
        self._captured.append(taken)
        return taken

    def free(self) -> None:
        """Free the memory of captured graphs, which are not replayed any more. Local; idempotent."""
        self._captured.clear()


def copy(source: int, target: int, nbytes: int, stream: int) -> None:
    """Put a copy within device memory on a stream.

    Nothing is copied if source and target are the same place.

    Parameters
    ----------
    source, target : int
        Addresses on one device. The ranges are equal or do not overlap.
    nbytes : int
        Number of bytes; 0 for none.
    stream : int
        The stream's number.
    """
    if nbytes and source != target:
        runtime = cupy().cuda.runtime
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)


def clear(target: int, nbytes: int, stream: int) -> None:
    """Put zeros into device memory on a stream."""
    if nbytes:
        cupy().cuda.runtime.memsetAsync(target, 0, nbytes, stream)


KEPT_BYTES = 64 << 20
"""Bytes that stay pinned for later calls; recent calls may raise it to their maximum."""

_FORGETS = 8
"""The weight of earlier maxima falls by 2 to this power with each taken block."""

_STEP = 1 << 20
"""Larger blocks are multiples of it, smaller blocks powers of two, so that later calls can use them."""

_SMALLEST = 4096

_LARGEST_PITCH = 2**31 - 1
"""CUDA's limit (``memPitch``): rows of longer blocks are copied one by one."""


class PinnedBlock:
    """A block of pinned memory. The memory is freed with the object.

    Parameters
    ----------
    nbytes : int
        Its size.
    device : int
        CUDA device from which it is allocated; every device reaches it.

    Attributes
    ----------
    bytes : ndarray of uint8
        The memory.
    pointer : int
        Its address.

    Raises
    ------
    CommunicationError
        If the system has no more.
    """

    __slots__ = ("__weakref__", "bytes", "pointer")

    def __init__(self, nbytes: int, device: int) -> None:
        cuda = cupy().cuda
        try:
            with on_device(device):
                # Not from CuPy's pool, which never frees.
                memory = cuda.PinnedMemory(nbytes)
        except cuda.runtime.CUDARuntimeError as error:
            raise CommunicationError(
                f"{nbytes} bytes of pinned host memory cannot be allocated ({error}); leave more of the "
                "host's memory free, or communicate smaller arrays"
            ) from error
        self.pointer: int = memory.ptr
        self.bytes = aliased(memory.ptr, nbytes, memory)


class Pool:
    """Pinned memory that calls reuse. Any thread may use it.

    Pinning takes the kernel about as long as copying, and freeing waits for the device. So blocks
    are kept, up to the number that calls need at one time. Blocks unused for long are freed.

    Parameters
    ----------
    kept : int
        Bytes that are kept in any case.
    """

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._needed = 0  # bytes at one time, lately
        self._lock = Lock()
        self._out: WeakSet[PinnedBlock] = WeakSet()  # weakly: a call that fails gives nothing back
        self._free: list[PinnedBlock] = []
        self._copying: list[tuple[Callable[[], bool], PinnedBlock]] = []

    def take(self, nbytes: int, device: int) -> PinnedBlock:
        """Return an unused block of at least `nbytes` bytes. Local; never waits.

        Raises
        ------
        CommunicationError
            If the system has no more, or CUDA has failed.
        """
        size = _rounded(nbytes)
        with self._lock:
            self._sweep()
            fitting = (each for each in self._free if size <= each.bytes.size <= 2 * size)
            block = next(fitting, None)
            if block is not None:
                self._free.remove(block)
        if block is None:
            block = PinnedBlock(size, device)
        with self._lock:
            self._out.add(block)
            out = sum(each.bytes.size for each in self._out)
            self._needed = max(out, self._needed - (self._needed >> _FORGETS))
        return block

    def give_back(self, block: PinnedBlock, done: Callable[[], bool] | None = None) -> None:
        """Take a block back. It is in use until the test `done`, if there is one, is true."""
        freed = []
        with self._lock:
            if done is None:
                self._keep(block)
            else:
                self._copying.append((done, block))
                self._sweep()
            held = sum(each.bytes.size for each in self._free)
            while held > max(self._kept, self._needed):
                freed.append(self._free.pop(0))
                held -= freed[-1].bytes.size
        del block, freed  # without the lock: CUDA waits for the device

    def _sweep(self) -> None:
        """Take back the blocks that are no longer in use."""
        left = []
        for done, block in self._copying:
            if done():
                self._keep(block)
            else:
                left.append((done, block))
        self._copying = left

    def _keep(self, block: PinnedBlock) -> None:
        self._out.discard(block)
        self._free.append(block)


def _rounded(nbytes: int) -> int:
    if nbytes > _STEP:
        return -(-nbytes // _STEP) * _STEP
    return max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())


POOL = Pool()
"""The pool of the process, for all devices and communicators."""


def copied(
    array: int, rows: tuple[int, int, int, int], host: int, stream: int, *, to_host: bool
) -> None:
    """Put a copy between device memory and pinned memory on a stream.

    Parameters
    ----------
    array : int
        Address of the device array.
    rows : tuple of int
        Offset of the first row, width of a row, number of rows, and distance between their starts, in
        bytes. On the host the rows are contiguous.
    host : int
        Address there.
    stream : int
        The stream's number.
    to_host : bool
        Whether the host's side is the target.
    """
    runtime = cupy().cuda.runtime
    offset, width, height, pitch = rows
    device = array + offset
    kind = runtime.memcpyDeviceToHost if to_host else runtime.memcpyHostToDevice
    if height == 1 or pitch == width:
        target, source = (host, device) if to_host else (device, host)
        runtime.memcpyAsync(target, source, width * height, kind, stream)
    elif pitch <= _LARGEST_PITCH:
        sides = (host, width, device, pitch) if to_host else (device, pitch, host, width)
        runtime.memcpy2DAsync(*sides, width, height, kind, stream)
    else:
        for number in range(height):
            row = (offset + number * pitch, width, 1, 0)
            copied(array, row, host + number * width, stream, to_host=to_host)
