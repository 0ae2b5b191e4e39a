"""The table of mpi4py's names spells calls that exist, and leaves out no call of mpi4py's."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alone import python

import hpccomm
from hpccomm.spelling import ours as hint_for
from hpccomm.spelling import table
from hpccomm.testing import run_ranks

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "mpi4py.rst").read_text("utf-8")
NAMES = ("comm", "grid", "window", "work", "message", "hpccomm", "ReduceOp")

Ours = dict[str, Any]


@pytest.fixture(scope="module")
def ours() -> Iterator[Ours]:
    """What the names in the page's code stand for."""
    with hpccomm.new_comm(backend="loopback") as comm, comm.window(np.zeros(1)) as window:
        work = comm.all_reduce(np.zeros(1), async_op=True)
        work.wait()
        sent = comm.send(np.zeros(1), 0, async_op=True)
        message = comm.probe()
        assert message is not None
        each = (comm, comm.grid((1,)), window, work, message, hpccomm, hpccomm.ReduceOp)
        yield dict(zip(NAMES, each, strict=True))
        message.recv()
        sent.wait()


def literals(text: str) -> list[str]:
    return [" ".join(each.split()) for each in re.findall(r"``(.+?)``", text, re.DOTALL)]


def resolved(node: ast.expr, ours: Ours) -> Any:
    """What an expression such as ``comm.send`` names; None for one of other things."""
    if isinstance(node, ast.Name):
        return ours.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := resolved(node.value, ours)) is not None:
        return getattr(owner, node.attr)  # which raises where there is none
    return None


def check(code: str, ours: Ours) -> None:
    """Raise unless the names in a piece of code exist, and take the arguments that they are given."""
    source = f"{code}: pass" if code.startswith("with ") else code
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            resolved(node, ours)
        if isinstance(node, ast.Call) and (function := resolved(node.func, ours)) is not None:
            keywords = {str(each.arg): None for each in node.keywords}
            inspect.signature(function).bind(*node.args, **keywords)


def spelled() -> list[str]:
    cells = (row[column] for row in table() for column in ("hpccomm", "differs"))
    return sorted({code for cell in cells for code in literals(cell)})


def test_what_the_page_spells_is_there(ours: Ours) -> None:
    codes = [code for code in spelled() if re.match(rf"(with )?({'|'.join(NAMES)})\b", code)]
    assert len(codes) > 100
    for code in codes:
        check(code, ours)


def test_the_page_has_every_row_of_the_table() -> None:
    shown = set(re.findall(r"^\.\. made by tables\.py: mpi4py_(\w+)$", PAGE, re.M))
    assert shown == {row["section"] for row in table()}


TOLD = """
comm Allreduce_init comm.plan("all_reduce", x, op, out=y)
comm Iallreduce comm.all_reduce(x, op, out=y, async_op=True)
comm Ibarrier comm.barrier(async_op=True)
comm Get_rank comm.rank
comm Psend_init no counterpart
comm all_redcue did you mean all_reduce?
work Wait work.wait(timeout=1.0)
window Put window.put(x, dst, offset)
window fecth_and_op did you mean fetch_and_op?
message Get_source message.src
grid Get_coords grid.coords_of(rank)
ReduceOp sum ReduceOp has no member 'sum'; did you mean SUM?
ReduceOp LAND np.logical_and
hpccomm ANY_SOURCE MPI.ANY_SOURCE is mpi4py's, and is written hpccomm.ANY here
"""
"""Whose name it is, the name, and what its error says."""


@pytest.mark.parametrize("line", TOLD.split("\n")[1:-1])
def test_a_name_that_is_not_there_leads_to_ours(line: str, ours: Ours) -> None:
    owner, name, told = line.split(" ", 2)
    with pytest.raises(AttributeError, match=re.escape(told)):
        getattr(ours[owner], name)
    assert not hasattr(ours[owner], name)


def test_an_argument_that_a_call_does_not_take_leads_to_ours() -> None:
    """Python raises it before hpccomm hears of it, so the end of the communicator adds to it."""
    names = {"send": "dest dst", "recv": "source src", "all_reduce": "sendbuf x"}
    for call, both in (names | {"grid": "periods periodic", "reduce": "rot root"}).items():
        given, ours = both.split()
        with pytest.raises(TypeError, match=f"'{given}'.* {ours}="):
            run_ranks(1, lambda comm: getattr(comm, call)(**{given: 0}))  # noqa: B023


def test_hints_spell_calls_that_are_there(ours: Ours) -> None:
    names = [name for row in table() for name in row["mpi4py"].split()]
    for code in [hint for name in names if (hint := written(name)).startswith("comm.")]:
        check(code, ours)
        assert not code.startswith('comm.plan("plan"')


def written(name: str) -> str:
    """What the hint for a name of mpi4py's says to write."""
    found = re.search(r"is written (.*?) here(\.|$)", hint_for(name))
    return found[1] if found else ""


def test_names_that_libraries_ask_for_are_looked_up_nowhere(ours: Ours) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute '__array_interface__'$"):
        ours["comm"].__array_interface__  # noqa: B018


CLASSES = {
    "": "Comm Intracomm Intercomm Topocomm Cartcomm Graphcomm Distgraphcomm Request Prequest Grequest Message",
    "Win.": "Win",
    "Status.": "Status",
    "Op.": "Op",
    "Datatype.": "Datatype",
}
"""Classes of mpi4py, by what precedes the names of their members in the table."""

MEMBERS = f"""
import json, pkgutil, re
import mpi4py.util
mpi4py.rc.initialize = False
from mpi4py import MPI
public = lambda owner: [name for name in dir(owner) if not name.startswith("_")]
members = {{
    prefix + name
    for prefix, classes in {CLASSES}.items()
    for each in classes.split()
    for name in public(getattr(MPI, each))
}} | {{f"{{name}}=" for name in re.findall(r"(\\w+):", str([each.__doc__ for each in vars(MPI.Comm).values()] + [MPI.Intracomm.Create_cart.__doc__]))}}
modules = {{
    each.name for kind in (mpi4py, mpi4py.util)
    for each in pkgutil.iter_modules(kind.__path__, kind.__name__ + ".")
}}
print(json.dumps([list(members), [f"MPI.{{name}}" for name in public(MPI)] + list(modules)]))
"""


def test_each_name_of_mpi4py_is_in_the_table() -> None:
    """mpi4py itself says what it has: a process asks it, so that MPI is not started in this one."""
    pytest.importorskip("mpi4py")
    done = python("-c", MEMBERS)
    assert done.returncode == 0, done.stderr
    members, others = map(set, json.loads(done.stdout))
    listed = [name for row in table() for name in row["mpi4py"].split()]
    assert {name for name in members if name[-1] != "="} - set(listed) == set()
    assert set(listed) - members - others == set()
    assert len(listed) == len(set(listed))
    for code in spelled():  # what the table says of mpi4py
        assert set(re.findall(r"comm\.mpi_comm\.(\w+)", code)) <= members, code
        assert set(re.findall(r"\bMPI\.\w+", code)) <= others, code
