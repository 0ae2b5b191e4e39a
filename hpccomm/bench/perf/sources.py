"""Opens the communicators of a run, and chooses the memory of its arrays, the host's or a device's. For `sweep`.

NCCL and MPI never use a device at the same time, so a run with both opens one communicator after
the other. Each is opened twice: to see what it can do, and to measure.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.bench.perf import memory_use, timing, verification
from hpccomm.bench.perf.device_memory import DeviceMemory
from hpccomm.bench.perf.memory_kind import (
    AUTO,
    DEVICE,
    HOST,
    NCCL,
    ON_HOST,
    Array,
    DeviceDescription,
)
from hpccomm.bench.perf.options import Options
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
    backend : str
        Name of the backend that moves such arrays, as it is printed.
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
        self.backend = comm.backends["host"] or ""
        self.slots: tuple[Array, ...] = ()

    def entered(self) -> AbstractContextManager[None]:
        """Return the context of all other methods."""
        return nullcontext()

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


MemoryKind = HostMemory | DeviceMemory
"""Arrays of one kind, as `HostMemory` describes them."""


@dataclass(frozen=True, slots=True)
class CommSource:
    """Where a communicator comes from.

    Attributes
    ----------
    backend : str
        As requested.
    opened : callable
        Gives the communicator as a context manager. Collective; blocks.
    """

    backend: str
    opened: Callable[[], AbstractContextManager["Communicator"]]


def source_of(comm: "Communicator", backend: str = AUTO) -> CommSource:
    """Return the source of a communicator that is open, and stays so."""
    return CommSource(backend, lambda: nullcontext(comm))


def arrays_of_run(sources: Sequence[CommSource], options: Options) -> str:
    """Return where the arrays of a run lie: `HOST` or `DEVICE`. Collective; blocks.

    Raises
    ------
    UsageError
        If they are on the host, and a flag is for device arrays.
    """
    kind = kind_of_arrays(sources, options.arrays)
    if options.arrays == AUTO and not any(each.moves for each in options.collectives):
        kind = HOST  # a barrier is the host's, for arrays of any memory
    if kind == HOST:
        options.refuse_device_flags(
            "the arrays are in host memory; leave it out, or give --arrays device where there are GPUs"
        )
    return kind


def kind_of_arrays(sources: Sequence[CommSource], arrays: str) -> str:
    """Return where the arrays of a run lie: `HOST` or `DEVICE`. Collective; blocks.

    With ``auto`` they are in device memory if a backend is NCCL by name, or is ``auto`` and it
    found NCCL.
    """
    if arrays != AUTO:
        return arrays
    if any(source.backend == NCCL for source in sources):
        return DEVICE
    for source in sources:
        if source.backend == AUTO:
            with source.opened() as comm:
                if comm.backends["cuda"] == NCCL:
                    return DEVICE
    return HOST


def memory_of(kind: str, comm: "Communicator", options: Options) -> MemoryKind:
    """Return the memory of arrays of a kind over a communicator. Local.

    Raises
    ------
    BackendUnavailable
        If the communicator has no way for them.
    """
    if kind == DEVICE:
        return DeviceMemory(comm, options.config, options.timeout)
    return HostMemory(comm, options.config)


def allocate(comm: "Communicator", memory: MemoryKind, options: Options) -> None:
    """Make the arrays, where all ranks find the memory for them. Collective."""
    largest = options.sizes.largest
    batched = options.config.aggregated_iterations if memory.at_once else 1
    where, available = memory.capacity()
    needed = memory_use.needed(batched * largest, options.config.unalign)
    need = memory_use.Need(comm.node, where, needed, available)
    memory_use.require(comm.all_gather_object(need), largest, batched)
    memory.allocate(batched * largest)


def settings_in_effect(
    comm: "Communicator", memory: MemoryKind, options: Options
) -> tuple[Config, tuple[str, ...]]:
    """Return the settings as they could be followed, and what could not. Collective."""
    config = options.config
    if not config.local_register or memory.name == HOST:
        return config, ()
    some = memory.view(0, 0, 1, np.dtype(np.uint8))
    registered = comm.explain("all_reduce", some).registered
    if all(comm.all_gather_object(registered)):
        return config, ()
    # `Communicator.empty` gives ordinary arrays if it has no registered memory.
    return replace(config, local_register=0), ("registered memory (-R)",)
