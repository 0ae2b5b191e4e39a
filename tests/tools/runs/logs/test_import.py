"""What logs become: what hpccomm itself prints comes back, and what does not fit is refused."""

import argparse
import json
import pickle
import resource
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from alone import python
from appending import example_info
from hypothesis import given

from hpccomm.errors import ResultsError
from hpccomm.results import exports, reader, table
from hpccomm.results.schema import Row, RunInfo
from hpccomm.tools.flags import add_flags
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.runs import import_
from hpccomm.tools.runs.logs.imported import ImportedRun, LogDefaults
from hpccomm.units import figure

WHEN = datetime.fromisoformat("2026-11-24T10:00:00+01:00")
DEFAULTS = LogDefaults("some.log", WHEN, "someone")

DATA = Path(__file__).parent / "data"
ALL_REDUCE = (DATA / "nccl_2.17_three_wrong.txt").read_text()
HYPERCUBE, OSU = DATA / "nccl_2.19_hypercube.txt", DATA / "osu_5.3_allreduce.txt"


def runs_of(text: str) -> list[ImportedRun]:
    return import_.parse(text.encode(), DEFAULTS).runs


def test_facts_of_a_table_of_nccl_tests() -> None:
    """Its rows stand in expected.toml."""
    (run,) = runs_of(ALL_REDUCE)
    assert (run.info.arguments, run.info.started) == (("all_reduce_perf",), WHEN)
    config = run.info.config
    assert (config.minimum_bytes, config.maximum_bytes, config.step_factor) == (8, 1048576, 2)
    assert (config.warmup_iters, config.iterations, config.aggregated_iterations) == (5, 20, 3)
    (by_step,) = runs_of(ALL_REDUCE.replace("2(factor)", "1048576(bytes)"))
    assert (by_step.info.config.step_factor, by_step.info.config.step_bytes) == (0, 1 << 20)
    gpu = "NVIDIA H100 80GB HBM3"
    found = [(each.host, each.node, each.pid, each.device_hex) for each in run.info.ranks]
    assert found == [("gpu-node-7", 0, 31337, "0000:1b:00"), ("gpu-node-8", 1, 31338, "0000:43:00")]
    assert {each.device_info for each in run.info.ranks} == {gpu}
    np.testing.assert_allclose(run.rows[0].algbw, 8 / 12.34e-6 / 1e9)  # though 0.00 is printed


def test_a_table_on_the_page_of_a_ci_job_is_read() -> None:
    page = f"<!DOCTYPE html>\n<html><body><pre>\n{ALL_REDUCE}</pre></body></html>\n"
    assert [len(run.rows) for run in runs_of(page)] == [len(runs_of(ALL_REDUCE)[0].rows)]
    with pytest.raises(ResultsError, match="has no table of a benchmark; it is"):
        runs_of("<!DOCTYPE html>\n<html><body>not found</body></html>\n")


def info(**settings: object) -> RunInfo:
    sizes = {"maximum_bytes": 8 << 20, "step_factor": 0, "step_bytes": 64, "iterations": 7}
    made = example_info(**{**sizes, **settings})
    ranks = tuple(replace(rank, cores="0-3,8") for rank in made.ranks)
    return replace(made, started=WHEN, ranks=ranks)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A row of any collective on four ranks, whose bandwidths are those of its size and time."""
    name = draw(st.sampled_from(sorted(COLLECTIVES)))
    what, time = COLLECTIVES[name].what, draw(st.floats(0.01, 9e5))
    dtype, itemsize = draw(st.sampled_from([("float", 4), ("bfloat16", 2)]))
    dtype, op = (dtype if what.moves else "none"), ("sum" if what.reduces else "none")
    count = draw(st.integers(0, 1 << 36)) * what.moves
    size = count * itemsize
    algbw = size / time / 1e3 * COLLECTIVES[name].carried(4)
    how = draw(st.sampled_from(["mpi", "nccl"])), draw(st.sampled_from(["auto", "pairwise"]))
    root = draw(st.integers(0, 3)) if what.rooted else -1
    case = name, *how, dtype, op, root, size, count, draw(st.booleans())
    figures = time, algbw, algbw * what.bus_factor(4), draw(st.integers(-1, 99))
    return Row(*case, *figures, 7)


@given(st.lists(rows(), min_size=1, max_size=6), st.booleans())
def test_what_hpccomm_prints_comes_back(stored: list[Row], statistics: bool) -> None:
    facts = info(per_iter_timing=statistics)
    text = table.run_text(facts, stored, lambda _: np.full((3, 4), 1e-6), finished=True)
    runs = runs_of(text)
    found = [row for run in runs for row in run.rows]
    for row, original in zip(found, stored, strict=True):
        for each in fields(Row):
            value, expected = getattr(row, each.name), getattr(original, each.name)
            if each.name == "time":
                assert value == pytest.approx(expected, rel=0.06, abs=0.01)
            elif each.name in ("algbw", "busbw"):
                assert figure(value, 6) == figure(expected, 6)
            else:
                assert value == expected, each.name
    assert all(run.info.ranks == facts.ranks for run in runs)


@given(st.lists(rows(), min_size=1, max_size=6), st.booleans())
def test_json_comes_back(stored: list[Row], old: bool) -> None:
    samples = np.arange(12.0).reshape(3, 4) * 1e-6
    document = exports.document(info(), stored, lambda _: samples, ended=WHEN)
    if old:
        document["version"] = 2
        for result in document["results"]:
            for half in filter(None, (result["out_of_place"], result["in_place"])):
                half["algbw"], half["busbw"] = half.pop("alg_bw"), half.pop("bus_bw")
    (run,) = runs_of(json.dumps(document))
    assert run.rows == stored
    assert run.info.started.strftime(table.TIME_FORMAT) == WHEN.strftime(table.TIME_FORMAT)
    assert run.info.config == info().config
    assert [(rank.host, rank.node) for rank in run.info.ranks[1:3]] == [("node0", 0), ("node1", 1)]
    wrong = sum(max(0, row.wrong) for row in stored)
    assert run.status == (f"failed: {wrong} values are out of bounds" if wrong else "completed")
    for each in run.samples:
        np.testing.assert_allclose(each, samples, rtol=1e-12)


@pytest.mark.parametrize(("colors", "share"), [("0101", 1), ("0001", 2), ("0011", 2)])
def test_groups_of_json_are_all_stored(colors: str, share: int) -> None:
    size, facts = colors.count("0") * share, info(ngpus=share)
    ranks = zip(facts.ranks, map(int, colors), strict=True)
    facts = replace(facts, ranks=tuple(replace(rank, group=color) for rank, color in ranks))
    samples = np.arange(12.0).reshape(3, 4) * 1e-6
    case = ("all_gather", "mpi", "auto", "float", "none", -1, 1 << 20, 1 << 18, False)
    algbw = (1 << 20) / 50.0 / 1e3
    row = Row(*case, 50.0, algbw, algbw * (size - 1) / size, 0, 7)
    document = exports.document(facts, [row], lambda _: samples, ended=WHEN)
    (run,) = runs_of(json.dumps(document))
    assert (run.rows, run.notes) == ([row], [])
    assert [rank.group for rank in run.info.ranks] == [
        int(each) for each in colors for _ in range(share)
    ]
    assert [each.shape for each in run.samples] == [(3, 4 * share)]


def test_a_pickled_dump_of_a_flight_recorder_is_refused_with_what_reads_it() -> None:
    """Of PyTorch 2.13; torchfrtrace of 2.14 reads pickles that the command in the error has made."""
    dump = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
    with pytest.raises(ResultsError, match=r"it is a pickle: PyTorch's .* torchfrtrace FOLDER"):
        import_.parse(pickle.dumps(dump, 2), DEFAULTS)


def test_a_log_that_ends_anywhere_keeps_the_whole_lines_before() -> None:
    (whole,) = runs_of(ALL_REDUCE)
    begin, end = ALL_REDUCE.index("     1048576  "), ALL_REDUCE.index("     N/A")
    for length in range(begin, end, 7):
        (run,) = runs_of(ALL_REDUCE[:length])
        assert run.rows == whole.rows[: len(run.rows)]
        assert {row.bytes for row in run.rows} == {8}
        assert run.status.startswith("failed: interrupted: the log ends")


PLACES = "results 0 size,results 0 type,results 0 out_of_place nwrong,config iterations"


@pytest.mark.parametrize("place", [*PLACES.split(","), "config devices 0 hostname"])
@pytest.mark.parametrize("value", [10**30, float("inf"), "a\0b", "\ud800"])
def test_json_that_a_results_file_cannot_hold_is_refused(
    tmp_path: Path, place: str, value: object
) -> None:
    row = Row("all_reduce", "mpi", "auto", "float", "sum", -1, 8, 2, False, 1.0, 8e-3, 12e-3, 0, 7)
    document = json.loads(json.dumps(exports.document(info(), [row], lambda _: None, ended=WHEN)))
    found, (*keys, last) = document, place.split()
    for key in keys:
        found = found[int(key) if key == "0" else key]
    found[last] = value
    log, path = tmp_path / "log.json", tmp_path / "runs.h5"
    log.write_text(json.dumps(document))
    if value == float("inf") and last in ("type", "hostname"):
        assert call(log, "--output", path) == 0
        return
    with pytest.raises(ResultsError, match="not nccl-tests' JSON"):
        call(log, "--output", path)
    assert not path.exists()


def test_a_log_of_windows_is_read(tmp_path: Path) -> None:
    document = exports.document(info(), [], lambda _: None, ended=WHEN)
    for name, text in {"a.log": ALL_REDUCE, "a.json": json.dumps(document)}.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig", newline="\r\n")
    assert call(tmp_path / "a.log", "--output", tmp_path / "runs.h5") == 0
    with pytest.raises(ResultsError, match="has no rows"):  # and not: is no JSON
        call(tmp_path / "a.json", "--output", tmp_path / "runs.h5")


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_flags(parser, import_.FLAGS)
    return import_.run(parser.parse_args([str(argument) for argument in arguments]))


def test_the_command(tmp_path: Path) -> None:
    log, path = tmp_path / "a.log", tmp_path / "runs.h5"
    log.write_text(ALL_REDUCE)
    words = ("-m", "hpccomm", "import", log, OSU, "-", "--ranks", "4", "--output", path)
    assert python(*words, input=HYPERCUBE.read_text(), check=True).stdout.splitlines() == [
        f"{log}: all_reduce, 4 rows, 2 ranks: run0001 of {path}, failed: 3 values are out of bounds",
        f"{log}:   --ranks 4 contradicts the log, and is not used",
        f"{OSU}: all_reduce, 3 rows, 4 ranks: run0002 of {path}, completed",
        f"standard input: hypercube, 4 rows, 8 ranks: run0003 of {path}, completed",
        "standard input:   --ranks 4 contradicts the log, and is not used",
    ]
    runs = reader.read(path)
    assert list(runs[0].rows) == runs_of(ALL_REDUCE)[0].rows
    assert runs[1].ended == runs[1].info.started
    # Nothing is stored if one of the logs cannot be read.
    log.write_bytes(b"\xff\xfe")
    with pytest.raises(ResultsError, match=r"\(UTF-16\) has no table"):
        call(OSU, log, "--ranks", 4, "--output", path)
    with pytest.raises(ResultsError, match="No such file"):
        call(OSU, tmp_path / "none.log", "--ranks", 4, "--output", path)
    assert len(reader.read(path)) == 3


def test_a_run_is_named_only_when_it_is_in_the_file(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "runs.h5"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # what a quota does
    try:
        with pytest.raises(ResultsError, match="File too large"):
            call(HYPERCUBE, "--output", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "run0" not in capsys.readouterr().out
    assert not path.exists()
    assert call(HYPERCUBE, "--output", path) == 0
    assert f"run0001 of {path}" in capsys.readouterr().out
