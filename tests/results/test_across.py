"""Sides that differ on purpose (``--across``): matched cases, comparison and text."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from appending import add_run, example_info, example_row
from damage import output, refused, spoil

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results.comparison.matching import Side, metric_of
from hpccomm.results.comparison.verdict import Rules, as_json, as_junit, compare, text
from hpccomm.results.reader import Run
from hpccomm.results.schema import Timing

MIB = 1 << 20


def row(time, factor=1.5, **fields):
    """Return a row of 1 MiB; nccl-tests' factor of all_reduce on 4 ranks is 2 * 3 / 4 (its PERFORMANCE.md)."""
    algbw = MIB / time / 1e3
    whole = {"bytes": MIB, "in_place": False, "time": time, "algbw": algbw, **fields}
    return example_row(0, busbw=algbw * factor, **whole)


def launches(*rows, ranks=4, device=None, scales=None):
    """Return a side of launches with these rows, each times its scale: of six, a little slower than the one before."""
    info = example_info(ranks)
    if device:
        info = replace(info, ranks=tuple(replace(each, device_info=device) for each in info.ranks))
    runs, timings = [], (Timing(*[math.nan] * 3),) * len(rows)
    slower = [[1 + number / 5000] * len(rows) for number in range(6)]
    for number, of_rows in enumerate(slower if scales is None else scales):
        timed = tuple(
            replace(each, time=each.time * x, algbw=each.algbw / x, busbw=each.busbw / x)
            for each, x in zip(rows, of_rows, strict=True)
        )
        facts = (info, timed, "completed", None, tuple(range(len(rows))), ())
        runs.append(Run(Path("runs.h5"), f"run{number}", *facts, timings=timings))
    return Side(tuple(runs), ())


def across(**values):
    pairs = {name: each or ("", "") for name, each in values.items()}
    return Rules(across=pairs, metric=metric_of(pairs))


def test_two_algorithms_are_compared_case_by_case_and_it_is_said_which():
    auto = launches(row(100, algorithm="auto"), row(100, algorithm="auto", in_place=True))
    others = launches(row(80, algorithm="ring"), row(110, algorithm="tree"))
    found = compare(auto, others, across(algorithm=None))
    assert found.failed  # as the exit status says
    verdicts = {each.case.algorithm: each.verdict for each in found.cases}
    assert verdicts == {"auto -> ring": "faster", "auto -> tree": "slower"}
    lines = text(found).splitlines()
    assert "# Across algorithm: auto -> tree, algorithm: auto -> ring; compared: time" in lines
    (slower,) = (line for line in lines if line.endswith(" slower"))
    assert slower.startswith("all_reduce mpi auto -> tree float sum 1048576 B out of place")
    assert "10.0 % slower" in slower
    (only,) = (line for line in lines if "Only on the base side" in line)
    assert only.endswith("in place")
    document = json.loads(as_json(found))
    assert (document["metric"], document["across"][0]) == ("time", "algorithm: auto -> tree")
    assert document["cases"][0]["across"] == {"algorithm": ["auto", "tree"]}
    assert document["cases"][0]["base_us"][0] == 100
    suite = ET.fromstring(as_junit(found, "nightly"))
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties == {"across": ", ".join(found.across), "metric": "time"}
    assert "auto -> tree" in next(suite.iter("testcase")).get("name")


def test_several_values_on_both_sides_are_refused_until_one_is_named():
    every = [row(100, algorithm="ring"), row(90, algorithm="tree")]
    several = r"several cases.*mpi ring.*mpi tree.*--across algorithm=ri"
    with pytest.raises(UsageError, match=several):
        compare(launches(*every), launches(*every), across(algorithm=None))
    found = compare(launches(*every), launches(*every), across(algorithm=("ring", "tree")))
    named = [(each.case.algorithm, each.verdict) for each in found.cases]
    assert named == [("ring -> tree", "faster")]


def test_several_things_may_differ_and_what_is_equal_is_said():
    one, other = launches(row(100)), launches(row(100, backend="nccl", dtype="half"))
    found = compare(one, other, across(backend=None, dtype=None))
    assert found.across == ["backend: mpi -> nccl", "dtype: float -> half"]
    assert [each.verdict for each in found.cases] == ["same"]
    same = compare(one, launches(row(100)), across(dtype=None))
    assert "# Across dtype: the same on both sides; compared: time" in text(same)


def test_over_numbers_of_ranks_bus_bandwidth_is_compared_on_the_same_devices():
    # The same speed of the links: the factor of all_reduce is 1 on 2 ranks and 1.5 on 4.
    two, four = launches(row(100, 1.0), ranks=2), launches(row(150, 1.5))
    with pytest.raises(ResultsError, match=r"ranks: 2 and 4.*--across ranks"):
        compare(two, four)
    found = compare(two, four, across(ranks=None))
    assert [(each.case.ranks, each.verdict) for each in found.cases] == [("2 -> 4", "same")]
    assert "# Differs between the sides: ranks of nodes: 1 x 2 and 2 x 2" in text(found)
    slower = compare(two, launches(row(200, 1.5)), across(ranks=None))
    (line,) = (each for each in text(slower).splitlines() if " 2 -> 4 ranks " in each)
    assert pytest.approx(10.49, abs=0.01) == MIB / 100 / 1e3
    for shown in ("10.48", "7.86", "25.0 % less"):
        assert shown in line
    (case,) = json.loads(as_json(slower))["cases"]
    assert case["ratio"] == pytest.approx(4 / 3)
    assert case["base_busbw"][0] == pytest.approx(MIB / 100 / 1e3)
    as_time = compare(two, four, replace(across(ranks=None), metric="time"))
    assert [each.verdict for each in as_time.cases] == ["slower"]
    with pytest.raises(ResultsError, match="devices: host memory and H100"):
        compare(two, launches(row(150), device="H100"), across(ranks=None))
    with pytest.raises(ResultsError, match="no bus bandwidth above 0"):
        compare(launches(row(100, 0.0), ranks=1), four, across(ranks=None))


def test_collectives_with_and_without_a_root_or_reduction_are_compared():
    # Its factor is 1 (broadcast) and 2 * 3 / 4 (all_reduce): at equal bandwidth it takes 2 / 3 of the time.
    broadcast = row(100, 1.0, collective="broadcast", op="none", root=0)
    found = compare(launches(row(150)), launches(broadcast), across(collective=None))
    (only,) = found.cases
    assert (only.verdict, only.case.root) == ("same", 0)
    assert (only.case.collective, only.case.op) == ("all_reduce -> broadcast", "sum -> none")
    every = [row(150), row(150, op="max")]
    scattered = [row(75, 0.75, collective="reduce_scatter", op=op) for op in ("sum", "max")]
    found = compare(launches(*every), launches(*scattered), across(collective=None))
    assert [each.case.op for each in found.cases] == ["sum", "max"]


def test_cases_that_differ_in_one_thing_are_compared_across_it():
    for other, remedy in (
        ({"algorithm": "ring"}, r"no case in common.*same flags, or --across algorithm$"),
        ({"bytes": 8}, r"same flags$"),
    ):
        with pytest.raises(ResultsError, match=remedy):
            compare(launches(row(100)), launches(row(100, **other)))


def test_the_command_takes_values_of_one_file(tmp_path):
    rows = [row(100, algorithm=algorithm) for algorithm in ("ring", "tree")]
    path = add_run(tmp_path / "runs.h5", rows=rows)
    out = output("compare", path, path, "--across", "algorithm=ring:tree", "--metric", "busbw")
    assert "mpi ring -> tree float" in out
    assert "algorithm: ring -> tree; compared: bus bandwidth" in out
    for across, said in (
        ("algorithm", "is on both sides"),
        ("algorithm=ring:bruck", "the new side has no case of bruck; it has all_reduce mpi ring"),
        ("algorithm=ring", "give algorithm or algorithm=BASE:NEW"),
        ("algorithms", "one of algorithm, backend"),
    ):
        assert said in refused("compare", path, path, "--across", across)


def test_of_a_folder_foreign_and_damaged_files_are_left_out_and_named(tmp_path):
    (folder := tmp_path / "another program").mkdir()
    base = add_run(tmp_path / "base.h5", rows=[row(100)])
    for name, time in (("good.h5", 101), ("part.h5", 102), ("part.h5", 103)):
        add_run(folder / name, rows=[row(time)])
    spoil(folder / "part.h5", "runs/run0002/rows", 20)
    (folder / "notes.h5").write_text("no results")
    out = output("compare", base, folder)
    assert "1 and 2" in out  # launches: of good.h5, and the whole one of part.h5
    for said in (
        "notes.h5 is not an HDF5 file",
        "part.h5 run0002: row 0: stored checksum differs",
    ):
        assert f"# Left out: {folder}/{said}" in out
    assert out.count("# Left out: ") == 2
    said = refused("compare", base, folder / "part.h5")
    assert "part.h5 is damaged or incomplete: run0002" in said
