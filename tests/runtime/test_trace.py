"""What takes the calls of a recorded program: bounded, whatever becomes of what it writes to."""

import json
import logging
import threading
import time
import weakref
from itertools import count

import numpy as np
import pytest
from until import until

import hpccomm
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.results import recording_file
from hpccomm.runtime import recorder as trace
from hpccomm.runtime.recorder import ASYNC, BLOCKING, Origin
from hpccomm.testing import run_ranks

ORIGIN = Origin("uid", "world", 0, 1)
LABELS = [CallFingerprint("all_reduce", nbytes) for nbytes in range(3)]


class Written:
    """Keeps what a trace writes."""

    def __init__(self):
        self.blocks, self.labels, self.numbers = [], [], count()
        self.trace = trace.Trace(self.number, self.blocks.append, lambda: None)

    def number(self, _origin, label, _mode, _site):
        self.labels.append(label)
        return next(self.numbers)

    def columns(self):
        self.trace.flush(last=True)
        return {
            name: np.concatenate([each[name] for each in self.blocks]) for name in self.blocks[0]
        }


def entry(sequence, label, mode=BLOCKING, seconds=0.5, error=None):
    """Return the record of a call."""
    site = entry.__code__, 2 * (sequence % 2)
    return [ORIGIN, sequence, sequence, label, mode, site, float(sequence), 1.0, seconds, error]


def test_columns_are_those_of_the_records():
    written, x = Written(), np.ones(4)
    for sequence in range(1, 5000):
        label = LABELS[sequence % 3]
        written.trace.take(
            entry(sequence, label, error="it" if sequence == 7 else None), (None, x[1:])
        )
    columns = written.columns()
    order = np.argsort(columns["begin"])  # as readers have them: one that failed comes late
    columns = {name: each[order] for name, each in columns.items()}
    numbers = np.arange(1, 5000)
    np.testing.assert_array_equal(columns["number"], numbers)
    np.testing.assert_array_equal(columns["begin"], numbers * 10**9)
    np.testing.assert_array_equal(columns["end"] - columns["begin"], 5 * 10**8)
    np.testing.assert_array_equal(columns["failed"], numbers == 7)
    assert (columns["waited"] == 5 * 10**8).all()
    assert (columns["buffer"] == id(x)).all()
    assert len(written.labels) == 6  # of three calls in two places
    assert [written.labels[n] for n in columns["signature"]] == [LABELS[n % 3] for n in numbers]


def test_a_call_that_is_part_of_another_or_of_the_making_of_a_communicator_is_not_taken_again():
    written = Written()
    one = entry(1, LABELS[0], error="it")
    for each in (one, one, entry(-3, LABELS[0])):
        written.trace.take(each, None)
    assert written.columns()["number"].tolist() == [1]


def test_a_call_is_held_back_until_the_program_waits_for_it_or_for_two_seconds():
    written = Written()
    now = time.perf_counter()
    lately, long_ago = entry(1, LABELS[0], ASYNC), entry(2, LABELS[0], ASYNC)
    lately[6], long_ago[6] = now, now - 10
    for each in (lately, long_ago):
        written.trace.take(each, None)
    written.trace.flush()
    assert [each["number"].tolist() for each in written.blocks] == [[2]]
    written.trace.waited(lately, now + 1)
    columns = written.columns()
    assert columns["number"].tolist() == [2, 1]
    assert columns["asked"].tolist() == [0, int((now + 1) * 1e9)]


class Seen(list):
    """A record to which there may be weak references."""


def taken(recording, calls, flush=0):
    """Give calls to a recording; return what finds those that it keeps."""
    known = []
    for sequence in range(1, calls):
        one = Seen(entry(sequence, LABELS[0]))
        recording.take(one, None)
        known.append(weakref.ref(one))
        if flush and sequence % flush == 0:
            recording.flush()
    return lambda: sum(each() is not None for each in known)


@pytest.mark.parametrize("after", [0, 3])
def test_a_recording_that_cannot_be_written_ends_with_a_warning_and_keeps_nothing(caplog, after):
    written = []

    def add(columns):
        if len(written) == after:
            raise OSError("no space left")
        written.append(columns)

    recording = trace.Trace(lambda *_: 0, add, lambda: None)
    with caplog.at_level(logging.WARNING):
        kept = taken(recording, 50_000, flush=1000)
    assert "no space left" in recording.failure
    assert sum("the recording of the program ends" in each.message for each in caplog.records) == 1
    assert kept() <= trace.BLOCK


def test_calls_that_come_faster_than_they_are_written_are_left_out(monkeypatch):
    monkeypatch.setattr(trace, "MOST", 3 * trace.BLOCK)  # else a quarter of a million
    go_on = threading.Event()
    recording = trace.Trace(lambda *_: 0, lambda columns: go_on.wait(30), lambda: None)
    kept = taken(recording, 20 * trace.BLOCK)
    assert kept() <= 2 * trace.MOST  # with what is being written
    go_on.set()
    until(lambda: kept() <= trace.BLOCK)
    assert "faster" in recording.failure


def test_calls_that_never_end_are_written_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(trace, "MOST", 100)  # else a quarter of a million
    written = []
    recording = trace.Trace(lambda *_: 0, written.append, lambda: None)
    for sequence in range(1, 1001):
        one = entry(sequence, LABELS[0])
        one[trace.MODE], one[trace.ENDED] = trace.ASYNC, None
        recording.take(one, None)
    recording.flush()
    failed = np.concatenate([each["failed"] for each in written])
    assert failed.sum() == len(failed) == 900
    recording.flush(last=True)


def test_hooks_and_dumps_of_the_program_have_what_they_have_without_a_recording(tmp_path):
    def program(comm):
        seen = []
        comm.register_post_hook(lambda info: seen.append((info.operation, info.nbytes)))
        x = np.ones(2)
        comm.all_reduce(x)
        with comm.record() as recorder:
            comm.all_reduce(x)
            comm.all_reduce(x, async_op=True).wait()
            with pytest.raises(hpccomm.UsageError, match="recorded already"):
                comm.record()
            if comm.rank == 0:
                hpccomm.dump(str(tmp_path))
        comm.all_reduce(x)
        return [each for each in seen if each[0] == "all_reduce"], recorder.recording

    (seen, recording), *others = run_ranks(3, program)
    assert seen == [("all_reduce", 16)] * 4
    assert all(each == seen for each, _ in others)
    recording_file.write(tmp_path / "later.h5", recording)  # its parts are gone
    (stored,) = recording_file.read_recordings(tmp_path / "later.h5")
    assert stored.calls["begin"].tolist() == recording.calls["begin"].tolist()
    # With the refused one's agreement, and without waits for what is under way, which have no number.
    assert np.count_nonzero(recording.calls.columns["number"]) == 3 * (2 + 1)
    (file,) = tmp_path.rglob("rank_0.json")
    entries = json.loads(file.read_text())["entries"]
    assert sum(each["profiling_name"] == "mpi:all_reduce" for each in entries) >= 3 * 3
