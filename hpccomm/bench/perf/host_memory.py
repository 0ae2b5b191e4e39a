"""Arrays in host memory, and how perf measures calls on them.

`hpccomm.bench.perf.sources` chooses between it and `device_memory`; both are a `MemoryKind`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.bench.perf import memory_use, timing, verification
from hpccomm.bench.perf.memory_kind import HOST, ON_HOST, Array, DeviceDescription
from hpccomm.bench.perf.timing import Call, RankTimes
from hpccomm.dtypes import DType
from hpccomm.results import origin
from hpccomm.results.schema import Config

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class HostMemory:
    """Arrays of one rank, over one communicator: made, filled, timed, compared.

    These are NumPy's, and calls on them return when they are done. `DeviceMemory` does the same with
    CuPy's.

    Attributes
    ----------
    name : str
        `HOST` or `DEVICE`.
    usage : str
        Title of the line that reports the memory in use.
    at_once : bool
        Whether a batch is carried out at once, so that its operations need arrays of their own.
    multiplies : bool
        Whether averages of floats are sums of contributions multiplied before (see `CheckedData`).
    slots : tuple of array
        The measured memory; another communicator of the same ranks may use it too.
    barrier : callable
        A barrier of all measuring ranks: of the communicator, or of all groups.
    """

    name = HOST
    usage = "Host memory usage"
    at_once = False
    multiplies = False

    def __init__(self, comm: "Communicator", config: Config) -> None:
        self._comm = comm
        self._config = config
        self.barrier: Call = comm.barrier
        self.slots: tuple[Array, ...] = ()

    def entered(self) -> AbstractContextManager[None]:
        """Return the context of all other methods."""
        return nullcontext()

    def backend(self) -> str:
        """Return the name of the backend that moves such arrays, as it is printed."""
        return self._comm.backends["host"] or ""

    def some(self, count: int, dtype: DType) -> Array:
        """Return an array like the measured ones, with any contents."""
        return np.empty(count, dtype)

    def description(self) -> DeviceDescription:
        """Return this rank's device for the header. Local."""
        return ON_HOST

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that only such arrays need. Local."""
        return {}

    def capacity(self) -> tuple[str, int]:
        """Return the name of where memory is taken from, and the bytes available there."""
        return origin.host(), memory_use.available()

    def in_use(self) -> int:
        """Return the bytes in use, for ``-M``: on the host, the most that this process ever had."""
        return memory_use.peak()

    def allocate(self, largest: int) -> None:
        """Make the slots, `memory_use.SLOTS` of them, for `largest` bytes each, all zeros. Local."""
        empty = self._comm.empty if self._config.local_register else np.empty
        size = memory_use.slot_bytes(largest, self._config.unalign)
        arena: Array = empty(memory_use.arena_bytes(size), np.uint8)
        arena[:] = 0
        self.slots = memory_use.cut(arena, arena.ctypes.data, size)

    def release(self) -> None:
        """Release the slots."""
        self.slots = ()

    def view(self, slot: int, first: int, count: int, dtype: DType) -> Array:
        """Return `count` elements from byte `first` of a slot on."""
        return self.slots[slot][first : first + count * dtype.itemsize].view(dtype)

    def clear(self, slot: int, nbytes: int) -> None:
        """Put zeros at the start of a slot."""
        self.slots[slot][:nbytes] = 0

    def spread(self, slot: int, first: int, nbytes: int, times: int) -> None:
        """Repeat bytes of a slot behind themselves until there are `times` copies of them."""
        every = self.slots[slot][first : first + times * nbytes].reshape(times, nbytes)
        every[1:] = every[0]

    def copy(self, out: Array, x: Array) -> None:
        """Copy an array within the timed block."""
        np.copyto(out, x)

    put = staticmethod(verification.put_block)
    read = staticmethod(verification.read_block)

    def settle(self) -> None:
        """Do nothing: a call on host arrays is done when it returns."""

    @property
    def after(self) -> Call | None:
        """The function called after each operation, in the time (``-z``)."""
        return self.barrier if self._config.blocking_collectives == 1 else None

    def time(self, calls: Sequence[Call], samples: bool) -> tuple[RankTimes, Call | None]:
        """Time a block of repetitions, and each of them if `samples` is true.

        Collective; blocks until all is done. It returns also what runs the block once more, where that was
        recorded to be replayed.
        """
        if self._config.blocking_collectives == 3:
            _, seconds = timing.one_by_one(calls, after=self.barrier)
        else:
            seconds = timing.back_to_back(calls)
        mean = float(seconds.mean())
        return RankTimes(mean, mean, seconds), None
