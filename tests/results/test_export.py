"""``hpccomm show`` and ``hpccomm export``, and the formats that they write."""

import csv
import json
import signal

import numpy as np
import pytest
from at_calls import end_of, kill_own
from damage import called, output

from hpccomm.results import reader, table
from hpccomm.results.writer import Writer


@pytest.fixture
def file(tmp_path, example):
    """Two runs: one that has ended, and one that was cut off."""
    path = tmp_path / "runs.h5"
    info = example.example_info(per_iter_timing=True)
    with Writer(path, info) as writer:
        for index in range(4):
            writer.append(example.example_row(index), example.example_samples(index, 3) / 1e6)

    def interrupted():
        writer = Writer(path, example.example_info())
        writer.append(example.example_row(0, wrong=-1), None)
        kill_own()

    assert end_of(interrupted) is signal.SIGKILL
    return path


def test_show(file):
    text = output("show", file, "--run", 1)
    assert "holds 2 runs" in text
    assert "# * run0001" in text
    assert f"# Run run0001 of {file}: completed" in text
    assert "# Command: hpccomm perf all_reduce -e 1K" in text
    (run, _) = reader.read(file)
    assert text.endswith(table.run_text(run.info, run.rows, run.samples, finished=True))
    text = output("show", file)  # the last one
    assert f"# Run run0002 of {file}: interrupted" in text
    assert "  N/A" in text
    assert "Out of bounds values" not in text


def test_show_statistics_in_comments_behind_the_table(tmp_path, example):
    path = tmp_path / "run.h5"
    with Writer(path, example.example_info()) as writer:
        writer.append(example.example_row(0), example.example_samples(0, 4) / 1e6)
        writer.append(example.example_row(1), None)
    plain, text = output("show", path), output("show", path, "--statistics")
    assert text.startswith(plain)
    block = text.removeprefix(plain).splitlines()
    assert all(line.startswith("#") for line in block if line)
    # Slowest ranks: 3, 7, 11 and 15 us.
    names, measured, without = (block[at].split()[1:] for at in (1, 3, 4))
    assert names[7:] == ["repetitions", "min", "median", "p95", "p99", "max", "cv"]
    assert measured[5:] == ["no", "4", "3.00", "9.00", "15.00", "15.00", "15.00", "49.69"]
    assert without[5:] == ["yes", "0", *["N/A"] * 6]
    document = json.loads(output("export", path, "--format", "json"))
    assert document["config"]["per_iter_timing"] == "false"  # without -I 1, and yet:
    assert document["results"][0]["out_of_place_per_iter"]["p50_us"] == pytest.approx(11)


def test_json_is_nccl_tests_version_3(file):
    document = json.loads(output("export", file, "--format", "json", "--run", "run0001"))
    assert list(document) == [
        *("version", "start_time", "args", "env", "nccl_version", "config", "results"),
        *("out_of_bounds", "average_bus_bandwidth", "errors", "end_time"),
    ]
    assert document["version"] == 3
    assert document["start_time"] == "2026-11-20 09:08:07"
    assert document["nccl_version"] == 23203
    assert document["config"]["per_iter_timing"] == "true"
    assert document["config"]["step_factor"] == 2
    assert [device["hostname"] for device in document["config"]["devices"]] == [
        *("node0", "node0", "node1", "node1")
    ]
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert document["average_bus_bandwidth"]["okay"] == "unchecked"
    first, second = document["results"]
    assert (first["size"], first["count"], first["type"], first["root"]) == (
        8,
        2,
        "float",
        "    -1",
    )
    assert first["out_of_place"] == {"time": 10.5, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": 0}
    assert second["in_place"]["time"] == 13.5
    statistics = second["in_place_per_iter"]
    np.testing.assert_allclose(statistics["times_us"], [6, 10, 14])
    np.testing.assert_allclose(statistics["per_process_max_times_us"][0], [3, 7, 11])
    assert statistics["max_us"] == pytest.approx(14)


def test_json_of_an_interrupted_run(file, tmp_path):
    path = tmp_path / "run.json"
    output("export", file, "--format", "json", "--output", path)
    document = json.loads(path.read_text())
    (result,) = document["results"]
    assert result["in_place"] is None
    assert result["out_of_place"]["nwrong"] is None
    assert "end_time" not in document
    assert document["errors"] == ["interrupted"]
    before = path.read_bytes(), file.read_bytes()
    for taken in (path, file):
        words = ("export", str(file), "--format", "csv", "--output", str(taken))
        assert "exists already; remove it, or choose another" in called(*words)[2]
    assert before == (path.read_bytes(), file.read_bytes())


def test_csv(file, example):
    rows = list(csv.DictReader(output("export", file, "--format", "csv", "--run", 1).splitlines()))
    assert len(rows) == 4
    assert [rows[1][name] for name in ("run", "nodes", "in_place")] == ["run0001", "2", "1"]
    assert float(rows[1]["time_us"]) == example.example_row(1).time
    assert float(rows[1]["busbw_GBps"]) == example.example_row(1).busbw
    assert all(name.isidentifier() for name in rows[1])  # attributes of a pandas table
    for index, row in enumerate(rows):  # a repetition takes its slowest rank's time
        times = example.example_samples(index, 3).max(axis=1)
        found = [float(row[name]) for name in ("min_us", "median_us", "max_us")]
        np.testing.assert_allclose(found, [times.min(), np.median(times), times.max()])
        assert float(row["cv_pct"]) == pytest.approx(100 * times.std() / times.mean())
        assert row["repetitions"] == "3"
    (unchecked,) = csv.DictReader(output("export", file, "--format", "csv").splitlines())
    assert [unchecked[name] for name in ("wrong", "median_us", "repetitions")] == [""] * 3
