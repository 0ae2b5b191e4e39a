"""What Slurm says: its settings, how it starts MPI, this node's resources, and what it gave to the job."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading, why

PATIENCE = 4.0
"""Seconds for each command; they run side by side. A controller that is down lets its commands wait for minutes."""

_SETTINGS = (
    *(
        "AccountingStorageTRES",
        "GresTypes",
        "JobAcctGatherType",
        "LaunchParameters",
        "MpiDefault",
        "MpiParams",
    ),
    *(
        "PrologFlags",
        "ProctrackType",
        "PropagateResourceLimits",
        "PropagateResourceLimitsExcept",
        "SelectType",
    ),
    *(
        "SelectTypeParameters",
        "SLURM_VERSION",
        "SlurmctldHost[0]",
        "SrunPortRange",
        "TaskPlugin",
        "TaskPluginParam",
    ),
)
_OF_NODE = ("CPUTot", "CPUAlloc", "Gres", "RealMemory", "State", "Reason")

VARIABLES = (
    *(
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_NTASKS",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_JOB_NUM_NODES",
    ),
    *(
        "SLURM_STEP_NUM_NODES",
        "SLURM_CPUS_ON_NODE",
        "SLURM_CPUS_PER_TASK",
        "SLURM_GPUS_ON_NODE",
        "SLURM_HET_SIZE",
    ),
    *("SLURM_MPI_TYPE", "SLURM_NTASKS_HET_GROUP_0", "SLURM_NTASKS_HET_GROUP_1", "SLURM_OVERCOMMIT"),
)


def gather(root: Path = Path("/")) -> dict[str, Any]:  # noqa: ARG001 (Slurm is asked by its commands)
    """Return the facts, as far as its commands answer in time."""
    reading = Reading()
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if shutil.which("scontrol") is None and not variables:
        reading.miss("", "there is no Slurm here")
        return reading.facts()
    reading.put("variables", variables)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    commands = {
        "config": ["scontrol", "show", "config"],
        "node": ["scontrol", "--oneliner", "show", "node", node],
        "mpi_types": ["srun", "--mpi=list"],
    }
    answers, problems = _answers(commands)
    if (
        problems
        and not variables
        and all("configuration source" in each for each in problems.values())
    ):
        reading.miss("", "Slurm is installed, and no cluster is configured here")
        return {"unread": reading.facts()["unread"]}
    reading.put(
        "problems", [f"{' '.join(commands[name])}: {reason}" for name, reason in problems.items()]
    )
    for name, reason in problems.items():
        reading.miss(name, f"{commands[name][0]}: {reason}")
    if "config" in answers:
        pairs = re.findall(r"^(\S+) *= *(.*?) *$", answers["config"], re.MULTILINE)
        reading.put("config", {name: value for name, value in pairs if name in _SETTINGS})
    if "node" in answers:
        pairs = re.findall(r"(\w+)=(\S+)", answers["node"])
        reading.put("node", {name: value for name, value in pairs if name in _OF_NODE})
    if "mpi_types" in answers:
        lines = [line.removeprefix("srun:").strip() for line in answers["mpi_types"].splitlines()]
        reading.put("mpi_types", [line for line in lines if re.fullmatch(r"[\w/]+", line)])
    return reading.facts()


def _answers(commands: dict[str, list[str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Run the commands side by side; return what they print, and why others did not."""
    answers, problems = {}, {}
    with ThreadPoolExecutor(len(commands)) as pool:
        for name, (said, problem) in zip(
            commands, pool.map(_answer, commands.values()), strict=True
        ):
            if problem:
                problems[name] = problem
            else:
                answers[name] = said
    return answers, problems


def _answer(command: list[str]) -> tuple[str, str]:
    """Return what a command prints, and why it failed."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        return "", f"no answer within {PATIENCE:g} s" if late else why(error)
    lines = done.stdout.strip().splitlines() or [f"status {done.returncode}"]
    return done.stdout, lines[-1] if done.returncode else ""
