"""Arrays in host memory, as perf measures them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf import facts, memory_use, timing
from hpccomm.bench.perf.memory_kind import HOST, ON_HOST, Array, DeviceDescription
from hpccomm.bench.perf.timing import Call, Timed
from hpccomm.dtypes import DType
from hpccomm.results.schema import Config

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class HostMemory:
    """NumPy arrays, and calls that return when they are done."""

    name = HOST
    usage = "Host memory usage"
    at_once = False
    multiplies = False

    def __init__(self, comm: "Communicator", config: Config) -> None:
        self._comm = comm
        self._config = config
        self._slots: tuple[Array, ...] = ()

    def entered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def backend(self) -> str:
        """Return the name of what moves host arrays."""
        return self._comm.backends["host"] or ""

    def some(self, count: int, dtype: DType) -> Array:
        """Return an array like those that are measured."""
        return np.empty(count, dtype)

    def description(self) -> DeviceDescription:
        """Return this rank's device for the header: host memory."""
        return ON_HOST

    def versions(self) -> dict[str, str]:
        """Return no versions: host arrays need no further libraries."""
        return {}

    def room(self) -> tuple[str, int]:
        """Return this node's name, and the bytes available on it."""
        return facts.host(), memory_use.available()

    def in_use(self) -> int:
        """Return the most memory that this process ever had."""
        return memory_use.peak()

    def allocate(self, largest: int) -> None:
        """Make the slots."""
        empty = self._comm.empty if self._config.local_register else np.empty
        size = memory_use.slot_bytes(largest, self._config.unalign)
        arena: Array = empty(memory_use.arena_bytes(size), np.uint8)
        arena[:] = 0
        self._slots = memory_use.cut(arena, arena.ctypes.data, size)

    def release(self) -> None:
        """Let go of the slots."""
        self._slots = ()

    def view(self, slot: int, first: int, count: int, dtype: DType) -> Array:
        """Return elements of a slot."""
        return self._slots[slot][first : first + count * dtype.itemsize].view(dtype)

    def clear(self, slot: int, nbytes: int) -> None:
        """Put zeros at the start of a slot."""
        self._slots[slot][:nbytes] = 0

    def spread(self, slot: int, first: int, nbytes: int, times: int) -> None:
        """Repeat bytes of a slot behind themselves until there are `times` copies of them."""
        every = self._slots[slot][first : first + times * nbytes].reshape(times, nbytes)
        every[1:] = every[0]

    def copy(self, out: Array, x: Array) -> None:
        """Copy an array."""
        np.copyto(out, x)

    def put(self, array: Array, at: int, block: NDArray[Any]) -> None:
        """Write a block into an array."""
        array[at : at + block.size] = block

    def read(self, array: Array, at: int, count: int) -> NDArray[Any]:
        """Return elements of an array."""
        part: NDArray[Any] = array[at : at + count]
        return part

    def settle(self) -> None:
        """Do nothing: what was called is done."""

    def time(self, operations: Sequence[Call], samples: bool) -> Timed:
        """Time a block of operations. Collective; blocks."""
        config, barrier = self._config, self._comm.barrier
        mode = config.blocking_collectives
        after = barrier if mode == 1 else None
        calls = timing.repetitions(
            operations, config.aggregated_iterations, self._comm.batch, after
        )
        if mode == 3:
            seconds = timing.each_after_a_barrier(calls, barrier)
        else:
            seconds = timing.back_to_back(calls)
        mean = float(seconds.mean())
        return Timed(mean, mean, seconds)
