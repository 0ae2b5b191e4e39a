"""Exceptions of signal handlers at any statement: stored rows are not lost."""

from pathlib import Path

import numpy as np
import pytest

from hpccomm.results import reader, store
from hpccomm.results.recording_file import RecordingWriter, read_recordings
from hpccomm.results.writer import Writer

from .test_trainings import FACTS, step


def interrupting(monkeypatch, owner, name, calls):
    """Have a function raise as its last statement, in the call of that number."""
    function, left = getattr(owner, name), [calls]

    def then(*arguments):
        function(*arguments)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, then)


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 8])
def test_one_within_append_leaves_whole_rows(tmp_path, example, monkeypatch, calls):
    path = tmp_path / "r.h5"
    example.one_row(path, example.example_samples(0, 20))
    before = reader.read(path)[0]

    def measure():
        with Writer(path, example.example_info()) as writer:
            interrupting(monkeypatch, store, "write", calls)
            for index in range(3):
                writer.append(example.example_row(index), example.example_samples(index, 20))

    with pytest.raises(KeyboardInterrupt):
        measure()
    first, second = reader.read(path)
    assert first.rows == before.rows
    np.testing.assert_array_equal(first.samples(0), before.samples(0))
    assert second.rows == tuple(example.example_row(index) for index in range(len(second.rows)))
    for index in range(len(second.rows)):
        np.testing.assert_array_equal(second.samples(index), example.example_samples(index, 20))


def test_one_behind_the_renaming_leaves_the_new_file(tmp_path, example, monkeypatch):
    path = tmp_path / "r.h5"
    example.one_row(path)
    interrupting(monkeypatch, Path, "replace", 1)
    with pytest.raises(KeyboardInterrupt):
        Writer(path, example.example_info())
    assert reader.read(path)[0].rows == (example.example_row(0),)


def test_one_within_a_trainings_write_repeats_no_step(tmp_path, monkeypatch):
    path = tmp_path / "t.h5"
    writer = RecordingWriter(path, FACTS)
    for number in range(5):
        writer.add_step(step(number), (0.1,))
    interrupting(monkeypatch, store, "write", 3)  # the number of steps
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    monkeypatch.undo()
    writer.end("completed")
    (training,) = read_recordings(path)
    assert training.steps["step"].tolist() == list(range(5))
