"""A process that is killed or interrupted at any moment leaves a file that opens and holds every row it reported."""

import os
import signal
from contextlib import nullcontext
from itertools import count
from mmap import mmap

import h5py
import numpy as np
import pytest
from appending import add_run, check_run, example_info, example_row, example_samples
from at_calls import at_call, end_of, kill_own

from hpccomm.results import reader
from hpccomm.results.archive import verify
from hpccomm.results.recording_file import RecordingWriter, read_recordings
from hpccomm.results.writer import Writer, add_runs

from .test_trainings import FACTS, step

KILLS = 20
ROWS = 3


# The first of each four, or two, starts a file; the others append to what the killed ones left.


def after_kills(path, work, module=os, name="pwrite"):
    """Yield the runs that work adds to a file if a kill comes to each call of a name, and at last without one."""
    before, end = add_run(path, [20]).read_bytes(), signal.SIGKILL
    for number in count():
        path.write_bytes(before)
        with at_call(module, name, kill_own, number):
            end = end_of(work)
        assert verify(path)[1]
        first, *added = reader.read(path)
        check_run(first, [20])
        yield added
        if end is not signal.SIGKILL:
            break
    assert (end, number > 0) == (signal.SIGTERM, True)


def append_rows(path, told, **expected):
    with Writer(path, example_info(), expected_isolated=100, **expected) as writer:
        for index in range(ROWS):
            isolated = np.linspace(index, index + 1, 10 * 4 * 2).reshape(10, 4, 2)
            writer.append(example_row(index), example_samples(index, 20), isolated)
            told[0] = index + 1


@pytest.mark.parametrize(
    "killing",
    [(os, "pwrite"), (os, "posix_fallocate"), (os, "replace"), (h5py.Group, "create_dataset")],
    ids=lambda killing: killing[1],
)
def test_a_kill_at_each_call_leaves_the_rows_that_were_told(tmp_path, killing):
    path, told = tmp_path / "killed.h5", mmap(-1, 1)  # shared with the forks
    # The file grows for the last row.
    for added in after_kills(path, lambda: append_rows(path, told, expected_rows=2), *killing):
        # A row of which a part is written is not there.
        assert sum(len(run.rows) for run in added) == told[0]
        for run in added:
            check_run(run, [20] * told[0])
        told[0] = 0
    assert [(run.status, len(run.rows)) for run in added] == [("completed", ROWS)]


def test_a_kill_leaves_all_runs_that_are_added_together_or_none(tmp_path):
    path, info = tmp_path / "killed.h5", example_info()
    rows = [example_row(index) for index in range(ROWS)]
    samples = [example_samples(index, 20) for index in range(ROWS)]
    runs = [(info, rows, samples, f"failed: {each}", info.started) for each in range(3)]
    for added in after_kills(path, lambda: add_runs(path, runs)):
        assert len(added) in (0, 3)
        for number, run in enumerate(added):
            check_run(run, [20] * ROWS)
            assert (run.status, run.ended) == (f"failed: {number}", info.started)
    assert [run.name for run in added] == ["run0002", "run0003", "run0004"]


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("writes", range(ROWS * 4))
def test_an_interrupt_behind_a_write_leaves_whole_rows(tmp_path, writes):
    path = add_run(tmp_path / "r.h5", [20])
    with pytest.raises(KeyboardInterrupt), at_call(os, "pwrite", interrupt, writes, behind=True):
        append_rows(path, [0])
    first, second = reader.read(path)
    check_run(first, [20])
    check_run(second, [20] * ((writes + 1) // 4))
    assert second.status == "failed: interrupted"
    assert verify(path)[1]


def test_one_behind_the_renaming_leaves_the_new_file(tmp_path):
    path = add_run(tmp_path / "r.h5")
    with pytest.raises(KeyboardInterrupt), at_call(os, "replace", interrupt, behind=True):
        Writer(path, example_info())
    first, *others = reader.read(path)
    check_run(first, [0])
    assert len(others) == 1


@pytest.mark.parametrize("writes", range(4))
def test_one_within_a_trainings_write_repeats_no_step(tmp_path, writes):
    path = tmp_path / "t.h5"
    writer = RecordingWriter(path, FACTS)
    for number in range(5):
        writer.add_step(step(number), (0.1,))
    # Seconds, steps, and their number: there is no fourth write.
    interrupted = pytest.raises(KeyboardInterrupt) if writes < 3 else nullcontext()
    with interrupted, at_call(os, "pwrite", interrupt, writes, behind=True):
        writer.flush()
    writer.end("completed")
    (training,) = read_recordings(path)
    assert training.steps["step"].tolist() == list(range(5))
