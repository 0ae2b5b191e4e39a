"""Rules about the node itself: limits of processes and groups, processors, clock, memory, containers; differences of nodes."""

import collections
from collections.abc import Sequence
from functools import partial
from typing import Any

from hpccomm.settings import busy
from hpccomm.tools.doctor.reading import rows
from hpccomm.tools.doctor.rule import GIB, Facts, Faults, List, Rule, Texts, rules, shown
from hpccomm.tools.doctor.rules.network import serves
from hpccomm.units import counted, grouped, numbers

MIB = 1 << 20

FILES_A_RANK = 8
"""Sockets, pipes and files that a rank may hold for each other rank: a generous estimate."""

THREADS_A_RANK = 128
"""Threads of MPI, NCCL, OpenMP and Python that a rank may have: a generous estimate, too."""

SHARED_A_RANK = 16 * MIB
"""Bytes of /dev/shm for each rank of MPI and NCCL; MPICH with UCX takes 5.5 MiB at the start."""


LEAST_SHARED = 8 * MIB
"""Least bytes of /dev/shm that each of several ranks on a node needs."""


def _memlock(soft: int | None, ports: List, exempt: bool | None, memory: int) -> Faults:
    used = [port["device"] for port in ports if serves(port)]
    if used and soft is not None and soft < memory / 2 and not exempt:
        yield f"{soft / MIB:,.2f} MiB may be locked, and {used[0]} reaches locked memory only"


def _files(soft: int | None, world: int | None) -> Faults:
    needed = 256 + FILES_A_RANK * (world or 1)
    if soft is not None and soft < needed:
        yield f"{soft:,} files may be open at once; a job of {counted(world or 1, 'rank')} may need {needed:,}"


def _processes(soft: int | None, ranks: Sequence[Any]) -> Faults:
    needed = THREADS_A_RANK * len(ranks)
    if soft is not None and soft < needed:
        yield f"{soft:,} processes and threads are allowed; {counted(len(ranks), 'rank')} may need {needed:,}"


def _pids(group: Facts, ranks: Sequence[Any]) -> Faults:
    needed = THREADS_A_RANK * len(ranks)
    if group["limit"] is not None and group["limit"] - group["used"] < needed:
        yield f"{group['used']:,} of the {group['limit']:,} threads of the control group exist already; {counted(len(ranks), 'rank')} may need {needed:,}"


def _group_memory(group: Facts) -> Faults:
    limit = group["limit"]
    if limit is not None and (free := limit - group["used"]) < limit / 10:
        yield f"{free / MIB:,.0f} MiB are left of the {limit / MIB:,.0f} MiB of the control group"


def _oom_kills(group: Facts) -> Faults:
    if group["oom_kills"]:
        yield f"the kernel has killed {group['oom_kills']} processes of this control group for want of memory"


def _cpu(group: Facts, cores: Texts, allowed: str) -> Faults:
    quota, seen = group["quota"], len(numbers(allowed))
    if quota is not None and quota < seen:
        yield f"the control group has the time of {quota:g} processors, and {counted(len(cores), 'rank')} may run on {seen}"
        if group["throttled"]:
            yield f"it was stopped {group['throttled']:,} times because its time was used up"


def _shared(room: Facts, ranks: Sequence[Any]) -> Faults:
    needed = SHARED_A_RANK * len(ranks) + 64 * MIB
    if len(ranks) > 1 and LEAST_SHARED * len(ranks) <= room["free"] < needed:
        yield f"/dev/shm has {room['free'] / MIB:,.0f} of {room['bytes'] / MIB:,.0f} MiB free; {counted(len(ranks), 'rank')} may need {needed / MIB:,.0f}"


def _no_shared(room: Facts, ranks: Sequence[Any]) -> Faults:
    if len(ranks) > 1 and room["free"] < (least := LEAST_SHARED * len(ranks)):
        yield f"/dev/shm has {room['free'] / MIB:,.0f} MiB free, and {len(ranks)} ranks take {least / MIB:,.0f} or more: when it is full, they die by SIGBUS"


def _ptrace(scope: int, peers: List | None) -> Faults:
    # With 1, the value of many systems, a rank may allow it to others. Several ranks have tried it.
    if scope > 1 and not peers:
        yield f"kernel.yama.ptrace_scope is {scope}: no rank reads the memory of another"


def _unreached(kind: str, peers: List) -> list[str]:
    return sorted({each[kind] for each in peers if each.get(kind)})


def _ports(ports: Sequence[int], world: int | None) -> Faults:
    first, last = ports
    if (room := last - first + 1) < (needed := 1024 + FILES_A_RANK * (world or 1)):
        yield f"connections may use the {room:,} ports {first} to {last}; a job of {counted(world or 1, 'rank')} may need {needed:,} on a node"


def _any_limit(sentence: str, soft: int | None) -> Faults:
    if soft is not None:
        yield sentence.format(soft)


def _mapped(address_space: int | None, data: int | None, memory: int, gpus: int | None) -> Faults:
    # A process maps more than it uses: threads' stacks, its peers' memory, and with CUDA all memory of the node.
    for soft, what in ((address_space, "memory"), (data, "private memory")):
        if soft is not None and (soft < memory or gpus):
            yield f"a process may map {soft / MIB:,.0f} MiB of {what}, and the node has {memory / MIB:,.0f} MiB"


_SAVING = {"powersave", "conservative", "power", "balance_power"}
_OWN_GOVERNOR = {"intel_pstate", "amd-pstate-epp"}
"""Drivers under which ``powersave`` is the governor that follows the load: the preference decides there."""


def _governors(governors: Facts, driver: str | None, preferences: Facts | None) -> Faults:
    own = driver in _OWN_GOVERNOR
    for name, number in ((preferences or {}) if own else governors).items():
        if name in _SAVING:
            yield f"{number} processors have the {'preference' if own else 'governor'} {name} (driver {driver or 'unknown'})"


def _clock_source(source: str) -> Faults:
    if source in ("hpet", "acpi_pm", "jiffies"):
        yield f"the clock source is {source}: each reading of the time takes about a microsecond"


def _huge_pages(mode: str) -> Faults:
    if mode == "never":
        yield "transparent huge pages are off (never); NumPy asks for them for large arrays"


def _numa_balancing(on: int, nodes: Sequence[Any]) -> Faults:
    if on and len(nodes) > 1:
        yield f"the kernel moves pages between the {len(nodes)} NUMA nodes while ranks use them (kernel.numa_balancing is {on})"


def _memory(available: int, memory: int) -> Faults:
    if available < memory / 10:
        yield f"{available / GIB:.1f} of {memory / GIB:.1f} GiB of memory are available"


def _swap(swap: int, free: int) -> Faults:
    if swap - free > GIB:
        yield f"{(swap - free) / GIB:.1f} GiB of memory are swapped out"


def _busy(others: Sequence[float]) -> Faults:
    if max(others) > (limit := busy()):
        yield f"other processes take {max(others):.0%} of the cores that a rank may use, more than {limit:.0%}"


def _own_name(address: str) -> Faults:
    if address.startswith("127.") or address == "::1":
        yield f"/etc/hosts has {address} for it: a program that asks for the node's address by its name gets one that every node has"


def _killed(killed: Texts) -> Faults:
    if killed:
        most = collections.Counter(killed).most_common(5)
        names = ", ".join(f"{name} ({times})" for name, times in most)
        yield f"for want of memory the kernel has killed {names} in the last 24 hours"


def _machine_checks(messages: Texts) -> Faults:
    if messages:
        yield f"the kernel's log has {len(messages)} of them, such as {messages[-1]!r:.120}"


def _namespaces(ranks: Sequence[int], namespaces: List) -> Faults:
    for kind in ("pid", "user", "net"):
        kinds = {each[kind] for each in namespaces}
        if len(kinds) > 1:
            yield f"{len(ranks)} ranks are in {len(kinds)} namespaces of the sort {kind}"


def _one_machine(boots: Facts) -> Faults:
    for nodes in grouped((boot, node) for node, boot in boots.items()).values():
        if len(nodes) > 1:
            yield (
                f"{', '.join(nodes)} are one machine (one boot_id): its ranks are in containers or namespaces of their "
                "own, or the MPI library shares no memory between them (COMM_TYPE_SHARED)"
            )


AHEAD = 0.5
"""Seconds that clocks may differ: logs are compared by their times."""


def _clocks(clocks: Facts) -> Faults:
    for node, clock in clocks.items():
        if abs(clock["ahead"]) - clock["uncertain"] > AHEAD:
            yield f"{node} is {abs(clock['ahead']):.1f} s {'ahead' if clock['ahead'] > 0 else 'behind'}"


def _synchronised(states: Facts) -> Faults:
    if wrong := [node for node, state in states.items() if not state]:
        yield f"the kernel says that the clock is not synchronised on {', '.join(wrong)}"


SAME = 0.02
"""Fraction by which the memory of equal nodes may differ: kernels reserve different amounts."""


def _odd(values: Facts) -> Faults:
    """Say which nodes have another value than most. A dict of values is compared item by item."""
    if all(isinstance(value, dict) for value in values.values()):
        for name in sorted({name for value in values.values() for name in value}):
            own = {node: value.get(name) for node, value in values.items()}
            yield from (f"{name}: {text}" for text in _odd(own))
        return
    sizes = [value for value in values.values() if isinstance(value, int) and value >= GIB]
    if len(sizes) == len(values) and min(sizes) > (1 - SAME) * max(sizes):
        return
    alike = grouped((shown(value), node) for node, value in values.items())
    if len(alike) > 1:
        groups = sorted(alike.items(), key=lambda group: -len(group[1]))
        yield "; ".join(f"{_named(nodes, len(values))}: {value}" for value, nodes in groups)


def _named(nodes: Texts, of: int) -> str:
    return f"{len(nodes)} of {of} nodes" if len(nodes) > max(2, of / 2) else ", ".join(nodes)


ALIKE = tuple(
    Rule(
        f"alike.{row['id']}",
        row["severity"],
        "nodes",
        f"Do all nodes have the same {row['what']}?",
        row["remedy"],
        "docs/how_to/doctor.rst",
        (row["path"],),
        _odd,
    )
    for row in rows("alike.tsv")
)
"""Facts that must be equal on all nodes, and on a node and its baseline."""

RULES = (
    *rules({
        "limits.memlock": (_memlock, "limits.memlock.soft", "infiniband.ports", "limits.may_lock_all?", "host.memory"),
        "limits.open_files": (_files, "limits.open_files.soft", "mpi.world?"),
        "limits.processes": (_processes, "limits.processes.soft", "ranks"),
        "limits.threads_of_group": (_pids, "limits.pids", "ranks"),
        "limits.memory": (_group_memory, "limits.memory"),
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
        "host.governor": (_governors, "host.governors", "host.cpufreq_driver?", "host.preferences?"),
        "host.clock_source": (_clock_source, "host.clock_source"),
        "host.huge_pages": (_huge_pages, "host.thp"),
        "host.numa_balancing": (_numa_balancing, "host.numa_balancing", "cpu.nodes"),
        "host.memory": (_memory, "host.available", "host.memory"),
        "host.swap": (_swap, "host.swap", "host.swap_free"),
        "host.busy": (_busy, "ranks.*.others"),
        "host.own_name": (_own_name, "host.own_address"),
        "host.killed": (_killed, "kernel_log.killed"),
        "host.machine_checks": (_machine_checks, "kernel_log.machine_checks"),
        "host.namespaces": (_namespaces, "ranks.*.rank", "ranks.*.namespaces"),
        "host.one_machine": (_one_machine, "host.boot_id"),
        "host.clocks": (_clocks, "host.clock"),
        "host.clock_synchronised": (_synchronised, "host.clock_synchronised"),
    }),
    *ALIKE,
)  # fmt: skip
