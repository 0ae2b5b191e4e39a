"""Tests of hpccomm's own front end: its work before and after any backend's.

Argument checks, what is returned, explained and observed. These are cases like those of
``hpccomm.testing.conformance``, which tests backends, in sections of the same names. They run once on
threads (``test_front.py``), once on MPI ranks (``tests/mpi/test_front.py``) and once on device arrays
(``tests/cuda/test_front.py``), and not on each backend and number of ranks.
"""

from front import (
    arrays,
    as_they_are,
    creation,
    device_choices,
    device_frameworks,
    device_misuse,
    fresh,
    in_flight,
    locations,
    misuse,
    misused_algorithms,
    misused_arrays,
    numbers,
    objects,
    observers,
    plans,
    refusals,
    turns,
    uneven,
    works,
)
from hpccomm.testing.conformance.case import Behaviours, Case
from hpccomm.testing.conformance.devices import (
    MPI,
    NCCL,
    PATHS,
    STAGED,
    LeftOut,
    left_out,
    mirrored,
)

SECTIONS: tuple[Behaviours, ...] = (
    locations.LOCATIONS,
    uneven.UNEVEN,
    objects.OBJECTS,
    works.WORKS,
    in_flight.IN_FLIGHT,
    plans.PLANS,
    creation.CREATION,
    arrays.ARRAYS,
    as_they_are.AS_THEY_ARE,
    fresh.FRESH,
    numbers.NUMBERS,
    turns.TURNS,
    observers.OBSERVERS,
    misuse.MISUSE,
    misused_algorithms.MISUSED,
    misused_arrays.ARRAYS,
    refusals.WINDOWS,
    refusals.ATOMICS,
    refusals.ARRIVALS,
    refusals.NEIGHBORS,
    refusals.GROUPS,
    refusals.REGISTERED,
    observers.FAILURES,
)

DEVICE_SECTIONS: tuple[Behaviours, ...] = (
    device_choices.CHOICES,
    device_frameworks.FRAMEWORKS,
    device_misuse.MISUSE,
    device_misuse.REGISTERED,
    as_they_are.ON_DEVICE,
)
"""What only device arrays do."""

LEFT_OUT = (
    LeftOut("windows. atomics. turns.", PATHS, "one-sided calls are for host memory"),
    LeftOut("arrivals.", PATHS, "only messages of host arrays and objects are looked for"),
    LeftOut(
        "in_flight.unknown in_flight.later in_flight.deadlines in_flight.an_abort",
        PATHS,
        "messages from any rank are of host arrays",
    ),
    LeftOut("in_flight.", (NCCL,), "a stream carries messages out in order, so receives come last"),
    LeftOut("locations.", PATHS, "values with their indices are reduced on the host"),
    LeftOut("registered.", PATHS, "of the host's memory; devices.registered is of the device's"),
    LeftOut(
        "numbers. objects. groups. creation.misuse creation.unknown_hints creation.settings_that "
        "misuse.hooks misuse.explanations observers.hooks_come_off observers.abort_hooks",
        PATHS,
        "no array takes part",
    ),
    LeftOut(
        "arrays.kinds arrays.read_only arrays.torch arrays.tensors",
        PATHS,
        "kinds of host arrays; devices.frameworks has the device's",
    ),
    LeftOut("as_they_are.", PATHS, "devices.as_they_are has the same cases"),
    LeftOut("misuse.streams", PATHS, "a stream is right for a device array"),
    LeftOut("misused_arrays.outputs[read_only", PATHS, "CuPy has no arrays that are read-only"),
    LeftOut(
        "plans.explain_is_local", PATHS, "it names the host path; devices.choices the device's"
    ),
    LeftOut(
        "failures.a_hook_that_raises",
        (NCCL,),
        "a call that does not block cannot raise its own timeout",
    ),
    LeftOut(
        "plans.planned_calls_in_a_batch",
        (NCCL,),
        "a batch is one group of NCCL's, whose calls may not touch what another one writes",
    ),
    LeftOut("devices.misuse.tags", (MPI, STAGED), "messages have tags there"),
    LeftOut("devices.choices.pinned", (MPI, STAGED), "ring and tree are hpccomm's own there"),
)
"""The cases that are not run on device arrays, and why."""

MANY_WAYS = ("devices.choices.", "devices.misuse.", "devices.as_they_are.")
"""Sections that every way of device arrays runs: what is right differs between the ways."""


def cases() -> tuple[Case, ...]:
    """Return every case of host arrays; no name is one of the conformance suite's."""
    return tuple(case for section in SECTIONS for case in section.cases())


def device_own() -> tuple[Case, ...]:
    """Return every case that takes device arrays itself."""
    return tuple(case for section in DEVICE_SECTIONS for case in section.cases())


def device_runs() -> list[tuple[str, Case]]:
    """Return cases on device arrays with their way: the first one that has the case, or each."""
    runs = []
    for case in (*map(mirrored, cases()), *device_own()):
        ways = [way for way in PATHS if left_out(case.name, way, LEFT_OUT) is None]
        runs += [(way, case) for way in (ways if case.name.startswith(MANY_WAYS) else ways[:1])]
    return runs
