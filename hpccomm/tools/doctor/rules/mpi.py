"""Rules about MPI: library, launcher, threads, binding of ranks, and transports."""

import re
from collections.abc import Sequence

from hpccomm.backends.bootstrap.launch import SRUN
from hpccomm.tools.doctor.reading import rows
from hpccomm.tools.doctor.rule import Facts, Faults, List, Texts, rules
from hpccomm.tools.doctor.rules.network import serves
from hpccomm.units import counted, grouped, numbers, ranks_named

SPEAKS = {"Open MPI": ("pmix",), "MPICH": ("pmi", "pmix"), "Intel MPI": ("pmi", "pmix")}
"""The interfaces between a library and its launcher, by the names of Slurm's plug-ins."""

LEVELS = ("MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED")

_FOR_FABRICS = {"libucp", "libfabric", "libibverbs", "libpsm2", "libpsm3"}
_ONE_FAMILY = {"MPICH", "Intel MPI"}
"""Their launchers start each other's programs."""


def _said(text: str) -> list[str]:
    return [text] if text else []


def _launch(launched: int, world: int, launcher: str | None, library: str) -> Faults:
    if launched > 1 and world == 1:
        yield f"{launcher} has started {launched} processes, and {library} sees one rank in each: each is a job of its own"


def one_library(*read: Sequence[Texts]) -> Faults:
    """Yield the libraries of one name that a rank has mapped together; the last argument has the paths of each rank."""
    for paths in sorted({" and ".join(paths) for paths in read[-1] if len(paths) > 1}):
        yield f"a rank has mapped {paths}"


def _launcher(mpiexec: Facts, vendor: str, version: str) -> Faults:
    other = mpiexec["vendor"]
    if other and other != vendor and {other, vendor} != _ONE_FAMILY:
        yield f"{mpiexec['path']} is of {other}, and mpi4py loads {vendor} {version}"
    elif other == vendor and mpiexec["version"] and mpiexec["version"] != version:
        yield f"{mpiexec['path']} is of {other} {mpiexec['version']}, and mpi4py loads {version}"


def _threads(level: int, multiple: int) -> Faults:
    if level < multiple:
        yield f"MPI gives {LEVELS[level]}: one thread at a time may call it"


def _pmi(launcher: str | None, launched: int, vendor: str, given: Texts, world: int) -> Faults:
    needed = SPEAKS.get(vendor, ())
    if launcher == SRUN and launched > 1 == world and needed and not set(given) & set(needed):
        yield f"{vendor} speaks to its launcher by {' or '.join(needed)}, and srun offers {', '.join(given) or 'no PMIx and no PMI'}"


def _cores(ranks: Sequence[int], cores: Texts, online: str) -> Faults:
    bound = zip(map(tuple, map(numbers, cores)), ranks, strict=True)
    for own, those in grouped(bound).items():
        if len(own) < len(those) and len(ranks) <= len(numbers(online)):
            yield f"{ranks_named(those)} are bound to {'core' if len(own) == 1 else 'cores'} {', '.join(map(str, own))} together"


def _hardware_threads(ranks: Sequence[int], cores: Texts, siblings: Texts) -> Faults:
    core_of = {cpu: number for number, listed in enumerate(siblings) for cpu in numbers(listed)}
    own = ({core_of.get(cpu, -1) for cpu in numbers(listed)} for listed in cores)
    on = grouped((min(of), rank) for of, rank in zip(own, ranks, strict=True) if len(of) == 1)
    if len(ranks) <= len(siblings):
        for core, those in on.items():
            apart = {
                cores[ranks.index(rank)] for rank in those
            }  # `_cores` names ranks on one thread
            if len(those) == len(apart) > 1 and core >= 0:
                yield f"{ranks_named(those)} run on the hardware threads {siblings[core]} of one core"


def _numa(ranks: Sequence[int], cores: Texts, nodes: List) -> Faults:
    homes = [{*numbers(node["cpus"])} for node in nodes]
    wide = []
    for rank, listed in zip(ranks, cores, strict=True):
        if sum(not home.isdisjoint(numbers(listed)) for home in homes) > 1:
            wide.append(rank)
    if wide and len(nodes) <= len(ranks):
        yield f"{ranks_named(wide)} may run on several of the {len(nodes)} NUMA nodes"


def _oversubscribed(ranks: Sequence[int], online: str) -> Faults:
    if len(ranks) > (there := len(numbers(online))):  # else the binding is the cause: `_cores`
        yield f"{len(ranks)} ranks have {counted(there, 'processor')}: waiting ranks take the time of working ones"


def _openmp(cores: Texts, variables: List) -> Faults:
    own = {cpu for listed in cores for cpu in numbers(listed)}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        outer = (each.get(name, "").partition(",")[0] for each in variables)  # of nested levels
        threads = [int(text) if text.isdecimal() else 1 for text in outer]
        if max(threads) > 1 and sum(threads) > len(own):
            yield f"{name}={max(threads)} on {counted(len(cores), 'rank')} gives {sum(threads)} threads, and they have {counted(len(own), 'processor')}"


def _kept_from(variables: List, to: str, names: Sequence[str] = ()) -> Faults:
    """Yield the variables that keep MPI from shared memory or the fabric, as they are set.

    ``transports.tsv`` has how the names of transports begin that reach it. In a list that begins with ^, which
    excludes, the first two stand for all of them.
    """
    for row in rows("transports.tsv"):
        name, begins = row["variable"], tuple(row["begins"].split())
        if row["to"] != to or name not in (names or [name]):
            continue
        for value in sorted({each[name] for each in variables if name in each}):
            words = re.split(r"[,:;]", value.lstrip("^"))
            if value.startswith("^"):
                excluded = bool(set(begins[:2]) & set(words))
            else:
                excluded = not any(word.startswith(begins) for word in words)
            if excluded:
                yield f"{name}={value}"


def _shared_memory(vendor: str, variables: List, ranks: Sequence[int]) -> Faults:
    by_ucx = any("ucx" in each.get("OMPI_MCA_pml", "") for each in variables)
    read = {"Open MPI": "UCX_TLS" if by_ucx else "OMPI_MCA_btl", "Intel MPI": "I_MPI_FABRICS"}
    if len(ranks) > 1 and vendor in read:
        for setting in _kept_from(variables, "shared memory", [read[vendor]]):
            yield f"{setting} leaves out shared memory for the {len(ranks)} ranks of the node"


def _fabric(ports: List, libraries: List, variables: List) -> Faults:
    active = [port["device"] for port in ports if serves(port)]
    if not active:
        return
    if not any(_FOR_FABRICS & each.keys() for each in libraries):
        yield f"{active[0]} is active, and MPI has not loaded UCX, libfabric or libibverbs: it may go over TCP"
    for setting in _kept_from(variables, "fabric"):
        yield f"{setting} names nothing that reaches {active[0]}"


def _cuda(count: int, aware: bool, why: str, nccl: Texts | None) -> Faults:
    if count and not aware and not nccl:
        yield why


RULES = rules({
    "mpi.loads": (_said, "mpi.missing"),
    "mpi.starts": (_said, "mpi.failure"),
    "mpi.launch": (_launch, "mpi.launched", "mpi.world", "mpi.launcher", "mpi.library"),
    "mpi.pmi": (_pmi, "mpi.launcher", "mpi.launched", "mpi.vendor", "mpi.pmi", "mpi.world"),
    "mpi.one_library": (one_library, "ranks.*.libraries.libmpi"),
    "mpi.launcher": (_launcher, "mpi.mpiexec", "mpi.vendor", "mpi.version"),
    "mpi.threads": (_threads, "mpi.thread_level", "mpi.thread_multiple"),
    "mpi.cores": (_cores, "ranks.*.rank", "ranks.*.cores", "cpu.online"),
    "mpi.hardware_threads": (_hardware_threads, "ranks.*.rank", "ranks.*.cores", "cpu.cores"),
    "mpi.numa": (_numa, "ranks.*.rank", "ranks.*.cores", "cpu.nodes"),
    "mpi.oversubscribed": (_oversubscribed, "ranks.*.rank", "cpu.online"),
    "mpi.openmp": (_openmp, "ranks.*.cores", "ranks.*.variables"),
    "mpi.shared_memory": (_shared_memory, "mpi.vendor", "ranks.*.variables", "ranks.*.rank"),
    "mpi.fabric": (_fabric, "infiniband.ports", "ranks.*.libraries", "ranks.*.variables"),
    "mpi.cuda": (_cuda, "gpus.count", "mpi.cuda_aware", "mpi.cuda_aware_why", "ranks.*.nccl?"),
})  # fmt: skip
