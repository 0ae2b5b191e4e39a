"""MPI: which library, started by whom, with which threads; where its ranks are bound, and by what they talk."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpccomm.backends.bootstrap.launch import SRUN
from hpccomm.backends.bootstrap.machine import numbers
from hpccomm.backends.nccl.facts import named
from hpccomm.doctor.rule import many, rules

Facts = Mapping[str, Any]

SPEAKS = {"Open MPI": ("pmix",), "MPICH": ("pmi", "pmix"), "Intel MPI": ("pmi", "pmix")}
"""By which interfaces a library may meet its launcher: those of Slurm's plug-ins of that name."""

LEVELS = (
    "MPI_THREAD_SINGLE",
    "MPI_THREAD_FUNNELED",
    "MPI_THREAD_SERIALIZED",
    "MPI_THREAD_MULTIPLE",
)

_ONE_FAMILY = {"MPICH", "Intel MPI"}
"""Their launchers start each other's programs."""

_TO_SHARED_MEMORY = {
    "OMPI_MCA_btl": ("sm", "vader"),
    "UCX_TLS": ("all", "shm", "sm", "posix", "sysv", "cma", "knem", "xpmem"),
}
"""Variables that list transports, and those that stay on the node. A list that begins with ^ excludes."""

_TO_FABRIC = {
    "OMPI_MCA_pml": ("ucx", "cm"),
    "UCX_TLS": (
        "all",
        "ib",
        "rc",
        "rc_x",
        "rc_v",
        "dc",
        "dc_x",
        "ud",
        "ud_x",
        "ud_v",
        "rc_verbs",
        "rc_mlx5",
        "dc_mlx5",
        "ud_verbs",
        "ud_mlx5",
    ),
    "FI_PROVIDER": ("verbs", "psm2", "psm3", "opx", "efa", "cxi", "mlx", "ucx"),
}


def _said(text: str) -> list[str]:
    return [text] if text else []


def _launch(launched: int, world: int, launcher: str | None, library: str) -> Iterator[str]:
    if launched > 1 and world == 1:
        yield f"{launcher} has started {launched} processes, and {library} sees one rank in each: they are {launched} jobs of their own"


def _one_library(libraries: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from sorted(
        {f"a rank has mapped {' and '.join(paths)}" for paths in libraries if len(paths) > 1}
    )


def _launcher(mpiexec: Facts, vendor: str, version: str) -> Iterator[str]:
    other = mpiexec["vendor"]
    if other and other != vendor and {other, vendor} != _ONE_FAMILY:
        yield f"{mpiexec['path']} is of {other}, and mpi4py loads {vendor} {version}"
    elif other == vendor and mpiexec["version"] and mpiexec["version"] != version:
        yield f"{mpiexec['path']} is of {other} {mpiexec['version']}, and mpi4py loads {version}"


def _threads(level: int, multiple: int) -> Iterator[str]:
    if level < multiple:
        yield f"MPI gives {LEVELS[level] if level < len(LEVELS) else level}: one thread at a time may call it"


def _pmi(launcher: str | None, launched: int, vendor: str, given: Sequence[str]) -> Iterator[str]:
    needed = SPEAKS.get(vendor, ())
    if launcher == SRUN and launched > 1 and needed and not set(given) & set(needed):
        yield f"{vendor} meets its launcher by {' or '.join(needed)}, and srun offers {', '.join(given) or 'neither PMIx nor PMI'}"


def _cores(ranks: Sequence[int], cores: Sequence[str], online: str) -> Iterator[str]:
    alike = defaultdict(list)
    for rank, listed in zip(ranks, cores, strict=True):
        alike[tuple(numbers(listed))].append(rank)
    for own, those in alike.items():
        if len(those) > len(own) and own != tuple(numbers(online)):
            yield f"{named(those)} are bound to {'core' if len(own) == 1 else 'cores'} {', '.join(map(str, own))} together"


def _hardware_threads(
    ranks: Sequence[int], cores: Sequence[str], siblings: Sequence[str]
) -> Iterator[str]:
    core_of = {cpu: number for number, listed in enumerate(siblings) for cpu in numbers(listed)}
    on = defaultdict(list)
    for rank, listed in zip(ranks, cores, strict=True):
        of = {core_of.get(cpu, -1) for cpu in numbers(listed)}
        if len(of) == 1:
            on[of.pop()].append(rank)
    if len(ranks) <= len(siblings):
        for core, those in on.items():
            if len(those) > 1 and core >= 0:
                yield f"{named(those)} run on the hardware threads {siblings[core]} of one core"


def _numa(ranks: Sequence[int], cores: Sequence[str], nodes: Sequence[Facts]) -> Iterator[str]:
    if 1 < len(nodes) <= len(ranks):
        wide = []
        for rank, listed in zip(ranks, cores, strict=True):
            own = set(numbers(listed))
            if sum(bool(own & set(numbers(node["cpus"]))) for node in nodes) > 1:
                wide.append(rank)
        if wide:
            yield f"{named(wide)} may run on several of the {len(nodes)} NUMA nodes"


def _oversubscribed(cores: Sequence[str]) -> Iterator[str]:
    own = {cpu for listed in cores for cpu in numbers(listed)}
    if len(cores) > len(own):
        yield f"{len(cores)} ranks have {many(len(own), 'processor')}: ranks that wait take the time of those that work"


def _kept_from(
    variables: Sequence[Mapping[str, str]], table: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """Yield the variables whose lists have none of the words."""
    for name, words in table.items():
        for value in sorted({each[name] for each in variables if name in each}):
            listed = re.split(r"[,:;]", value)
            if value.startswith("^"):
                if set(words) <= {value[1:], *listed}:
                    yield name, value
            elif not set(words) & {word.strip("\\") for word in listed}:
                yield name, value


def _shared_memory(variables: Sequence[Mapping[str, str]], ranks: Sequence[int]) -> Iterator[str]:
    if len(ranks) > 1:
        for name, value in _kept_from(variables, _TO_SHARED_MEMORY):
            yield f"{name}={value} leaves out shared memory: the {len(ranks)} ranks of the node talk by the network"


def _fabric(
    ports: Sequence[Facts], libraries: Sequence[Facts], variables: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    active = [port["device"] for port in ports if port.get("state") == "ACTIVE"]
    if not active:
        return
    if not any(
        {"libucp", "libfabric", "libibverbs", "libpsm2", "libpsm3"} & each.keys()
        for each in libraries
    ):
        yield f"{active[0]} is active, and MPI has loaded neither UCX nor libfabric nor libibverbs: it goes over TCP"
    for name, value in _kept_from(variables, _TO_FABRIC):
        yield f"{name}={value} keeps MPI from {active[0]}"


def _cuda(count: int, aware: bool, why: str) -> Iterator[str]:
    if count and not aware:
        yield why


RULES = rules({
    "mpi.loads": (_said, "mpi.missing"),
    "mpi.starts": (_said, "mpi.failure"),
    "mpi.launch": (_launch, "mpi.launched", "mpi.world", "mpi.launcher", "mpi.library"),
    "mpi.pmi": (_pmi, "mpi.launcher", "mpi.launched", "mpi.vendor", "mpi.pmi"),
    "mpi.one_library": (_one_library, "ranks.*.libraries.libmpi"),
    "mpi.launcher": (_launcher, "mpi.mpiexec", "mpi.vendor", "mpi.version"),
    "mpi.threads": (_threads, "mpi.thread_level", "mpi.thread_multiple"),
    "mpi.cores": (_cores, "ranks.*.rank", "ranks.*.cores", "cpu.online"),
    "mpi.hardware_threads": (_hardware_threads, "ranks.*.rank", "ranks.*.cores", "cpu.cores"),
    "mpi.numa": (_numa, "ranks.*.rank", "ranks.*.cores", "cpu.nodes"),
    "mpi.oversubscribed": (_oversubscribed, "ranks.*.cores"),
    "mpi.shared_memory": (_shared_memory, "ranks.*.variables", "ranks.*.rank"),
    "mpi.fabric": (_fabric, "infiniband.ports", "ranks.*.libraries", "ranks.*.variables"),
    "mpi.cuda": (_cuda, "gpus.count", "mpi.cuda_aware", "mpi.cuda_aware_why"),
})  # fmt: skip
