"""CuPy's access to CUDA, as far as the stand-in has it.

``cupy.cuda.nccl`` is there once somebody has imported it, as with CuPy.
"""

from cupy.cuda import device as device
from cupy.cuda import graph as graph
from cupy.cuda import memory as memory
from cupy.cuda import pinned_memory as pinned_memory
from cupy.cuda import runtime as runtime
from cupy.cuda import stream as stream
from cupy.cuda.device import Device as Device
from cupy.cuda.graph import Graph as Graph
from cupy.cuda.memory import BaseMemory as BaseMemory
from cupy.cuda.memory import MemoryPointer as MemoryPointer
from cupy.cuda.memory import MemoryPool as MemoryPool
from cupy.cuda.memory import UnownedMemory as UnownedMemory
from cupy.cuda.memory import alloc as alloc
from cupy.cuda.pinned_memory import PinnedMemory as PinnedMemory
from cupy.cuda.stream import Event as Event
from cupy.cuda.stream import Stream as Stream
from cupy.cuda.stream import get_current_stream as get_current_stream
from cupy.cuda.stream import get_elapsed_time as get_elapsed_time


def is_available() -> bool:
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False
