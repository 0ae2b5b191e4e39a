"""Facts about each rank's device and NCCL, and whether NCCL can work between the ranks.

It detects every placement of ranks at which NCCL would fail or hang, before NCCL is called.
`opening` compares the facts of all ranks; the doctor prints them.
"""

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from hpccomm.backends.nccl import libnccl, variables
from hpccomm.errors import BackendUnavailable
from hpccomm.memory.cuda import library
from hpccomm.memory.cuda.library import identify
from hpccomm.units import ranks_named

SEVERAL_RANKS_SINCE = 23000
"""NCCL version that can have several ranks on one GPU."""

NO_NCCL = "CuPy finds no NCCL library; pip install nvidia-nccl-cu12 (or -cu13), for CuPy's own CUDA version"

RANKS_A_GPU = 2
"""About the number that fits on one device with NCCL's own defaults."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One rank's device and software.

    Attributes
    ----------
    rank : int
        In the new communicator.
    host : str
        Name of its host.
    visible : int
        CUDA devices that its process sees.
    device : int
        Number of its device; -1 without one.
    name, uuid, pci : str
        Model of the device, its UUID, and its PCI address.
    capability : int
        Compute capability, ten times: 90 is a Hopper.
    nccl : int
        NCCL's version as its code (23203 is 2.32.3); 0 without one.
    cupy, driver, runtime : str
        Versions of CuPy and of CUDA's driver and runtime.
    functions : tuple of str
        The functions of `libnccl.FUNCTIONS` that the library has.
    host_id : str
        The user's ``NCCL_HOSTID``.
    variables : dict
        The variables that are set and must be equal on all ranks.
    why_not : str
        Why this rank cannot take part, and the remedy; empty if it can.
    """

    rank: int
    host: str
    visible: int = 0
    device: int = -1
    name: str = ""
    uuid: str = ""
    pci: str = ""
    capability: int = 0
    nccl: int = 0
    cupy: str = ""
    driver: str = ""
    runtime: str = ""
    functions: tuple[str, ...] = ()
    host_id: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""

    def packed(self) -> bytes:
        """Return them as bytes for the other ranks."""
        return json.dumps(asdict(self)).encode()


def unpacked(packed: bytes) -> Facts:
    """Return the facts that `Facts.packed` packed."""
    values: dict[str, Any] = json.loads(packed)
    values["functions"] = tuple(values["functions"])
    return Facts(**values)


def mine(rank: int, device: int | None) -> Facts:
    """Return this rank's facts. Local.

    Parameters
    ----------
    rank : int
        Its rank.
    device : int or None
        Its CUDA device; None without one.
    """
    facts = Facts(rank, platform.node())
    why_not = library.unavailable()
    if why_not or device is None:
        return replace(facts, why_not=why_not or "it has no CUDA device")
    facts = replace(facts, visible=library.visible_devices(), device=device)
    cupy, nccl = library.cupy(), libnccl.version()
    if not nccl:
        return replace(facts, cupy=cupy.__version__, why_not=NO_NCCL)
    runtime = cupy.cuda.runtime
    try:
        properties, known = runtime.getDeviceProperties(device), identify(device)._asdict()
        del known["number"]
        return replace(
            facts,
            **known,
            capability=10 * properties["major"] + properties["minor"],
            nccl=nccl,
            cupy=cupy.__version__,
            functions=libnccl.present(),
            host_id=variables.host_id(),
        )
    # Of `identify` as well: a rank that raised would leave the others waiting for its facts.
    except (runtime.CUDARuntimeError, libnccl.NcclError, BackendUnavailable, OSError) as error:
        why_not = (
            f"device {device} or NCCL does not answer ({error}); nvidia-smi shows whether "
            "the device is healthy"
        )
        return replace(facts, why_not=why_not)


def unfit(ranks: Sequence[Facts]) -> str:
    """Return why NCCL cannot work between these ranks, and the remedy; empty if it can.

    The result is the same on all ranks, because it depends on the facts alone.
    """
    looks = (_missing, _mixed, _differing, _doubled)
    return next(filter(None, (look(ranks) for look in looks)), "")


def _missing(ranks: Sequence[Facts]) -> str:
    lacking = [each for each in ranks if each.why_not]
    return "; ".join(
        f"{ranks_named(each.rank for each in alike)} ({', '.join(sorted({e.host for e in alike}))}): {why}"
        for why, alike in _grouped(lacking, lambda each: each.why_not)
    )


def _mixed(ranks: Sequence[Facts]) -> str:
    listed = _unequal(ranks, lambda each: version_text(each.nccl))
    if not listed:
        return ""
    return f"the ranks have different versions of NCCL ({listed}); install one version everywhere"


def _differing(ranks: Sequence[Facts]) -> str:
    """Find variables by which ranks would decide differently, and then wait for each other."""
    for name in sorted({name for each in ranks for name in each.variables}):
        listed = _unequal(ranks, partial(_set_to, name))
        if listed:
            return f"{name} differs between the ranks ({listed}); set it to the same value on all ranks, or on none"
    return ""


def _set_to(name: str, each: Facts) -> str:
    return each.variables.get(name, "not set")


def _unequal(ranks: Sequence[Facts], key: Callable[[Facts], str]) -> str:
    """Return the values of `key`, each with its ranks; empty if all ranks have the same."""
    values = _grouped(ranks, key)
    listed = (f"{value} on {ranks_named(each.rank for each in alike)}" for value, alike in values)
    return ", ".join(listed) if len(values) > 1 else ""


def _doubled(ranks: Sequence[Facts]) -> str:
    """Look for a GPU that ranks would share. NCCL refuses that unless the user allows it."""
    shared = []
    # All ranks have the same version, and the same variables.
    new = ranks[0].nccl >= SEVERAL_RANKS_SINCE
    allowed = ranks[0].variables.get(variables.SEVERAL_RANKS_A_GPU, "0").strip() != "0"

    # Ranks on one GPU are on one host, unless NCCL_HOSTID makes NCCL see several hosts.
    # Before 2.30 NCCL knows a GPU by its address, which all of its instances (MIG) have.
    def gpu(each: Facts) -> tuple[str, str]:
        by_address = not new and " MIG " in each.name
        return each.pci if by_address else each.uuid, each.host_id or each.host

    for _, alike in _grouped(ranks, gpu):
        if len(alike) > 1 and not (new and allowed):
            one = alike[0]
            mig = len({each.uuid for each in alike}) > 1
            shared.append(
                f"{ranks_named(each.rank for each in alike)} have {'instances (MIG) of ' * mig}the same GPU ({one.name} "
                f"{one.uuid}, device {one.device} of the {one.visible} that rank {one.rank} sees on {one.host}"
                f"){', which NCCL 2.30 and later take for several' * mig}"
            )
    if not shared:
        return ""
    several = (
        f"or set {variables.SEVERAL_RANKS_A_GPU}=1 on all ranks, for about two ranks per GPU"
        if new
        else f"or install NCCL 2.30 and set {variables.SEVERAL_RANKS_A_GPU}=1"
    )
    return (
        f"{'; '.join(shared)}; start at most as many ranks on a host as it has GPUs, with all GPUs "
        f"visible to each rank, or give each rank another device=, {several} (to try a program, "
        f"a different {variables.HOST_ID} for each rank also works: NCCL then uses sockets)"
    )


def shared_gpus(ranks: Sequence[Facts]) -> str:
    """Return a warning if more ranks share a GPU than it has room for; else ''."""
    for _, alike in _grouped(ranks, lambda each: each.uuid):
        if len(alike) > RANKS_A_GPU and variables.MAX_CTAS not in ranks[0].variables:
            return (
                f"{ranks_named(each.rank for each in alike)} share a GPU, which has room for about "
                f"{RANKS_A_GPU} by default: NCCL may hang; set {variables.MAX_CTAS}, such as to 2"
            )
    return ""


def _grouped(ranks: Iterable[Facts], key: Callable[[Facts], Any]) -> list[tuple[Any, list[Facts]]]:
    groups: dict[Any, list[Facts]] = {}
    for each in ranks:
        groups.setdefault(key(each), []).append(each)
    return list(groups.items())


def version_text(code: int) -> str:
    """Return NCCL's version code in the usual form: 23203 is 2.32.3, 2708 is 2.7.8."""
    if not code:
        return "none"
    major = 10000 if code >= 10000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"
