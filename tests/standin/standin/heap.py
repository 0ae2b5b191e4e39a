"""Device memory: who has which bytes, and what becomes of those that nobody has."""

import bisect
import ctypes
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from standin import control, devices, graphs, streams
from standin.errors import CUDARuntimeError

POISON = 0xDB
"""What fills memory that nobody has written since it was handed out or freed."""

UNIT = 512
"""Bytes of which CuPy's pool gives multiples."""

_lock = threading.RLock()
_starts: list[int] = []
_blocks: dict[int, "Block"] = {}
_free: dict[tuple[int, "streams.Stream", int], list["Block"]] = {}


class Block(NamedTuple):
    """Memory that lies together.

    Attributes
    ----------
    pointer, size : int
        Address, and bytes.
    device : int
        Where it lies; -1 for pinned memory of the host.
    bytes : array
        The memory itself.
    """

    pointer: int
    size: int
    device: int
    bytes: np.ndarray


def _new(size: int, device: int) -> Block:
    base = np.empty(size + UNIT, np.uint8)
    shift = -base.ctypes.data % UNIT
    inside = base[shift : shift + size]
    inside[:] = POISON
    block = Block(base.ctypes.data + shift, size, device, inside)
    with _lock:
        bisect.insort(_starts, block.pointer)
        _blocks[block.pointer] = block
    return block


def _drop(block: Block) -> None:
    with _lock:
        _starts.remove(block.pointer)
        del _blocks[block.pointer]


def malloc(size: int) -> Block:
    """Return memory of the current device, as cudaMalloc does, or the cuMem calls."""
    graphs.forbid_while_capturing()
    device = devices.device()
    device.check()
    if size + used(device.number) > control.MEMORY:
        raise CUDARuntimeError(2)
    return _new(-(-size // UNIT) * UNIT, device.number)


def free(block: Block) -> None:
    """Give memory of the cuMem calls back: cuMemUnmap waits for nothing that runs."""
    graphs.forbid_while_capturing()
    block.bytes[:] = POISON
    _drop(block)


def pinned(size: int) -> Block:
    """Return pinned memory of the host."""
    control.seen("hostAlloc", size)
    devices.count()
    graphs.forbid_while_capturing()
    return _new(-(-max(size, 1) // UNIT) * UNIT, -1)


def unpin(block: Block) -> None:
    """Give pinned memory back, as cudaFreeHost does: once all that runs on the device is through."""
    graphs.forbid_while_capturing()
    for stream in tuple(devices.device().streams):
        stream.mark().wait()
    free(block)


_LOOKED_AT = 1 << 20
"""Bytes up to which memory is looked at when it is used again."""


def _look(block: Block) -> None:
    if not (block.bytes == POISON).all():
        control.violation(f"memory of device {block.device} was written after it was freed")


class Lent:
    """Memory of the pool, for as long as somebody has it.

    As with CuPy's pool, what was freed is used again by what is allocated for the same stream: that
    is in order there, and goes wrong where another stream still uses it.
    """

    def __init__(self, size: int, stream: streams.Stream) -> None:
        self.stream = stream
        rounded = -(-size // UNIT) * UNIT
        self._key = (stream.device.number, stream, rounded)
        with _lock:
            there = _free.get(self._key)
            block = there.pop() if there else None
        self.block = malloc(rounded) if block is None else block
        if block is not None and stream.capture is None and rounded <= _LOOKED_AT:
            stream.put(lambda: _look(block), counts=False)
        self.pointer = self.block.pointer

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        block = getattr(self, "block", None)
        if block is None or finalizing():
            return
        try:
            if self.stream.capture is None and not self.stream.device.error:
                # CuPy's pool puts nothing on a stream, so that whoever drops the array waits for no room.
                self.stream.put(lambda: block.bytes.fill(POISON), counts=False)
            else:
                block.bytes.fill(POISON)
        except (CUDARuntimeError, RuntimeError):  # the latter: no threads begin at exit
            block.bytes.fill(POISON)
        with _lock:
            _free.setdefault(self._key, []).append(block)


def free_unused() -> None:
    """Give the pool's unused memory back to the devices."""
    graphs.forbid_while_capturing()
    with _lock:
        blocks = [block for unused in _free.values() for block in unused]
        _free.clear()
    for number in {block.device for block in blocks}:
        streams.synchronize(devices.device(number))
    for block in blocks:
        _drop(block)


def used(device: int) -> int:
    """Return the bytes of a device that are taken."""
    with _lock:
        return sum(block.size for block in _blocks.values() if block.device == device)


def find(pointer: int) -> Block | None:
    """Return the memory that an address lies in; None for the host's ordinary memory."""
    with _lock:
        at = bisect.bisect_right(_starts, pointer) - 1
        if at < 0:
            return None
        block = _blocks[_starts[at]]
    return block if pointer < block.pointer + block.size else None


def view(pointer: int, nbytes: int, device: bool | None = True) -> np.ndarray:
    """Return bytes as a NumPy array, from a stream: of device memory, of the host's, or of either.

    Raises
    ------
    CUDARuntimeError
        If they do not lie there: an illegal address.
    """
    if nbytes == 0:
        return np.empty(0, np.uint8)
    block = find(pointer)
    if block is not None:
        start = pointer - block.pointer
        if start + nbytes > block.size or (device is not None and device != (block.device >= 0)):
            raise CUDARuntimeError(700)
        return block.bytes[start : start + nbytes]
    if device or not pointer:
        raise CUDARuntimeError(700)
    return np.frombuffer((ctypes.c_char * nbytes).from_address(pointer), np.uint8)
