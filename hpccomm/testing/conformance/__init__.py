"""The suite for authors of backends: the promises of `hpccomm.contracts.backend` as test cases.

``python -m hpccomm.testing --backend mine --ranks 3`` runs it, and needs nothing else. With pytest, on the ranks of an
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

`Case.missing` returns the reason if the backend lacks an optional ability: windows, memory that
ranks share, or messages from any sender.

If ranks are threads of one process, ``hpccomm.testing.run_ranks(n, case.run)`` runs a case. Without
pytest, loop over `cases`; nothing here needs pytest.

There is one file for each protocol: ``collectives`` (`Backend.native`; the backend's facts and `Backend.group`),
``transport`` (`Transport` and `Arrivals`), ``window`` (`OneSided`), ``memory`` (`SharedMemory`) and ``survival``
(`Backend.abandon`, `SideChannel` and `Survival`). All of them use ``case`` and ``oracle``.

A case asserts on each rank what that rank sees, so it can fail on one rank and pass on another. A
runner of several cases on the same ranks must share each outcome between all ranks, and after a
failure stop, or begin a new communicator. Give `new_comm` a ``timeout`` of some seconds: then a
rank that would wait for ever raises an error that names the call.

Results are compared with those of NumPy, which every rank computes from all ranks' inputs. Before
the call, every element of an output differs from the expected result. Values are chosen so that
arithmetic is exact, and results must be equal; the few cases that tolerate an error say why.
"""

from hpccomm.testing.conformance import collectives, memory, survival, transport, window
from hpccomm.testing.conformance.case import Case

SECTIONS = (
    collectives.COLLECTIVES,
    transport.TRANSPORT,
    transport.ARRIVALS,
    window.WINDOW,
    memory.MEMORY,
    memory.SHARED_MEMORY,
    collectives.GROUPS,
    survival.SURVIVAL,
)
"""The files' cases in the order in which they run: simplest behaviours first, failing communicators last."""

__all__ = ["Case", "cases"]


def cases() -> tuple[Case, ...]:
    """Return every case, in an order that is the same everywhere.

    Returns
    -------
    tuple of Case
        Their names are unique.
    """
    return tuple(case for section in SECTIONS for case in section.cases)
