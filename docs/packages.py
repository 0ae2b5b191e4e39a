"""Packages and names of the code, as the documentation shows them: read from the code at each build.

``.. import-contracts::`` draws the contracts of ``pyproject.toml``. The role ``in-code`` names something in
the code by its full name, shows its file, and lets the build warn if it is gone.
"""

import ast
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
CONTRACTS = ROOT / "pyproject.toml"


def summary(module: str) -> str:
    """Return the first sentence of a module's docstring; empty where a contract's module is not there."""
    path = ROOT.joinpath(*module.split("."))
    files = [each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()]
    if not files:
        return ""
    # Read and not imported: what it builds on need not be installed.
    text = ast.get_docstring(ast.parse(files[0].read_text("utf-8"))) or ""
    return " ".join(text.strip().split("\n\n", maxsplit=1)[0].split())


def table(container: str, layers: list[str]) -> str:
    """Return the packages of a contract of layers in reStructuredText, from the top down."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 10 20 70", ""]
    rows = [("layer", "package", "what it is")]
    for number, layer in enumerate(layers, 1):
        for name in re.findall(r"\w+", layer):
            said = summary(f"{container}.{name}").replace("`", "``").replace("````", "``")
            rows.append((str(number), f"``{name}``", said))
    for first, *others in rows:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return "\n".join(lines)


def drawn(contract: dict[str, Any]) -> str:
    """Return one contract as reStructuredText."""
    if contract["type"] == "layers":
        (container,) = contract["containers"]
        rule = "A package imports from layers of a larger number, and from its own."
        return f"{rule}\n\n{table(container, contract['layers'])}"
    sources, forbidden = (
        ", ".join(f"``{name}``" for name in contract[key])
        for key in ("source_modules", "forbidden_modules")
    )
    return f"{sources} do not import {forbidden}, also indirectly."


class ImportContracts(SphinxDirective):
    """``.. import-contracts::`` draws all of them."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        contracts = tomllib.loads(CONTRACTS.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
        for file in (CONTRACTS, __file__, *(ROOT / "hpccomm").rglob("*.py")):
            self.env.note_dependency(str(file))
        return self.parse_text_to_nodes("\n\n".join(map(drawn, contracts)))


def found(name: str) -> tuple[str, str] | None:
    """Return the file and the name within it of something in the code; None if it is not there."""
    module, rest = name, []
    while module:
        try:
            thing: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
            continue
        for part in rest:
            if not hasattr(thing, part):
                return None
            thing = getattr(thing, part)
            module = getattr(thing, "__module__", None) or module  # where it is defined
        file = Path(importlib.import_module(module).__file__ or "")
        return file.relative_to(ROOT / "hpccomm").as_posix(), ".".join(rest)
    return None


def in_code(
    _role: str, rawtext: str, text: str, line: int, inliner: Inliner, *_: object
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Show ``Class.method`` and the file that has it."""
    place = found(text)
    if place is None:
        message = inliner.reporter.warning(f"there is no {text} in the code", line=line)
        return [inliner.problematic(rawtext, rawtext, message)], [message]
    file, name = place
    if not name:
        return [nodes.literal(text=file)], []
    return [
        nodes.literal(text=name),
        nodes.Text(" ("),
        nodes.literal(text=file),
        nodes.Text(")"),
    ], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Announce directive and role."""
    app.add_directive("import-contracts", ImportContracts)
    app.add_role("in-code", in_code)
    return {"parallel_read_safe": True}
