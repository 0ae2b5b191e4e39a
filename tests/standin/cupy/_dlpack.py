"""DLPack, as CuPy takes and gives it: device memory is the host's, so that NumPy makes and reads the capsules."""

import numpy as np

from cupy._arrays import layout_of, ndarray
from cupy.cuda import get_current_stream
from cupy.cuda.memory import MemoryPointer, UnownedMemory


class _Lent(np.ndarray):
    """The memory of an array, which is kept as long as a consumer has it."""

    owner: ndarray


def export(x, **how):
    """Return a capsule with an array, which lives until the consumer lets go of it. It may be written."""
    lent = layout_of(x).host(None).view(_Lent)
    lent.owner = x
    return lent.__dlpack__(**how)


class _Given:
    """What NumPy takes a capsule from."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        return self._capsule


def from_dlpack(array, device=None, copy=None):
    kind, number = array.__dlpack_device__()
    if kind not in (2, 13):
        raise TypeError("CPU arrays cannot be directly imported to CuPy.")
    # CuPy 14.2, _core/dlpack.pyx: the producer orders this stream behind what makes the array.
    capsule = array.__dlpack__(stream=get_current_stream(number).ptr or 1)
    found = np.from_dlpack(_Given(capsule))
    memory = UnownedMemory(found.ctypes.data, found.nbytes, found, number)
    return ndarray(found.shape, found.dtype, MemoryPointer(memory, 0), found.strides)
