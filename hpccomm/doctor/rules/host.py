"""Rules about the node itself: processors, clock, memory, containers; and differences of nodes."""

import collections
from collections.abc import Sequence
from typing import Any, cast

from hpccomm.doctor.reading import rows
from hpccomm.doctor.rule import Facts, Faults, Rule, Severity, Texts, rules
from hpccomm.settings import busy
from hpccomm.units import grouped

GIB = 1 << 30

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
        yield f"/etc/hosts has {address} for it: what asks for this node's address by its name gets one that is each node's own"


def _killed(killed: Texts) -> Faults:
    if killed:
        most = collections.Counter(killed).most_common(5)
        names = ", ".join(f"{name} ({times})" for name, times in most)
        yield f"for want of memory the kernel has killed {names} in the last 24 hours"


def _machine_checks(messages: Texts) -> Faults:
    if messages:
        yield f"the kernel's log has {len(messages)} of them, such as {messages[-1]!r:.120}"


def _namespaces(ranks: Sequence[int], namespaces: Sequence[Facts]) -> Faults:
    for kind in ("pid", "user", "net"):
        kinds = {each[kind] for each in namespaces}
        if len(kinds) > 1:
            yield f"{len(ranks)} ranks are in {len(kinds)} namespaces of the sort {kind}"


def _one_machine(boots: Facts) -> Faults:
    for nodes in grouped((boot, node) for node, boot in boots.items()).values():
        if len(nodes) > 1:
            yield f"{', '.join(nodes)} are one machine (one boot_id), in containers or namespaces of their own"


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
    alike = grouped((_shown(value), node) for node, value in values.items())
    if len(alike) > 1:
        groups = sorted(alike.items(), key=lambda group: -len(group[1]))
        yield "; ".join(f"{_named(nodes, len(values))}: {value}" for value, nodes in groups)


def _named(nodes: Texts, of: int) -> str:
    return f"{len(nodes)} of {of} nodes" if len(nodes) > max(2, of / 2) else ", ".join(nodes)


def _shown(value: Any) -> str:
    """Return a value as text, bytes in GiB."""
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(map(_shown, value)))
    if isinstance(value, int) and abs(value) >= GIB:
        return f"{value / GIB:.1f} GiB"
    return "none" if value is None else str(value)


ALIKE = tuple(
    Rule(
        f"alike.{row['id']}",
        f"Do all nodes have the same {row['what']}?",
        tuple(row["path"].split()),
        _odd,
        cast("Severity", row["severity"]),
        row["remedy"],
        over_nodes=True,
    )
    for row in rows("alike.tsv")
)
"""Facts that must be equal on all nodes, and on a node and its baseline."""

RULES = (
    *rules({
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
