"""``docs/reference/api.rst`` has every public name, and the pages have every type of the contracts of a backend."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import hpccomm

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "api.rst"


def documented(page: Path) -> set[str]:
    return set(
        re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
    )


DOCUMENTED = documented(PAGE)


def test_every_name_of_the_package() -> None:
    assert set(hpccomm.__all__) - {"__version__"} <= DOCUMENTED


def test_every_name_of_the_communicator() -> None:
    public = {name for name in dir(hpccomm.Communicator) if not name.startswith("_")}
    assert {f"Communicator.{name}" for name in public} <= DOCUMENTED


def types(file: Path) -> Iterator[str]:
    """The classes of a module, and the types that it names."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if re.match("[A-Z][a-z]", name):
                yield name


OWN_PARTS = {"collectives", "device", "pairing"}
"""Contracts that no backend needs: what hpccomm's own parts tell each other."""
OWN_TYPES = {"CallFingerprint", "End", "Pair"}
"""Likewise, beside the signatures: what ranks compare."""


def test_every_type_of_the_contracts_of_a_backend() -> None:
    pages = set().union(*(documented(page) for page in ROOT.glob("docs/**/*.rst")))
    files = sorted(ROOT.glob("hpccomm/contracts/*.py"))
    assert {file.stem for file in files} > OWN_PARTS
    for file in files:
        for name in {*types(file)} - OWN_TYPES if file.stem not in OWN_PARTS else ():
            whole = f"hpccomm.contracts.{file.stem}.{name}"
            assert whole in pages or name in hpccomm.__all__, whole
