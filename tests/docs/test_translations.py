"""``docs/translations.tsv`` names calls that exist, and leaves out no communication of the other libraries."""

import inspect
import re
from pathlib import Path

import pytest

from hpccomm.cupyx import NCCLBackend
from hpccomm.spelling import table

from .test_mpi4py_page import NAMES, Ours, check, literals, ours

__all__ = ["ours"]  # a fixture

LINES = (Path(__file__).parents[2] / "docs" / "translations.tsv").read_text("utf-8").splitlines()
ROWS = [(*line.split("\t"), "", "")[:3] for line in LINES[1:]]
CODES = [code for row in ROWS for code in literals(row[0])]
CUPYX, TORCH = ({name for row in ROWS for name in row[at].split()} for at in (1, 2))


def test_what_is_said_of_hpccomm_is_there(ours: Ours) -> None:
    assert len(CODES) >= len(ROWS) > 30
    for code in CODES:
        assert re.match(rf"(with )?({'|'.join(NAMES)})\b", code), code
        check(code, ours)


def test_what_the_table_of_mpi4py_has_is_there() -> None:
    """Another test compares that table with mpi4py."""

    def called(code: str) -> list[str]:
        return re.findall(r"\bcomm\.\w+(?=\()", code)

    own = {call for code in CODES for call in called(code)}
    communication = [row for row in table() if row["section"] in ("messages", "arrays", "objects")]
    theirs = {
        call
        for row in communication
        if row["hpccomm"] != "none"
        for call in called(literals(row["hpccomm"])[0])
    }
    assert theirs - own == {"comm.plan"}


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
