"""The stand-in for CuPy looks like the real one that is installed: names, arguments, dtypes, errors."""

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

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


@pytest.fixture(scope="module")
def real():
    """What the real CuPy looks like, from a process that has it: ``STANDIN_REAL_PYTHON`` or this Python."""
    names = [name for module in ("cupy", *EXACT) for name in public(module)]
    names += [f"cupy:{name}.types" for name in LOOPS]
    names += [f"nccl:{name}" for name in OF_THE_RULES]
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
    found = json.loads(done.stdout)
    if found["version"].split(".")[0] != cupy.__version__.split(".")[0]:
        pytest.skip(f"CuPy {found['version']} is another version than the stand-in's")
    return found


def test_names_arguments_and_numbers_are_cupys(real):
    missing = [name for name, found in real["names"].items() if found == {"missing": True}]
    assert missing == []
    unlike = ("Graph", "MemoryPool")
    for name, found in real["names"].items():
        told = found != {"arguments": None}  # an attribute of instances tells nothing
        if name.partition(":")[0] in EXACT and told and not name.endswith(unlike):
            assert surface.described(name) == found, name


def test_functions_of_elements_have_cupys_loops(real):
    for name, loops in LOOPS.items():
        told = real["names"][f"cupy:{name}.types"]["value"]
        assert loops == [loop for loop in told if "V" not in loop], name


def test_errors_say_what_the_real_ones_say(real):
    assert surface.texts("cupy") == real["texts"]


# What rules of NCCL are about.

OF_THE_RULES = (
    *("NCCL_CONF_FILE", "NCCL_ALGO", "NCCL_HOSTID", "NCCL_LAUNCH_ORDER_IMPLICIT", "/.nccl.conf"),
    *("ncclCommRevoke", "ncclCommAbort"),
    *("NCCL_LOCAL_REGISTER", "ncclMemAlloc", "ncclCommRegister"),
)
"""Names that the library must have. What NCCL does by them was read in its source; no GPU has shown it."""


def test_nccl_has_what_the_rules_are_of(real):
    assert [name for name in OF_THE_RULES if not real["nccl"][name]] == []


def test_each_rule_that_is_listed_has_its_test():
    here = Path(__file__).parent
    table = (here.parent / "standin/README.md").read_text()
    rows = re.findall(r"\| `(?:test_)?(\w+)`(?:: ([\w, ]+))? \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| ") - table.count("| Rule |")
    for file, names in rows:
        tests = re.findall(r"def test_(\w+)", (here / f"test_{file}.py").read_text())
        for name in names.split(", "):
            assert any(name in each for each in tests), (file, name)
