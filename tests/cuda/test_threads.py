"""Ranks that are threads do on device arrays what every backend must do."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import pytest
from nccl_ranks import run_ranks

from hpccomm.testing import conformance
from hpccomm.testing.conformance import devices
from hpccomm.testing.conformance.devices import PATHS

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

CASES = {way: {case.name: case for case in conformance.device_cases(way)} for way in PATHS}

EVERY = [*conformance.cases(), *(case for each in devices.SECTIONS for case in each.cases())]

BACKEND = {"nccl": "nccl", "staged": "loopback"}
"""What makes threads take a way; CUDA-aware MPI is for processes."""


def test_each_case_that_is_left_out_exists() -> None:
    assert devices.unused(EVERY) == []


def test_each_case_that_no_way_runs_has_a_reason() -> None:
    run = {name for way in PATHS for name in CASES[way]}
    for case in EVERY:
        assert case.name in run or all(devices.left_out(case.name, way) for way in PATHS)


def dealt() -> Iterator["ParameterSet"]:
    """Return the cases. By default each behaviour runs on three ranks and on one, by turns of the ways.

    On two ranks, which are processes, all ways have all of them.
    """
    both = (
        name for name in CASES["nccl"] if name.startswith("devices.") and name in CASES["staged"]
    )
    for number, name in enumerate(both):
        for size, way in product((1, 3), BACKEND):
            turn = (number + size // 2) % 2 == (way == "nccl")
            yield pytest.param(name, size, way, marks=[] if turn else pytest.mark.thorough)


@pytest.mark.parametrize(("name", "size", "way"), list(dealt()))
def test_what_only_devices_do(name: str, size: int, way: str) -> None:
    case = CASES[way][name]
    if size < case.min_size:
        pytest.skip(f"needs {case.min_size} ranks")
    if reason := case.missing():
        pytest.skip(reason)
    run_ranks(size, case.run, timeout=60, backend=BACKEND[way])
