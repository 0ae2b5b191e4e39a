"""Runs are found by case, date and host, in files and folders."""

import json
import resource
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import h5py
import pytest
from appending import add_run, example_info, example_row
from at_calls import limited
from damage import called, output, refused, spoil

from hpccomm.errors import ResultsError
from hpccomm.results.archive import Query, search

from .test_trainings import write as train


@pytest.fixture
def folder(tmp_path):
    """Three runs in two files of two folders, one damaged file, and one of another program."""
    (tmp_path / "below").mkdir()
    for days, path, collective in (
        (0, tmp_path / "a.h5", "all_reduce"),
        (1, tmp_path / "below" / "b.h5", "all_gather"),
        (2, tmp_path / "a.h5", "all_reduce"),
    ):
        info = example_info()
        info = replace(
            info,
            started=info.started + timedelta(days=days),
            series={"name": "nightly", "launch": str(days + 1), "launches": "3"},
            ranks=tuple(replace(rank, host=f"gpu-{days}") for rank in info.ranks),
        )
        rows = [example_row(index, collective=collective) for index in range(4)]
        add_run(path, [20] * 4, rows=rows, info=info)
    (tmp_path / "notes.h5").write_text("no results")
    return tmp_path


def names(searched):
    return [(each.run.path.name, each.run.name) for each in searched.found]


def test_runs_are_found_by_case_date_and_host_the_oldest_first(folder):
    day = example_info().started
    every = [("a.h5", "run0001"), ("b.h5", "run0001"), ("a.h5", "run0002")]
    searched = search([folder], Query())
    assert names(searched) == every
    assert (searched.files, searched.others, searched.damage) == (2, 1, [])
    assert names(search([folder], Query(since=day + timedelta(hours=1)))) == every[1:]
    assert names(search([folder], Query(until=day + timedelta(hours=1)))) == every[:1]
    assert names(search([folder], Query(host="gpu-[12]"))) == every[1:]
    found = search([folder], Query("all_reduce", 16)).found
    assert [len(each.part.rows) for each in found] == [2, 2]
    assert {row.bytes for each in found for row in each.part.rows} == {16}
    assert names(search([folder], Query("all_reduce", 16, "double"))) == []
    assert names(search([folder / "below" / "b.h5"], Query())) == every[1:2]


def test_damage_is_no_foreign_file_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "another program is not an HDF5 file"
    folder.mkdir()
    data = add_run(folder / "whole.h5").read_bytes()
    (folder / "cut.h5").write_bytes(data[:3000])
    # HDF5's signature is not left, but the root says whose it is.
    (folder / "begin.h5").write_bytes(bytes(8) + data[8:])
    (folder / "text.h5").write_text("no results")
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"] = 1
    searched = search([folder], Query())
    assert (names(searched), searched.files, searched.others) == ([("whole.h5", "run0001")], 1, 2)
    begin, cut = searched.damage
    assert "begin.h5 is damaged or incomplete: it does not begin as HDF5 does; restore it" in begin
    assert "cut.h5" in cut


def test_the_list_says_what_was_measured_and_the_json_has_all_of_it(folder):
    out = output("show", folder, "--list", "--case", "all_reduce:16")
    assert out.splitlines()[-1] == "# 2 runs of 2 files, 1 other files left out"
    assert "gpu-0  4 ranks  all_reduce 8 B to 16 B  completed  launch 1/3 of nightly" in out
    assert "all_reduce mpi auto float sum 16 B in place: 13.50 us (median" in out
    (run,) = json.loads(output("show", folder, "--list", "--json", "--host", "gpu-2"))["runs"]
    assert (run["run"], run["series"]["launch"], len(run["rows"])) == ("run0002", "3", 4)
    assert run["rows"][0]["isolated_us"] is None


def test_trainings_are_listed_after_the_runs(tmp_path):
    train(add_run(tmp_path / "both.h5", [20]), steps=30)
    train(tmp_path / "one.h5", steps=20)
    out = output("show", tmp_path, "--list")
    lines = [line.partition("  ")[2] for line in out.splitlines()]
    files = [(str(tmp_path / name), steps) for name, steps in (("both.h5", 30), ("one.h5", 20))]
    assert lines[1:3] == [
        f"{name}  recording0001  node0  4 ranks  {steps} steps  completed" for name, steps in files
    ]
    assert out.splitlines()[-1] == "# 1 run and 2 recordings of 2 files"
    assert search([tmp_path], Query()).recordings == []  # as plot and report search
    words = ("--list", "--json", "--host", "node0", "--until", "2026-11-24T10:30:00+01:00")
    found = json.loads(output("show", tmp_path, *words))
    assert [(each["file"], each["steps"]) for each in found["recordings"]] == files
    for nothing in (("--host", "gpu*"), ("--since", "2026-11-25"), ("--case", "all_reduce")):
        assert " recording" not in output("show", tmp_path, "--list", *nothing)


def test_a_damaged_file_is_named_and_does_not_hide_the_others(folder):
    shutil.copy(folder / "below" / "b.h5", folder / "broken.h5")
    spoil(folder / "broken.h5", "runs/run0001/rows", 9)
    status, out, err = called("show", folder, "--list")
    assert (status, "broken.h5" in err) == (2, True)
    assert out.count("run000") == 4  # what is whole of it too
    document = json.loads(output("show", folder, "--list", "--json", status=2))
    assert "broken.h5" in document["damage"][0]


def test_flags_that_do_not_fit_are_refused(folder):
    for words, said in (
        ((), "add --list"),
        (("--list", "--run", "1"), "--run is of one run or file"),
        (("--host", "x"), "--host belongs to --list"),
        (("--list", "--since", "soon"), "is not a date"),
        (("--list", "--case", ":8"), "names no collective"),
    ):
        assert said in refused("show", folder, *words)
    refused("show", folder / "nowhere.h5", "--list")


def test_more_files_are_searched_than_a_process_may_open(folder):
    for number in range(60):
        shutil.copy(folder / "a.h5", folder / f"copy{number}.h5")
    opened = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    with limited(resource.RLIMIT_NOFILE, opened + 30):
        searched = search([folder], Query())
    assert (searched.files, searched.damage) == (62, [])
    run = next(run for run, _ in searched.found if run.path.name == "copy7.h5")
    assert run.samples(0).shape == (20, 4)
    shutil.copy(folder / "a.h5", folder / "new.h5")
    (folder / "new.h5").rename(run.path)
    with pytest.raises(ResultsError, match="it was replaced after it was read"):
        run.samples(0)
