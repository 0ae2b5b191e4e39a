"""perf as a job of several processes: output, refusals, and the file after a kill."""

import re
import sys
from pathlib import Path

import pytest
from alone import python
from terminal import on_terminal
from until import until

from hpccomm.results import reader
from hpccomm.tools.perf.collectives import COLLECTIVES

from ...conftest import launch_environment

PERF = ("-m", "hpccomm", "perf")


def rows_of(text):
    return [line for line in text.splitlines() if re.match(r" +\d", line)]


def test_rank_0_alone_prints(shared_job):
    done = shared_job(3, *PERF, "all", "-b", "0", "-e", "1K", "-f", "32", "-n", "2")
    assert (done.returncode, "measures alone" in done.stderr) == (0, False), done.stderr
    assert done.stdout.count("Out of bounds values : 0 OK") == len(COLLECTIVES) - 1
    assert "hypercube on 3 ranks" in done.stdout
    assert done.stdout.count("#  Rank  2 Group") == len(COLLECTIVES) - 1
    assert len(rows_of(done.stdout)) == 3 * (len(COLLECTIVES) - 2) + 1


def test_one_rank_that_no_launcher_has_started_says_so():
    done = python(*PERF, "all_reduce", "-b", "8", "-e", "8", env=launch_environment(), check=True)
    assert "one rank measures alone; 'mpiexec -n 2'" in done.stderr
    assert len(rows_of(done.stdout)) == 1


@pytest.mark.parametrize(
    ("misuse", "said"),
    [  # found by the line alone, by the job, by the backend
        ("-n 0", "-n/--iters: 0 is out of range"),
        ("-r 2 --output run.h5", "-r/--root 2: there are 2 ranks; give 0 to 1, or all"),
        ("--backend loopback", "--backend loopback: its ranks are in one process"),
    ],
)
def test_misuse_is_one_line_and_status_2(shared_job, tmp_path, misuse, said):
    words = ("broadcast", "-b", "8", "-e", "8", *misuse.split())
    assert_refused(shared_job(2, *PERF, *words, cwd=tmp_path), said)
    assert not list(tmp_path.iterdir())


def assert_refused(done, said):
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hpccomm: error: ")]
    assert said in line
    assert "Traceback" not in done.stderr


def test_misuse_ends_the_job_with_status_2(mpiexec):
    words = ("broadcast", "-b", "8", "-e", "8", "--algorithm", "magic")
    assert_refused(mpiexec(2, *PERF, *words), "magic")


@pytest.mark.parametrize("redirected", ["", pytest.param(">table.txt", marks=pytest.mark.thorough)])
def test_ctrl_c_given_to_the_launcher_closes_the_table_and_the_file(
    launcher, tmp_path, monkeypatch, redirected
):
    monkeypatch.chdir(tmp_path)
    # Open MPI's launcher kills the ranks a quarter of a second after it has ended them, which is too soon
    # now and then on a machine that has more to run than cores.
    for attempt in range(3):
        status, shown = interrupted_by_ctrl_c(launcher, Path(f"run{attempt}.h5"), redirected)
        if f"rows are kept in run{attempt}.h5 as run0001" in shown:
            break
    else:
        raise AssertionError(shown)
    assert status == "failed: interrupted"
    table = Path("table.txt").read_text() if redirected else ""
    assert "# Collective test interrupted: all_reduce" in shown + table


def interrupted_by_ctrl_c(launcher, file, redirected):
    """Return the status that the file of an interrupted sweep has, and what the terminal shows."""
    sweep = ["all_reduce", "-b", "1K", "-e", "4K", "-f", "2", "-N", "0", "--output", str(file)]
    perf = [launcher, "-n", "2", sys.executable, *PERF, *sweep]
    table = Path("table.txt")
    table.unlink(missing_ok=True)
    with on_terminal(perf, launch_environment(), redirected) as terminal:
        if redirected:
            until(lambda: table.exists() and rows_of(table.read_text()))
        else:
            terminal.wait_for("float")
        terminal.press(b"\x03")
        assert terminal.wait() != 0
    (run,) = reader.read(file)
    return run.status, terminal.shown
