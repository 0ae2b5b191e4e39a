"""A process that is killed or interrupted at any moment leaves a file that opens and holds every row it reported."""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from at_calls import at_call, end_of, kill_own

from hpccomm.results import reader
from hpccomm.results.archive import verify
from hpccomm.results.recording_file import RecordingWriter, read_recordings
from hpccomm.results.writer import Writer, add_runs

from .test_trainings import FACTS, step

KILLS = 20
ROWS = 3


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


def check(run, example, rows, repetitions):
    """Check that a run has these rows, whole."""
    assert run.rows == tuple(map(example.example_row, range(rows)))
    for index in {0, rows - 1} if rows else ():
        expected = example.example_samples(index, repetitions)
        np.testing.assert_array_equal(run.samples(index), expected)


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
            assert len(run.rows) >= least[run.name]
            check(run, example, len(run.rows), example.REPETITIONS)
    assert verify(path).whole, verify(path).lines


def append_rows(writer, example, told=lambda _: None):
    for index in range(ROWS):
        isolated = np.linspace(index, index + 1, 10 * 4 * 2).reshape(10, 4, 2)
        writer.append(example.example_row(index), example.example_samples(index, 20), isolated)
        told(index)


def test_a_kill_at_each_write_leaves_the_rows_that_were_told(tmp_path, example):
    for kills in count():
        path, told = tmp_path / f"{kills}.h5", os.pipe()

        def work(kills=kills, path=path, told=told):
            with (
                Writer(path, example.example_info(), expected_isolated=100) as writer,
                at_call(os, "pwrite", kill_own, kills),
            ):
                append_rows(writer, example, lambda _: os.write(told[1], b"."))

        end = end_of(work)
        os.close(told[1])
        least = len(os.read(told[0], 99))
        os.close(told[0])
        (run,) = reader.read(path)
        assert least == len(run.rows)  # a row of which a part is written is not there
        check(run, example, least, 20)
        assert verify(path).whole
        if end is not signal.SIGKILL:
            break
    assert (end, run.status, least) == (signal.SIGTERM, "completed", ROWS)
    assert kills == ROWS * 4  # samples, isolated ones, the row, and the number of rows


def test_a_kill_leaves_all_runs_that_are_added_together_or_none(tmp_path, example):
    path, info = tmp_path / "killed.h5", example.example_info()
    rows = [example.example_row(index) for index in range(ROWS)]
    samples = [example.example_samples(index, 20) for index in range(ROWS)]
    runs = [(info, rows, samples, f"failed: {each}", info.started) for each in range(3)]
    example.one_row(path, samples[0])
    for kills in count():

        def work(kills=kills):
            with at_call(os, "pwrite", kill_own, kills):
                add_runs(path, runs)

        if (end := end_of(work)) is not signal.SIGKILL:
            break
        assert len(reader.read(path)) == 1
        assert verify(path).whole
    assert end is signal.SIGTERM
    assert kills > 3 * 4  # at least samples, rows, their number, the end of each
    first, *added = reader.read(path)
    assert [run.name for run in (first, *added)] == ["run0001", "run0002", "run0003", "run0004"]
    for number, run in enumerate(added):
        check(run, example, ROWS, 20)
        assert (run.status, run.ended) == (f"failed: {number}", run.info.started)
    assert verify(path).whole


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("writes", range(ROWS * 4))
def test_an_interrupt_behind_a_write_leaves_whole_rows(tmp_path, example, writes):
    path = tmp_path / "r.h5"
    example.one_row(path, example.example_samples(0, 20))

    def measure():
        with (
            Writer(path, example.example_info(), expected_isolated=100) as writer,
            at_call(os, "pwrite", interrupt, writes, behind=True),  # not of the run's end
        ):
            append_rows(writer, example)

    with pytest.raises(KeyboardInterrupt):
        measure()
    first, second = reader.read(path)
    check(first, example, 1, 20)
    check(second, example, (writes + 1) // 4, 20)
    assert second.status == "failed: interrupted"
    assert verify(path).whole


def test_one_behind_the_renaming_leaves_the_new_file(tmp_path, example):
    path = tmp_path / "r.h5"
    example.one_row(path)
    with pytest.raises(KeyboardInterrupt), at_call(os, "replace", interrupt, behind=True):
        Writer(path, example.example_info())
    first, *others = reader.read(path)
    assert first.rows == (example.example_row(0),)
    assert len(others) == 1


@pytest.mark.parametrize("writes", range(4))
def test_one_within_a_trainings_write_repeats_no_step(tmp_path, writes):
    path = tmp_path / "t.h5"
    writer = RecordingWriter(path, FACTS)
    for number in range(5):
        writer.add_step(step(number), (0.1,))
    with at_call(os, "pwrite", interrupt, writes, behind=True):
        try:
            writer.flush()
        except KeyboardInterrupt:
            pass
        else:
            assert writes == 3  # seconds, steps, and their number
    writer.end("completed")
    (training,) = read_recordings(path)
    assert training.steps["step"].tolist() == list(range(5))
