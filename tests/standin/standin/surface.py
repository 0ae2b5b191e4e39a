"""What a package called ``cupy`` looks like: names, arguments and numbers, as JSON.

Run by the stand-in's own test in a process that has the real CuPy: ``python surface.py < names``.
"""

import importlib
import inspect
import json
import re
import sys


def described(name: str) -> object:
    """Return what there is under a name such as ``cupy.cuda.runtime:memcpyAsync``: a value, names of arguments, or None."""
    module, _, path = name.partition(":")
    found: object = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        if not hasattr(found, part):
            return "missing"
        found = getattr(found, part)
    if isinstance(found, int | float | str | list):
        return found
    if not callable(found):
        return None
    try:
        kinds = inspect.signature(found).parameters.values()
        told = [each.name for each in kinds if each.kind is not each.VAR_KEYWORD]
    except (TypeError, ValueError):  # Cython's functions say it in their docstrings
        first = re.match(r"[\w.]+\((.*?)\)(?:$| ->|\n)", getattr(found, "__doc__", None) or "")
        if first is None:
            return None
        words = [word.split("=")[0].split() for word in first[1].split(",")]
        told = [word[-1] for word in words if word and word[-1].isidentifier()]
    return [name for name in told if name != "self"]


if __name__ == "__main__":
    import cupy

    told = {name: described(name) for name in json.load(sys.stdin)}
    json.dump({"version": cupy.__version__, "names": told}, sys.stdout)
