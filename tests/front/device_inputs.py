"""Device arrays that hold each rank's input, and checks of their results."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpccomm import Communicator
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Array, equal

MANY = 5000
"""Elements of an array that is not the shortest."""


@contextmanager
def device_of(comm: Communicator) -> Iterator[Any]:
    """Give CuPy, with the communicator's device as the thread's current one."""
    module = cupy()
    with module.cuda.Device(comm.device):
        yield module


@contextmanager
def stream_of(comm: Communicator) -> Iterator[Any]:
    """Give a stream of its own that is the thread's current one, on the communicator's device."""
    with device_of(comm) as module:
        stream = module.cuda.Stream(non_blocking=True)
        with stream:
            yield stream
            stream.synchronize()


def ranks_sum(comm: Communicator) -> int:
    """Return 1 + 2 + ... + size: what an all-reduce makes of rank + 1."""
    return comm.size * (comm.size + 1) // 2


def filled(comm: Communicator, count: int = MANY, dtype: Any = np.float32) -> Any:
    """Return a new device array of rank + 1, put there on the current stream."""
    x = cupy().empty(count, dtype)
    x.fill(comm.rank + 1)
    return x


def full(value: object, count: int = MANY, dtype: Any = np.float32) -> Array:
    """Return the host's array of one value."""
    return np.full(count, value, dtype)


def gathered(comm: Communicator, count: int = MANY, dtype: Any = np.float32) -> Array:
    """Return the host's array of the gathered inputs of `filled`."""
    return np.repeat(np.arange(1, comm.size + 1, dtype=dtype), count).reshape(comm.size, count)


def holds(x: Any, expected: Array, what: str) -> None:
    """Assert the contents of a device array after the current stream's work. Blocks."""
    equal(x.get(), expected, what)
