"""Trainings in a results file: written, read, shown, drawn, damaged, and beside runs."""

import csv
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import astuple
from datetime import datetime
from pathlib import Path

import h5py
import pytest
from appending import add_run, check_run, unchanged
from at_calls import end_of
from damage import called, output, refused

from hpccomm.errors import ResultsError
from hpccomm.results import reader, recording_file
from hpccomm.results.recording import RecordingFacts, TrainingBucket, TrainingNote, TrainingStep
from hpccomm.results.recording_file import RecordingWriter
from hpccomm.results.schema import columns
from hpccomm.tools import drawing
from hpccomm.tools.runs.charts import training_chart

FACTS = RecordingFacts(
    started=datetime.fromisoformat("2026-11-24T10:00:00+01:00"),
    user="someone",
    arguments=("train.py", "--rate", "0.1"),
    hosts=("node0", "", "", ""),
    settings={"op": "average", "compressor": "TopK(0.01)"},
)
BUCKETS = (
    TrainingBucket(0, 0, "float32", 4096, "w2\nb2"),
    TrainingBucket(0, 1, "float64", 512, "ä"),
)
LATER = TrainingBucket(1500, 0, "float32", 4608, "w2\nb2\nw1\nb1")
NOTE = TrainingNote(1500, "adaptive buckets: larger ones")


def step(number: int) -> TrainingStep:
    buckets = 2 if number < 1500 else 1
    return TrainingStep(
        step=number,
        finished=0.01 * (number + 1),
        nbytes=4608,
        wire_nbytes=64 + number,
        calls=buckets,
        seconds=0.004 + 1e-6 * number,
        hidden_seconds=0.003,
        blocked_seconds=0.001,
        with_gradients=3,
        skipped=number == 7,
        buckets=buckets,
    )


def write(path: Path, steps: int = 3000, status: str = "completed") -> RecordingWriter:
    writer = RecordingWriter(path, FACTS)
    writer.add_layout(BUCKETS)
    for number in range(steps):
        if number == 1500:
            writer.add_layout([LATER])
            writer.add_note(NOTE)
        each = step(number)
        writer.add_step(each, [each.seconds / each.buckets] * each.buckets)
        if number == 1000:
            writer.flush()
    if status:
        writer.end(status)
    return writer


def check(training, steps=3000):
    assert training.facts == FACTS
    assert training.steps.dtype.names == tuple(each.name for each in columns(TrainingStep))
    assert training.steps.tolist() == [astuple(step(number)) for number in range(steps)]
    for index in {0, steps // 2, steps - 1}:
        each = step(index)
        assert (
            training.bucket_seconds(index).tolist() == [each.seconds / each.buckets] * each.buckets
        )
    assert training.buckets == (*BUCKETS, LATER)[: 3 if steps > 1500 else 2]
    assert training.notes == ((NOTE,) if steps > 1500 else ())


def test_everything_comes_back_beside_runs_and_others(tmp_path):
    path, failed = tmp_path / "run.h5", "failed: KeyError: 'w1'"
    write(path)
    write(path, 5, failed)
    add_run(path, [3])
    write(path, 20)
    trainings = recording_file.read_recordings(path)
    ends = {each.name: each.status for each in trainings}
    statuses = ("completed", failed, "completed")
    assert ends == {f"recording000{n}": status for n, status in enumerate(statuses, 1)}
    for training, steps in zip(trainings, (3000, 5, 20), strict=True):
        check(training, steps)
    check_run(*reader.read(path), [3])
    assert "recording0002: failed, 5 steps: all as it was" in output("show", path, "--verify")
    with h5py.File(path) as file:  # and by HDF5 alone
        assert file["recordings/recording0001/steps"]["wire_nbytes"][2999] == 64 + 2999


def test_one_that_is_written_is_read_and_no_other_writes(tmp_path):
    path = tmp_path / "run.h5"
    writer = write(path, 1200, status="")
    (training,) = recording_file.read_recordings(path)
    assert training.status == "running"
    check(training, 1001)  # those of the last flush
    with pytest.raises(ResultsError, match="in use"):
        RecordingWriter(path, FACTS)
    writer.end("")
    assert recording_file.read_recordings(path)[0].status == "interrupted"


def test_damaged_steps_and_events_are_named_and_the_rest_is_given(tmp_path):
    path = tmp_path / "run.h5"
    write(path)
    with h5py.File(path, "r+") as file:
        training = file["recordings/recording0001"]
        training["steps"][5:6] = training["steps"][6:7]
        training["bucket_seconds"][2 * 9] += 1
        training["texts"][-1] ^= 1  # of the note
    with pytest.raises(ResultsError, match="recording0001: step 5: stored checksum differs"):
        recording_file.read_recordings(path)
    (training,) = reader.examine(path).recordings
    assert training.steps["step"].tolist() == [number for number in range(3000) if number != 5]
    assert (training.buckets, training.notes) == ((*BUCKETS, LATER), ())
    assert training.bucket_seconds(5).tolist() == [step(6).seconds / 2] * 2
    with pytest.raises(ResultsError, match="bucket_seconds of step 9: stored checksum differs"):
        training.bucket_seconds(8)
    status, out, err = called("show", path)
    assert (status, "in all" in out) == (2, False)
    assert "recording0001: texts of event 2: stored checksum differs: not shown" in err
    damaged = "recording0001: completed, 2999 steps: DAMAGED: step 5: stored checksum differs"
    assert called("show", path, "--verify")[1].startswith(damaged)
    with h5py.File(path, "r+") as file:
        file["recordings"].move("recording0001", "recording0007")  # its checksums have its name
    assert reader.examine(path).recordings == []
    err = refused("show", path)
    assert "holds no run" in err
    assert "recording0007: facts: stored checksum differs: not shown" in err


@pytest.mark.parametrize("more", [-8000, 400], ids=["nothing", "steps"])
def test_a_full_disk_costs_only_what_does_not_fit(small_disk, caplog, more):
    path, capacity = small_disk / "run.h5", recording_file.CAPACITY["steps"]
    writer = RecordingWriter(path, FACTS)
    room = os.statvfs(small_disk)
    (small_disk / "others").write_bytes(bytes(room.f_bavail * room.f_frsize))
    for number in range(capacity + more):
        if number == capacity:
            writer.flush()
        writer.add_step(step(number), ())
    with pytest.raises(ResultsError, match="No space left") if more > 0 else nullcontext():
        writer.end("completed")
    assert ("keeps the space that it did not use" in caplog.text) == (more < 0)
    (training,) = recording_file.read_recordings(path)
    assert training.steps["step"].tolist() == list(range(capacity + min(more, 0)))
    assert training.status.startswith("failed: cannot write" if more > 0 else "completed")


def test_files_that_cannot_take_one_stay_as_they_are(tmp_path):
    own, path = tmp_path / "own.h5", tmp_path / "run.h5"
    write(own, 3)
    with h5py.File(own, "r+") as file:
        del file["recordings"]
        file["recordings"] = 17
    with unchanged(tmp_path), pytest.raises(ResultsError, match="something else by the name 'rec"):
        RecordingWriter(own, FACTS)
    assert recording_file.read_recordings(own) == []
    writer = write(path, 10, status="")
    writer.flush()
    path.rename(tmp_path / "moved.h5")
    with unchanged(tmp_path):
        with pytest.raises(ResultsError, match="removed, moved or replaced"):
            writer.flush()
        writer.close()


def test_taking_a_training_out_removes_only_a_file_that_was_made_for_it(tmp_path):
    path = tmp_path / "run.h5"
    writer = write(path, 3, status="")
    assert end_of(writer.discard) is signal.SIGTERM  # in a child: the file stays the parent's
    assert path.exists()
    writer.discard()
    assert not path.exists()
    path.touch()  # another program's, and empty
    write(path, 3, status="").discard()
    assert recording_file.read_recordings(path) == []
    for put in (lambda file: file.attrs, lambda file: file):
        path.unlink()
        writer = write(path, 3, status="")
        with h5py.File(path, "r+", locking=False) as file:
            put(file)["note"] = "of mine"
        writer.discard()
        assert recording_file.read_recordings(path) == []
        with h5py.File(path) as file:
            assert "note" in put(file)


def test_show(tmp_path):
    path = tmp_path / "run.h5"
    write(path)
    text = output("show", path, "--statistics")
    for line in (
        f"# Recording recording0001 of {path}: completed",
        "compressor=TopK(0.01)",
        "# Buckets from step 0: 2\n#   0: 2 of float32, 4096 bytes: w2, b2",
        "# Buckets from step 1500: 1\n#   0: 4 of float32, 4608 bytes: w2, b2, w1 and 1 more",
        "# before step 1500: adaptive buckets: larger ones",
        "# in all: 3000 steps in 30.000 s, 1 skipped; ",
        "# comm a step: minimum 4.000, median 5.500, 95th percentile 6.849, maximum 6.999 ms",
    ):
        assert line in text
    first = next(line for line in text.splitlines() if line.lstrip().startswith("0-149 "))
    assert first.split() == ["0-149", "4608", "138", "2", "4.074", "74", "1.000", "1"]
    add_run(path)
    for words, shown in (
        ((), "holds 1 run and 1 recording"),
        ((), "# * run0001"),
        ((), "#   recording0001"),
        (("--run", "recording0001"), "# * recording0001"),
        (("--verify",), "recording0001: completed, 3000 steps: all as it was stored"),
    ):
        assert shown in output("show", path, *words)
    missing = "has no run or recording 'recording2'; it has run0001, recording0001"
    assert missing in refused("show", path, "--run", "recording2")


def test_export_and_plot(tmp_path, monkeypatch):
    path, plain = tmp_path / "run.h5", add_run(tmp_path / "plain.h5")
    write(path)
    lines = list(csv.DictReader(output("export", path, "--format", "csv").splitlines()))
    assert [int(line["wire_nbytes"]) for line in lines] == [64 + n for n in range(3000)]
    assert {line["recording"] for line in lines} == {"recording0001"}
    for words, said in (
        (("export", path, "--format", "json"), "take --format csv"),
        (("plot", "--training", path, "--ranks", 4), "--ranks belongs to --schedule"),
        (("plot", "--schedule", "ring", "--run", "recording0001"), "--run chooses a recording"),
        (("plot", "--training", plain), "holds no training"),
    ):
        assert said in refused(*words)

    pytest.importorskip("vl_convert", reason="needs the extra 'plot'")
    monkeypatch.chdir(tmp_path)
    assert "drawn in run-recording0001.svg" in output("plot", "--training", path)
    picture = Path("run-recording0001.svg").read_text()
    for text in ("communication", "hidden behind the computation", "sent", "recording0001"):
        assert text in picture
    training = reader.examine(path).recordings[0]
    training.steps["step"] += 12_345_678
    chart = json.loads(drawing.as_json(training_chart(training)))
    steps = [row["step"] for row in chart["vconcat"][0]["data"]["values"][::3]]
    assert steps == list(range(steps[0], steps[0] + 3000, 6))
