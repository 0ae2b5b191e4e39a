"""Tests of hpccomm's own front end: its work before and after any backend's.

Argument checks, what is returned, explained and observed, and each algorithm's arithmetic. These are
cases like those of ``hpccomm.testing.conformance``, which tests backends. They run on ranks that are
threads (``test_front.py``); those of device arrays, whose modules are named ``device_``, on the device
(``tests/cuda/test_front.py``).
"""

from importlib import import_module
from pkgutil import iter_modules

from hpccomm.testing.conformance.case import Behaviours, Case

MODULES = [
    import_module(f"{__name__}.{each.name}")
    for each in iter_modules(__path__)
    if not each.name.startswith("test_")
]
SECTIONS = [
    each for module in MODULES for each in vars(module).values() if isinstance(each, Behaviours)
]
DEVICE = "devices."
"""Begins the names of the sections of device arrays."""

NCCL, MPI, STAGED = PATHS = ("nccl", "mpi", "staged")
"""The values of ``comm.backends["cuda"]``."""

ONLY = {
    # The host takes part in each call of the other two.
    "devices.graphs.refused": (MPI, STAGED),
    "devices.graphs.": (NCCL,),
    "devices.streams.the_host_goes_on": (NCCL,),
    "devices.failures.a_call_that_does_not_block": (NCCL,),
    # Messages have tags there, and ring and tree are hpccomm's own.
    "devices.misuse.tags": (NCCL,),
    "devices.choices.pinned": (NCCL,),
}
"""Beginnings of the names of cases that are not for all ways of device arrays, and the ways that have them."""


def every_case() -> list[Case]:
    """Return every case of every module here, so that none is forgotten."""
    return [case for section in SECTIONS for case in section.cases]


def cases() -> tuple[Case, ...]:
    """Return every case of host arrays; no name is one of the conformance suite's."""
    return tuple(case for case in every_case() if not case.name.startswith(DEVICE))


def device_cases(way: str) -> list[Case]:
    """Return the cases of device arrays that go by `way`, one of `PATHS`."""
    of_devices = [case for case in every_case() if case.name.startswith(DEVICE)]
    return [case for case in of_devices if way in ways(case.name)]


def ways(name: str) -> tuple[str, ...]:
    """Return the ways that have a case of device arrays."""
    return next((each for start, each in ONLY.items() if name.startswith(start)), PATHS)
