"""The recipes of docs/examples/recipes print what is known of their problems, and find what NumPy finds on one rank.

Prometheus' own parser reads the counters. NVIDIA's package nvtx is played: no profiler shows its ranges here.

The programs run as they are on ranks of MPI, where this file starts them. What they print shows that most are right:
a residual, a sum of forces that is 0, the figures of the glider. The others are checked on ranks that are threads.
"""

import itertools
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

import hpccomm
from hpccomm.testing import run_ranks

if TYPE_CHECKING:
    from conftest import Mpiexec

FOLDER = Path(__file__).parents[2] / "docs/examples/recipes"
sys.path.append(str(FOLDER))


class RecordedRanges:
    """Plays the package nvtx: a range is known by what begins it, and ends once."""

    def __init__(self) -> None:
        self.numbers, self.ended = itertools.count(), list[str]()
        self.begun: dict[int, str] = {}

    def start_range(self, message: str, domain: str) -> int:
        self.begun[number := next(self.numbers)] = f"{domain}: {message}"
        return number

    def end_range(self, number: int) -> None:
        self.ended.append(self.begun.pop(number))


sys.modules["nvtx"] = NVTX = RecordedRanges()  # type: ignore[assignment]

import nvtx_ranges  # noqa: E402
import sample_sort  # noqa: E402
import transpose_fft  # noqa: E402

MATRIX = np.random.default_rng(3).normal(size=(60, 120))


def rows(comm: hpccomm.Communicator, x: np.ndarray) -> np.ndarray:
    """Return the rank's share of x, as even as may be."""
    return np.array_split(x, comm.size)[comm.rank]


def whole(comm: hpccomm.Communicator, part: np.ndarray) -> np.ndarray:
    return np.concatenate(comm.all_gather_object(part))


def check_transpose_and_fft(comm: hpccomm.Communicator) -> None:
    own = rows(comm, MATRIX)
    np.testing.assert_array_equal(whole(comm, transpose_fft.transpose(comm, own)), MATRIX.T)
    columns = whole(comm, transpose_fft.fft2(comm, own))
    np.testing.assert_allclose(columns.T, np.fft.fft2(MATRIX), atol=1e-9)


def check_sample_sort(comm: hpccomm.Communicator) -> None:
    for kind, count in (("even", 300), ("equal", 200), ("of one rank", 500 * (comm.rank == 0))):
        numbers = np.random.default_rng(comm.rank).integers(0, 1 if kind == "equal" else 400, count)
        part = sample_sort.sample_sort(comm, numbers)
        np.testing.assert_array_equal(whole(comm, part), np.sort(whole(comm, numbers)))
        if kind == "even":
            assert len(part) < 2 * 300


def check_counters_for_prometheus(comm: hpccomm.Communicator) -> None:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_counters import CallCounters

    registry, name = CollectorRegistry(), 'a "b"\n\\'
    with comm.dup(name=name) as other:
        registry.register(CallCounters(other))
        for _ in range(3):
            other.all_reduce(np.ones(4))
        other.all_reduce(np.ones(1000), async_op=True).wait()
        text = generate_latest(registry).decode()
    families = list(text_string_to_metric_families(text))
    assert {each.type for each in families} == {"counter"}
    own = {"call": "all_reduce", "communicator": name, "rank": str(comm.rank)}
    sums: dict[str, dict[str, float]] = {}
    for sample in (sample for each in families for sample in each.samples):
        if own.items() <= sample.labels.items() and sample.name.endswith("_total"):
            sums.setdefault(sample.name, {})[sample.labels["size"]] = sample.value
    assert sums["hpccomm_calls_total"] == {"to 1 KiB": 3, "to 64 KiB": 1}
    assert sums["hpccomm_bytes_total"] == {"to 1 KiB": 96, "to 64 KiB": 8000}
    assert all(0 < each < 100 for each in sums["hpccomm_seconds_total"].values())


def check_ranges_for_nvtx(comm: hpccomm.Communicator) -> None:
    name = f"shown to {comm.size}"
    awaited = f"hpccomm: all_reduce 32 bytes, {name}"
    with comm.dup(name=name) as shown:
        nvtx_ranges.show_calls(shown)
        shown.all_gather(np.ones(1))
        if comm.rank:
            comm.barrier()
        work = shown.all_reduce(np.ones(4), async_op=True)
        if comm.rank == 0:
            assert comm.size == 1 or awaited in NVTX.begun.values(), "the others have not come"
            comm.barrier()
        work.wait()
        shown.all_gather(np.ones(2))
        comm.barrier()
    assert [each for each in NVTX.begun.values() if each.endswith(name)] == []
    ended = [each for each in NVTX.ended if each.endswith(name)]
    assert (len(ended), ended.count(awaited)) == (3 * comm.size, comm.size)


CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}
NEEDS = ("scipy", "prometheus_client")


@pytest.mark.values
@pytest.mark.parametrize("ranks", range(1, 7))
@pytest.mark.parametrize("name", CHECKS)
def test_a_recipe_finds_what_one_process_finds(name: str, ranks: int) -> None:
    if "prometheus" in name:
        pytest.importorskip("prometheus_client")
    run_ranks(ranks, CHECKS[name])


@pytest.mark.slow("the ranks run all recipes")
@pytest.mark.parametrize(
    "ranks", [3, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 4, 5, 6))]
)
def test_the_recipes_run_under_mpi(shared_job: "Mpiexec", ranks: int, tmp_path: Path) -> None:
    for package in NEEDS:
        pytest.importorskip(package)
    done = shared_job(ranks, __file__, str(tmp_path / "samples.h5"))
    assert done.returncode == 0, done.stdout + done.stderr
    with h5py.File(tmp_path / "samples.h5") as file:
        assert len(file["samples"]) == ranks * 100_000
    for rank in range(ranks):
        assert "hpccomm_calls_total{" in (tmp_path / f"samples.{rank}.prom").read_text()
    for pattern in (
        r"energy before (\d+\.\d+), after \1\n",
        rf"rank {ranks - 1}: \d+ numbers",
        r"the product with ones sums to 400:",
        r"\d+ steps; the largest residual is \d\.\de-(0[89]|1\d)\n",
        r"the longest takes 181 steps\n",
        r"the sum of all forces, which is 0: \d\.\de-(0\d|1\d)\n",
        r"pi is about 3\.1[34]",
        r"the plate has 19\.6385 degrees on average",
        r"\n # \n  #\n###\n",
    ):
        assert re.search(pattern, done.stdout), (pattern, done.stdout)


if __name__ == "__main__":
    for program in sorted(FOLDER.glob("*.py")):
        runpy.run_path(str(program), run_name="__main__")
