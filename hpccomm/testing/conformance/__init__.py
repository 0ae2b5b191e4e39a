"""The required behaviour of every backend, as test cases: each behaviour is written once.

An author of a backend runs the suite on communicators that use it. With pytest, on the ranks of an
MPI job (each rank runs the same tests in the same order)::

    import pytest
    from hpccomm.testing import conformance

    @pytest.mark.parametrize("case", conformance.cases(), ids=lambda case: case.name)
    def test_conformance(case, comm):        # a fixture that gives hpccomm.new_comm("mine")
        if comm.size < case.min_size:
            pytest.skip(f"needs {case.min_size} ranks")
        if reason := case.missing(comm):
            pytest.skip(reason)
        case.run(comm)

`Case.missing` returns the reason if a module is not installed, or if the backend lacks an optional
ability: windows, memory that ranks share, or messages from any sender.

If ranks are threads of one process, ``hpccomm.testing.run_ranks(n, case.run)`` runs a case. Without
pytest, a loop over `cases` does; nothing here needs it.

A case asserts on each rank what that rank sees, so it can fail on one rank and pass on another. A
runner of several cases on the same ranks must share each outcome between all ranks, and stop, or
begin a new communicator, after a failure. Give `new_comm` a ``timeout`` of some seconds: a fault
that would make a rank wait for ever then ends with its place named.

A backend with a way for device arrays passes `device_cases` as well, on machines that have devices.

Results are compared with NumPy's, computed on every rank from all ranks' inputs. Outputs hold
something else in every element before the call. Values are chosen so that arithmetic is exact, and
comparison is for equality; the few cases that tolerate an error say why.
"""

from hpccomm.testing.conformance import (
    algorithms,
    arrays,
    arrivals,
    atomics,
    collectives,
    creation,
    deterministic,
    failures,
    groups,
    locations,
    messages,
    misuse,
    neighbors,
    objects,
    observers,
    plans,
    reductions,
    registered,
    shared_memory,
    uneven,
    windows,
    works,
)
from hpccomm.testing.conformance.case import Case
from hpccomm.testing.conformance.devices import device_cases

SECTIONS = (
    collectives.COLLECTIVES,
    reductions.REDUCTIONS,
    algorithms.ALGORITHMS,
    deterministic.DETERMINISTIC,
    locations.LOCATIONS,
    uneven.UNEVEN,
    neighbors.NEIGHBORS,
    messages.MESSAGES,
    arrivals.ARRIVALS,
    windows.WINDOWS,
    atomics.ATOMICS,
    objects.OBJECTS,
    works.WORKS,
    plans.PLANS,
    groups.GROUPS,
    creation.CREATION,
    arrays.ARRAYS,
    registered.REGISTERED,
    shared_memory.SHARED_MEMORY,
    observers.OBSERVERS,
    misuse.MISUSE,
    failures.FAILURES,
)
"""The suite, simplest behaviours first, failing communicators last."""

__all__ = ["Case", "cases", "device_cases"]


def cases() -> tuple[Case, ...]:
    """Return every case, in an order that is the same everywhere.

    Returns
    -------
    tuple of Case
        Names are unique.
    """
    return tuple(case for section in SECTIONS for case in section.cases())
