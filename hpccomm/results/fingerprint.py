"""Whether two runs can be compared: the facts that must be equal, and other differences.

`hpccomm.results.comparison` refuses runs by it, and `hpccomm import` finds repeated logs.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from hpccomm.results.schema import Row, RunInfo
from hpccomm.units import grouped

_OF_MACHINE = ("processor", "cores", "memory", "fabric")
"""Facts of the nodes that belong to the fingerprint; a new kernel does not make another machine."""


_OF_LAUNCH = ("OMPI_MCA_initial_wdir",)
"""Variables of launchers, without influence on the measurement."""


def fingerprint(info: RunInfo) -> dict[str, str]:
    """Return the facts that must be equal in two runs for comparable times.

    Parameters
    ----------
    info : RunInfo
        Facts of a run.

    Returns
    -------
    dict of str to str
        By the name of each fact: ranks and nodes, how many ranks nodes and groups have, the nodes' processors, cores,
        memory and fabric, the devices, and the network of a simulation. Facts that are not known are absent.
    """
    sizes = Counter(Counter(rank.node for rank in info.ranks).values())
    groups = grouped((rank.group, rank.node) for rank in info.ranks)
    facts = {
        "ranks": str(len(info.ranks)),
        "ranks of nodes": ", ".join(
            f"{number} x {ranks}" for ranks, number in sorted(sizes.items(), reverse=True)
        ),
        "groups": "1"
        if len(groups) == 1
        else _counted(f"{len(on)} ranks on {len({*on})} nodes" for on in groups.values()),
        "devices": _counted(rank.device_info for rank in info.ranks),
        **{name: info.machine[name] for name in _OF_MACHINE if name in info.machine},
    }
    if "network" in info.simulation:
        facts["simulated network"] = info.simulation["network"]
    return facts


UNKNOWN_LAUNCHER = "unknown"
"""Launcher of a run whose log was imported: its start may be the time of the log's file."""


def identity(info: RunInfo, rows: Sequence[Row]) -> Hashable:
    """Return the facts that identify a measurement: figures, ranks and versions.

    A log that is imported twice, and a copy of a results file, is not a second launch.
    """
    started = None if info.launcher == UNKNOWN_LAUNCHER else info.started
    return tuple(rows), info.ranks, started, frozenset(_circumstances(info).items())


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in sorted(Counter(names).items()))


def differences(one: RunInfo, other: RunInfo, *, ranks: bool = True) -> list[str]:
    """Return a sentence for each fact of the `fingerprint` that both runs have and that differs.

    Without `ranks`, it does not count how many there are, and on how many nodes.
    """
    facts = [fingerprint(info) for info in (one, other)]
    for info, facts_of in zip((one, other), () if ranks else facts, strict=False):
        devices = ", ".join(sorted({rank.device_info for rank in info.ranks}))
        facts_of |= {"ranks": "", "ranks of nodes": "", "devices": devices}
    return _different(facts[0], facts[1])


def circumstances(one: RunInfo, other: RunInfo) -> list[str]:
    """Return a sentence for each other fact that differs: hosts and their ranks, versions, environment, launcher, kernel.

    Such a difference is often what a comparison is about: a new library, another setting.
    """
    return _different(_circumstances(one), _circumstances(other), absent="not set")


def _circumstances(info: RunInfo) -> dict[str, str]:
    return {
        "hosts": ", ".join(info.hosts),
        "launcher": info.launcher,
        "ranks of nodes": fingerprint(info)["ranks of nodes"],
        **({"kernel": info.machine["kernel"]} if "kernel" in info.machine else {}),
        **{f"version of {name}": text for name, text in info.versions.items()},
        **{name: text for name, text in info.environment.items() if name not in _OF_LAUNCH},
    }


def _different(
    one: Mapping[str, str], other: Mapping[str, str], absent: str | None = None
) -> list[str]:
    """Return the differences; a fact of one side counts if `absent` explains its absence."""
    names = [
        name for name in dict.fromkeys([*one, *other]) if absent or (name in one and name in other)
    ]
    return [
        f"{name}: {one.get(name, absent)} and {other.get(name, absent)}"
        for name in names
        if one.get(name) != other.get(name)
    ]
