"""The sources of a run's communicators, and the choice of the memory of its arrays. For `sweep`.

NCCL and MPI never use a device at the same time, so a run with both opens one communicator after
the other. Each is opened twice: to see what it can do, and to measure.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpccomm.bench.perf.names import AUTO, DEVICE, HOST, NCCL
from hpccomm.bench.perf.options import Options

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


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
    if options.arrays == AUTO and not any(each.what.moves for each in options.collectives):
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
