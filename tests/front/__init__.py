"""Tests of hpccomm's own front end: its work before and after any backend's.

Argument checks, what is returned, explained and observed, and each algorithm's arithmetic. These are
cases like those of ``hpccomm.testing.conformance``, which tests backends. They run on ranks that are
threads (``test_front.py``); those of device arrays, whose modules are named ``device_``, on the device
(``tests/cuda/test_front.py``).
"""

from front import (
    algorithms,
    arrays,
    as_they_are,
    calls,
    creation,
    deterministic,
    device_asynchronous,
    device_calls,
    device_choices,
    device_failures,
    device_frameworks,
    device_graphs,
    device_misuse,
    device_registered,
    device_streams,
    failures,
    in_flight,
    locations,
    misuse,
    misused_arrays,
    numbers,
    objects,
    observers,
    plans,
    refusals,
    shared_memory,
    turns,
    uneven,
    windows,
    works,
)
from hpccomm.testing.conformance.case import Behaviours, Case

SECTIONS: tuple[Behaviours, ...] = (
    calls.CALLS,
    algorithms.ALGORITHMS,
    deterministic.DETERMINISTIC,
    locations.LOCATIONS,
    uneven.UNEVEN,
    objects.OBJECTS,
    works.WORKS,
    in_flight.IN_FLIGHT,
    plans.PLANS,
    creation.CREATION,
    arrays.ARRAYS,
    arrays.OF_TORCH,
    as_they_are.AS_THEY_ARE,
    numbers.NUMBERS,
    turns.TURNS,
    windows.WINDOWS,
    shared_memory.SHARED_MEMORY,
    observers.OBSERVERS,
    misuse.MISUSE,
    misused_arrays.ARRAYS,
    refusals.WINDOWS,
    refusals.GROUPS,
    failures.FAILURES,
)

DEVICE_SECTIONS: tuple[Behaviours, ...] = (
    device_streams.STREAMS,
    device_asynchronous.ASYNCHRONOUS,
    device_calls.CALLS,
    device_choices.CHOICES,
    device_graphs.GRAPHS,
    device_frameworks.FRAMEWORKS,
    device_frameworks.OF_TORCH,
    device_misuse.MISUSE,
    device_registered.REGISTERED,
    as_they_are.ON_DEVICE,
    device_failures.FAILURES,
)

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


def cases() -> tuple[Case, ...]:
    """Return every case of host arrays; no name is one of the conformance suite's."""
    return tuple(case for section in SECTIONS for case in section.cases())


def device_cases(way: str) -> list[Case]:
    """Return the cases of device arrays that go by `way`, one of `PATHS`."""
    every = [case for section in DEVICE_SECTIONS for case in section.cases()]
    return [case for case in every if way in ways(case.name)]


def ways(name: str) -> tuple[str, ...]:
    """Return the ways that have a case of device arrays."""
    return next((each for start, each in ONLY.items() if name.startswith(start)), PATHS)
