"""What stands between a communicator and the first measurement: its arrays, and the settings that they allow."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.bench.perf import memory_use
from hpccomm.bench.perf.memory_kind import HOST
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.sources import MemoryKind
from hpccomm.results.schema import Config

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


def allocate(comm: "Communicator", memory: MemoryKind, options: Options) -> None:
    """Make the arrays, where all ranks find the memory for them. Collective."""
    largest = options.sizes.largest
    batched = options.config.aggregated_iterations if memory.at_once else 1
    where, available = memory.room()
    needed = memory_use.needed(batched * largest, options.config.unalign)
    need = memory_use.Need(comm.node, where, needed, available)
    memory_use.require(comm.all_gather_object(need), largest, batched)
    memory.allocate(batched * largest)


def found_settings(
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
    # `Communicator.empty` gives ordinary arrays where there are no others.
    return replace(config, local_register=0), ("registered memory (-R)",)
