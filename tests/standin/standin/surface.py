"""What a package called ``cupy`` looks like: names, arguments, numbers and texts, as JSON.

Run by the stand-in's own tests in a process that has the real CuPy: ``python surface.py < names``.
"""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path


def arguments(function: object) -> list[str] | None:
    """Return the names of a function's arguments, or None where nothing tells them."""
    try:
        found = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
    except (TypeError, ValueError):
        first = re.match(r"[\w.]+\((.*?)\)(?:$| ->|\n)", getattr(function, "__doc__", None) or "")
        if first is None:
            return None
        words = [word.split("=")[0].split() for word in first[1].split(",")]
        found = [word[-1] for word in words if word and word[-1].isidentifier()]
    return [name for name in found if name != "self"]


def described(name: str) -> object:
    """Return what there is under a name such as ``cupy.cuda.runtime:memcpyAsync``."""
    module, _, path = name.partition(":")
    found: object = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        if not hasattr(found, part):
            return {"missing": True}
        found = getattr(found, part)
    if isinstance(found, int | float | str | list):
        return {"value": found}
    return {"arguments": arguments(found) if callable(found) else None}


def in_nccl(words: list[str]) -> dict[str, bool]:
    """Tell which words stand in the NCCL library that CuPy has loaded."""
    importlib.import_module("cupy.cuda.nccl")
    with Path("/proc/self/maps").open() as maps:
        files = {line.split()[-1] for line in maps if "libnccl" in line}
    library = b"".join(Path(file).read_bytes() for file in files)
    return {word: word.encode() in library for word in words}


def texts(package: str) -> list[str]:
    """Return the texts of NCCL's errors."""
    nccl = importlib.import_module(f"{package}.cuda.nccl")
    return [str(nccl.NcclError(status)) for status in range(1, 7)]


if __name__ == "__main__":
    import cupy

    names = json.load(sys.stdin)
    json.dump(
        {
            "version": cupy.__version__,
            "names": {name: described(name) for name in names if not name.startswith("nccl:")},
            "nccl": in_nccl([name[5:] for name in names if name.startswith("nccl:")]),
            "texts": texts("cupy"),
        },
        sys.stdout,
    )
