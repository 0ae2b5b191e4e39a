"""A job killed at any moment leaves a file that opens and holds every row it reported."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpccomm.results import reader, store
from hpccomm.results.archive import verify
from hpccomm.results.writer import Writer, add_runs

KILLS = 20


def kill_one(program: str, path: Path, chance: random.Random) -> list[str]:
    """Start the program that appends rows, kill it, and return what it had reported by then."""
    command = [sys.executable, program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(chance.randrange(1, 300))]
        time.sleep(chance.random() * 2e-3)
        process.kill()
        reported += process.stdout.readlines()
    return [line for line in reported if line.endswith("\n") and line != "ended\n"]


# The first of each four, or two, starts a file; the others append to what the killed ones left.
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, KILLS // 4))],
)
def test_killed_at_any_moment(tmp_path, example, seed, pytestconfig):
    chance = random.Random(seed)
    path = tmp_path / "killed.h5"
    least: dict[str, int] = {}
    for _ in range(4 if pytestconfig.getoption("--all") else 2):
        reported = kill_one(example.__file__, path, chance)
        least[reported[0].split()[0]] = len(reported)

        runs = reader.read(path)
        assert [run.name for run in runs] == sorted(least)
        for run in runs:
            rows = len(run.rows)
            assert rows >= least[run.name]
            assert run.rows == tuple(map(example.example_row, range(rows)))
            for index in (0, rows - 1):
                expected = example.example_samples(index, example.REPETITIONS)
                np.testing.assert_array_equal(run.samples(index), expected)
    assert verify(path).whole, verify(path).lines


class Killed(BaseException):
    """Stands for the end of the process: nothing more is written."""


@pytest.mark.parametrize("writes", range(5))
def test_a_row_of_which_a_part_is_written_is_not_there_and_no_damage(
    tmp_path, example, monkeypatch, writes
):
    path = tmp_path / "killed.h5"
    writer = Writer(path, example.example_info(), expected_isolated=100)

    def append(index):
        isolated = np.linspace(index, index + 1, 10 * 4 * 2).reshape(10, 4, 2)
        writer.append(example.example_row(index), example.example_samples(index, 20), isolated)

    for index in range(3):
        append(index)
    left, pwrite = [None] * writes, os.pwrite

    def write(*given):
        if not left:
            raise Killed
        left.pop()
        return pwrite(*given)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(Killed) if writes < 4 else monkeypatch.context():
        append(3)
    monkeypatch.undo()
    writer._section.close()
    rows = 3 if writes < 4 else 4
    assert reader.read(path)[0].rows == tuple(map(example.example_row, range(rows)))
    assert verify(path).whole


def ended_runs(example, number):
    rows = [example.example_row(index) for index in range(3)]
    samples = [example.example_samples(index, 20) for index in range(3)]
    info = example.example_info()
    return [(info, rows, samples, f"failed: {each}", info.started) for each in range(number)]


def killed_at(write, work):
    """Do the work in a process that SIGKILL ends before its write of that number; say whether it did."""
    process = os.fork()
    if not process:
        left, pwrite = [None] * write, os.pwrite

        def kill_or_write(*given):
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left.pop()
            return pwrite(*given)

        os.pwrite = kill_or_write
        try:
            work()
            os._exit(0)
        finally:  # never back into the tests
            os._exit(1)
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) or not status
    return os.WIFSIGNALED(status)


def test_a_kill_leaves_all_runs_that_are_added_together_or_none(tmp_path, example):
    path = tmp_path / "killed.h5"
    example.one_row(path, example.example_samples(0, 20))
    kills = 0
    while killed_at(kills, lambda: add_runs(path, ended_runs(example, 3))):
        assert len(reader.read(path)) == 1
        assert verify(path).whole
        kills += 1
    assert kills > 3 * 4  # at least samples, rows, their number, the end of each
    runs = reader.read(path)
    assert [run.name for run in runs] == ["run0001", "run0002", "run0003", "run0004"]
    for number, run in enumerate(runs[1:]):
        assert run.rows == tuple(example.example_row(index) for index in range(3))
        np.testing.assert_array_equal(run.samples(2), example.example_samples(2, 20))
        assert (run.status, run.ended) == (f"failed: {number}", run.info.started)
    assert verify(path).whole


def test_runs_that_are_added_together_replace_the_file_once(tmp_path, example, monkeypatch):
    path, replace, calls = tmp_path / "once.h5", store.replace, []
    monkeypatch.setattr(store, "replace", lambda *a, **k: calls.append(a) or replace(*a, **k))
    assert len(add_runs(path, ended_runs(example, 9))) == 9
    assert len(calls) == 1
