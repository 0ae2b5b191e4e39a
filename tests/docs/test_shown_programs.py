"""The programs that README.md and the pages show run, and print what is shown; the rest of the pages are doctests."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from conftest import Mpiexec
from run_blocks import run_blocks

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "docs/examples/tutorials"


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def shown(page: str, command: str) -> list[str]:
    """The lines below a command, in the one block of a page that is marked as run, or in a block of README.md."""
    blocks = run_blocks(page)
    if page == "README.md":
        found = rf"^```console\n(\$ {re.escape(command)}\n.*?)^```"
        blocks = re.findall(found, text_of(page), re.MULTILINE | re.DOTALL)
    (block,) = blocks
    first, *lines = block.splitlines()
    assert first == f"$ {command}"
    return lines


def skeleton(lines: list[str], figures: str = r"\d+(\.\d+)?") -> list[str]:
    """Lines of a table without what is different in each run: figures, and where the ranks are."""
    same = [line for line in lines if not line.startswith(("# hpccomm version", "#  Rank"))]
    return [" ".join(re.sub(figures, "N", line).split()) for line in same]


def test_the_program_of_the_readme(shared_job: Callable, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", text_of("README.md"), re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    program = tmp_path / "program.py"
    program.write_text(code, encoding="utf-8")
    done = shared_job(2, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == shown("README.md", "mpiexec -n 2 python program.py")


def test_the_measurement_of_the_readme_looks_as_it_is_shown(
    shared_job: Callable, tmp_path: Path
) -> None:
    (command,) = re.findall(r"^\$ mpiexec -n 2 hpccomm (perf .*)$", text_of("README.md"), re.M)
    done = shared_job(2, "-m", "hpccomm", *command.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table, *others = done.stdout.split("# Other processes")  # the README names that line in words
    assert len(others) == 1
    lines = shown("README.md", f"mpiexec -n 2 hpccomm {command}")
    assert skeleton(table.strip("\n").split("\n")) == skeleton(lines)
    assert (tmp_path / "runs.h5").is_file()


def test_the_training_loop(shared_job: Callable) -> None:
    done = shared_job(2, PROGRAMS / "train.py")
    assert done.returncode == 0, done.stderr
    command = "mpiexec -n 2 python docs/examples/tutorials/train.py"
    lines = shown("docs/tutorials/first_training.rst", command)
    times = r"\d+\.\d+ s|\d+%"
    assert skeleton(done.stdout.splitlines(), times) == skeleton(lines, times)


def test_ranks_that_disagree(mpiexec: Mpiexec, tmp_path: Path) -> None:
    program = tmp_path / "differ.py"
    program.write_text((PROGRAMS / "differ.py").read_text("utf-8"), "utf-8")
    done = mpiexec(2, program, cwd=tmp_path)
    assert done.returncode == 1
    lines = shown("docs/tutorials/first_collective.rst", "mpiexec -n 2 python differ.py")
    said = " ".join(line.strip() for line in lines)
    either = r"rank 0 of 2, 800 bytes", r"rank 1 of 2, 1600 bytes"  # whichever is the first
    assert any(said.replace(either[0], each) in done.stderr for each in either), done.stderr


def test_the_examples_of_devices_run_on_the_stand_in(mpiexec: Mpiexec, tmp_path: Path) -> None:
    first, *others = run_blocks("docs/how_to/devices.rst")
    assert len(others) >= 4
    program = tmp_path / "program.py"
    every = ["cupy.cuda.Device(comm.device).use()", *others, "assert (y.get() == comm.size).all()"]
    inner = textwrap.indent("\n".join(every), "    ")
    program.write_text(f"{first}\nwith hpccomm.new_comm() as comm:\n{inner}\n", "utf-8")
    environment = {"PYTHONPATH": str(ROOT / "tests/standin"), "STANDIN_DEVICES": "2"}
    done = mpiexec(2, program, env=environment)
    assert done.returncode == 0, done.stderr
    assert "over nccl" in done.stdout


def test_the_recorded_program_and_the_faster_one(shared_job: Callable) -> None:
    heat, faster = (
        shared_job(2, PROGRAMS / f"{each}.py", "30").stdout for each in ("heat", "heat_faster")
    )
    assert heat == faster != ""
    command = (
        "mpiexec -n 2 hpccomm record --output heat.h5 -- python docs/examples/tutorials/heat.py 300"
    )
    said = shown("docs/tutorials/first_recording.rst", command)[1]
    assert skeleton([said], r"[\d.e-]+") == skeleton(heat.splitlines(), r"[\d.e-]+")
