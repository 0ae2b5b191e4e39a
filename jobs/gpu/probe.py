"""What one Python has for hpccomm on GPUs, as JSON: ``python probe.py PACKAGE...``; it installs nothing."""

import ctypes
import json
import os
import platform
import sys
from importlib import metadata, util
from pathlib import Path


def main() -> None:
    """Print it."""
    standin = "standin" in str(getattr(util.find_spec("cupy"), "origin", ""))
    driver = {"devices": 1, "cuda": 12, "why": ""} if standin else asked_driver()
    wheels = [each for each in (12, 13) if version(f"cupy-cuda{each}x")]
    # The compiler must be of CuPy's CUDA, which may be older than the driver's.
    cuda = wheels[0] if wheels else min(max(int(str(driver["cuda"] or 13)), 12), 13)
    found: dict[str, object] = {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in sys.argv[1:]},
        "driver": driver,
        "cuda": cuda,
        "nvrtc": standin or has_library(f"libnvrtc.so.{cuda}"),
        "nccl": standin or has_library("libnccl.so.2"),
        "torch": "the stand-in" if standin else version("torch"),
    }
    # What is known so far is printed, should CuPy or a driver hang.
    print(json.dumps(found), flush=True)
    print(json.dumps(found | {"cupy": cupy()}), flush=True)


def version(package: str) -> str:
    """Return the installed version of a package; '' without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def has_library(name: str) -> bool:
    """Tell whether a library is where CuPy finds it: in NVIDIA's wheels, a toolkit, the system."""
    toolkits = filter(None, map(os.environ.get, ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")))
    places = [Path(toolkit, lib, name) for toolkit in toolkits for lib in ("lib64", "lib")]
    places += [path for entry in sys.path for path in Path(entry).glob(f"nvidia/*/lib/{name}")]
    try:
        return any(path.exists() for path in places) or bool(ctypes.CDLL(name))
    except OSError:
        return False


def asked_driver() -> dict[str, object]:
    """Ask the NVIDIA driver, without any library of CuPy's."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"devices": 0, "cuda": 0, "why": f"there is no NVIDIA driver ({error})"}
    count, number = ctypes.c_int(), ctypes.c_int()
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(number))
    why = f"the NVIDIA driver gives no device (CUDA error {status})" if status else ""
    why = why or ("" if count.value else "no GPU is visible")
    return {"devices": count.value, "cuda": number.value // 1000, "why": why}


def cupy() -> dict[str, object]:
    """Return CuPy's version and NCCL's, and why CuPy is not imported, or computes nothing, or ''."""
    facts: dict[str, object] = {"version": "", "nccl": 0, "device": "", "why": "", "kernel": ""}
    step = "why"
    try:
        import cupy
        from cupy.cuda import nccl, runtime

        facts["version"], step = cupy.__version__, "kernel"
        # Without NCCL's library the module has nothing else in it.
        facts["nccl"] = nccl.get_version() if getattr(nccl, "available", False) else 0
        facts["device"] = runtime.getDeviceProperties(0)["name"].decode()
        a = cupy.ones(4, "f")  # takes the compiler and its headers, and no other library
        if float((a + a).sum()) != 8:
            raise ValueError("a sum is wrong")
    except Exception as error:  # noqa: BLE001 (it is what is missing)
        facts[step] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return facts


if __name__ == "__main__":
    main()
