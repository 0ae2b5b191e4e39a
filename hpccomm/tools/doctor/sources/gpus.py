"""Facts of NVIDIA's GPUs: whether their driver is loaded, NVML's facts, and their NVLinks."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from hpccomm.tools import nvml
from hpccomm.tools.doctor.reading import Reading, rows, why


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_KINDS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "address": lambda info: _text(info.busId).lower(),
    "busy": lambda rates: int(rates.gpu),
    "number": len,
    **{kind.__name__: kind for kind in (bool, int, list)},
}
"""The fact of ``nvml.tsv`` from a function's result, with the arguments after the device."""

_WAYS = {"read": 0, "write": 1}
"""NVML's nvmlGpuP2PCapsIndex_t; the package has a tuple for the first."""

AT_WORK = 20
"""Utilisation in percent above which a GPU counts as loaded: an idle one lowers its link."""


def gather(reading: Reading) -> None:
    """Read the facts of the GPUs."""
    reading.put("module", _by_nvml(reading, "", _devices))


def _by_nvml(reading: Reading, fact: str, read: Callable[[Reading, Any], None]) -> bool:
    """Let a function read facts by NVML, or store why `fact` cannot be read; return whether the driver is loaded."""
    if not reading.path("/proc/driver/nvidia/version").exists():
        reading.miss(fact, "NVIDIA's driver is not loaded")
        return False
    try:
        with nvml.opened() as library:
            read(reading, library)
    except LookupError as error:
        reading.miss(fact, why(error))
    return True


def _ask(library: Any, name: str, *arguments: Any) -> Any:
    """Return the result of a function of NVML; raises LookupError if NVML cannot tell."""
    try:
        return getattr(library, name)(*arguments)
    except library.NVMLError as error:
        raise LookupError(f"NVML: {error}") from error
    except AttributeError as error:
        raise LookupError(f"this nvidia-ml-py has no {name}") from error


def _devices(reading: Reading, library: Any) -> None:
    reading.take("driver", lambda: _text(_ask(library, "nvmlSystemGetDriverVersion")))
    reading.take("cuda", lambda: _ask(library, "nvmlSystemGetCudaDriverVersion_v2"))
    reading.put("count", _ask(library, "nvmlDeviceGetCount"))
    handles, lost = _handles(library)
    if lost:
        reading.put("lost", lost)
    for index, handle in handles.items():
        for row in rows("nvml.tsv"):
            if row["of"] == "device":
                reading.take(f"devices.{index}.{row['fact']}", partial(_fact, library, handle, row))
        reading.take(f"devices.{index}.link", partial(_link, library, handle))
    for one, other in itertools.permutations(handles, 2):
        for way, number in _WAYS.items():
            ends = handles[one], handles[other]
            ask = partial(_ask, library, "nvmlDeviceGetP2PStatus", *ends, number)
            reading.take(f"peers.{one}-{other}.{way}", ask)


def _handles(library: Any) -> tuple[dict[int, Any], list[str]]:
    """Return the handles of the GPUs by their numbers, and why there is none of a GPU that is lost."""
    handles, lost = {}, []
    for index in range(_ask(library, "nvmlDeviceGetCount")):
        try:
            handles[index] = _ask(library, "nvmlDeviceGetHandleByIndex", index)
        except LookupError as error:
            if "Permission" not in why(error):  # Slurm may keep it from this job
                lost.append(f"GPU {index}: {why(error)}")
    return handles, lost


def _fact(library: Any, handle: Any, row: Mapping[str, str]) -> Any:
    more = map(int, row["arguments"].split())
    return _KINDS[row["kind"]](_ask(library, row["function"], handle, *more))


def _link(library: Any, handle: Any) -> dict[str, int]:
    """Return the facts of the device's PCI Express slot, if it is under load."""
    if _ask(library, "nvmlDeviceGetUtilizationRates", handle).gpu < AT_WORK:
        raise LookupError("an idle GPU lowers its link: look while the GPUs are at work")
    of_links = (row for row in rows("nvml.tsv") if row["of"] == "link")
    return {row["fact"]: _fact(library, handle, row) for row in of_links}


def nvlink(reading: Reading) -> None:
    """Read ``gpus``: name, PCI address, ``rate`` of a link in GB/s, and ``links`` with the device at the other end."""
    _by_nvml(reading, "gpus", _linked)


def _linked(reading: Reading, library: Any) -> None:
    gpus = [
        {
            "name": _text(library.nvmlDeviceGetName(handle)),
            "pci": address(library.nvmlDeviceGetPciInfo(handle)),
            "rate": nvml.nvlink_rate(library, handle),
            "links": list(_links(library, handle)),
        }
        for handle in _handles(library)[0].values()
    ]
    reading.put("gpus", gpus)


def _links(library: Any, handle: Any) -> Iterator[dict[str, Any]]:
    for number, up in nvml.nvlinks(library, handle):
        link: dict[str, Any] = {"link": number, "up": up}
        # A link that is down has no other end, and a virtual machine hides it.
        with contextlib.suppress(library.NVMLError):
            link["to"] = address(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, number))
        yield link


def address(info: Any) -> str:
    """Return a PCI address as sysfs spells it; NVML has more digits and capitals."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
