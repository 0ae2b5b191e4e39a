"""Progress is shown on rank 0's terminal, and nowhere else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import on_terminal

from hpccomm.tools.main import main

from ..conftest import launch_environment

# Everything takes long, and long enough to be seen.
PROGRAM = """
import contextlib, sys, time
from hpccomm.tools import output
from hpccomm.tools.main import main

close = output.Progress.close
output.SOON = output.TICK = 0.01
output.Progress.close = lambda self: (time.sleep(0.05), close(self))
sys.exit(max(main(words.split()) for words in sys.argv[1:]))
"""
SHOWN = {
    "show {}": r"reading run\.h5 \[00:\d\d\]",
    "show {} --statistics": r"showing run0001 100%\|\S+\| 2/2 \[00:\d\d<00:00\]",
    "show {} --verify": r"checking run\.h5 100%\|\S+\| 2/2 \[00:\d\d<00:00\]",
    "export {} --format csv": r"exporting run0001 100%\|\S+\| 2/2 \[00:\d\d<00:00\]",
    "export {} --format json": r"exporting run0001 100%\|\S+\| 2/2 \[00:\d\d<00:00\]",
    "plot --schedule ring --text": r"drawing ring \[00:\d\d\]",
    "simulate all_reduce --cluster lab1g -b 8 -e 8": r"\w+ all_reduce 8 B 100%\|\S+\| \d/\d \[00:00",
}
"""What each verb shows, when all of it is done."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    words = "perf all_reduce --backend loopback -b 8 -e 8 -n 2 --output"
    assert main([*words.split(), str(tmp_path / "run.h5")]) == 0
    return tmp_path / "run.h5"


def commands(file: Path, most: int | None = None) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *(words.format(file) for words in list(SHOWN)[:most])]


def alone() -> dict[str, str]:
    names = ("OMPI_", "PMI", "SLURM_", "HPCCOMM_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return clean | {"PYTHONUTF8": "1"}


def test_what_takes_long_shows_how_far_it_is_on_a_terminal(file: Path) -> None:
    with on_terminal(commands(file), alone(), ">printed") as terminal:
        assert terminal.wait() == 0, terminal.shown
    for words, line in SHOWN.items():
        assert re.search(rf"\r{line}[^\r]*\x1b\[K\r", terminal.shown), (words, terminal.shown)
    assert terminal.shown.endswith("\r\x1b[K")  # nothing stays
    printed = Path("printed").read_text(encoding="utf-8")
    done = subprocess.run(
        commands(file), capture_output=True, check=True, env=alone(), start_new_session=True
    )
    assert done.stderr == b""  # no terminal
    stamp = r"# hpccomm version.*|# Started.*"
    assert re.sub(stamp, "", done.stdout.decode()) == re.sub(stamp, "", printed)


def test_other_ranks_than_0_show_nothing(file: Path) -> None:
    second = alone() | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    with on_terminal(commands(file, 2), second, ">printed") as terminal:
        assert terminal.wait() == 0
    assert terminal.shown == ""


@pytest.mark.parametrize("redirected", [pytest.param("", marks=pytest.mark.thorough), ">printed"])
def test_tune_shows_how_far_it_is_where_mpiexec_was_started(
    launcher: str, open_mpi: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redirected: str
) -> None:
    if not open_mpi:
        pytest.skip("only Open MPI's mpiexec leaves its ranks the terminal")
    monkeypatch.chdir(tmp_path)
    words = "-m hpccomm tune broadcast --plain -b 8 -e 8 --blocks 1 --seconds 1e-5"
    command = [launcher, "-n", "2", sys.executable, *words.split()]
    with on_terminal(command, launch_environment(), redirected) as terminal:
        assert terminal.wait() == 0, terminal.shown
    shown = r"\rmeasuring broadcast\s+0%\|.* 0/2 \[00:\d\d<\?\]\x1b\[K\r"
    assert re.search(shown, terminal.shown), terminal.shown
    if redirected:
        assert "\x1b" not in Path("printed").read_text()
