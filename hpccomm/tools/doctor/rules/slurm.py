"""Rules about Slurm: its answers, its way to start MPI, its limits, and the job's resources."""

from collections.abc import Sequence

from hpccomm.tools.doctor.rule import Facts, Faults, List, Texts, rules
from hpccomm.tools.doctor.rules.gpus import on_bus
from hpccomm.tools.doctor.rules.mpi import SPEAKS
from hpccomm.tools.doctor.rules.network import serves
from hpccomm.units import counted, numbers


def _number(variables: Facts, name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdigit() else None


def _mpi_types(types: Texts, vendor: str) -> Faults:
    needed = SPEAKS.get(vendor, ())
    if needed and not any(each.startswith(needed) for each in types):
        yield f"{vendor} needs {' or '.join(needed)}, and srun --mpi=list has {', '.join(types) or 'nothing'}"


def _confined(config: Facts) -> Faults:
    if config.get("ProctrackType") != "proctrack/cgroup":
        yield f"ProctrackType is {config.get('ProctrackType')}: processes that leave their job's tree outlive it"
    if not {"task/cgroup", "task/affinity"} & set(config.get("TaskPlugin", "").split(",")):
        yield f"TaskPlugin is {config.get('TaskPlugin')}: jobs may use each other's processors and devices"


def _gres(config: Facts, node: Facts, devices: List) -> Faults:
    count = len(on_bus(devices))
    if count and "gpu" not in config.get("GresTypes", ""):
        yield f"the node has {count} NVIDIA devices, and GresTypes is {config.get('GresTypes') or 'empty'}"
    elif count and "gpu" not in node.get("Gres", ""):
        yield f"the node has {count} NVIDIA devices, and Slurm's Gres of it is {node.get('Gres') or 'empty'}"


def _node_state(node: Facts) -> Faults:
    state = node.get("State", "")
    if any(word in state for word in ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING")):
        yield f"the node is {state}" + (f": {node['Reason']}" if "Reason" in node else "")


def _memlock(config: Facts, soft: int | None, ports: List) -> Faults:
    kept = config.get("PropagateResourceLimitsExcept", "")
    sent = config.get("PropagateResourceLimits", "ALL") == "ALL" and "MEMLOCK" not in kept
    if sent and soft is not None and any(map(serves, ports)):
        yield f"jobs take the limit of locked memory of the shell that submits them: {soft / (1 << 20):,.0f} MiB here"


def _tasks(variables: Facts, world: int, launched: int, launcher: str | None) -> Faults:
    # Without MPI's ranks in one job, another rule reports it.
    if launcher is None or (launched > 1 and world == 1):
        return
    step = _number(variables, "SLURM_STEP_NUM_TASKS")
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if step and step > 1 else ("SLURM_NTASKS",)
    for name in names:
        if (tasks := _number(variables, name)) and tasks != world:
            yield f"{name} is {tasks}, and MPI_COMM_WORLD has {counted(world, 'rank')}"
            return


def _nodes(variables: Facts, nodes: int, launcher: str | None) -> Faults:
    number = _number(variables, "SLURM_JOB_NUM_NODES")
    if launcher is not None and number and number != nodes:
        yield f"the job has {number} nodes, and its ranks are on {nodes}"


def _cpus(ranks: Sequence[int], cores: Texts, variables: List, _: Facts) -> Faults:
    for rank, listed, own in zip(ranks, cores, variables, strict=True):
        asked = _number(own, "SLURM_CPUS_PER_TASK")
        if asked and len(numbers(listed)) < asked:
            yield f"SLURM_CPUS_PER_TASK is {asked}, and rank {rank} may use {len(numbers(listed))} (cores {listed})"
            return


def _given(cores: Texts, variables: Facts) -> Faults:
    own = {cpu for listed in cores for cpu in numbers(listed)}
    given = _number(variables, "SLURM_CPUS_ON_NODE")
    if given and len(own) > given:
        yield f"Slurm gave the job {given} of this node's processors, and its ranks may run on {len(own)}"
    elif given and len(own) < min(given, len(cores)):
        yield f"Slurm gave the job {given} of this node's processors, and its {len(cores)} ranks may run on {len(own)}"


def _gpus(variables: Facts, count: int, mig: Sequence[Sequence[int]] | None) -> Faults:
    given = _number(variables, "SLURM_GPUS_ON_NODE")
    whole = not any(now for now, _ in mig or ())  # Slurm counts instances, the driver GPUs
    if given is not None and given > count and whole:
        yield f"SLURM_GPUS_ON_NODE is {given}, and the driver shows {count}"


def _components(variables: Facts, world: int, launcher: str | None) -> Faults:
    parts = _number(variables, "SLURM_HET_SIZE") or 1
    tasks = [_number(variables, f"SLURM_NTASKS_HET_GROUP_{part}") for part in range(parts)]
    known = [number for number in tasks if number]
    if launcher is not None and parts > 1 and (len(known) < parts or sum(known) != world):
        yield f"the job has {parts} components{f' of {known} tasks' if known else ''}, and MPI_COMM_WORLD has {world} ranks"


RULES = rules({
    "slurm.answers": (tuple, "slurm.problems"),
    "slurm.node": (_node_state, "slurm.node"),
    "slurm.mpi_types": (_mpi_types, "slurm.mpi_types", "mpi.vendor"),
    "slurm.confined": (_confined, "slurm.config"),
    "slurm.gres": (_gres, "slurm.config", "slurm.node", "pci.devices"),
    "slurm.memlock": (_memlock, "slurm.config", "limits.memlock.soft", "infiniband.ports"),
    "slurm.tasks": (_tasks, "slurm.variables", "mpi.world", "mpi.launched", "mpi.launcher"),
    "slurm.cpus_per_task": (_cpus, "ranks.*.rank", "ranks.*.cores", "ranks.*.variables", "slurm.variables"),
    "slurm.cpus": (_given, "ranks.*.cores", "slurm.variables"),
    "slurm.gpus": (_gpus, "slurm.variables", "gpus.count", "gpus.devices.*.mig?"),
    "slurm.components": (_components, "slurm.variables", "mpi.world", "mpi.launcher"),
    "slurm.nodes": (_nodes, "slurm.variables", "mpi.nodes", "mpi.launcher"),
})  # fmt: skip
