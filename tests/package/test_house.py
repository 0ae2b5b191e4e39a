"""The whole package: a class name stands for one thing, imports have one direction, files stay short."""

import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hpccomm"

LONGEST = 700
"""Lines, with comments and docstrings, that one file may have."""

LONGER = {"hpccomm/communicator/communicator.py": 1100}
"""Files that may have more: the class `Communicator`, whose methods stand together with their docstrings."""

BOTH_WAYS = {
    # A thread's seat holds its world, whose class the backend of threads has: an import for types.
    ("hpccomm.backends", "hpccomm.backends.loopback"),
}
"""Importer and imported: imports that may close a circle."""


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE.parent)), path.read_text(encoding="utf-8")


def test_a_public_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for path, source in sources():
        for name in re.findall(r"^class ([A-Za-z]\w*)", source, re.MULTILINE):
            places[name].append(path)
    assert {name: at for name, at in places.items() if len(at) > 1} == {}


def test_no_file_is_too_long() -> None:
    lengths = [(path, len(source.splitlines())) for path, source in sources()]
    assert [(path, n) for path, n in lengths if n > LONGER.get(path, LONGEST)] == []


def test_no_imports_go_in_circles_even_for_types() -> None:
    grimp = pytest.importorskip("grimp", reason="import-linter is not installed")
    graph = grimp.build_graph("hpccomm", exclude_type_checking_imports=False, cache_dir=None)
    # The package gives its names when they are asked for.
    imports = {
        module: {
            imported
            for imported in graph.find_modules_directly_imported_by(module) - {"hpccomm"}
            if (module, imported) not in BOTH_WAYS
        }
        for module in graph.modules
    }
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
    # Nor do packages, or modules and packages that stand side by side.
    for module in graph.modules:
        graph.remove_import(importer=module, imported="hpccomm")
    for importer, imported in BOTH_WAYS:
        graph.remove_import(importer=importer, imported=imported)
    beside = {module: graph.nominate_cycle_breakers(module) for module in graph.modules}
    assert {module: breakers for module, breakers in beside.items() if breakers} == {}
