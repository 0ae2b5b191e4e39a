"""jobs/gpu_acceptance.sh: what it does where there is no GPU, and its own logic on the stand-in."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import launch_environment

from hpccomm.results import reader

SCRIPT = Path(__file__).parents[1] / "jobs/gpu_acceptance.sh"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the environment that the script makes and the next run finds."""
    return str(tmp_path_factory.mktemp("environment") / "venv")


def accept(
    folder: Path, *arguments: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it, and return its verdicts too."""
    environment = launch_environment() | {
        "HPCCOMM_PYTHON": sys.executable,
        "HPCCOMM_VENV": str(folder / "venv"),
        "PIP_NO_INDEX": "1",  # all that it needs is here
    }
    done = subprocess.run(
        ["bash", SCRIPT, "--output", folder / "out", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        env=environment | variables,
    )
    summary = done.stdout.partition("== summary")[2]
    return done, re.findall(r"^ +((?:PASS|FAIL|INFO)  .*)$", summary, re.MULTILINE)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_without_a_gpu_it_says_so_and_makes_nothing(tmp_path: Path) -> None:
    done, _ = accept(tmp_path)
    assert done.returncode == 2
    assert "error: there is no NVIDIA driver" in done.stderr
    assert "Run this on a machine with an NVIDIA GPU" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "misuse", [["--ranks", "0"], ["--stages", "everything"], ["--output"], ["--fast"]]
)
def test_misuse(tmp_path: Path, misuse: list[str]) -> None:
    done, _ = accept(tmp_path, *misuse)
    assert done.returncode == 2
    assert "gpu_acceptance.sh: error: " in done.stderr


@pytest.mark.thorough
def test_a_sweep_and_what_has_a_limit_on_the_stand_in(tmp_path: Path, environment: str) -> None:
    stages = "perf,overhead,bandwidth,overlap"
    done, verdicts = accept(
        tmp_path, "--stand-in", "--ranks", "2,1", "--stages", stages, HPCCOMM_VENV=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = "\n".join(verdicts)
    assert "INFO  2 ranks share 1 GPU(s) by NCCL_MULTI_RANK_GPU_ENABLE=1" in text
    assert len(re.findall(r"PASS  perf .*: every result right", text)) == 6

    summary = (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert "Nothing here ran on a GPU." in summary
    assert text in summary
    for fact in ("device 0", "driver", "NCCL", "CuPy", "MPI"):
        assert fact in summary
    assert (tmp_path / "out/log.txt").read_text(encoding="utf-8") == done.stdout
    runs = reader.read(tmp_path / "out/perf.h5")
    assert len(runs) == 6
    assert {run.status for run in runs} == {"completed"}

    # Times on a stand-in are none, so that no limit holds, but all must be there.
    for name in ("comm.all_reduce(x)", "plan()"):
        assert re.search(rf"INFO  {re.escape(name)} over CuPy's allReduce: -?[\d.]+ us", text)
    assert re.search(r"INFO  graph replay of comm.all_reduce", text)
    assert re.search(r"INFO  perf all_reduce .* of the bare loop's bandwidth", text)
    overlap = (
        r"INFO  together they take [\d.]+ x the longer \(ranks share|INFO  the two are too uneq"
    )
    assert re.search(overlap, text)


@pytest.mark.thorough
def test_ranks_share_a_device_as_the_version_lets_them(tmp_path: Path, environment: str) -> None:
    done, verdicts = accept(
        tmp_path,
        "--stand-in",
        "--ranks",
        "2",
        "--stages",
        "overlap,overhead",
        STANDIN_NCCL_VERSION="22501",
        HPCCOMM_VENV=environment,
    )
    assert verdicts[0] == "INFO  2 ranks share 1 GPU(s) by a NCCL_HOSTID of its own for each"
    # What was asked for and not done is no pass.
    assert [each for each in verdicts if not each.startswith("INFO")] == [
        "FAIL  overhead: not measured; it takes 1 rank, and there were none of --ranks that could run"
    ]
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.thorough
def test_what_cannot_be_done_is_a_verdict_and_the_exit_status(
    tmp_path: Path, environment: str
) -> None:
    """NCCL that rank 1 cannot use, and a benchmark that cannot begin."""
    faults = {"STANDIN_FAIL_INIT": "1", "HPCCOMM_TIMEOUT": "no number"}
    done, verdicts = accept(
        tmp_path,
        "--stand-in",
        "--ranks",
        "1,2",
        "--stages",
        "overhead",
        HPCCOMM_VENV=environment,
        **faults,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts[0].startswith("FAIL  2 ranks cannot share 1 GPU(s)")
    assert verdicts[1].startswith("FAIL  device_overhead.py, 1 ranks: exit status 1")
    assert "HPCCOMM_TIMEOUT is 'no number'" in done.stdout
