"""Ranks that are threads do on device arrays what every backend must do."""

import pytest

from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance import devices
from hpccomm.testing.conformance.devices import WAYS

CASES = {way: {case.name: case for case in conformance.device_cases(way)} for way in WAYS}

EVERY = [*conformance.cases(), *(case for each in devices.SECTIONS for case in each.cases())]

BACKEND = {"nccl": "nccl", "staged": "loopback"}
"""What makes threads take a way; CUDA-aware MPI is for processes."""


def test_each_case_that_is_left_out_exists() -> None:
    assert devices.unused(EVERY) == []


def test_each_case_that_no_way_runs_has_a_reason() -> None:
    run = {name for way in WAYS for name in CASES[way]}
    for case in EVERY:
        assert case.name in run or all(devices.left_out(case.name, way) for way in WAYS)


@pytest.mark.pairs
@pytest.mark.standin  # NCCL refuses ranks of one process on one GPU
@pytest.mark.parametrize("way", BACKEND)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "name",
    [name for name in CASES["nccl"] if name.startswith("devices.") and name in CASES["staged"]],
)
def test_what_only_devices_do(name: str, size: int, way: str) -> None:
    case = CASES[way][name]
    if size < case.min_size:
        pytest.skip(f"needs {case.min_size} ranks")
    if reason := case.missing():
        pytest.skip(reason)
    run_ranks(size, case.run, timeout=20, backend=BACKEND[way])
