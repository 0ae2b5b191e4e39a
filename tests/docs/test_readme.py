"""README.md's examples run with the shown results."""

import re
from collections.abc import Callable
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def block_after(start: str) -> list[str]:
    """The lines of the fenced block whose first lines are `start`, without them."""
    text = README.read_text(encoding="utf-8")
    assert text.count(start) == 1
    return text.split(start)[1].split("\n```")[0].strip("\n").split("\n")


def skeleton(lines: list[str]) -> list[str]:
    """Lines of a table without what is different in each run: figures, and where the ranks are."""
    same = [line for line in lines if not line.startswith(("# hpccomm version", "#  Rank"))]
    return [" ".join(re.sub(r"\d+(\.\d+)?", "N", line).split()) for line in same]


def test_the_program_prints_what_it_is_said_to(shared_job: Callable, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = block_after("```python\n")
    assert len([line for line in lines if line]) <= 15
    program.write_text("\n".join(lines), encoding="utf-8")
    done = shared_job(2, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == block_after("$ mpiexec -n 2 python program.py\n")


def test_the_measurement_looks_as_it_is_shown(shared_job: Callable, tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ mpiexec -n 2 hpccomm (perf .*)$", text, re.MULTILINE)
    done = shared_job(2, "-m", "hpccomm", *command.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = block_after(f"$ mpiexec -n 2 hpccomm {command}\n")
    table, *others = done.stdout.split("# Other processes")  # the README names that line in words
    assert len(others) == 1
    assert skeleton(table.strip("\n").split("\n")) == skeleton(shown)
    assert (tmp_path / "runs.h5").is_file()
