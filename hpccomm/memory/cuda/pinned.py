"""Pinned host memory: a device copies from it and to it while the host goes on."""

from threading import Lock
from typing import TYPE_CHECKING

from hpccomm.errors import CommunicationError
from hpccomm.memory.cuda.aliases import aliased
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.streams import drop_event, on_device, ready

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT_BYTES = 64 << 20
"""Bytes that stay pinned for calls to come; what is given back beyond is freed."""

_STEP = 1 << 20
"""Larger blocks are multiples of it, smaller ones powers of two, so that they fit calls to come."""

_SMALLEST = 4096

_LARGEST_PITCH = 2**31 - 1
"""CUDA's limit (``memPitch``): rows of longer blocks are copied one by one."""


class PinnedBlock:
    """A block of pinned memory, which is freed with it.

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
        If there is no more to be had.
    """

    __slots__ = ("bytes", "pointer")

    def __init__(self, nbytes: int, device: int) -> None:
        cuda = cupy().cuda
        try:
            with on_device(device):
                # Not from CuPy's pool, which gives nothing back.
                memory = cuda.PinnedMemory(nbytes)
        except cuda.runtime.CUDARuntimeError as error:
            raise CommunicationError(
                f"{nbytes} bytes of pinned host memory cannot be had ({error}); leave more of the "
                "host's memory free, or communicate smaller arrays"
            ) from error
        self.pointer: int = memory.ptr
        self.bytes: NDArray[np.uint8] = aliased(memory.ptr, nbytes, memory)


class Pool:
    """Pinned memory that calls have one after the other. Any thread may use it.

    Pinning takes the kernel about as long as copying: so it is done once.

    Parameters
    ----------
    kept : int
        Bytes that are kept for calls to come.
    """

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._lock = Lock()
        self._free: list[PinnedBlock] = []
        self._copying: list[tuple[int, PinnedBlock]] = []

    def take(self, nbytes: int, device: int) -> PinnedBlock:
        """Return a block of at least `nbytes` bytes that nothing uses. Local; never waits.

        Raises
        ------
        CommunicationError
            If there is no more to be had, or CUDA has failed.
        """
        size = _rounded(nbytes)
        with self._lock:
            self._sweep()
            for number, block in enumerate(self._free):
                if size <= block.bytes.size <= 2 * size:
                    return self._free.pop(number)
        return PinnedBlock(size, device)

    def give_back(self, block: PinnedBlock, event: int | None = None) -> None:
        """Take a block back. Where an `event` is given, which this ends, it is in use until then."""
        with self._lock:
            if event is None:
                self._keep(block)
            else:
                self._copying.append((event, block))
                self._sweep()

    def _sweep(self) -> None:
        """Find the blocks whose event has come."""
        left = []
        for event, block in self._copying:
            if ready(event):
                drop_event(event)
                self._keep(block)
            else:
                left.append((event, block))
        self._copying = left

    def _keep(self, block: PinnedBlock) -> None:
        held = sum(each.bytes.size for each in self._free)
        if held + block.bytes.size <= self._kept:
            self._free.append(block)


def _rounded(nbytes: int) -> int:
    if nbytes > _STEP:
        return -(-nbytes // _STEP) * _STEP
    return max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())


POOL = Pool()
"""The process's: pinned memory serves any device, and all communicators."""


def copied(
    array: int, rows: tuple[int, int, int, int], host: int, stream: int, *, to_host: bool
) -> None:
    """Put a copy between device memory and pinned memory on a stream.

    Parameters
    ----------
    array : int
        Address of the device array.
    rows : tuple of int
        Its bytes: where the first row begins, the width of a row, how many there are, and how far
        apart they begin. On the host they lie one after the other.
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
