"""Dumps in PyTorch's form, read by its analyser."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from histories import PlayedJob, loop

from hpccomm.cli.main import main

REQUIRED = {
    "record_id",
    "process_group",
    "collective_seq_id",
    "p2p_seq_id",
    "profiling_name",
    "time_created_ns",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "is_p2p",
    "frames",
}
"""What the analyser of PyTorch 2.13 takes from an entry."""


def job(fault: str) -> PlayedJob:
    played = PlayedJob({"world": range(4)}, [loop("world", 30)] * 4)
    if fault == "missing":
        played.programs[3] = played.programs[3][:20]
    elif fault == "size":
        played.change(3, 20, count=3)
    else:
        played.change(3, 20, op="PROD")
    return played


def test_the_analyser_finds_what_it_needs(tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    arguments = ["explain", str(job("missing").write(tmp_path / "in")), "--pytorch", str(out)]
    assert main(arguments) == main(arguments) == 1  # over its own files
    assert f"fr_trace {out} -p rank_\n" in capsys.readouterr().out
    assert sorted(file.name for file in out.iterdir()) == [f"rank_{rank}" for rank in range(4)]
    for rank, calls in ((0, 21), (3, 20)):
        document = pickle.loads((out / f"rank_{rank}").read_bytes())
        assert document["version"].split(".") == ["2", "10"]
        assert document["pg_config"]["world"]["ranks"] == "[0, 1, 2, 3]"
        assert len(document["entries"]) == calls
        assert [entry["record_id"] for entry in document["entries"]] == list(range(calls))
        for entry in document["entries"]:
            assert entry.keys() >= REQUIRED
            assert entry["process_group"] == ("world", "world")
            assert entry["profiling_name"].startswith("gloo:")
    assert document["entries"][-1]["state"] == "completed"
    (out / "more").write_text("")
    assert main(arguments) == 2
    assert "is not empty (more)" in capsys.readouterr().err


def test_what_a_dump_lacks_is_filled_in_and_what_failed_has_not_completed(tmp_path: Path) -> None:
    file = job("missing").write(tmp_path / "in") / "rank_0.json"
    document = json.loads(file.read_text())
    kept = {
        "process_group",
        "collective_seq_id",
        "profiling_name",
        "time_created_ns",
        "duration_ms",
    }
    for entry in document["entries"]:
        for name in entry.keys() - kept:
            del entry[name]
    document["entries"][-2] |= {"state": "completed"}
    document["entries"][-1] |= {"state": "failed", "retired": True, "duration_ms": 5.0}
    file.write_text(json.dumps(document))
    main(["explain", str(tmp_path / "in"), "--pytorch", str(tmp_path / "out")])
    *_, completed, failed = pickle.loads((tmp_path / "out/rank_0").read_bytes())["entries"]
    assert failed.keys() >= REQUIRED
    assert completed["time_discovered_completed_ns"] > completed["time_created_ns"]
    assert (completed["state"], completed["retired"]) == ("completed", True)
    assert (failed["state"], failed["retired"]) == ("started", False)
    assert failed["time_discovered_completed_ns"] is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "missing",
            ["Not all ranks joining collective, sequence number: 21", "missing ranks: {3}"],
        ),
        ("size", ["Collective sequence number: 21 has errors", "SIZE_OR_SYNTAX_MISMATCH"]),
        ("op", ["Collective sequence number: 21 has errors", "op=PROD"]),
    ],
)
def test_the_analyser_names_the_same(fault: str, words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace", reason="needs PyTorch 2.13")
    out = tmp_path / "out"
    assert main(["explain", str(job(fault).write(tmp_path / "in")), "--pytorch", str(out)]) == 1
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", out, "-p", "rank_"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for each in words:
        assert each in done.stderr
