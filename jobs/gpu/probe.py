"""What one Python has for hpccomm on GPUs, as JSON. Installs nothing; the standard library is enough.

python probe.py PACKAGE...
"""

import ctypes
import json
import platform
import sys
import traceback
from importlib import metadata, util
from pathlib import Path


def main() -> None:
    """Print it."""
    standin = "standin" in str(getattr(util.find_spec("cupy"), "origin", ""))
    found: dict[str, object] = {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in sys.argv[1:]},
        "nccl_packages": [
            f"{name} {version(name)}"
            for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nccl4py")
            if version(name)
        ],
        "driver": {"devices": 1, "cuda": 12, "why": ""} if standin else driver(),
        "torch": "the stand-in" if standin else version("torch"),
    }
    # What is known so far is printed, should CuPy or a driver hang.
    print(json.dumps(found), flush=True)
    found["cupy"] = cupy()
    print(json.dumps(found), flush=True)


def version(package: str) -> str:
    """Return the installed version of a package; '' without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def driver() -> dict[str, object]:
    """Ask the NVIDIA driver, without any library of CuPy's."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"devices": 0, "cuda": 0, "why": f"there is no NVIDIA driver ({error})"}
    count, number = ctypes.c_int(), ctypes.c_int()
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(number))
    why = ""
    if status:
        why = f"the NVIDIA driver gives no device (CUDA error {status})"
    elif not count.value:
        why = "no GPU is visible"
    return {"devices": count.value, "cuda": number.value // 1000, "why": why}


def cupy() -> dict[str, object]:
    """Return CuPy's version, NCCL's, the library files that are loaded, and why it cannot be used, or ''."""
    facts: dict[str, object] = {"version": "", "nccl": 0, "files": [], "devices": [], "why": ""}
    try:
        import cupy

        facts["version"] = cupy.__version__
        from cupy.cuda import nccl

        facts["nccl"] = nccl.get_version()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
        facts["files"] = sorted({path for path in maps if "libnccl" in path})
        from hpccomm.memory.cuda import library
        from hpccomm.memory.cuda.identity import identify

        facts["why"] = library.unavailable()
        if not facts["why"]:
            facts["devices"] = [
                f"{each.name}, {each.pci}, {each.uuid}"
                for each in map(identify, range(library.visible_devices()))
            ]
            a = cupy.ones((4, 4), "f")  # takes the compiler, its headers, and cuBLAS
            if float((a @ a + a).sum()) != 80:
                raise ValueError("a product of matrices is wrong")
    except Exception as error:  # noqa: BLE001 (it is what is missing)
        traceback.print_exc()
        facts["why"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return facts


if __name__ == "__main__":
    main()
