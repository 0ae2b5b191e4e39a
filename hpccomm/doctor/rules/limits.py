"""Rules about the limits of the process and of its control group."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hpccomm.doctor.rule import Facts, Faults, Texts, many, rules
from hpccomm.doctor.rules.network import serves
from hpccomm.units import numbers

MIB = 1 << 20

FILES_A_RANK = 8
"""Sockets, pipes and files that a rank may hold for each other rank: a generous estimate."""

THREADS_A_RANK = 128
"""Threads of MPI, NCCL, OpenMP and Python in a rank: likewise."""

SHARED_A_RANK = 16 * MIB
"""Bytes of /dev/shm for each rank of MPI and NCCL; MPICH with UCX takes 5.5 MiB at the start."""


LEAST_SHARED = 8 * MIB
"""Least that each of several ranks on a node needs."""


def _memlock(soft: int | None, ports: Sequence[Facts], exempt: bool | None, memory: int) -> Faults:
    used = [port["device"] for port in ports if serves(port)]
    if used and soft is not None and soft < memory / 2 and not exempt:
        yield f"{soft / MIB:,.2f} MiB may be locked, and {used[0]} reaches locked memory only"


def _files(soft: int | None, world: int | None) -> Faults:
    needed = 256 + FILES_A_RANK * (world or 1)
    if soft is not None and soft < needed:
        yield f"{soft:,} files may be open at once; a job of {many(world or 1, 'rank')} may need {needed:,}"


def _processes(soft: int | None, ranks: Sequence[Any]) -> Faults:
    needed = THREADS_A_RANK * len(ranks)
    if soft is not None and soft < needed:
        yield f"{soft:,} processes and threads are allowed; {many(len(ranks), 'rank')} may need {needed:,}"


def _pids(group: Facts, ranks: Sequence[Any]) -> Faults:
    needed = THREADS_A_RANK * len(ranks)
    if group["limit"] is not None and group["limit"] - group["used"] < needed:
        yield f"{group['used']:,} of the {group['limit']:,} threads of the control group are there already; {many(len(ranks), 'rank')} may need {needed:,}"


def _memory(group: Facts) -> Faults:
    limit = group["limit"]
    if limit is not None and (free := limit - group["used"]) < limit / 10:
        yield f"{free / MIB:,.0f} MiB are left of the {limit / MIB:,.0f} MiB of the control group"


def _oom_kills(group: Facts) -> Faults:
    if group["oom_kills"]:
        yield f"the kernel has killed {group['oom_kills']} processes of this control group for want of memory"


def _cpu(group: Facts, cores: Texts, allowed: str) -> Faults:
    quota, seen = group["quota"], len(numbers(allowed))
    if quota is not None and quota < seen:
        yield f"the control group has the time of {quota:g} processors, and {many(len(cores), 'rank')} may run on {seen}"
        if group["throttled"]:
            yield f"it was stopped {group['throttled']:,} times for having used its time up"


def _shared(room: Facts, ranks: Sequence[Any]) -> Faults:
    needed = SHARED_A_RANK * len(ranks) + 64 * MIB
    if len(ranks) > 1 and LEAST_SHARED * len(ranks) <= room["free"] < needed:
        yield f"/dev/shm has {room['free'] / MIB:,.0f} of {room['bytes'] / MIB:,.0f} MiB free; {many(len(ranks), 'rank')} may need {needed / MIB:,.0f}"


def _no_shared(room: Facts, ranks: Sequence[Any]) -> Faults:
    if len(ranks) > 1 and room["free"] < (least := LEAST_SHARED * len(ranks)):
        yield f"/dev/shm has {room['free'] / MIB:,.0f} MiB free, and {len(ranks)} ranks take {least / MIB:,.0f} or more: where it ends, they die by SIGBUS"


def _ptrace(scope: int, peers: Sequence[Facts] | None) -> Faults:
    # With 1, the value of many systems, a rank may allow it to others. Several ranks have tried it.
    if scope > 1 and not peers:
        yield f"kernel.yama.ptrace_scope is {scope}: no rank reads the memory of another"


def _unreached(kind: str, peers: Sequence[Facts]) -> list[str]:
    return sorted({each[kind] for each in peers if each.get(kind)})


def _ports(ports: Sequence[int], world: int | None) -> Faults:
    first, last = ports
    if (room := last - first + 1) < (needed := 1024 + FILES_A_RANK * (world or 1)):
        yield f"connections may have the {room:,} ports {first} to {last}; a job of {many(world or 1, 'rank')} may need {needed:,} on a node"


def _any_limit(sentence: str, soft: int | None) -> Faults:
    if soft is not None:
        yield sentence.format(soft)


def _mapped(address_space: int | None, data: int | None, memory: int, gpus: int | None) -> Faults:
    # A process maps more than it uses: threads' stacks, its peers' memory, and with CUDA all memory of the node.
    for soft, what in ((address_space, "memory"), (data, "private memory")):
        if soft is not None and (soft < memory or gpus):
            yield f"a process may map {soft / MIB:,.0f} MiB of {what}, and the node has {memory / MIB:,.0f} MiB"


RULES = rules({
    "limits.memlock": (_memlock, "limits.memlock.soft", "infiniband.ports", "limits.may_lock_all?", "host.memory"),
    "limits.open_files": (_files, "limits.open_files.soft", "mpi.world?"),
    "limits.processes": (_processes, "limits.processes.soft", "ranks"),
    "limits.threads_of_group": (_pids, "limits.pids", "ranks"),
    "limits.memory": (_memory, "limits.memory"),
    "limits.oom_kills": (_oom_kills, "limits.memory"),
    "limits.cpu_time": (_cpu, "limits.cpu", "ranks.*.cores", "cpu.allowed"),
    "limits.shared_memory": (_shared, "limits.shared_memory", "ranks"),
    "limits.no_shared_memory": (_no_shared, "limits.shared_memory", "ranks"),
    "limits.ptrace_scope": (_ptrace, "limits.ptrace_scope", "ranks.*.peers?"),
    "limits.peers_pages": (partial(_unreached, "plain"), "ranks.*.peers"),
    "limits.peers_memory": (partial(_unreached, "mapped"), "ranks.*.peers"),
    "limits.processor_time": (partial(_any_limit, "{:,} s of processor time end a process (SIGXCPU), and ranks that wait use it"), "limits.processor_time"),
    "limits.file_size": (partial(_any_limit, "a file may have at most {:,} bytes: writing more fails (EFBIG)"), "limits.file_size"),
    "limits.address_space": (_mapped, "limits.address_space", "limits.data", "host.memory", "gpus.count?"),
    "limits.ports": (_ports, "limits.ports", "mpi.world?"),
})  # fmt: skip
