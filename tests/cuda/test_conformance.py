"""MPI ranks do on device arrays what every backend must do, by each of the three ways.

By default two ranks take some cases, in which each value of each parameter is seen once, and each
behaviour by NCCL and by one of the ways of host arrays, or by all where devices alone have it. Other
numbers of ranks see each behaviour by one way, and more where it takes more than two ranks. ``--all``
takes all cases, or with ``--share`` more of them. With ``--exactly`` the shares make up all cases together.
"""

from collections.abc import Hashable, Iterable
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from chosen import behaviour_of, cover, values_of_case
from together import Cases, run_over_mpi, skip_missing, together

from hpccomm.testing import conformance
from hpccomm.testing.conformance.devices import PATHS

if TYPE_CHECKING:
    import hpccomm

Run = tuple[str, conformance.Case]
"""A way of device arrays, and a case."""

EVERY: list[Run] = [(way, case) for way in PATHS for case in conformance.device_cases(way)]

SEEN: dict[str, set[str]] = {
    way: {behaviour_of(case) for of, case in EVERY if of == way} for way in PATHS
}
"""The behaviours that each way has."""

HOSTS = dict(zip(sorted(SEEN["mpi"] | SEEN["staged"]), cycle(("mpi", "staged")), strict=False))
"""Which of the ways of host arrays sees a behaviour, if it has it."""

RANKS = 2
"""What every case runs on that needs no more."""


def shows(run: Run) -> Iterable[Hashable]:
    """Return what one run suffices for."""
    way, case = run
    behaviour = behaviour_of(case)
    section = behaviour.rpartition(".")[0]
    yield way, section
    yield from values_of_case(case).items()
    # The dispatch of host arrays is one for both of its ways.
    turn = way if way == "nccl" or section.startswith("devices") else HOSTS[behaviour]
    if way == turn or behaviour not in SEEN[turn]:
        yield way, behaviour


def dealt(size: int) -> list[Run]:
    """Return the cases that so many ranks run by default."""
    possible = [run for run in EVERY if run[1].min_size <= size]
    if size == RANKS:
        return cover(possible, shows)

    def each_behaviour(run: Run) -> Iterable[Hashable]:
        yield behaviour_of(run[1])
        if run[1].min_size > RANKS:
            yield from shows(run)

    return cover(possible, each_behaviour)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test the cases that this number of ranks runs; with --all each is a test."""
    parts = [(way, case.name, [case]) for way, case in EVERY[:1]]  # is skipped, and says why
    config = metafunc.config
    if config.getoption("--with-mpi"):
        from mpi4py import MPI

        size = MPI.COMM_WORLD.size
        runs = dealt(size)
        if config.getoption("--all"):
            part, number = map(int, config.getoption("--share").split("/"))
            taken = {(way, case.name) for way, case in runs}
            share = EVERY[part::number]
            if config.getoption("--exactly"):
                runs = share
            else:
                runs += [run for run in share if (run[0], run[1].name) not in taken]
            parts = [(way, case.name, [case]) for way, case in runs if case.min_size <= size]
        else:
            parts = [
                (way, name, cases)
                for way in PATHS
                for name, cases in together(case for of, case in runs if of == way)
            ]
    each = [pytest.param(way, cases, id=f"{way}-{name}") for way, name, cases in parts]
    metafunc.parametrize(("way", "cases"), each)


@pytest.mark.mpi
def test_conformance(
    way: str, cases: Cases, comm: "hpccomm.Communicator", request: pytest.FixtureRequest
) -> None:
    skip_missing(cases)
    run_over_mpi(request, comm, cases)
