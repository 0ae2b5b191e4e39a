"""The tests themselves: they test behaviour, and each file says what it is the truth of.

A private name or a patch ties a test to the way something is built. A redesign then pays for it, and the
test says nothing more than it did.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]

MOST = 100
"""Private names of hpccomm and patches of its modules that the tests may have."""

PATCHES = {"setattr", "delattr", "setitem", "delitem"}
"""Methods of pytest's monkeypatch that change a program; an environment variable or a folder is an input."""

OWN = {"_asdict", "_exit", "_fields", "_fields_", "_replace"}
"""Public names of Python that begin so: those of a NamedTuple and of ctypes, and the exit of a process."""


def files() -> Iterator[tuple[Path, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield path.relative_to(TESTS), path.read_text(encoding="utf-8")


def insides(source: str) -> Iterator[int]:
    """Yield the lines that name what is private, or patch."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if private(name):
                yield node.lineno
            case ast.ImportFrom(names=names) if any(private(each.name) for each in names):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if (
                attr in PATCHES and "patch" in name
            ):
                yield node.lineno


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OWN


def has_reason(lines: list[str], number: int, flagged: set[int]) -> bool:
    """Whether a comment stands on a line, or above it and the like lines before it."""
    while number in flagged:
        if "#" in lines[number - 1]:
            return True
        number -= 1
    return lines[number - 1].lstrip().startswith("#")


def test_what_reaches_inside_is_little_and_says_why() -> None:
    found, bare = 0, []
    for path, source in files():
        flagged = list(insides(source))
        found += len(flagged)
        lines = source.splitlines()
        unsaid = (at for at in sorted(set(flagged)) if not has_reason(lines, at, set(flagged)))
        bare += [f"tests/{path}:{number}" for number in unsaid]
    assert found <= MOST
    assert "\n".join(bare) == ""


def test_each_file_of_tests_says_what_it_is_the_truth_of() -> None:
    silent = [str(path) for path, source in files() if not ast.get_docstring(ast.parse(source))]
    assert "\n".join(silent) == ""


def test_each_helper_says_what_it_is_for() -> None:
    silent = [
        f"{path}:{node.name}"
        for path, source in files()
        for node in ast.parse(source).body
        if path.parts[0] == "helpers" and isinstance(node, ast.FunctionDef | ast.ClassDef)
        if not (node.name.startswith(("_", "test_")) or ast.get_docstring(node))
    ]
    assert "\n".join(silent) == ""
