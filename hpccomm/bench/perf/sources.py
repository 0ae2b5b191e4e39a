"""Opens the communicators of a run, and chooses the memory of its arrays. For `sweep`.

NCCL and MPI never use a device at the same time, so a run with both opens one communicator after
the other. Each is opened twice: to see what it can do, and to measure.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.bench.perf import memory_use
from hpccomm.bench.perf.device_memory import DeviceMemory
from hpccomm.bench.perf.host_memory import HostMemory
from hpccomm.bench.perf.memory_kind import AUTO, DEVICE, HOST, NCCL
from hpccomm.bench.perf.options import Options
from hpccomm.results.schema import Config

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


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
