"""Facts of Slurm: its settings, its plug-ins for MPI, and the resources of this node and job."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from hpccomm.tools.doctor.reading import Reading, run, why

PATIENCE = 4.0
"""Seconds for each command; they run side by side. Without a controller they would wait for minutes."""

_PAIRS = {"config": r"(?m)^(\S+) *= *(.*?) *$", "node": r"(\w+)=(\S+)"}
"""Patterns of the names and values that a command prints, by the fact that it gives."""

_KEPT = {
    "config": "GresTypes|LaunchParameters|MpiDefault|MpiParams|PrologFlags|ProctrackType|"
    "PropagateResourceLimits(Except)?|SelectType(Parameters)?|SLURM_VERSION|SrunPortRange|TaskPlugin(Param)?",
    "node": "CPUTot|CPUAlloc|Gres|RealMemory|State|Reason",
}
"""The names that are kept."""

_VARIABLES = re.compile(
    r"SLURM_(JOB_ID|STEP_ID|NTASKS|STEP_NUM_(TASKS|NODES)|JOB_NUM_NODES|CPUS_(ON_NODE|PER_TASK)|GPUS_ON_NODE|"
    r"HET_SIZE|NTASKS_HET_GROUP_\d+|MPI_TYPE|OVERCOMMIT)"
)


def variables() -> dict[str, str]:
    """Return Slurm's variables, without users and paths."""
    return {name: os.environ[name] for name in sorted(os.environ) if _VARIABLES.fullmatch(name)}


def gather(reading: Reading, patience: float = PATIENCE) -> None:
    """Read the facts, as far as its commands answer within `patience` seconds each."""
    given = variables()
    if shutil.which("scontrol") is None:
        if given:
            reading.put("variables", given)
        here = "Slurm's commands are not here, as in a container"
        reading.miss("", here if given else "Slurm is not installed here")
        return
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    commands = {
        "config": ["scontrol", "show", "config"],
        "node": ["scontrol", "--oneliner", "show", "node", node],
        "mpi_types": ["srun", "--mpi=list"],
    }
    with ThreadPoolExecutor(len(commands)) as pool:  # side by side
        said = dict(
            zip(commands, pool.map(partial(_answer, patience), commands.values()), strict=True)
        )
    problems = {name: problem for name, (_, problem) in said.items() if problem}
    if "configuration source" in " ".join(problems.values()) and not given:
        reading.miss("", "Slurm is installed, and no cluster is configured here")
        return
    reading.put("variables", given)
    for name, (text, problem) in said.items():
        if problem:
            reading.miss(name, f"{commands[name][0]}: {problem}")
        elif name in _PAIRS:
            pairs = re.findall(_PAIRS[name], text)
            kept = {each: value for each, value in pairs if re.fullmatch(_KEPT[name], each)}
            reading.put(name, kept)
        else:
            lines = [line.removeprefix("srun:").strip() for line in text.splitlines()]
            reading.put(name, [line for line in lines if re.fullmatch(r"[\w/]+", line)])
    if "not found" in problems.get("node", ""):  # such as a login node
        reading.miss("node", "this is not a node of Slurm's")
        del problems["node"]
    reading.put("problems", [f"{' '.join(commands[name])}: {problems[name]}" for name in problems])


def _answer(patience: float, command: list[str]) -> tuple[str, str]:
    """Return the output of a command, and why it failed."""
    try:
        done = run(command, patience)
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        return "", f"no answer within {patience:g} s" if late else why(error)
    text = done.stdout + done.stderr
    lines = text.strip().splitlines() or [f"status {done.returncode}"]
    return text, lines[-1] if done.returncode else ""
