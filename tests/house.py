"""The numbers of the house, which may only fall: ``python tests/house.py`` measures them against house.toml.

A number that is exceeded fails, with what it counts. One that has fallen fails too, until
``python tests/house.py --tighten`` has written it into house.toml. Code lines have a budget for each
package instead, and may be fewer; the same command takes back what is not used. So may phrases at
which readers stop, and vague names.
"""

import argparse
import ast
import collections
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LIMITS = HERE / "house.toml"

SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

PHRASES = {
    "of which": r"of which",
    "what it is that": r"what (?:it|they) (?:is|are) that",
    "is no X": r"(?:is|are|was|were) no (?!longer|more |less )\w+",
    "nobody": r"nobody",
    "whoever": r"who(?:m)?ever",
    "so many": r"(?:so|as) many",
    "told": r"told",
    "those that": r"those (?:that|which|who|of)",
    "is none": r"(?:has|have|had|is|are) (?-i:none)",
    "but for": r"but for",
    "let go": r"lets? go",
}
"""Phrases at which readers stop; docs/glossary.rst has the plain words."""

VAGUE = {"apart", "found", "kept", "made", "mine", "settled", "there", "told"}
"""Names of variables that say how a thing came, and not what it is."""

LOADED = """
import json, sys
before = set(sys.modules)
import numpy, mpi4py.MPI
taken = set(sys.modules)
import hpccomm
with hpccomm.new_comm() as comm:
    comm.all_reduce(numpy.ones(3))
    new = set(sys.modules)
own = {name for name in new - before if name.partition(".")[0] == "hpccomm"}
print(json.dumps([sorted(own), sorted(new - taken - own)]))
"""


@dataclass(frozen=True)
class Count:
    """A number of the house.

    Attributes
    ----------
    name : str
        Its key in house.toml.
    value : int
        What it is now.
    counted : tuple of str
        What it counts, a line each.
    """

    name: str
    value: int
    counted: tuple[str, ...] = ()


def sources(package: Path) -> Iterator[tuple[Path, str]]:
    """Each file of Python below a folder, and its text."""
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package.parent), path.read_text(encoding="utf-8")


def code_lines(source: str) -> int:
    """How many lines hold a token that is neither a comment nor a string that is a statement."""
    alone: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str())):
                alone.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - alone)


def lines_by_part(package: Path) -> dict[str, int]:
    """Code lines of each package or module at the top."""
    lines: collections.Counter[str] = collections.Counter()
    for path, source in sources(package):
        lines[path.parts[1]] += code_lines(source)
    return dict(lines.most_common())


def names_for_several_things(package: Path) -> Count:
    """Public class names that stand in more than one place."""
    places = collections.defaultdict(list)
    for path, source in sources(package):
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    several = [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]
    return Count("class_names_for_several_things", len(several), tuple(several))


def longest_file(package: Path) -> Count:
    """Lines of the longest file."""
    lengths = sorted((len(source.splitlines()), str(path)) for path, source in sources(package))
    longest = tuple(f"{path}: {lines}" for lines, path in lengths[:-4:-1])
    return Count("lines_of_the_longest_file", lengths[-1][0], longest)


def circles(package: Path) -> tuple[Count, Count]:
    """Groups of modules that import each other, for types too, and how many modules are in them.

    The package itself is left out: it gives its names when they are asked for.
    """
    import grimp

    graph = grimp.build_graph(package.name, exclude_type_checking_imports=False, cache_dir=None)
    imports = {
        module: graph.find_modules_directly_imported_by(module) - {package.name}
        for module in graph.modules
    }
    reached = {module: reachable(imports, module) for module in imports}
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }
    by_size = sorted(groups, key=lambda group: (-len(group), min(group)))
    members = tuple(f"{len(group)}: {', '.join(sorted(group))}" for group in by_size)
    return (
        Count("circles_of_imports", len(groups), members),
        Count("modules_in_circles", sum(map(len, groups)), members),
    )


def reachable(imports: dict[str, set[str]], module: str) -> set[str]:
    """The modules that one imports, directly or not."""
    seen: set[str] = set()
    to_do = [module]
    while to_do:
        new = imports[to_do.pop()] - seen
        seen |= new
        to_do += new
    return seen


def loaded_by_new_comm() -> tuple[Count, Count]:
    """Modules that making a communicator and a first call load, beyond NumPy's and mpi4py's."""
    # What a launcher or a setting adds is not counted.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HPCCOMM_", "OMPI_COMM_", "PMI", "SLURM_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )
    own, others = json.loads(done.stdout)
    return (
        Count("modules_that_new_comm_loads", len(own), tuple(own)),
        Count("other_modules_that_new_comm_loads", len(others), tuple(others)),
    )


def stumbling_phrases(package: Path, pages: Path) -> Count:
    """Phrases of `PHRASES` in a package and in its pages of documentation."""
    either = re.compile("|".join(rf"\b(?:{each})\b" for each in PHRASES.values()), re.IGNORECASE)
    texts = [(path, source.replace("\n    # ", " ")) for path, source in sources(package)]
    texts += [(path, path.read_text(encoding="utf-8")) for path in sorted(pages.rglob("*.rst"))]
    found = {path: len(either.findall(" ".join(text.split()))) for path, text in texts}
    most = sorted(found.items(), key=lambda each: -each[1])
    places = tuple(f"{path}: {number}" for path, number in most if number)
    return Count("stumbling_phrases", sum(found.values()), places)


def vague_names(package: Path) -> Count:
    """Assignments to variables, and parameters, whose names say nothing of the thing they hold."""
    places = []
    for path, source in sources(package):
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name) if name in VAGUE:
                    places.append(f"{path}:{node.lineno}: {name}")
    return Count("vague_names", len(places), tuple(places))


def counts(package: Path) -> list[Count]:
    """All numbers but the code lines."""
    own, others = loaded_by_new_comm()
    each = [
        names_for_several_things(package),
        longest_file(package),
        *circles(package),
        stumbling_phrases(package, package.parent / "docs"),
        vague_names(package),
        own,
    ]
    # Python's own modules differ between its versions.
    return [*each, others] if sys.version_info[:2] == (3, 11) else each


def judged(
    counts: list[Count], lines: dict[str, int], limits: dict[str, dict[str, int]]
) -> list[str]:
    """What is wrong, a text each."""
    wrong = []
    for count in counts:
        loose = limits.get("words", {}).get(count.name)
        limit = limits["counts"].get(count.name, 0) if loose is None else loose
        if count.value > limit:
            things = "\n    ".join(count.counted)
            wrong.append(f"{count.name} is {count.value}; it may be {limit}:\n    {things}")
        elif count.value < limit and loose is None:
            wrong.append(
                f"{count.name} has fallen to {count.value}, from {limit}: "
                "write that down by python tests/house.py --tighten"
            )
    for part, number in lines.items():
        budget = limits["code_lines"].get(part, 0)
        if number > budget:
            wrong.append(
                f"hpccomm/{part} has {number} code lines; its budget is {budget}: "
                "what can go, now that the new is there?"
            )
    stale = limits["code_lines"].keys() - lines.keys()
    wrong += [f"hpccomm/{part} is gone; take its budget out of house.toml" for part in stale]
    return wrong


def tightened(text: str, counts: list[Count], lines: dict[str, int]) -> str:
    """The text of house.toml with the numbers that have fallen, and budgets that are what is used."""
    values = {count.name: count.value for count in counts} | lines
    for name, value in values.items():
        line = re.compile(rf"^(\"?{re.escape(name)}\"?) = (\d+)$", re.MULTILINE)
        old = line.search(text)
        if old is not None and value < int(old[2]):
            text = line.sub(rf"\1 = {value}", text)
    return text


def main() -> int:
    """Measure, and print what is wrong; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tighten", action="store_true", help="write down what has fallen")
    arguments = parser.parse_args()
    package = HERE.parent / "hpccomm"
    measured, lines = counts(package), lines_by_part(package)
    if arguments.tighten:
        text = LIMITS.read_text(encoding="utf-8")
        LIMITS.write_text(tightened(text, measured, lines), encoding="utf-8")
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    for count in measured:
        print(f"{count.value:6d} {count.name}")
    budget = sum(limits["code_lines"].values())
    print(f"{sum(lines.values()):6d} code lines, of {budget}")
    wrong = judged(measured, lines, limits)
    for each in wrong:
        print(f"FAILED: {each}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
