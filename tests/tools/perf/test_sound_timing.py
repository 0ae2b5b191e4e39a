"""Isolated repetitions of operations of known length, and whole launches: `hpccomm perf --sync`, `--ci`, `--launches`."""

import math
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from alone import python
from damage import called
from scripts import script
from until import until

from hpccomm.errors import LaunchError
from hpccomm.results import reader
from hpccomm.results.timings import isolated_times
from hpccomm.testing.threads import run_ranks
from hpccomm.tools.perf import perf
from hpccomm.tools.perf.isolated import SYNCS, Budget, IsolatedTimer
from hpccomm.tools.perf.options import ONLY, variant

from ...conftest import launch_environment


def isolated(interval=0.0, budget=math.inf, slow=0.0):
    """Time sleeps on three ranks that are threads, of which the last sleeps longer."""
    config = SimpleNamespace(iterations=10)
    options = SimpleNamespace(config=config, sync="barrier", interval=interval)

    def on_rank(comm):
        timer = IsolatedTimer(comm, lambda: None, options, Budget(budget, 1))
        seconds = 2e-3 + slow * (comm.rank == 2)
        return timer.measure([lambda: time.sleep(seconds)])

    return run_ranks(3, on_rank)


def test_an_operation_takes_from_the_first_start_to_the_last_end():
    found = isolated(slow=20e-3)
    times = isolated_times(np.stack([each.stamps for each in found], axis=1))
    assert len(times) == 10
    assert times.min() > 22e-3
    assert {each.late for each in found} == {0}


def test_repetitions_go_on_until_the_interval_is_narrow_or_the_time_is_over():
    wide = isolated(interval=1e6)  # wider than what a busy machine makes
    narrow = isolated(interval=1e-9, budget=0.5)
    assert len(wide[0].stamps) == 10 < len(narrow[0].stamps)
    assert len({len(each.stamps) for each in narrow}) == 1


def test_time_that_a_row_leaves_goes_to_the_others():
    budget = Budget(60.0, 4)
    assert budget.share == 15
    budget.spend(0.0)
    assert budget.share == 20
    for _ in range(5):
        budget.spend(30.0)
    assert budget.share == 0


# Late repetitions are repeated for 10 s a row where ranks share cores. A part of a second is mostly enough.
PATIENT = """
import sys
from hpccomm.tools.perf import isolated
from hpccomm.tools.main import main

patience, isolated._PATIENCE = isolated._PATIENCE, float(sys.argv[1])
try:
    status = main(sys.argv[2:])
finally:
    isolated._PATIENCE = patience
sys.exit(status)
"""


@pytest.mark.slow("on a busy machine the ranks wait for a moment in which they start together")
@pytest.mark.parametrize("sync", SYNCS)
def test_every_repetition_of_every_rank_is_stored_on_one_clock(tmp_path, shared_job, sync):
    path = tmp_path / "isolated.h5"
    words = ("perf", "all_reduce", "-b", "1K", "-e", "4K", "-f", "4", "-n", "30", "--sync", sync)
    for patience in ("0.2", "2"):
        path.unlink(missing_ok=True)
        done = shared_job(2, "-c", PATIENT, patience, *words, "--output", str(path), timeout=100)
        assert done.returncode == 0, done.stderr
        (run,) = reader.read(path)
        if any(len(run.isolated(index)) for index in range(4)):  # else all were late
            break
    assert len(run.rows) == 4
    for index, timing in enumerate(run.timings):
        stamps = run.isolated(index)
        assert stamps.shape[1:] == (2, 2)
        # Other work kept a core busy: what is missing was late, and is counted.
        assert len(stamps) == 30 or (sync != "barrier" and timing.late > 0)
        if not len(stamps):
            assert np.isnan(timing.isolated)
            continue
        assert np.all(stamps[..., 1] > stamps[..., 0])
        # One after the other, on every rank, by the clock that they share.
        assert np.all(stamps[1:, :, 0].min(axis=1) > stamps[:-1, :, 1].max(axis=1))
        assert (timing.sync, timing.clock_error) == (sync, 0.0)
        assert timing.isolated == pytest.approx(np.median(isolated_times(stamps)) * 1e6)
        if sync != "barrier":  # who was late was discarded
            assert np.ptp(stamps[..., 0], axis=1).max() < 3e-6
    _, shown, _ = called("show", str(path))
    printed = done.stdout[done.stdout.index(f"# Isolated, started by {sync}") :]
    assert printed in shown


@pytest.mark.slow("starts mpiexec twice, one after the other")
def test_launches_add_a_run_each_and_a_summary(tmp_path, shared_job, launcher):
    path = tmp_path / "runs.h5"
    words = ("perf", "all_reduce", "-b", "1K", "-e", "1K", "--output", str(path))
    series = ("--launches", "2", "--launcher", f"{launcher} -n 2")
    command = ("-m", "hpccomm", *words)
    done = python(*command, *series, env=launch_environment(), check=True)
    runs = reader.read(path)
    name = runs[0].info.series["name"]
    assert list(perf.summary(path, name))[-2] in done.stdout
    # A median is the middle one of three. The third is started by its flag.
    third = shared_job(2, *command, "--series", f"{name}:3:3")
    assert third.returncode == 0, third.stderr
    runs = reader.read(path)
    told = [(run.info.series["name"], run.info.series["launch"]) for run in runs]
    assert told == [(name, launch) for launch in "123"]
    *case, time = list(perf.summary(path, name))[-2].split()[1:8]
    assert case == ["all_reduce", "auto", "float", "sum", "1024", "no"]
    assert float(time) == pytest.approx(np.median([run.rows[0].time for run in runs]), abs=0.006)
    inside = shared_job(2, *command, *series)
    assert inside.returncode != 0
    assert "--launches starts the ranks itself" in inside.stderr


def test_a_launcher_is_the_jobs():
    assert perf.launch_command(None, {"SLURM_JOB_ID": "7"}) == ("srun",)


def test_a_launch_that_fails_ends_the_series_and_says_which(tmp_path):
    left_nothing = " and left no completed run"  # status 1 is also that of wrong results
    for status, why in ((0, left_nothing), (1, left_nothing), (7, "; 0 before it are kept")):
        command, said = [str(script(tmp_path / "launcher", f"exit {status}"))], []
        with pytest.raises(LaunchError, match=f"launch 1 of 2 ended with status {status}{why}"):
            perf.run_launches(["perf"], command, 2, tmp_path / "runs.h5", said.append)
        assert said == []


@pytest.mark.parametrize("status", [1, pytest.param(143, marks=pytest.mark.thorough)])
def test_a_series_that_is_asked_to_end_starts_no_other_launch(tmp_path, status):
    lines = f"trap 'exit {status}' TERM\necho >> started\nwhile :; do sleep 0.1; done"
    launcher = script(tmp_path / "launcher", lines)
    words = ("perf", "all_reduce", "--output", "runs.h5", "--launches", "2", "--launcher", launcher)
    command = [sys.executable, "-m", "hpccomm", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=launch_environment()) as series:
        started = tmp_path / "started"
        until(started.exists)
        series.terminate()
        try:
            assert series.wait(60) == 143
        finally:
            series.kill()
    assert len(started.read_text().splitlines()) == 1


# The words of a command, and those of its launches: its variant's, where it interleaves two, stand in front of what
# are no flags.
WORDS = """
all_reduce --launches 3 -b 8 --launcher=mpiexec -c1 > all_reduce -b 8 -c1 --series s:1:3
all_reduce --interleave ring tree -b 8 --launches 3 > all_reduce -b 8 --series s:1:3 VARIANT
--launches 3 -b 8 -- all_reduce > -b 8 --series s:1:3 VARIANT -- all_reduce
"""


@pytest.mark.parametrize("line", WORDS.split("\n")[1:-1])
def test_a_launch_has_the_arguments_of_the_command_but_those_of_the_series(line):
    words, expected = (each.split(" ") for each in line.split(" > "))
    of = variant("ring backend=mpi") if "VARIANT" in line else ONLY
    flags = ["--backend", "mpi", "--algorithm", "ring", "--variant", "ring backend=mpi"]
    due = [word for each in expected for word in (flags if each == "VARIANT" else [each])]
    assert perf.words_of_a_launch(words, "s:1:3", of) == due
