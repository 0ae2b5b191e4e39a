"""The stand-in for CuPy looks like the real one that is installed: names, arguments, numbers and dtypes."""

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module

import pytest

cupy = pytest.importorskip("cupy")
surface = pytest.importorskip("standin.surface")
LOOPS = import_module("cupy._loops").TYPES

pytestmark = pytest.mark.standin


EXACT = ("cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.nccl", "cupy.cuda.stream")


def public(module):
    """Return the names of a module that are CuPy's, as `surface` takes them."""
    names = []
    for name, value in vars(import_module(module)).items():
        ours = getattr(value, "__module__", "cupy").partition(".")[0] in ("cupy", "standin")
        if name.startswith("_") or inspect.ismodule(value) or not ours:
            continue
        names.append(f"{module}:{name}")
        if inspect.isclass(value):
            names += [f"{module}:{name}.{part}" for part in vars(value) if part[0] != "_"]
    return names


def test_names_arguments_and_numbers_are_cupys():
    """Asked of a process that has it: ``STANDIN_REAL_PYTHON`` or this Python."""
    names = [name for module in ("cupy", *EXACT) for name in public(module)]
    names += [f"cupy:{name}.types" for name in LOOPS]
    done = subprocess.run(
        [os.environ.get("STANDIN_REAL_PYTHON", sys.executable), surface.__file__],
        input=json.dumps(names),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"there is no real CuPy to compare with ({why}); install cupy-cuda12x")
    real = json.loads(done.stdout)
    if real["version"].split(".")[0] != cupy.__version__.split(".")[0]:
        pytest.skip(f"CuPy {real['version']} is another version than the stand-in's")
    for name, found in real["names"].items():
        assert found != "missing", name
        if name.endswith(".types"):  # the loops that it has code for
            found = [loop for loop in found if "V" not in loop]
        elif name.partition(":")[0] not in EXACT or name.endswith(("Graph", "MemoryPool")):
            continue
        if found is not None:  # an attribute of instances tells nothing
            assert surface.described(name) == found, name
