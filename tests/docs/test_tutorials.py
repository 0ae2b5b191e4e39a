"""The programs of the tutorials print what the pages show; the rest of the pages are doctests."""

import re
from collections.abc import Callable
from pathlib import Path

from conftest import Mpiexec

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = DOCS / "examples" / "tutorials"


def shown(page: str, command: str) -> list[str]:
    """The lines that a page shows below a command."""
    text = (DOCS / "tutorials" / page).read_text("utf-8")
    (block,) = re.findall(rf"^   \$ {re.escape(command)}\n((?:   .*\n)+)", text, re.MULTILINE)
    return [line.strip() for line in block.splitlines()]


def test_the_training_loop(shared_job: Callable) -> None:
    done = shared_job(2, PROGRAMS / "train.py")
    assert done.returncode == 0, done.stderr
    lines = shown("first_training.rst", "mpiexec -n 2 python docs/examples/tutorials/train.py")
    timed = re.compile(r"\d+\.\d+ s|\d+%")
    found = [timed.sub("N", line) for line in done.stdout.splitlines()]
    assert found == [timed.sub("N", line) for line in lines]


def test_ranks_that_disagree(mpiexec: Mpiexec, tmp_path: Path) -> None:
    program = tmp_path / "differ.py"
    program.write_text((PROGRAMS / "differ.py").read_text("utf-8"), "utf-8")
    done = mpiexec(2, program, cwd=tmp_path)
    assert done.returncode == 1
    lines = " ".join(shown("first_collective.rst", "mpiexec -n 2 python differ.py"))
    either = r"rank 0 of 2, 800 bytes", r"rank 1 of 2, 1600 bytes"  # whichever is the first
    assert any(lines.replace(either[0], each) in done.stderr for each in either), done.stderr
