"""NVIDIA's GPUs: on the bus, in the driver, and by NVML."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading, why
from hpccomm.memory.cuda import nvml


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_OF_DEVICE: dict[str, tuple[str, tuple[int, ...], Callable[[Any], Any]]] = {
    "name": ("nvmlDeviceGetName", (), _text),
    "uuid": ("nvmlDeviceGetUUID", (), _text),
    "bus": ("nvmlDeviceGetPciInfo", (), lambda info: _text(info.busId).lower()),
    "vbios": ("nvmlDeviceGetVbiosVersion", (), _text),
    "persistence": ("nvmlDeviceGetPersistenceMode", (), bool),
    "mig": ("nvmlDeviceGetMigMode", (), list),
    "ecc": ("nvmlDeviceGetEccMode", (), list),
    "remapped": ("nvmlDeviceGetRemappedRows", (), list),
    "uncorrected": ("nvmlDeviceGetTotalEccErrors", (1, 0), int),  # uncorrected, volatile
    "clock_reasons": ("nvmlDeviceGetCurrentClocksEventReasons", (), int),
    "compute_mode": ("nvmlDeviceGetComputeMode", (), int),
    "processes": ("nvmlDeviceGetComputeRunningProcesses", (), len),
    "busy": ("nvmlDeviceGetUtilizationRates", (), lambda rates: int(rates.gpu)),
}
"""The facts of a device: the function of NVML, its arguments after the device, and what is kept of its result."""

_OF_LINK = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "most_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "most_width": "nvmlDeviceGetMaxPcieLinkWidth",
}

_WAYS = {"read": 0, "write": 1}
"""NVML's nvmlGpuP2PCapsIndex_t; the package has a tuple for the first."""

AT_WORK = 20
"""Percent of the time with a kernel, from which on a GPU is under load: an idle one lowers its link."""


def gather(root: Path = Path("/")) -> dict[str, Any]:
    """Return the facts of the GPUs."""
    reading = Reading(root)
    on_bus = [
        device.name
        for device in reading.matches("/sys/bus/pci/devices", "*")
        if _line(device / "vendor") == "0x10de" and _line(device / "class").startswith("0x03")
    ]
    reading.put("on_bus", len(on_bus))
    module = reading.path("/proc/driver/nvidia/version").exists()
    reading.put("module", module)
    if not module:
        reading.miss(
            "", "there is no NVIDIA GPU here" if not on_bus else "NVIDIA's driver is not loaded"
        )
        return reading.facts()
    try:
        with nvml.opened() as library:
            _devices(reading, library)
    except LookupError as error:
        reading.miss("", str(error.args[0]))
    return reading.facts()


def _line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _ask(library: Any, name: str, *arguments: Any) -> Any:
    """Return what a function of NVML returns; it raises LookupError where NVML cannot say."""
    try:
        return getattr(library, name)(*arguments)
    except library.NVMLError as error:
        raise LookupError(f"NVML: {error}") from error
    except AttributeError as error:
        raise LookupError(f"this nvidia-ml-py has no {name}") from error


def _devices(reading: Reading, library: Any) -> None:
    reading.take("driver", lambda: _text(_ask(library, "nvmlSystemGetDriverVersion")))
    reading.take("cuda", lambda: _ask(library, "nvmlSystemGetCudaDriverVersion_v2"))
    count = _ask(library, "nvmlDeviceGetCount")
    reading.put("count", count)
    handles, lost = {}, []
    for index in range(count):
        try:
            handles[index] = _ask(library, "nvmlDeviceGetHandleByIndex", index)
        except LookupError as error:
            if "Permission" not in why(error):  # Slurm may keep it from this job
                lost.append(f"GPU {index}: {why(error)}")
    if lost:
        reading.put("lost", lost)
    for index, handle in handles.items():
        for fact, (name, more, kept) in _OF_DEVICE.items():
            read = partial(_ask, library, name, handle, *more)
            reading.take(f"devices.{index}.{fact}", lambda kept=kept, read=read: kept(read()))  # type: ignore[misc]
        reading.take(f"devices.{index}.link", partial(_link, library, handle))
    for one, other in itertools.permutations(handles, 2):
        for way, number in _WAYS.items():
            ends = handles[one], handles[other]
            reading.take(
                f"peers.{one}-{other}.{way}",
                partial(_ask, library, "nvmlDeviceGetP2PStatus", *ends, number),
            )


def _link(library: Any, handle: Any) -> dict[str, int]:
    """Return what the device's place on PCI Express gives, if it is under load."""
    if _ask(library, "nvmlDeviceGetUtilizationRates", handle).gpu < AT_WORK:
        raise LookupError("an idle GPU lowers its link: look while the GPUs are at work")
    return {fact: _ask(library, name, handle) for fact, name in _OF_LINK.items()}
