"""The log that `GradientSync` writes to a results file, against what the training did."""

import logging
from pathlib import Path

import numpy as np
import pytest

from hpccomm import Communicator, RankMismatch, ResultsError, UsageError
from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import TopK
from hpccomm.results import recording_file
from hpccomm.testing import run_ranks

MODEL = {f"p{n}": np.zeros(1000, np.float32) for n in range(4)}


def train(sync: GradientSync, steps: int, *, broken: int = -1) -> None:
    for step in range(steps):
        for name in reversed(MODEL):
            sync.ready(name, np.full(1000, np.nan if step == broken else 1.0, np.float32))
        sync.wait()


def test_the_log_says_what_the_training_did(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"

    def body(comm: Communicator) -> tuple[int, int, str]:
        model = {name: x.copy() for name, x in MODEL.items()}
        sizes = {"first_bucket_bytes": 1, "bucket_bytes": 8192, "min_bucket_bytes": 0}
        with GradientSync(comm, model, **sizes, adaptive=6, nonfinite="skip", log=path) as sync:
            train(sync, 8, broken=3)
            sync.sync()
            sync.configure(compressor=TopK(0.01), bucketing=False)
            train(sync, 2)
            stats = sync.stats()
            return stats.wire_nbytes, stats.calls, str(sync.choice)

    wire, calls, choice = run_ranks(2, body)[0]
    (training,) = recording_file.read_recordings(path)
    steps = training.steps
    assert training.status == "completed"
    assert training.ranks == 2
    assert training.facts.settings["nonfinite"] == "skip"
    assert steps["step"].tolist() == list(range(11))
    assert steps["skipped"].tolist() == [n == 3 for n in range(11)]
    assert steps["wire_nbytes"].sum() == wire
    assert steps["calls"].sum() == calls
    # What is measured decides how many buckets the steps from the seventh on have: mostly one.
    adapted = int(steps["buckets"][6])
    assert steps["buckets"].tolist() == [3] * 6 + [adapted] * 2 + [0] + [4] * 2
    assert (steps["blocked_seconds"][1:] < np.diff(steps["finished"])).all()
    assert (steps["hidden_seconds"] <= steps["seconds"]).all()
    assert (steps["wire_nbytes"][:6] >= 16000).all()
    assert (steps["wire_nbytes"][9:] < 1000).all()
    layouts = [(each.since, each.gradients) for each in training.buckets]
    assert layouts[:3] == [(0, "p3"), (0, "p2\np1"), (0, "p0")]
    chosen = layouts[3 : 3 + adapted]
    assert {since for since, _ in chosen} == {6}
    assert "\n".join(gradients for _, gradients in chosen) == "p3\np2\np1\np0"
    assert layouts[3 + adapted :] == [(9, name) for name in ("p3", "p2", "p1", "p0")]
    notes = [(note.step, note.text) for note in training.notes]
    assert (6, f"adaptive buckets: {choice}") in notes
    assert (9, "compressor is TopK(ratio=0.01, error_feedback=True), and was None") in notes
    assert (9, "bucketing is False, and was True") in notes


def test_an_error_is_the_end_of_the_log_and_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"

    def body(comm: Communicator) -> None:
        expected = ResultsError if comm.rank == 0 else RankMismatch
        with pytest.raises(expected, match="does not exist"):
            GradientSync(comm, MODEL, log=tmp_path / "none/run.h5")
        with GradientSync(comm, MODEL, log=path) as sync:
            train(sync, 2)
            raise KeyError("of mine")

    with pytest.raises(KeyError):
        run_ranks(3, body)
    (training,) = recording_file.read_recordings(path)
    assert training.status == "failed: KeyError: 'of mine'"
    assert len(training.steps) == 2


def test_a_file_that_vanishes_ends_the_log_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # What is written every 5 seconds is written after every step: a training of seconds is no test of time.
    monkeypatch.setattr(recording_file, "EVERY_SECONDS", 0.0)
    path = tmp_path / "run.h5"

    def body(comm: Communicator) -> int:
        with GradientSync(comm, MODEL, log=path) as sync:
            train(sync, 2)
            if comm.rank == 0:
                path.unlink()
            train(sync, 3)
            return sync.stats().steps

    with caplog.at_level(logging.WARNING):
        assert run_ranks(2, body) == [5, 5]
    assert caplog.text.count("the log of the training ends at step 2: ") == 1
    assert not path.exists()


def test_steps_that_raise_have_their_line_and_failed_makings_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"

    def body(comm: Communicator) -> None:
        other = {"w": np.zeros(3 + comm.rank)}
        with pytest.raises(RankMismatch):
            GradientSync(comm, other, log=path)
        comm.barrier()
        assert not path.exists()
        sync = GradientSync(comm, {"a\0": np.zeros(8), "b": np.zeros(8)}, unused="error", log=path)
        sync.sync({"a\0": np.ones(8), "b": np.ones(8)})
        with pytest.raises(RankMismatch):
            sync.sync({"b": np.ones(8)})
        sync.sync({"a\0": np.ones(8), "b": np.ones(8)})
        sync.configure(op="sum")
        sync.close()
        for late in (sync.sync, sync.zero, lambda: sync.ready("b"), lambda: sync.weigh(1)):
            with pytest.raises(UsageError, match="was closed"):
                late()

    run_ranks(2, body)
    (training,) = recording_file.read_recordings(path)
    assert training.steps["nbytes"].tolist() == [128] * 3
    assert training.steps["skipped"].tolist() == [0, 1, 0]
    assert [each.gradients for each in training.buckets if each.since == 3] == ["b\na\0"]
    assert [note.text for note in training.notes] == ["op is sum, and was average"]
