"""Making communicators: values that must be equal on all ranks, and refusals."""

import math
from typing import Any

import numpy as np

from hpccomm import CommOptions, Communicator
from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import another

CREATION = Behaviours("creation")


@CREATION.behaviour()
def options(comm: Communicator) -> None:
    """Options and a deadline that fit are taken."""
    chosen = CommOptions(self_check=False, slow_call=math.inf, algorithm="auto")
    with another(comm, timeout=math.inf, options=chosen) as other:
        equal(other.all_reduce(np.ones(2)), np.full(2, float(comm.size)))
    with another(comm, timeout=30, options=CommOptions(algorithm="linear")) as other:
        equal(other.all_reduce(np.ones(2)), np.full(2, float(comm.size)))
        assert other.explain("all_reduce", np.ones(2)).algorithm == "linear", "the setting holds"


@CREATION.behaviour(min_size=2)
def settings_that_differ(comm: Communicator) -> None:
    """They raise `ConfigurationError` on every rank, which names the setting and both values."""
    last = comm.rank == comm.size - 1
    with raises(ConfigurationError, "timeout", "50", "60"):
        another(comm, timeout=60.0 if last else 50.0)
    settings: dict[str, tuple[Any, Any]] = {
        "self_check": (False, True),
        "segment": (64, 128),
        "algorithm": ("auto", "linear"),
        "shared_memory": ("staging", "off"),
        "shared_memory_room": (4096, 8192),
        "tuning_file": ("", "none.h5"),
    }
    for name, values in settings.items():
        with raises(ConfigurationError, name, *map(str, values)):
            another(comm, options=CommOptions(**{name: values[last]}))
    comm.barrier()


@CREATION.behaviour()
def unknown_hints(comm: Communicator) -> None:
    """A hint that the backend does not know is refused on every rank, by name."""
    with raises(UsageError, "hints", "no_such", str(comm.backends["host"])):
        another(comm, options=CommOptions(hints={"no_such": "1"}))
    comm.barrier()


@CREATION.behaviour()
def no_memory_is_reached(comm: Communicator) -> None:
    """Switched off, the algorithm that needs it is refused; registered arrays are as good as others."""
    with another(comm, options=CommOptions(self_check=False, shared_memory="off")) as unshared:
        x = unshared.empty(4, np.float32)
        x.fill(1)
        with raises(UsageError, "'shm'", "auto"):
            unshared.all_reduce(x, algorithm="shm")
        equal(unshared.all_reduce(x), np.full(4, comm.size, np.float32))
