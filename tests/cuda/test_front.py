"""The front end's cases on device arrays: once, on two MPI ranks.

By NCCL, or by another way what NCCL does not do; by every way where what is right differs between them.
"""

from typing import TYPE_CHECKING

import pytest
from chosen import each_value
from nccl_ranks import run_ranks
from together import Cases, run_all, run_over_mpi, skip_missing, together

import front
from hpccomm.testing.conformance import devices
from hpccomm.testing.conformance.devices import NCCL, PATHS, STAGED

if TYPE_CHECKING:
    import hpccomm

RANKS = 2

RUNS = {way: [case for of, case in front.device_runs() if of == way] for way in PATHS}

ON_THREADS = [
    (backend, name, cases)
    for way, backend in ((NCCL, "nccl"), (STAGED, "loopback"))
    for name, cases in together(
        case for case in front.device_own() if not devices.left_out(case.name, way, front.LEFT_OUT)
    )
]
"""What only devices do; CUDA-aware MPI is for processes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `test_front` its cases, or one that is skipped."""
    if metafunc.function is not test_front:
        return
    config = metafunc.config
    everything = config.getoption("--all")
    each = [
        pytest.param(way, part, id=f"{way}-{name}")
        for way, cases in RUNS.items()
        for name, part in together(cases if everything else each_value(cases))
    ]
    if not config.getoption("--with-mpi"):
        each = each[:1]  # is skipped
    elif not everything:
        from mpi4py import MPI

        if MPI.COMM_WORLD.size != RANKS:
            skip = pytest.mark.skip(reason=f"runs on {RANKS} ranks, or with --all")
            each = [pytest.param("", [], id="none", marks=skip)]
    metafunc.parametrize(("way", "cases"), each)


@pytest.mark.mpi
def test_front(
    way: str, cases: Cases, comm: "hpccomm.Communicator", request: pytest.FixtureRequest
) -> None:
    skip_missing(cases)
    run_over_mpi(request, comm, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("backend", "cases"),
    [(backend, cases) for backend, _, cases in ON_THREADS],
    ids=[f"{backend}-{name}" for backend, name, _ in ON_THREADS],
)
def test_what_only_devices_do(backend: str, cases: Cases, size: int) -> None:
    skip_missing(cases)
    run_ranks(size, run_all, cases, timeout=60, backend=backend)


def test_each_case_that_is_left_out_exists() -> None:
    every = [*front.cases(), *front.device_own()]
    assert devices.unused(every, front.LEFT_OUT) == []


def test_each_case_that_no_way_runs_has_a_reason() -> None:
    run = {case.name for _, case in front.device_runs()}
    for case in (*front.cases(), *front.device_own()):
        reasons = [devices.left_out(case.name, way, front.LEFT_OUT) for way in PATHS]
        assert case.name in run or all(reasons)
