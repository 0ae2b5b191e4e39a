"""The front end's cases of device arrays, by each of the three ways: on two MPI ranks, and on threads."""

import pytest
from chosen import each_value
from nccl_ranks import run_ranks
from together import run_all, run_over_mpi, skip_missing, together

import front

RANKS = 2

EACH = [
    pytest.param(way, part, id=f"{way}-{name}")
    for way in front.PATHS
    for name, part in together(each_value(front.device_cases(way)))
]

ON_THREADS = [
    pytest.param(backend, part, id=f"{backend}-{name}")
    for way, backend in ((front.NCCL, "nccl"), (front.STAGED, "loopback"))
    for name, part in together(front.device_cases(way))
]
"""CUDA-aware MPI is for processes."""


@pytest.mark.mpi
@pytest.mark.parametrize(("way", "cases"), EACH)
def test_front(way, cases, comm, request):
    skip_missing(cases)
    run_over_mpi(request, comm, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("backend", "cases"), ON_THREADS)
def test_on_threads(backend, cases, size):
    skip_missing(cases)
    run_ranks(size, run_all, cases, timeout=60, backend=backend)
