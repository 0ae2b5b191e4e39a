"""``hpccomm show`` and ``hpccomm export``, and the formats that they write."""

import csv
import json
import signal

import numpy as np
import pytest
from appending import add_run, begin_run, example_info, example_row, example_samples, unchanged
from at_calls import end_of
from damage import output, refused

from hpccomm.results import reader, table


@pytest.fixture
def file(tmp_path):
    """Two runs: one that has ended, and one that was cut off."""
    path = add_run(tmp_path / "runs.h5", [3] * 4, info=example_info(per_iter_timing=True))
    unchecked = [example_row(0, wrong=-1)]
    assert end_of(lambda: begin_run(path, rows=unchecked)) is signal.SIGTERM
    return path


def test_show(file):
    text = output("show", file, "--run", 1)
    for words in (
        "holds 2 runs",
        "# * run0001",
        f"# Run run0001 of {file}: completed",
        "# Command: hpccomm perf all_reduce -e 1K",
    ):
        assert words in text
    (run, _) = reader.read(file)
    assert text.endswith(table.run_text(run.info, run.rows, run.samples, finished=True))
    text = output("show", file)  # the last one
    assert f"# Run run0002 of {file}: interrupted" in text
    assert ("  N/A" in text, "Out of bounds values" in text) == (True, False)


def test_show_statistics_in_comments_behind_the_table(tmp_path):
    path = add_run(tmp_path / "run.h5", [4, 0])
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
    head = [document[name] for name in ("version", "start_time", "nccl_version")]
    assert head == [3, "2026-11-20 09:08:07", 23203]
    config = document["config"]
    assert (config["per_iter_timing"], config["step_factor"]) == ("true", 2)
    hosts = [device["hostname"] for device in config["devices"]]
    assert hosts == ["node0", "node0", "node1", "node1"]
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert document["average_bus_bandwidth"]["okay"] == "unchecked"
    first, second = document["results"]
    case = [first[name] for name in ("size", "count", "type", "root")]
    assert case == [8, 2, "float", "    -1"]
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
    assert (result["in_place"], result["out_of_place"]["nwrong"]) == (None, None)
    assert ("end_time" in document, document["errors"]) == (False, ["interrupted"])
    with unchanged(tmp_path):
        for taken in (path, file):
            said = refused("export", file, "--format", "csv", "--output", taken)
            assert "exists already; remove it, or choose another" in said


def test_csv(file):
    rows = list(csv.DictReader(output("export", file, "--format", "csv", "--run", 1).splitlines()))
    assert len(rows) == 4
    assert all(name.isidentifier() for name in rows[1])  # attributes of a pandas table
    assert [rows[1][name] for name in ("run", "nodes", "in_place")] == ["run0001", "2", "1"]
    for index, row in enumerate(rows):  # a repetition takes its slowest rank's time
        times = example_samples(index, 3).max(axis=1) * 1e6
        names = (
            "time_us",
            "busbw_GBps",
            "min_us",
            "median_us",
            "max_us",
            "cv_pct",
            "repetitions",
            "wrong",
        )
        expected = [example_row(index).time, example_row(index).busbw]
        expected += [
            times.min(),
            np.median(times),
            times.max(),
            100 * times.std() / times.mean(),
            3,
            0,
        ]
        np.testing.assert_allclose([float(row[name]) for name in names], expected)
    (unchecked,) = csv.DictReader(output("export", file, "--format", "csv").splitlines())
    assert [unchecked[name] for name in ("wrong", "median_us", "repetitions")] == [""] * 3
