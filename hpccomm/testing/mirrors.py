"""NumPy arrays with a twin in device memory, so that a test for the host runs on a device.

The memory of an array, with all memory that views of it can reach, has one mirror on the device:
two views that overlap on the host overlap there. Readable memory goes to the device before a call,
written memory comes back after it, and nothing else in the mirror, nor beside it, may have changed.
`mirrored` uses it.
"""

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.library import cupy

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

GUARD = 256
"""Guard bytes before and behind an array's memory; CUDA aligns to this number."""

FILL = 0xA5

TO_DEVICE, TO_HOST = 1, 2
"""cudaMemcpyHostToDevice and cudaMemcpyDeviceToHost."""


class Mirror:
    """Device memory that stands for the memory of one array.

    Parameters
    ----------
    root : ndarray
        A contiguous array, not a view of another.
    memory : array, optional
        In device memory, of the size of `root`; None makes one, with guards.

    Attributes
    ----------
    start : int
        Address of the array's first byte on the host.
    nbytes : int
        Of the array.
    pointer : int
        Address of its twin.
    memory : array
        What holds the device memory.
    """

    def __init__(self, root: Array, memory: Any = None) -> None:
        self.start = address_of(root)
        self.nbytes = root.nbytes
        self._guard = GUARD if memory is None else 0
        self.memory = cupy().empty(self.nbytes + 3 * GUARD, np.uint8) if memory is None else memory
        base = int(self.memory.data.ptr)
        # Aligned as on the host: an odd address stays odd.
        self.pointer = base + (GUARD + (self.start - base) % GUARD if self._guard else 0)
        self._lock = threading.Lock()
        self._users = 0
        self._expected = np.empty(0, np.uint8)
        self._spoilt = False

    def send(self, x: Array, stream: int) -> object:
        """Put the bytes of `x`, or all if no call is under way, where their twins are.

        Returns
        -------
        object
            What must live until the stream is done with it.
        """
        with self._lock:
            if self._users:
                at, data = address_of(x) - self.start, _bytes(address_of(x), x.nbytes).copy()
                where = self._guard + at
                self._expected[where : where + len(data)] = data
            else:
                guard = np.full(self._guard, FILL, np.uint8)
                inside = _bytes(self.start, self.nbytes)
                data = np.concatenate([guard, inside, guard])
                at, self._expected, self._spoilt = -self._guard, data.copy(), False
            self._users += 1
        _copy(self.pointer + at, address_of(data), len(data), TO_DEVICE, stream)
        return data

    def receive(self, x: Array, stream: int) -> None:
        """Bring the twin of `x` to the host. Blocks."""
        at = address_of(x) - self.start
        data = self._read(at, x.nbytes, stream)
        _bytes(address_of(x), x.nbytes)[:] = data
        with self._lock:
            self._expected[self._guard + at : self._guard + at + len(data)] = data

    def leave(self, stream: int, what: str, *, failed: bool) -> None:
        """Note the end of a call; after the last, assert that nothing else was written. Blocks."""
        with self._lock:
            self._users -= 1
            self._spoilt |= failed
            if self._users or self._spoilt:
                return
            guarded = self._read(-self._guard, self.nbytes + 2 * self._guard, stream)
            places = np.flatnonzero(guarded != self._expected) - self._guard
        assert not len(places), (
            f"{what}: {len(places)} bytes of device memory were written that are none of its "
            f"result, the first at byte {places[0]} of an array of {self.nbytes}"
        )

    def _read(self, at: int, nbytes: int, stream: int) -> Bytes:
        data = np.empty(nbytes, np.uint8)
        _copy(address_of(data), self.pointer + at, nbytes, TO_HOST, stream)
        finish(stream)
        return data


class Mirrors:
    """The mirrors of one rank's arrays.

    Parameters
    ----------
    device : int
        CUDA device.

    Attributes
    ----------
    stream : object
        A CuPy stream, for calls and what goes to the device before them.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        # Not the default stream, which would wait for the others and so hide that one does not.
        self.stream: Any = streams.make_stream(device, high_priority=False)
        self._back: Any = streams.make_stream(device, high_priority=False)
        self._of: dict[int, tuple[weakref.ref[Any], Mirror]] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the stream, and the device, the thread's current ones."""
        with streams.on_device(self.device), self.stream:
            yield

    @property
    def back(self) -> int:
        """Number of a stream for what comes from the device: no call is ever on it."""
        return int(self._back.ptr)

    def of(self, x: Array, memory: Any = None) -> Mirror:
        """Return the mirror of the memory of `x`; `memory` is on the device, where it is given."""
        root = root_of(x)
        number = id(root)
        known = self._of.get(number)
        if known is not None and known[0]() is root:
            return known[1]
        # The pool orders memory by the current stream: the one that will use it.
        with self.current():
            mirror = Mirror(root, memory)
        self._of[number] = weakref.ref(root, lambda _: self._of.pop(number, None)), mirror
        return mirror

    def twin(self, x: Array) -> Any:
        """Return the CuPy array that stands for `x`: of the same dtype, shape and strides."""
        mirror, module = self.of(x), cupy()
        memory = module.cuda.UnownedMemory(
            mirror.pointer, mirror.nbytes, mirror.memory, self.device
        )
        pointer = module.cuda.MemoryPointer(memory, address_of(x) - mirror.start)
        strides = None if x.flags.c_contiguous else x.strides
        return module.ndarray(x.shape, x.dtype, pointer, strides=strides)

    def fetch(self, x: Any) -> Array:
        """Return the elements of a C-contiguous CuPy array. Blocks."""
        out = np.empty(x.shape, x.dtype)
        _copy(address_of(out), x.data.ptr, out.nbytes, TO_HOST, self.back)
        finish(self.back)
        return out


def root_of(x: Array) -> Array:
    """Return the array whose memory `x` is a view of; or `x` itself."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def address_of(x: Array) -> int:
    """Return the address of the first element."""
    return int(x.__array_interface__["data"][0])


def finish(stream: int) -> None:
    """Wait for all work on the stream."""
    cupy().cuda.runtime.streamSynchronize(stream)


def _bytes(start: int, nbytes: int) -> Bytes:
    """Return the bytes at an address, to read and to write."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(start)), np.uint8)


def _copy(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    if nbytes:
        cupy().cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream)
