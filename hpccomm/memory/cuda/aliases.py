"""NumPy arrays over device-accessible memory at an address, as MPI takes memory.

`hpccomm.dispatch.aware` and pinned memory use it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.foreign import AddressedBytes


class DeviceBytes(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes of device memory: an address and a length for MPI. The host never reads them.

    CUDA copies host memory that is assigned to it. A peer's registered host array arrives this way.
    """

    def __setitem__(self, where: Any, value: Any) -> None:
        target = self[where]
        runtime = cupy().cuda.runtime
        destination, here = target.ctypes.data, value.ctypes.data
        runtime.memcpy(destination, here, target.nbytes, runtime.memcpyHostToDevice)


def aliased(pointer: int, nbytes: int, owner: object = None) -> NDArray[np.uint8]:
    """Return `nbytes` bytes at an address as an array, which keeps `owner` alive.

    The host must not read the array if it is device memory.
    """
    if not nbytes:
        return np.empty(0, np.uint8)
    return AddressedBytes(pointer, nbytes, owner).array()


def landing(pointer: int, nbytes: int) -> NDArray[np.uint8]:
    """Return the same array for a message that may come from a peer's registered host memory."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return aliased(pointer, nbytes).view(DeviceBytes)
