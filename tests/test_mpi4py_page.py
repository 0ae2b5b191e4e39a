"""The table of mpi4py's names spells calls that exist, and leaves out no call of mpi4py's."""

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm.foreign_names import table

PAGE = (Path(__file__).parents[1] / "docs" / "mpi4py.rst").read_text("utf-8")
NAMES = ("comm", "grid", "window", "work", "message", "hpccomm")

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
        each = (comm, comm.grid((1,)), window, work, message, hpccomm)
        yield dict(zip(NAMES, each, strict=True))
        message.recv()
        sent.wait()


# What these do is no communication.
ELSE = re.compile(
    r"errhandler|attr|keyval|[iI]nfo|group|topo|py2f|f2py|from|toint|handle|Compare|inter$|intra$|[Ii]s_"
)


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
    return sorted(
        {
            code
            for row in table()
            for cell in (row["hpccomm"], row["differs"])
            for code in literals(cell)
        }
    )


@pytest.mark.parametrize(
    "code", [c for c in spelled() if re.match(rf"(with )?({'|'.join(NAMES)})\b", c)]
)
def test_what_the_page_spells_is_there(code: str, ours: Ours) -> None:
    check(code, ours)


@pytest.mark.parametrize(
    "code",
    ["comm.allreduce(x)", "comm.send(x)", "comm.barrier(x, 1, root=0)", "with window.lock(0)"],
)
def test_what_is_not_there_is_found(code: str, ours: Ours) -> None:
    with pytest.raises((AttributeError, TypeError)):
        check(code, ours)


def test_the_page_has_every_row_of_the_table() -> None:
    shown = set(re.findall(r"^\.\. table-of:: mpi4py_(\w+)$", PAGE, re.M))
    assert shown == {row["section"] for row in table()}


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (
            "comm",
            "Allreduce",
            "Allreduce is mpi4py's, and is written comm.all_reduce(x, op, out=y) here",
        ),
        ("comm", "Iallreduce", "comm.all_reduce(x, op, out=y, async_op=True)"),
        ("comm", "Allreduce_init", 'comm.plan("all_reduce", x, op, out=y)'),
        ("comm", "Ibarrier", "comm.barrier(async_op=True)"),
        ("comm", "Isend", "comm.send(x, dst, async_op=True)"),
        ("comm", "bcast", "comm.broadcast_object(value, root)"),
        ("comm", "Get_rank", "comm.rank"),
        ("comm", "Psend_init", "no counterpart"),
        ("comm", "all_redcue", "did you mean all_reduce?"),
        ("work", "Wait", "work.wait(timeout=1.0)"),
        ("window", "Put", "window.put(x, dst, offset)"),
        ("window", "fecth_and_op", "did you mean fetch_and_op?"),
    ],
)
def test_a_name_that_is_not_there_leads_to_ours(
    owner: str, name: str, told: str, ours: Ours
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(ours[owner], name)
    assert told in str(caught.value)
    assert not hasattr(ours[owner], name)


def test_names_that_libraries_ask_for_are_looked_up_nowhere(ours: Ours) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute '__array_interface__'$"):
        ours["comm"].__array_interface__  # noqa: B018


def test_each_call_of_mpi4py_is_on_the_page() -> None:
    found = importlib.util.find_spec("mpi4py")
    if found is None or found.origin is None:
        pytest.skip("mpi4py is not installed")
    # Its stub says what there is; importing it would start MPI.
    stub = ast.parse(Path(found.origin).with_name("MPI.pyi").read_text("utf-8"))
    kinds = {"Comm", "Intracomm", "Topocomm", "Cartcomm", "Request", "Prequest", "Win"}
    classes = [each for each in stub.body if isinstance(each, ast.ClassDef) and each.name in kinds]
    assert {each.name for each in classes} == kinds
    there = {
        ("Win." if kind.name == "Win" else "") + each.name
        for kind in classes
        for each in kind.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
    }
    listed = {name for row in table() for name in row["mpi4py"].split()}
    names = {each for each in there if not ELSE.search(each)}
    properties = {"outedges", "inedges", "inoutedges", "degrees", "indegree", "outdegree"}
    properties |= {f"Win.{each}" for each in ("name", "model", "flavor", "Get_name", "Set_name")}
    assert names - properties - listed == set()
    # The properties that are on the page.
    known = there | {"rank", "size", "name", "dims", "periods", "coords", "dim", "ndim"}
    assert {each for each in listed if not each.startswith("MPI.")} - known == set()
