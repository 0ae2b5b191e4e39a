"""A job killed at any moment leaves a file that opens and holds every row it reported."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpccomm.results import reader
from hpccomm.results.verify import verify
from hpccomm.results.writer import Writer

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
