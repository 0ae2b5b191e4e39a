"""Writes the public names with their signatures: python tests/helpers/public_names.py > tests/package/public_names.txt

A line is a name of a public module, or a method or attribute of its classes that the documentation shows. Types are left
to the docstrings.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODULES = ("", ".cupyx", ".errors", ".gradients", ".results", ".testing")
READ_ONLY = ("jax", "torch")
"""Public modules that load a framework, which may be missing: functions, whose source is read."""


def lines() -> list[str]:
    """Return the lines, sorted."""
    found = [line for module in MODULES for line in imported(f"hpccomm{module}")]
    return sorted(found + [line for name in READ_ONLY for line in read(name)])


def imported(path: str) -> Iterator[str]:
    """Yield the lines of a module that is imported."""
    module = import_module(path)
    homes = {name: str(getattr(each, "__module__", "")) for name, each in vars(module).items()}
    own = [name for name, home in homes.items() if home.startswith(path)]
    for name in getattr(module, "__all__", own):
        if name == "__version__" or not name.startswith("_"):
            yield from described(f"{path}.{name}", getattr(module, name))


def described(path: str, value: Any) -> Iterator[str]:
    """Yield the lines of one name."""
    if not inspect.isclass(value):
        yield f"{path}{signature(value) if callable(value) else ''}"
        return
    text = inspect.getdoc(value) or ""
    made = is_dataclass(value) or "Parameters\n---" in text
    parents = ", ".join(each.__name__ for each in value.__bases__)
    error = issubclass(value, BaseException)
    yield f"{path}{signature(value) if made and not error else f'({parents})' if error else ''}"
    for name in sorted(members(value, text)):
        member = getattr(value, name, None)
        takes = inspect.isroutine(member) and not issubclass(value, Enum)
        yield f"{path}.{name}{signature(member) if takes else ''}"


def members(value: type, text: str) -> set[str]:
    """Return the methods and attributes of a class that its docstring lists, and that a page shows."""
    listed = re.search(r"^Attributes\n-+\n(.*?)(?=^\S.*\n---|\Z)", text, re.DOTALL | re.MULTILINE)
    lists = re.findall(r"^(\w[\w, ]*) :", listed[1], re.MULTILINE) if listed else []
    own = {
        name
        for each in value.__mro__
        if each.__module__.partition(".")[0] == "hpccomm"
        for name in (*vars(each), *vars(each).get("__annotations__", ()))
        if not name.startswith("_")
    }
    for page in ROOT.glob("docs/**/*.rst"):
        shown = page.read_text("utf-8")
        each = rf"^\.\. autoclass:: (?:\S+\.)?{value.__name__}\n((?:   :.*\n)*)"
        for options in re.findall(each, shown, re.MULTILINE):
            lists += [", ".join(own)] if re.search("   :members:\n", options) else []
            lists += re.findall(r":(?:special-)?members: (.+)", options)
        lists += re.findall(rf"^\.\. auto\w+:: {value.__name__}\.(\w+)$", shown, re.MULTILINE)
    return {name for names in lists for name in names.split(", ")}


def signature(value: Any) -> str:
    """Return the parameters of a function, with their kinds and defaults."""
    parameters = inspect.signature(value).parameters.values()
    bare = [each.replace(annotation=each.empty) for each in parameters if each.name != "self"]
    return str(inspect.Signature(bare))


def read(name: str) -> Iterator[str]:
    """Yield the lines of a module or package whose public names are functions, from its source."""
    files = [*ROOT.glob(f"hpccomm/{name}.py"), *ROOT.glob(f"hpccomm/{name}/*.py")]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    nodes = [node for tree in trees for node in tree.body]
    public: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public += ast.literal_eval(node.value)
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    for each in public:
        arguments = functions[each].args
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        yield f"hpccomm.{name}.{each}({ast.unparse(arguments)})"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
