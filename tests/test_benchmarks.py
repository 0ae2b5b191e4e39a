"""The benchmarks run, check what their contenders do, and write what they say."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from conftest import Mpiexec

from hpccomm.results import reader

FOLDER = Path(__file__).parent.parent / "benchmarks"
COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "send_recv", "scan"),
)


def test_one_node(mpiexec: Mpiexec, tmp_path: Path) -> None:
    contenders = "gloo,memcpy,auto,registered,pages,staging,plan,linear"
    files = [tmp_path / name for name in ("run.h5", "run.svg", "run.rst")]
    done = mpiexec(
        2,
        *(FOLDER / "node.py", "--sizes", "8,64K", "--rounds", "2", "--contenders", contenders),
        *("--output", files[0], "--plot", files[1], "--rst", files[2]),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout

    (run,) = reader.read(files[0])
    assert run.status == "completed"
    measured = {(row.collective, row.algorithm) for row in run.rows}
    assert {collective for collective, _ in measured} == set(COLLECTIVES)
    for way in ("native", "copyto", "auto, plain", "shm, registered", "shm, pages", "shm, staging"):
        assert ("all_reduce", way) in measured
    assert ("gather", "linear, plain") in measured
    assert {row.wrong for row in run.rows} == {0}
    assert {row.bytes for row in run.rows} == {8, 32, 64 << 10}  # 32: blocks of the least size
    for index, row in enumerate(run.rows):
        samples = run.samples(index)
        assert samples.shape == (2, 2)
        assert row.time == pytest.approx(np.median(samples.max(axis=1)) * 1e6)

    assert files[1].read_text().count("speed over mpi4py") == len(COLLECTIVES)
    page = files[2].read_text()
    assert page.count(".. csv-table::") == len(COLLECTIVES)
    assert page.startswith(":library: ")


def test_several_nodes(mpiexec: Mpiexec) -> None:
    asked = ["--link", "1gbit", "--sizes", "64K", "--rounds", "2", "--contenders", "auto,ring"]
    done = mpiexec(3, FOLDER / "cluster.py", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the limit is that of a link of 1 Gbit/s a node" in done.stdout
    line = done.stdout.split("# broadcast in place")[1].splitlines()[2]
    # 64 KiB through 125 MB/s.
    assert "524.29" in line


@pytest.mark.parametrize(
    "command",
    [
        ["overhead.py", "--calls", "3", "--blocks", "2"],
        ["overlap.py", "--mebibytes", "1", "--sleep", "0.01", "--turns", "1"],
        ["import_time.py", "--turns", "1"],
    ],
    ids=lambda command: command[0],
)
def test_the_others(mpiexec: Mpiexec, command: list[str]) -> None:
    done = mpiexec(1 if command[0] == "import_time.py" else 2, FOLDER / command[0], *command[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= 3


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, collective: str) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    cases = importlib.import_module("contest.cases")
    case = cases.Case(collective, 256, 0, 4, apart=False)
    arrays = case.arrays(lambda count: np.zeros(count, np.float32))
    case.prepare(arrays)
    assert arrays.out is not None
    right = case._expected
    there = collective in ("broadcast", "scan")  # in place rank 0 has the result from the start
    assert case.wrong(arrays) == (0 if there else right.size)
    arrays.out[:] = right
    assert case.wrong(arrays) == 0
    arrays.out[-1] = 0.5
    assert case.wrong(arrays) == 1


def test_auto_beside_every_algorithm(mpiexec: Mpiexec) -> None:
    asked = ["--collectives", "broadcast,barrier", "-b", "8", "-e", "512", "-f", "8"]
    done = mpiexec(2, FOLDER / "auto.py", *asked, "--blocks", "2", "--seconds", "1e-5")
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: slower, on a busy machine
    assert done.stdout.count("best fixed choice") == 2
    assert done.stdout.count(" native ") >= 4
    assert "10% of the best at" in done.stdout
