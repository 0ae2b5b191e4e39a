"""Blocks of code in the pages: a test runs those that are marked, and hpccomm reads the flags of every command."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from run_blocks import run_blocks

from hpccomm.errors import HpccommError
from hpccomm.tools import main

ROOT = Path(__file__).parents[2]
FILES = [file for kind in ("*.md", "docs/**/*.rst", "docs/**/*.md") for file in ROOT.glob(kind)]
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in FILES}
COMMAND = re.compile(r"(?:^|[\s|])hpccomm ([a-z][^|>;&\n]*)")


def test_what_is_said_to_run_runs() -> None:
    """The pages say of all other commands and programs that no test runs them: see docs/static/pages.css."""
    tests = "".join(file.read_text("utf-8") for file in ROOT.glob("tests/**/test_*.py"))
    block = r"^( *)\.\. ([\w-]+):: (\S+)\n((?:\1   :.*\n)*)"
    for page, text in PAGES.items():
        marked = 0
        for _, kind, what, options in re.findall(block, text, re.MULTILINE):
            if kind == "literalinclude" and what.startswith("/examples/recipes/"):
                named = 'docs/examples/recipes"'  # each program of the folder
            elif (
                kind == "literalinclude" and what.startswith("/examples/") and what.endswith(".py")
            ):
                named = rf'"([\w/]+/)?{Path(what).stem}(\.py)?"|^import {Path(what).stem}\b'
            elif ":class: run" not in options:
                continue
            elif kind == "literalinclude":
                assert what.endswith("README.md")
                named = r'shown\("README.md"'
            else:
                named = rf'(run_blocks|shown)\("{page}"'  # whoever asks gets all that are marked
                marked += 1
            assert re.search(named, tests, re.MULTILINE), (
                f"{page} shows {what}: no test has {named}"
            )
        assert marked == len(run_blocks(page)), page
    blocks = re.findall(r"^```(python|console)$", PAGES["README.md"], re.MULTILINE)
    assert blocks == ["python", "console", "console"], "test_shown_programs.py runs these three"


def commands() -> Iterator[tuple[str, str]]:
    """Yield hpccomm's command lines in blocks, and in text after a launcher, each after its page."""
    for page, text in PAGES.items():
        marked = r"^ *\.\. code-block:: (?:sh|console)\n(?: +:.*\n)*\n((?: .*\n|\n)+)"
        blocks = re.findall(rf"{marked}|^```(?:sh|console)\n((?:(?!```).*\n)+)", text, re.MULTILINE)
        lines = "\n".join(map("".join, blocks)).replace("\\\n", " ")
        lines += "".join(f"\n{each}" for each in re.findall(r"`((?:mpiexec|srun) [^`\n]+)`", text))
        for command in COMMAND.findall(re.sub(r"(^|\s)#.*", "", lines)):
            # That flag makes its folder as soon as it is read.
            if "..." not in command and "--install-programs" not in command:
                yield page, command


def test_every_command_is_one_that_hpccomm_takes() -> None:
    shown = [*commands()]
    assert len(shown) > 130
    refused = []
    for page, command in shown:
        words = shlex.split(command)
        if " ".join(words[:2]) in main.VERBS:
            words[:2] = [" ".join(words[:2])]
        try:
            main.parse(words, 0, words[0])
        except HpccommError as error:
            refused.append(f"{page}: hpccomm {command}: {error}")
    assert not refused
