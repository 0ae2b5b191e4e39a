"""Recorded programs in a results file: packed, read, joined of the parts of their ranks, damaged, killed."""

import csv
import gzip
import json
import os
import signal
import threading
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

import h5py
import numpy as np
import pytest
from at_calls import at_call, end_of, kill_own
from damage import called, output
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings_made import MARK, MadeCall, all_reduce, made, stepped

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


def random_calls(seed: int, ranks: int, most: int, signatures: int = 3) -> Calls:
    """Return columns with gaps and differences of all sizes."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, most + 1, ranks)
    calls = int(counts.sum())

    def sizes(low: int = 0) -> np.ndarray:
        bits = chance.integers(0, 41, calls)
        return chance.integers(low, 1 + (1 << bits), calls)

    begin = np.concatenate([np.sort(each) for each in np.split(sizes(), np.cumsum(counts)[:-1])])
    end = begin + sizes()
    asked = np.where(chance.random(calls) < 0.5, 0, begin + sizes())
    waited = np.where(chance.random(calls) < 0.5, end - begin, sizes())
    columns = {
        "signature": chance.integers(0, signatures, calls).astype("<i4"),
        "number": sizes(),
        "begin": begin - (1 << 40),
        "end": end - (1 << 40),
        "asked": np.where(asked, asked - (1 << 40), 0),
        "waited": waited,
        "buffer": sizes() << 20,
        "stream": -sizes(),
        "failed": chance.integers(0, 2, calls).astype("u1"),
    }
    return Calls(np.cumsum([0, *counts]), columns)


def assert_same(one: Recording, other: Recording) -> None:
    assert one.calls.starts.tolist() == other.calls.starts.tolist()
    for name in NAMES:
        assert one.calls[name].dtype == other.calls[name].dtype, name
        np.testing.assert_array_equal(one.calls[name], other.calls[name], name)
    assert (one.groups, one.signatures) == (other.groups, other.signatures)
    assert [each.values for each in one.signatures] == [each.values for each in other.signatures]
    assert (one.facts, one.notes, one.status) == (other.facts, other.notes, other.status)


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


def test_the_recipe_of_the_documentation_reads_it_without_hpccomm(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/reference/results.rst").read_text("utf-8")
    recipe = next(each for each in page.split(".. code-block:: python") if "import zlib" in each)
    lines = recipe.split("\n\n", 1)[1].splitlines(keepends=True)
    code = dedent("".join(takewhile(lambda line: line.isspace() or line[:4].isspace(), lines)))
    monkeypatch.chdir(tmp_path)
    recording = replace(program(1), calls=random_calls(7, 1, 9000))
    write("run.h5", recording)
    read_by_it: dict = {}
    exec(code, read_by_it)
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
    calls = recording.calls
    for rank in ranks:
        writer = RecordingWriter(part_path(path, rank), recording.facts)
        chance = np.random.default_rng(seed + rank)
        ahead, drift = int(chance.integers(-(1 << 50), 1 << 50)), int(chance.integers(-50, 50))
        groups = {
            number: writer.add_group(
                replace(group, ranks=tuple(n if n == rank else -1 for n in group.ranks))
            )
            for number, group in reversed(list(enumerate(recording.groups)))
        }
        signatures = np.zeros(len(recording.signatures), "<i4")
        for number in chance.permutation(len(signatures)):
            one = recording.signatures[number]
            signatures[number] = writer.add_signature(replace(one, group=groups.get(one.group, -1)))
        last = 1 << 43
        # At both readings it is ahead by whole nanoseconds; between them evenly.
        for common in (0, last):
            gained = common // 1_000_000 * drift
            writer.add_clock(common + ahead + gained, ahead + gained, 10 + rank)
        of_rank = {name: calls[name][calls.of_rank(rank)] for name in NAMES}
        whole = of_rank["waited"] == of_rank["end"] - of_rank["begin"]

        shown = {
            name: of_rank[name] + ahead + of_rank[name] // 1_000_000 * drift
            for name in ("begin", "end", "asked")
        }
        shown["asked"][of_rank["asked"] == 0] = 0
        shown["waited"] = np.where(whole, shown["end"] - shown["begin"], of_rank["waited"])
        shown["signature"] = signatures[of_rank["signature"]]
        order = np.argsort(of_rank["end"], kind="stable")
        given = {name: (of_rank | shown)[name][order] for name in NAMES}
        for some in np.array_split(np.arange(len(order)), 3):
            writer.add_calls({name: each[some] for name, each in given.items()}, rank)
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
    path = tmp_path / "t.h5"
    base = program(3)
    groups = (base.groups[0], replace(base.groups[1], ranks=(2, 0)))
    calls = random_calls(seed, 3, 200)
    apart = np.concatenate([np.arange(n) * 5_000_000 for n in np.diff(calls.starts)])
    later = (1 << 40) + apart  # begins that differ by more than the clocks do
    times = {name: calls[name] + later for name in ("begin", "end")}
    times["asked"] = np.where(calls["asked"] == 0, 0, calls["asked"] + later)
    recording = replace(base, groups=groups, calls=Calls(calls.starts, {**calls.columns, **times}))
    parts_of(path, recording, seed, [0, 1, 2])
    one = joined(path)
    assert one.calls.starts.tolist() == recording.calls.starts.tolist()
    for name in NAMES[1:]:
        within = 100 if name in ("begin", "end", "asked", "waited") else 0  # of a drift by steps
        difference = np.abs(one.calls[name].astype(int) - recording.calls[name])
        assert difference.max() <= within, name
    assert in_content(one) == in_content(recording)
    assert one.facts == replace(recording.facts, clock_error_ns=(10, 11, 12))
    assert (one.notes, one.status) == (recording.notes, "completed")
    for rank in range(3):
        part = recording.calls.of_rank(rank)
        whole = (
            recording.calls["waited"][part]
            == (recording.calls["end"] - recording.calls["begin"])[part]
        )
        blocked = one.calls["waited"] == one.calls["end"] - one.calls["begin"]
        assert blocked[part][whole].all()  # as precisely as it was

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
    data = Path(__file__).with_name("data")
    path = tmp_path / "t.h5"
    path.write_bytes(gzip.decompress((data / "joined_before.h5.gz").read_bytes()))
    exported = (data / "joined_before.csv").read_text("utf-8")
    assert output("export", path, "--format", "csv") == exported
    (one,) = read_recordings(path)
    assert [(each.name, each.ranks) for each in one.groups] == [
        ("reversed", (1, 0)),
        ("world", (0, 1)),
    ]
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
    recording = replace(program(3), calls=random_calls(1, 3, 50))
    parts_of(path, recording, 0, [0, 1, 2])
    one = joined(path)
    write(path, one)
    with h5py.File(path, "r+") as file:
        stored = file["recordings/recording0001"]
        events = stored["events"][: stored["state"][()]["events"]]
        texts = [stored["texts"][a:][:n].tobytes() for a, n, *_ in events]
        (place,) = (at for at, text in enumerate(texts) if text.startswith(b'{"rank": 1'))
        stored["texts"][events[place]["first_byte"] + 20] ^= 1
    for rank in range(3):
        part_path(path, rank).unlink()
    examined = reader.examine(path)
    assert f"texts of event {place}" in examined.damage[0]
    (left,) = examined.recordings
    counts = np.diff(one.calls.starts)
    assert np.diff(left.calls.starts).tolist() == [counts[0], 0, counts[2]]
    for name in NAMES:
        whole = np.delete(one.calls[name], one.calls.of_rank(1))
        np.testing.assert_array_equal(left.calls[name], whole, name)


def test_missing_and_earlier_parts(tmp_path):
    path = tmp_path / "t.h5"
    recording = replace(program(3), calls=random_calls(1, 3, 50))
    earlier = replace(recording.facts, started=recording.facts.started.replace(year=2025))
    parts_of(path, recording, 0, [0, 2])
    parts_of(path, replace(recording, facts=earlier), 0, [1])
    part_path(path, 0).with_name("t.h5.rank0.partial").touch()
    (one,) = read_recordings(path)
    assert np.diff(one.calls.starts).tolist()[1] == 0
    assert one.notes[-1].text == "the calls of these ranks are missing: 1"
    assert one.status == "interrupted"
    assert {each.uid: each.ranks for each in one.groups}["world"] == (0, -1, 2)
    # The file does not exist.
    assert "# the calls of these ranks are missing: 1" in output("show", path)
    assert "recording0001: interrupted, " in output("show", path, "--verify")
    for verb in ("advise", "report"):  # no step is known without all ranks
        status, _, said = called(verb, path)
        assert (status, "the calls of these ranks are missing: 1" in said) == (2, True), said
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


def test_a_killed_program_leaves_what_was_flushed(tmp_path):
    path = tmp_path / "t.h5"
    recording = stepped(2, 8_000, lambda rank, step: 1000 + step % 7, 500)
    begin = recording.calls.starts[1]

    def work() -> None:
        recording_file.EVERY_SECONDS = 0.0
        recording_file.CAPACITY |= dict.fromkeys(recording_file.CAPACITY, 3) | {"packed": 1000}
        writer = RecordingWriter(part_path(path, 1), recording.facts)
        for group in recording.groups:
            writer.add_group(group)
        for signature in recording.signatures:
            writer.add_signature(signature)
        armed = False
        for some in range(begin, begin + 16_000, 10):
            part = {name: each[some : some + 10] for name, each in recording.calls.columns.items()}
            writer.add_calls(part, 1)
            writer.add_step(step((some - begin) // 10), (0.5,))
            # The first lines wait for a thread of the program, which lays out more capacity.
            if not armed and some >= begin + 3000:
                armed = any(each.calls.count for each in read_recordings(path))
                if armed:
                    threading.Timer(0.02, kill_own).start()
        kill_own()  # where all is written before

    assert end_of(work) is signal.SIGKILL
    (one,) = read_recordings(path)
    count = one.calls.count
    assert 0 < count <= 16_000
    assert one.calls.starts.tolist() == [0, 0, count]
    for name in NAMES[1:]:
        expected = recording.calls[name][begin : begin + count]
        np.testing.assert_array_equal(one.calls[name], expected, name)
    assert 0 < len(one.steps) <= 1600
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
            some = {name: each[first : first + 4] for name, each in recording.calls.columns.items()}
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
    for name in NAMES[1:]:
        np.testing.assert_array_equal(one.calls[name], recording.calls[name])
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
        stored["texts"][stored["events"][2]["first_byte"] + 20] ^= 1  # of the mark
    with pytest.raises(ResultsError, match="recording0001: block 2: stored checksum differs"):
        read_recordings(path)
    examined = reader.examine(path)
    lost = "stored checksum differs: not shown"
    assert examined.damage == [
        f"recording0001: {each}: {lost}"
        for each in ("block 2", "packed of block 5", "texts of event 2")
    ]
    (one,) = examined.recordings
    left = np.r_[0:200, 300:400, 400:500, 600:800]
    assert one.calls.starts.tolist() == [0, 300, 600]
    for name in NAMES:
        np.testing.assert_array_equal(one.calls[name], recording.calls[name][left], name)
    assert [each.operation for each in one.signatures] == ["all_reduce", "unknown"]
    assert "all_reduce" not in output("show", path, status=2)  # nothing that sums calls up
    assert f"packed of block 5: {lost}" in called("show", path, "--verify")[1]
    lines = list(csv.DictReader(output("export", path, "--format", "csv", status=2).splitlines()))
    assert [int(line["begin"]) for line in lines] == one.calls["begin"].tolist()
    assert {line["operation"] for line in lines} == {"all_reduce", "unknown"}


def test_a_call_of_a_damaged_group_or_signature_is_analysed_as_far_as_it_is_known(tmp_path):
    path = tmp_path / "t.h5"
    one = CallSignature("broadcast", 0, 64, POLLED, {"root": 1})
    message = CallSignature("send_recv", 0, 64, POLLED, {"dst": 1, "src": 1, "tag": 0})
    rows = [[MadeCall(one, 1, 0, 9), MadeCall(message, 0, 10, 19)]] * 2
    for damaged in range(2):
        write(path, made(rows))
        with h5py.File(path, "r+") as file:
            stored = file["recordings/recording0001"]
            stored["texts"][stored["events"][damaged]["first_byte"] + 20] ^= 1
        assert "No change is predicted" in output("advise", path, status=2)
        path.unlink()


def test_show_list_and_export(tmp_path):
    path = tmp_path / "t.h5"
    recording = stepped(3, 40, lambda rank, at: 1_000_000, 500_000, nbytes=1 << 36)
    write(path, recording)
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
    lines = list(csv.DictReader(output("export", path, "--format", "csv").splitlines()))
    assert [int(line["end"]) for line in lines] == recording.calls["end"].tolist()
    assert [int(line["rank"]) for line in lines] == recording.calls.ranks().tolist()
    assert [line["operation"] for line in lines[:2]] == ["all_reduce", "step"]
    (found,) = json.loads(output("show", path, "--list", "--json"))["recordings"]
    assert (found["calls"], found["steps"], found["hosts"]) == (240, 0, ["node0"])
    assert "holds no training" in called("plot", "--training", path)[2]
