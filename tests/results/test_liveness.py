"""A run without an end: whether it is being written, or its writer is gone. Its truth are processes that live or are killed."""

import errno
import fcntl
import os
import signal
from dataclasses import replace

import h5py
import pytest
from appending import add_run, begin_run, example_info, example_row
from at_calls import at_call, end_of, living, refusal
from damage import called

from hpccomm.errors import UsageError
from hpccomm.results import reader


@pytest.fixture
def path(tmp_path):
    """A file with a run whose writer was killed."""
    path = tmp_path / "runs.h5"
    assert end_of(lambda: begin_run(path, [])) is signal.SIGTERM
    return path


def begun(path, rows, **facts):
    """Return a writer in the middle of a run, with capacity for one row at first."""
    return begin_run(path, [0] * rows, info=replace(example_info(), **facts), expected_rows=1)


def statuses(path):
    return [run.status for run in reader.read(path)]


@pytest.mark.parametrize("rows", [1, 2])  # the second goes on in a larger file
def test_a_run_is_running_as_long_as_its_writer_has_the_file(path, rows):
    with living(lambda: begun(path, rows)):
        assert statuses(path) == ["interrupted", "running"]
        with h5py.File(path, "r"):  # another program may read it
            assert statuses(path) == ["interrupted", "running"]
        plural = "s" if rows > 1 else ""
        told = f"# Run run0002 of {path}: running: {rows} row{plural} so far\n"
        assert told in called("show", path)[1]
    with h5py.File(path, "r"):
        assert statuses(path) == ["interrupted", "interrupted"]


def test_a_run_that_ends_while_it_is_read_is_not_taken_for_interrupted(path):
    writer = begun(path, 1)
    old = os.open(path, os.O_RDONLY)
    with at_call(fcntl, "fcntl", lambda *_: writer.end("completed"), 0, behind=True):
        assert statuses(path)[1] in ("running", "completed")
    assert statuses(path)[1] == "completed"
    assert reader.facts.held(old, path)  # the file that has just been replaced
    os.close(old)


def test_what_cannot_be_seen_from_here_is_said(path):
    elsewhere = [replace(each, host="login1") for each in example_info().ranks]
    assert end_of(lambda: begun(path, 1, ranks=elsewhere)) is signal.SIGTERM
    assert statuses(path) == ["interrupted", "interrupted or running"]
    said = "interrupted or running: what wrote it cannot be seen from here, it was on login1; 1 row"
    assert said in called("show", path)[1]
    assert end_of(lambda: begun(path, 1)) is signal.SIGTERM
    assert statuses(path)[-1] == "interrupted"
    with at_call(fcntl, "fcntl", refusal(errno.ENOSYS)):  # a file system without locks
        assert statuses(path)[-1] == "interrupted or running"


def test_a_forked_child_writes_nothing_and_keeps_no_lock(path):
    writer = begun(path, 1)

    def leaves():
        with pytest.raises(UsageError, match="is written by the process that forked"):
            writer.append(example_row(1), None)
        with writer:
            pass

    assert end_of(leaves) is signal.SIGTERM
    assert statuses(path) == ["interrupted", "running"]
    writer.append(example_row(1), None)
    with living(lambda: None):  # a child that has the file open
        writer.end("completed")
        assert [len(run.rows) for run in reader.read(path)] == [0, 2]
        add_run(path)
    assert statuses(path) == ["interrupted", "completed", "completed"]
