"""Progress is shown on rank 0's terminal, and nowhere else."""

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
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a process of all these commands, on a stored run."""
    monkeypatch.chdir(tmp_path)
    words = "perf all_reduce --backend loopback -b 8 -e 8 -n 2 --output run.h5"
    assert main(words.split()) == 0
    return [sys.executable, "-c", PROGRAM, *(words.format("run.h5") for words in SHOWN)]


def test_what_takes_long_shows_how_far_it_is_on_a_terminal_of_rank_0(commands: list[str]) -> None:
    environment = launch_environment() | {"PYTHONUTF8": "1"}
    with on_terminal(commands, environment, ">printed") as terminal:
        assert terminal.wait() == 0, terminal.shown
    for words, line in SHOWN.items():
        assert re.search(rf"\r{line}[^\r]*\x1b\[K\r", terminal.shown), (words, terminal.shown)
    assert terminal.shown.endswith("\r\x1b[K")  # nothing stays
    # Without a terminal the same is printed, and no other rank shows anything.
    done = subprocess.run(
        commands, capture_output=True, check=True, env=environment, start_new_session=True
    )
    assert done.stderr == b""
    stamp = r"# hpccomm version.*|# Started.*"
    printed = Path("printed").read_text(encoding="utf-8")
    assert re.sub(stamp, "", done.stdout.decode()) == re.sub(stamp, "", printed)
    environment |= {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    with on_terminal(commands[:5], environment, ">printed") as terminal:
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
