"""A run without an end: whether it is being written, or its writer is gone."""

import fcntl
import os
import signal

import h5py
import pytest

from hpccomm.errors import UsageError
from hpccomm.results import reader
from hpccomm.results.writer import Writer
from hpccomm.tools.main import main


@pytest.fixture
def writer(tmp_path, example):
    """Give a writer that has ended one run, and is within another."""
    path = tmp_path / "runs.h5"
    Writer(path, example.example_info())._section.close()  # as if killed
    writer = Writer(path, example.example_info(), expected_rows=1)
    writer.append(example.example_row(0), None)
    yield writer
    writer._section.close()


def statuses(writer):
    return [run.status for run in reader.read(writer.path)]


def test_a_run_is_running_as_long_as_its_writer_has_the_file(writer, example, capsys):
    assert statuses(writer) == ["interrupted", "running"]
    with h5py.File(writer.path, "r"):  # another program may read it
        assert statuses(writer) == ["interrupted", "running"]
    writer.append(example.example_row(1), None)  # goes on in a larger file
    assert statuses(writer) == ["interrupted", "running"]
    assert main(["show", str(writer.path)]) == 0
    assert f"# Run run0002 of {writer.path}: running: 2 rows so far\n" in capsys.readouterr().out
    writer._section.close()
    with h5py.File(writer.path, "r"):
        assert statuses(writer) == ["interrupted", "interrupted"]


def test_a_run_that_ends_while_it_is_read_is_not_taken_for_interrupted(writer, monkeypatch):
    ask = reader.facts.held

    def held(*of):
        found = ask(*of)
        writer.end("completed")
        return found

    monkeypatch.setattr(reader.facts, "held", held)
    assert statuses(writer)[1] in ("running", "completed")


def test_a_file_that_its_writer_has_just_replaced_is_not_interrupted(writer):
    old = os.open(writer.path, os.O_RDONLY)
    writer.end("completed")
    assert reader.facts.held(old, writer.path)
    os.close(old)


def test_what_cannot_be_seen_from_here_is_said(writer, monkeypatch, capsys):
    writer._section.close()
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    assert statuses(writer) == ["interrupted", "interrupted or running"]
    assert main(["show", str(writer.path)]) == 0
    said = (
        "interrupted or running: what wrote it cannot be seen from here, it was on node0; 1 row so"
    )
    assert said in capsys.readouterr().out
    monkeypatch.setattr("socket.gethostname", lambda: "node0")
    assert statuses(writer)[1] == "interrupted"
    ask = fcntl.fcntl

    def no_locks(descriptor, command, *of):
        if command == fcntl.F_OFD_GETLK:
            raise OSError(38, "no locks")
        return ask(descriptor, command, *of)

    monkeypatch.setattr("fcntl.fcntl", no_locks)
    assert statuses(writer)[1] == "interrupted or running"


def test_a_forked_child_writes_nothing_and_keeps_no_lock(writer, example):
    def in_child(done):
        child = os.fork()
        if not child:
            done()
        return child

    def leaves():
        status = 1
        try:
            with pytest.raises(UsageError, match="is written by the process that forked"):
                writer.append(example.example_row(1), None)
            with writer:
                pass
            writer._section.close()
            status = 0
        finally:
            os._exit(status)

    assert os.waitpid(in_child(leaves), 0)[1] == 0
    assert statuses(writer) == ["interrupted", "running"]
    writer.append(example.example_row(1), None)
    child = in_child(signal.pause)  # which has the file open
    try:
        writer._section.close()
        assert [len(run.rows) for run in reader.read(writer.path)] == [0, 2]
        assert statuses(writer) == ["interrupted", "interrupted"]
        with Writer(writer.path, example.example_info()) as again:
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert statuses(again) == ["interrupted", "interrupted", "completed"]
