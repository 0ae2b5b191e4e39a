"""NVIDIA's management library where the machine has made-up GPUs. For a conftest.py to import.

Constants, errors, and the names and parameters of functions are those of the real package (nvidia-ml-py): a call that
it would not take fails.
"""

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

UP, DOWN = 1, 0
PCI = SimpleNamespace(busId=b"00000000:3B:00.0", domain=0, bus=0x3B, device=0)


class Nvml:
    """The package ``pynvml``.

    Attributes
    ----------
    gpus : list of dict, or None
        The machine's; None if it has no driver. Of a GPU the answers by the names of their functions
        (``Name`` is of ``nvmlDeviceGetName``), by a function where those have further arguments; an index that is
        missing is an invalid argument, and an answer that is missing is not supported. ``fields`` are values by
        their constants' names. A GPU may also be the number of an error, with which it is refused.
    """

    def __init__(self, real: ModuleType) -> None:
        self.__spec__ = real.__spec__
        self.real = real
        self.gpus: list[Any] | None = None
        self.begun = 0

    def take_away(self) -> None:
        """Let the package be missing."""
        sys.modules["pynvml"] = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not name.startswith("nvml"):
            return found
        parameters = inspect.signature(found)

        def call(*arguments: Any) -> Any:
            parameters.bind(*arguments)
            try:
                return self._answer(name, *arguments)
            except KeyError:
                raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED) from None
            except IndexError:
                raise self.NVMLError(self.NVML_ERROR_INVALID_ARGUMENT) from None

        return call

    def _answer(self, name: str, *arguments: Any) -> Any:
        gpus = self.gpus or []
        match name, arguments:
            case "nvmlInit", ():
                if self.gpus is None:
                    raise self.NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)
                self.begun += 1
            case "nvmlShutdown", ():
                self.begun -= 1
            case "nvmlSystemGetDriverVersion", ():
                return "580.65.06"
            case "nvmlSystemGetCudaDriverVersion_v2", ():
                return 13000
            case "nvmlDeviceGetCount", ():
                return len(gpus)
            case "nvmlDeviceGetHandleByIndex", (index,):
                if isinstance(gpus[index], int):
                    raise self.NVMLError(gpus[index])
                return gpus[index]
            case "nvmlDeviceGetHandleByUUID", (uuid,):
                return {gpu["UUID"]: gpu for gpu in gpus}[uuid]
            case "nvmlDeviceGetFieldValues", (gpu, [number]):
                values = {getattr(self, name): value for name, value in gpu["fields"].items()}
                returned = self.NVML_SUCCESS if number in values else self.NVML_ERROR_NOT_SUPPORTED
                value = SimpleNamespace(uiVal=values.get(number))
                return [SimpleNamespace(nvmlReturn=returned, value=value)]
            case _, (gpu, *more):
                answer = gpu[name.removeprefix("nvmlDeviceGet")]
                return answer(*more) if more else answer
        return None


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """Put the double in the place of the package; what is begun with it must be ended."""
    double = Nvml(pytest.importorskip("pynvml"))
    # No GPU can be planted in a machine.
    monkeypatch.setitem(sys.modules, "pynvml", double)  # type: ignore[arg-type]
    yield double
    assert double.begun == 0
