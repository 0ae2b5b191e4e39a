"""NVIDIA's GPUs: on the bus, in the driver, and by NVML."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading
from hpccomm.memory.cuda import nvml

_READ, _WRITE = 0, 1
"""NVML_P2P_CAPS_INDEX_READ and _WRITE; the package has a tuple for the first."""

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
            _ask(reading, library)
    except LookupError as error:
        reading.miss("", str(error.args[0]))
    return reading.facts()


def _line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _ask(reading: Reading, library: Any) -> None:
    def take(
        fact: str, name: str, *arguments: Any, made: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        def read() -> Any:
            try:
                return made(getattr(library, name)(*arguments))
            except library.NVMLError as error:
                raise LookupError(f"NVML: {error}") from error
            except AttributeError as error:
                raise LookupError(f"this nvidia-ml-py has no {name}") from error

        return reading.take(fact, read)

    take("driver", "nvmlSystemGetDriverVersion", made=_text)
    take("cuda", "nvmlSystemGetCudaDriverVersion_v2")
    handles = [
        library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())
    ]
    reading.put("count", len(handles))
    for index, handle in enumerate(handles):
        for fact, name, made in (
            ("name", "nvmlDeviceGetName", _text),
            ("uuid", "nvmlDeviceGetUUID", _text),
            ("bus", "nvmlDeviceGetPciInfo", lambda info: _text(info.busId).lower()),
            ("vbios", "nvmlDeviceGetVbiosVersion", _text),
            ("persistence", "nvmlDeviceGetPersistenceMode", bool),
            ("mig", "nvmlDeviceGetMigMode", list),
            ("ecc", "nvmlDeviceGetEccMode", list),
            ("remapped", "nvmlDeviceGetRemappedRows", list),
            ("clock_reasons", "nvmlDeviceGetCurrentClocksEventReasons", int),
            ("compute_mode", "nvmlDeviceGetComputeMode", int),
            ("processes", "nvmlDeviceGetComputeRunningProcesses", len),
        ):
            take(f"devices.{index}.{fact}", name, handle, made=made)
        uncorrected = (library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC)
        take(f"devices.{index}.uncorrected", "nvmlDeviceGetTotalEccErrors", handle, *uncorrected)
        _link(reading, library, index, handle)
    pairs = itertools.permutations(range(len(handles)), 2)
    if len(handles) > 1:
        reading.put("peers", {})
    for one, other in pairs:
        for kind, number in (("read", _READ), ("write", _WRITE)):
            take(
                f"peers.{one}-{other}.{kind}",
                "nvmlDeviceGetP2PStatus",
                handles[one],
                handles[other],
                number,
            )


def _link(reading: Reading, library: Any, index: int, handle: Any) -> None:
    """Keep what the device's place on PCI Express gives, if it is under load."""
    try:
        busy = library.nvmlDeviceGetUtilizationRates(handle).gpu
        if busy < AT_WORK:
            reading.miss(
                "devices.*.link", "an idle GPU lowers its link: look while the GPUs are at work"
            )
            return
        link = {
            "generation": library.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "most_generation": library.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "width": library.nvmlDeviceGetCurrPcieLinkWidth(handle),
            "most_width": library.nvmlDeviceGetMaxPcieLinkWidth(handle),
        }
    except library.NVMLError as error:
        reading.miss("devices.*.link", f"NVML: {error}")
        return
    reading.put(f"devices.{index}.link", link)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
