"""Temporary device memory of calls, and copies within device memory, for the dispatches.

The library that communicates from a device's memory in this process: NCCL or a CUDA-aware MPI.

The two never use one device at the same time, because each could wait for work that the other delays.

The NCCL backend and the CUDA-aware dispatch claim the device here.
"""

import threading
from collections import Counter
from typing import Any

import numpy as np

from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import cupy

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
        How many bytes; 0 for none.
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
