"""``docs/translations.rst`` names calls that exist, and leaves out no communication of the other libraries."""

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from test_mpi4py_page import NAMES, Ours, check, literals, ours

from hpccomm.cupyx import NCCLBackend

__all__ = ["ours"]  # a fixture

PAGE = (Path(__file__).parents[1] / "docs" / "translations.rst").read_text("utf-8")
CELL = r"(.*?)\n     -"
ROWS = re.findall(rf"^   \* -{CELL * 3}(.*?)(?=\n   \*|\n\n)", PAGE, re.M | re.S)[1:]
MPI4PY, CUPYX, TORCH = ({n for row in ROWS for n in literals(row[at])} for at in range(3))


def test_what_is_said_of_hpccomm_is_there(ours: Ours) -> None:
    codes = [code for row in ROWS for code in literals(row[3])]
    assert len(codes) >= len(ROWS) > 30
    for code in codes:
        assert re.match(rf"(with )?({'|'.join(NAMES)})\b", code), code
        check(code, ours)


def test_calls_of_mpi4py_are_there() -> None:
    found = importlib.util.find_spec("mpi4py")
    if found is None or found.origin is None:
        pytest.skip("mpi4py is not installed")
    stub = ast.parse(Path(found.origin).with_name("MPI.pyi").read_text("utf-8"))
    there = {
        each.name
        for kind in stub.body
        if isinstance(kind, ast.ClassDef) and kind.name in ("Comm", "Intracomm", "Topocomm")
        for each in kind.body
        if isinstance(each, ast.FunctionDef)
    }
    assert there >= MPI4PY
    # What has an asynchronous form communicates.
    blocking = {name for name in there if f"I{name[0].lower()}{name[1:]}" in there}
    assert blocking - MPI4PY == {"Agree", "Dup_with_info", "Flush_buffer"}


def test_calls_of_cupyx_are_there() -> None:
    """Another test compares ours with theirs."""
    public = {name for name, _ in inspect.getmembers(NCCLBackend, inspect.isfunction)}
    assert {name for name in public if not name.startswith("_")} == CUPYX


SINCE_2_14 = {"gather_single", "gather_into_tensor", "set_timeout"}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of names that are going away
def test_calls_of_torch_are_there() -> None:
    torch = pytest.importorskip("torch.distributed")
    assert {name for name in TORCH if not hasattr(torch, name)} <= SINCE_2_14
    names = set(torch.distributed_c10d.__all__) & {
        name for name, _ in inspect.getmembers(torch, inspect.isfunction)
    }
    of_groups = {
        name for name in names if "group" in inspect.signature(getattr(torch, name)).parameters
    }
    assert {name for name in of_groups if not name.startswith("get_")} - TORCH == set()
