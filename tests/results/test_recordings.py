"""Recorded programs in a results file: packed, read, joined of the parts of their ranks, damaged, killed."""

import csv
import gzip
import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import stored_runs
from at_calls import at_call, end_of, kill_own
from damage import called, output, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings_made import MARK, MadeCall, all_reduce, made, stepped
from run_blocks import run_blocks

from hpccomm.errors import ResultsError
from hpccomm.results import blocks, reader, recording_file
from hpccomm.results.recording import (
    CALL_COLUMNS,
    POLLED,
    Calls,
    CallSignature,
    RecordedGroup,
    Recording,
    TrainingNote,
)
from hpccomm.results.recording_file import (
    RecordingWriter,
    joined,
    part_path,
    read_recordings,
    write,
)

from .test_trainings import step

NAMES = [each.name for each in CALL_COLUMNS]


def random_calls(seed: int, ranks: int, most: int) -> Calls:
    """Return columns with gaps and differences of all sizes."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, most + 1, ranks)
    calls = int(counts.sum())

    def sizes() -> np.ndarray:
        return chance.integers(0, 1 + (1 << chance.integers(0, 41, calls)), calls)

    begin = np.concatenate([np.sort(each) for each in np.split(sizes(), np.cumsum(counts)[:-1])])
    begin, took, asked = begin - (1 << 40), sizes(), sizes()
    columns = {
        "signature": chance.integers(0, 3, calls).astype("<i4"),
        "number": sizes(),
        "begin": begin,
        "end": begin + took,
        "asked": np.where(chance.random(calls) < 0.5, 0, begin + asked),
        "waited": np.where(chance.random(calls) < 0.5, took, sizes()),
        "buffer": sizes() << 20,
        "stream": -sizes(),
        "failed": chance.integers(0, 2, calls).astype("u1"),
    }
    return Calls(np.cumsum([0, *counts]), columns)


def assert_calls(calls: Calls, expected: Mapping[str, np.ndarray], names=NAMES) -> None:
    for name in names:
        assert calls[name].dtype == expected[name].dtype, name
        np.testing.assert_array_equal(calls[name], expected[name], name)


def assert_same(one: Recording, other: Recording) -> None:
    assert one.calls.starts.tolist() == other.calls.starts.tolist()
    assert_calls(one.calls, other.calls.columns)
    for what in ("groups", "signatures", "facts", "notes", "status"):
        assert getattr(one, what) == getattr(other, what)
    assert [each.values for each in one.signatures] == [each.values for each in other.signatures]


def rows_of(recording: Recording, rows: Any) -> dict[str, np.ndarray]:
    """Return the columns of some calls."""
    return {name: each[rows] for name, each in recording.calls.columns.items()}


def spoil_text(path: Path, words: bytes) -> int:
    """Damage the first event whose text has these words; return its number."""
    with h5py.File(path, "r+") as file:
        stored = file["recordings/recording0001"]
        events = stored["events"][: stored["state"][()]["events"]]
        texts = [stored["texts"][first:][:size].tobytes() for first, size, *_ in events]
        place = [words in text for text in texts].index(True)
        stored["texts"][events[place]["first_byte"] + 20] ^= 1
    return place


def program(ranks: int) -> Recording:
    """Return one with three signatures and two groups, without calls."""
    base = made([[]] * ranks)
    groups = (*base.groups, RecordedGroup("world/1", "half ä", (1, 0)))
    signatures = (all_reduce(64), replace(all_reduce(1 << 20), group=1), MARK)
    notes = (TrainingNote(0, "of mine"),)
    return replace(base, groups=groups, signatures=signatures, notes=notes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.sampled_from([0, 1, 5, 300, 20_000]))
def test_every_call_comes_back(tmp_path_factory, seed, ranks, most):
    path = tmp_path_factory.mktemp("r") / "t.h5"
    recording = replace(program(ranks), calls=random_calls(seed, ranks, most))
    assert write(path, recording) == "recording0001"
    (stored,) = read_recordings(path)
    assert_same(stored, recording)


def test_the_recipes_of_the_documentation_read_it(tmp_path, monkeypatch, capsys):
    ours, alone, calls = run_blocks("docs/reference/results.rst")
    monkeypatch.chdir(tmp_path)
    recording = replace(program(1), calls=random_calls(7, 1, 9000))
    write("run.h5", recording)
    stored_runs.write(Path("run.h5"), {"ring": (2.0, 1.0)})
    exec(ours, {})
    assert capsys.readouterr().out.count("all_reduce ") == len(stored_runs.SIZES)
    read_by_it: dict = {}
    exec(alone, read_by_it)
    assert read_by_it["seconds"].shape == (20, 2)
    capsys.readouterr()
    exec(calls, read_by_it)
    for name in NAMES:
        assert read_by_it["calls"][name].tolist() == recording.calls[name].tolist(), name
    blocked = recording.calls["waited"].sum() * 1e-9
    assert capsys.readouterr().out == f"0 {blocked}\n"


def test_thousands_of_steps_take_a_few_bytes_a_call(tmp_path):
    chance = np.random.default_rng(3)
    times = chance.normal(2e5, 2e4, (2, 8_000)).astype(np.int64)
    recording = stepped(2, 8_000, lambda rank, at: int(times[rank, at]), 150_000)
    write(tmp_path / "t.h5", recording)
    assert (tmp_path / "t.h5").stat().st_size < 12 * recording.calls.count
    equal = stepped(2, 8_000, lambda rank, at: 200_000, 150_000)
    write(tmp_path / "e.h5", equal)
    assert (tmp_path / "e.h5").stat().st_size < equal.calls.count


def parts_of(path: Path, recording: Recording, seed: int, ranks: list[int]) -> None:
    """Write the parts of ranks: by clocks that drift, in the order of ends, with numbers of their own."""
    for rank in ranks:
        writer = RecordingWriter(part_path(path, rank), recording.facts)
        chance = np.random.default_rng(seed + rank)
        start, drift = int(chance.integers(-(1 << 50), 1 << 50)), int(chance.integers(-50, 50))
        groups = [
            writer.add_group(replace(each, ranks=tuple(n if n == rank else -1 for n in each.ranks)))
            for each in recording.groups[::-1]
        ][::-1]
        signatures = np.zeros(len(recording.signatures), "<i4")
        for number in chance.permutation(len(signatures)):
            one = recording.signatures[number]
            group = -1 if one.group < 0 else groups[one.group]
            signatures[number] = writer.add_signature(replace(one, group=group))

        def ahead(common: Any, start=start, drift=drift) -> Any:
            """Whole nanoseconds at both readings; between them evenly."""
            return start + common // 1_000_000 * drift

        for common in (0, 1 << 43):
            error = 10 + rank - (common == 0)  # the larger one counts
            writer.add_clock(common + ahead(common), ahead(common), error)
        own = rows_of(recording, recording.calls.of_rank(rank))
        order = np.argsort(own["end"], kind="stable")
        whole = own["waited"] == own["end"] - own["begin"]
        shown = {name: own[name] + ahead(own[name]) for name in ("begin", "end", "asked")}
        shown["asked"][own["asked"] == 0] = 0
        shown["waited"] = np.where(whole, shown["end"] - shown["begin"], own["waited"])
        shown["signature"] = signatures[own["signature"]]
        for some in np.array_split(order, 3):
            writer.add_calls({name: (own | shown)[name][some] for name in NAMES}, rank)
        for note in recording.notes:
            writer.add_note(note)
        writer.end("completed")


def in_content(recording: Recording) -> list[str]:
    """Return the signature of each call in words."""
    words = [
        str((replace(each, group=0), each.group >= 0 and recording.groups[each.group]))
        for each in recording.signatures
    ]
    return [words[number] for number in recording.calls["signature"]]


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_one_recording_by_the_common_clock(tmp_path, seed):
    path, base, calls = tmp_path / "t.h5", program(3), random_calls(seed, 3, 200)
    groups = (base.groups[0], replace(base.groups[1], ranks=(2, 0)))
    apart = np.concatenate([np.arange(n) * 5_000_000 for n in np.diff(calls.starts)])
    later = (1 << 40) + apart  # begins that differ by more than the clocks do
    times = {name: calls[name] + later for name in ("begin", "end")}
    times["asked"] = np.where(calls["asked"] == 0, 0, calls["asked"] + later)
    recording = replace(base, groups=groups, calls=Calls(calls.starts, {**calls.columns, **times}))
    parts_of(path, recording, seed, [0, 1, 2])
    one = joined(path)
    assert one.calls.starts.tolist() == calls.starts.tolist()
    for name in NAMES[1:]:
        within = 100 if name in (*times, "waited") else 0  # of a drift by steps
        difference = np.abs(one.calls[name].astype(int) - recording.calls[name])
        assert difference.max() <= within, name
    whole, blocked = (each["waited"] == each["end"] - each["begin"] for each in (calls, one.calls))
    assert blocked[whole].all()  # as precisely as it was
    assert in_content(one) == in_content(recording)
    assert one.facts == replace(recording.facts, clock_error_ns=(10, 11, 12))
    assert (one.notes, one.status) == (recording.notes, "completed")

    write(path, one)
    packed = b"".join(packed_of(part_path(path, rank)) for rank in range(3))
    assert packed_of(path) == packed  # as the ranks have written it
    stored, again = read_recordings(path)
    assert_same(stored, one)
    assert_same(again, one)  # the parts are still there
    assert again.name == "recording0002"


def test_a_recording_of_the_version_before_is_read(tmp_path):
    """It was joined when rank 0 still put the calls on the common clock, and packed them once more.

    Its export by that version stands beside it.
    """
    data, path = Path(__file__).with_name("data"), tmp_path / "t.h5"
    path.write_bytes(gzip.decompress((data / "joined_before.h5.gz").read_bytes()))
    exported = (data / "joined_before.csv").read_text("utf-8")
    assert output("export", path, "--format", "csv") == exported
    (one,) = read_recordings(path)
    groups = {each.name: each.ranks for each in one.groups}
    assert groups == {"reversed": (1, 0), "world": (0, 1)}
    write(path, replace(program(2), calls=random_calls(1, 2, 50)))
    assert_same(read_recordings(path)[0], one)


def packed_of(path: Path) -> bytes:
    """Return the packed calls of the first recording of a file."""
    with h5py.File(path) as file:
        stored = file["recordings/recording0001"]
        blocks = stored["blocks"][: stored["state"][()]["blocks"]]
        return stored["packed"][: blocks["packed_bytes"].sum()].tobytes()


def test_a_rank_whose_clock_is_damaged_is_left_out(tmp_path):
    path = tmp_path / "t.h5"
    parts_of(path, replace(program(3), calls=random_calls(1, 3, 50)), 0, [0, 1, 2])
    write(path, one := joined(path))
    place = spoil_text(path, b'"rank": 1')
    for rank in range(3):
        part_path(path, rank).unlink()
    examined = reader.examine(path)
    assert f"texts of event {place}" in examined.damage[0]
    (left,) = examined.recordings
    counts = np.diff(one.calls.starts)
    assert np.diff(left.calls.starts).tolist() == [counts[0], 0, counts[2]]
    assert_calls(left.calls, rows_of(one, one.calls.ranks() != 1))


def test_missing_and_earlier_parts(tmp_path):
    path = tmp_path / "t.h5"
    recording = replace(program(3), calls=random_calls(1, 3, 50))
    earlier = replace(recording.facts, started=recording.facts.started.replace(year=2025))
    parts_of(path, recording, 0, [0, 2])
    parts_of(path, replace(recording, facts=earlier), 0, [1])
    part_path(path, 0).with_name("t.h5.rank0.partial").touch()
    (one,) = read_recordings(path)
    missing = "the calls of these ranks are missing: 1"
    assert (one.notes[-1].text, one.status) == (missing, "interrupted")
    assert np.diff(one.calls.starts).tolist()[1] == 0
    assert {each.uid: each.ranks for each in one.groups}["(0, 1, 2)"] == (0, -1, 2)
    # The file does not exist.
    assert f"# {missing}" in output("show", path)
    assert "recording0001: interrupted, " in output("show", path, "--verify")
    for verb in ("advise", "report"):  # no step is known without all ranks
        assert missing in refused(verb, path)
    opened = len([*Path("/proc/self/fd").iterdir()])
    examined = reader.examine_all(path)  # of thousands of ranks too
    assert len([*Path("/proc/self/fd").iterdir()]) == opened
    assert_same(examined.recordings[0], one)
    write(path, one)
    assert [each.status for each in read_recordings(path)] == ["interrupted", "interrupted"]
    part_path(path, 2).write_bytes(part_path(path, 2).read_bytes()[:5000])
    examined = reader.examine_all(path)
    assert "recording0002: rank 2: " in examined.damage[0]
    assert examined.recordings[-1].notes[-1].text.endswith("missing: 1, 2")
    with pytest.raises(ResultsError, match="rank 2"):
        read_recordings(path)
    assert len(reader.examine(path).recordings) == 1


def test_a_part_without_anything_is_not_taken_for_an_earlier_recording(tmp_path):
    path = tmp_path / "t.h5"
    write(path, stepped(1, 3, lambda rank, at: 100, 10))
    part_path(path, 0).touch()  # of a program that was killed while it began
    with pytest.raises(ResultsError, match=r"t.h5.rank\* hold no recording .*; remove these files"):
        joined(path)
    part_path(path, 0).unlink()
    assert len(read_recordings(path)) == 1


@pytest.mark.parametrize(
    ("name", "number"), [("pwrite", 30), ("posix_fallocate", 0), ("replace", 0)]
)
def test_a_killed_program_leaves_what_was_flushed(tmp_path, name, number):
    path = tmp_path / "t.h5"
    recording = stepped(2, 500, lambda rank, step: 1000 + step % 7, 500)
    begin = recording.calls.starts[1]

    def work() -> None:
        recording_file.EVERY_SECONDS = 0.0
        # The first lines have room, and the file is replaced for more.
        recording_file.CAPACITY |= dict.fromkeys(recording_file.CAPACITY, 20) | {
            "texts": 1000,
            "packed": 9000,
        }
        writer = RecordingWriter(part_path(path, 1), recording.facts)
        for group in recording.groups:
            writer.add_group(group)
        for signature in recording.signatures:
            writer.add_signature(signature)
        with at_call(os, name, kill_own, number):
            for at, first in enumerate(range(begin, begin + 1_000, 10)):
                writer.add_calls(rows_of(recording, slice(first, first + 10)), 1)
                writer.add_step(step(at), (0.5,))
            writer.end("completed")

    assert end_of(work) is signal.SIGKILL
    (one,) = read_recordings(path)
    count = one.calls.count
    assert count > 0
    assert one.calls.starts.tolist() == [0, 0, count]
    assert_calls(one.calls, rows_of(recording, slice(begin, begin + count)), NAMES[1:])
    assert len(one.steps) > 0
    assert one.steps["step"].tolist() == list(range(len(one.steps)))
    assert in_content(one)[:2] == in_content(recording)[:2]
    assert one.status == "interrupted"
    assert one.notes[-1].text.endswith("missing: 0")


def test_two_threads_lose_and_repeat_nothing(tmp_path, monkeypatch):
    """The program's thread adds steps while another one adds calls, a third replaces the file, and it is read."""
    # Real capacity and pauses would take minutes to be passed.
    monkeypatch.setattr(recording_file, "EVERY_SECONDS", 0.0)
    small = dict.fromkeys(recording_file.CAPACITY, 1) | {"packed": 5000}
    monkeypatch.setattr(recording_file, "CAPACITY", small)  # likewise
    path = tmp_path / "t.h5"
    recording = stepped(1, 1000, lambda rank, at: 100, 10)
    writer = RecordingWriter(path, recording.facts)
    threads: set[threading.Thread] = set()

    def record() -> None:
        for first in range(0, 2000, 4):
            some = rows_of(recording, slice(first, first + 4))
            number = writer.add_signature(replace(MARK, nbytes=first))
            writer.add_calls(some | {"signature": np.full(4, number, "<i4")}, 0)

    recorder = threading.Thread(target=record)
    with at_call(os, "replace", lambda *_: threads.add(threading.current_thread())):
        recorder.start()
        for number in range(1000):
            writer.add_step(step(number), (0.5,))
            if number % 50 == 0:
                (one,) = read_recordings(path)
                assert one.calls["signature"].max(initial=-1) < len(one.signatures)
                assert one.steps["step"].tolist() == list(range(len(one.steps)))
        recorder.join()
    assert threads.isdisjoint([threading.current_thread(), recorder])
    assert threads  # the capacity was not enough
    writer.end("completed")
    (one,) = read_recordings(path)
    assert one.steps["step"].tolist() == list(range(1000))
    assert_calls(one.calls, recording.calls.columns, NAMES[1:])
    assert one.of_signature("nbytes").tolist() == [n // 4 * 4 for n in range(2000)]


def test_what_comes_while_lines_are_written_is_not_lost(tmp_path):
    path = tmp_path / "t.h5"
    notes = (TrainingNote(0, "first"), TrainingNote(1, "second"))
    writer = RecordingWriter(path, program(1).facts)
    writer.add_note(notes[0])
    with at_call(os, "pwrite", lambda *_: writer.add_note(notes[1]), 0):
        writer.flush()
    writer.end("completed")
    assert read_recordings(path)[0].notes == notes


def test_damage_is_named_and_the_rest_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "CALLS", 100)  # several blocks of a recording that is read quickly
    path = tmp_path / "t.h5"
    recording = stepped(2, 200, lambda rank, at: 1000 + at, 500)
    write(path, recording)
    with h5py.File(path, "r+") as file:
        stored = file["recordings/recording0001"]
        stored["packed"][stored["blocks"][5]["first_packed"] + 300] ^= 1
        stored["blocks"][2:3] = stored["blocks"][1:2]
    mark = spoil_text(path, b'"operation": "step"')
    with pytest.raises(ResultsError, match="recording0001: block 2: stored checksum differs"):
        read_recordings(path)
    examined = reader.examine(path)
    lost = "stored checksum differs: not shown"
    assert examined.damage == [
        f"recording0001: {each}: {lost}"
        for each in ("block 2", "packed of block 5", f"texts of event {mark}")
    ]
    (one,) = examined.recordings
    assert one.calls.starts.tolist() == [0, 300, 600]
    assert_calls(one.calls, rows_of(recording, np.r_[0:200, 300:500, 600:800]))
    assert [each.operation for each in one.signatures] == ["all_reduce", "unknown"]
    assert "all_reduce" not in output("show", path, status=2)  # nothing that sums calls up
    assert f"packed of block 5: {lost}" in called("show", path, "--verify")[1]
    lines = list(csv.DictReader(output("export", path, "--format", "csv", status=2).splitlines()))
    assert [int(line["begin"]) for line in lines] == one.calls["begin"].tolist()
    assert {line["operation"] for line in lines} == {"all_reduce", "unknown"}


@pytest.mark.parametrize("damaged", [b'"group": {', b'"signature": {'])
def test_a_call_of_something_damaged_is_analysed_as_far_as_it_is_known(tmp_path, damaged):
    path = tmp_path / "t.h5"
    one = CallSignature("broadcast", 0, 64, POLLED, {"root": 1})
    message = CallSignature("send_recv", 0, 64, POLLED, {"dst": 1, "src": 1, "tag": 0})
    write(path, made([[MadeCall(one, 1, 0, 9), MadeCall(message, 0, 10, 19)]] * 2))
    spoil_text(path, damaged)
    assert "No change is predicted" in output("advise", path, status=2)


def test_show_and_list(tmp_path):
    path = tmp_path / "t.h5"
    write(path, stepped(3, 40, lambda rank, at: 1_000_000, 500_000, nbytes=1 << 36))
    text = output("show", path)
    for line in (
        f"# Recording recording0001 of {path}: completed\n",
        "by user on node0, 3 ranks\n# Command: train.py\n",
        "# in all: 0.059 s from the first call to the end of the last one",
        f"hpccomm advise {path}",
    ):
        assert line in text
    table = [line.split() for line in text.splitlines() if line.lstrip().startswith("all_reduce")]
    assert table == [["all_reduce", "120", str(120 << 36), "20.000"]]
    verified = "recording0001: completed, 240 calls: all as it was stored\n"
    assert output("show", path, "--verify") == verified
    (found,) = json.loads(output("show", path, "--list", "--json"))["recordings"]
    assert (found["calls"], found["steps"], found["hosts"]) == (240, 0, ["node0"])
    assert "holds no training" in refused("plot", "--training", path)
