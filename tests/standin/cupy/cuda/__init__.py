"""CuPy's access to CUDA, as far as the stand-in has it.

``cupy.cuda.nccl`` is there once somebody has imported it, as with CuPy.
"""

# ruff: noqa: F401
from cupy.cuda import device, graph, memory, pinned_memory, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.graph import Graph
from cupy.cuda.memory import BaseMemory, MemoryPointer, MemoryPool, UnownedMemory, alloc
from cupy.cuda.pinned_memory import PinnedMemory
from cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time


def is_available():
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False
