"""Damaged files: shown values were stored, damage is named, and the rest is returned."""

import json
import signal

import damage
import h5py
import numpy as np
import pytest
from alone import python
from appending import (
    add_run,
    begin_run,
    check_run,
    example_info,
    example_row,
    example_samples,
    unchanged,
)
from at_calls import end_of
from damage import called, output, refused, spoil

from hpccomm.errors import ResultsError
from hpccomm.results import reader

from .test_trainings import write as train

ROWS = 40


@pytest.fixture
def files(tmp_path):
    """One with two runs, the second without an end; and one with the table of tune and a training."""
    from hpccomm.calls import policy
    from hpccomm.calls.tuning_table import Pick, Shape, Table, TableRow

    runs, tuned = tmp_path / "runs.h5", tmp_path / "tuned.h5"
    lengths, info = [20] * ROWS, example_info(per_iter_timing=True)
    add_run(runs, lengths, info=info)
    assert end_of(lambda: begin_run(runs, lengths)) is signal.SIGTERM
    shape = Shape("mpi", "Open MPI 5", 2, 1, 2, "host", "a processor", 2)
    rows = {("all_reduce", "own"): (TableRow(0, Pick("ring")), TableRow(99, Pick("tree", 8)))}
    with begin_run(tuned, lengths, info=info) as writer:
        writer.add_entry(policy.ENTRY, Table(shape, "2026-11-22", rows).document())
    train(tuned, 200)
    assert policy.read(str(tuned))[0].rows == rows
    return [runs, tuned]


@pytest.mark.slow("28 damaged files are read, each by all that reads results")
@pytest.mark.parametrize(
    "seeds",
    [
        range(28),
        *(
            pytest.param(range(at, at + 100), marks=pytest.mark.thorough)
            for at in range(100, 500, 100)
        ),
    ],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_what_is_shown_of_a_damaged_file_was_stored(tmp_path, files, seeds):
    words = (tmp_path, seeds.start, seeds.stop, *files)
    done = python(damage.__file__, *map(str, words))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(seeds)} damaged files, not right: 0" in done.stdout


def test_damage_is_named_by_row_and_the_rest_is_given(tmp_path, files):
    path = files[0]
    with h5py.File(path) as file:
        width = file["runs/run0001/rows"].dtype.itemsize
    spoil(path, "runs/run0001/rows", *(number * width + 300 for number in (7, 8, 12)))
    spoil(path, "runs/run0001/samples", 40)
    status, out, err = called("show", path, "--run", "1")
    assert (status, "Avg bus bandwidth" in out) == (2, False)
    assert f"damaged: {path}: run0001: rows 7 to 8: stored checksum differs: not shown\n" in err
    assert f"damaged: {path}: run0001: row 12: stored checksum differs" in err
    assert "samples of row 0:" in err
    run = reader.examine(path).runs[0]
    kept = tuple(index for index in range(ROWS) if index not in (7, 8, 12))
    assert (run.numbers, run.rows) == (kept, tuple(map(example_row, kept)))
    np.testing.assert_array_equal(run.samples(-1), example_samples(ROWS - 1, 20))
    with pytest.raises(ResultsError, match="run0001: samples of row 0: stored checksum differs"):
        run.samples(0)
    status, out, _ = called("show", "--verify", path)
    first, second = out.splitlines()
    assert (status, "run0001: completed, 37 rows: DAMAGED: rows 7 to 8:" in first) == (2, True)
    assert second == "run0002: interrupted, 40 rows: all as it was stored"
    document = json.loads(output("export", path, "--format", "json", "--run", "1", status=2))
    assert document["average_bus_bandwidth"]["bandwidth"] == "nan"
    assert document["out_of_bounds"] == {"count": None, "okay": "unchecked"}
    assert "rows 7 to 8: stored checksum differs: not shown" in document["errors"]
    for refusing in (reader.read, add_run):
        with (
            unchanged(tmp_path),
            pytest.raises(ResultsError, match="is damaged or incomplete: run0001: rows 7 to 8"),
        ):
            refusing(path)


def test_rows_are_given_though_their_number_and_the_end_are_damaged(files):
    spoil(files[0], "runs/run0001/state", 0, 20)
    run = reader.examine(files[0]).runs[0]
    check_run(run, [20] * ROWS)
    assert run.status == "unknown: the end of the run is damaged"
    assert [each.partition(":")[0] for each in run.damage] == ["number of rows", "end of the run"]


def test_a_row_in_the_place_of_another_is_damage(files):
    with h5py.File(files[0], "r+") as file:
        first, second = (file[f"runs/run000{number}/rows"] for number in (1, 2))
        first[3:4], first[5:6], second[9:10] = first[4:5], second[5:6], first[8:9]
    assert reader.examine(files[0]).damage == [
        "run0001: row 3: stored checksum differs: not shown",
        "run0001: row 5: stored checksum differs: not shown",
        "run0002: row 9: stored checksum differs: not shown",
    ]


def test_damaged_facts_take_their_run_and_no_other_which_keeps_its_number(files):
    spoil(files[0], "runs/run0001/facts", 17)
    status, out, err = called("show", files[0], "--run", "2")
    assert (status, "Run run0002" in out) == (2, True)
    assert "run0001: facts: stored checksum differs: not shown" in err
    assert "has no run '1'; it has run0002" in refused("show", files[0], "--run", "1")
    assert called("show", "--verify", files[0])[1].splitlines() == [
        "run0002: interrupted, 40 rows: all as it was stored",
        "run0001: DAMAGED: facts: stored checksum differs: not shown",
    ]


def test_trainings_that_cannot_be_read_are_damage_and_the_runs_are_given(files):
    before = reader.read(files[1])
    data = bytearray(files[1].read_bytes())
    data[data.rindex(b"OHDR", 0, data.index(b"recording0001")) + 6] ^= 1  # its size
    files[1].write_bytes(data)
    examined = reader.examine(files[1])
    assert (repr(examined.runs), examined.recordings) == (repr(before), [])
    assert [each.partition(":")[0] for each in examined.damage] == ["recordings"]
