"""Damaged files: every flipped byte is found, what is shown was stored, and the rest is given."""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from damage import called, judged

from hpccomm.errors import ResultsError
from hpccomm.files import apart, seal
from hpccomm.results import coding, reader, schema
from hpccomm.results.writer import Writer

ROWS = 40


def fill(writer, example):
    for index in range(ROWS):
        writer.append(example.example_row(index), example.example_samples(index, 20) / 1e6)


@pytest.fixture
def files(tmp_path, example):
    """One with two runs, one of which has no end; and one with the table of `hpccomm tune`."""
    from hpccomm.dispatch.policy import Pick, Shape, Table, TableRow, stored

    runs, tuned = tmp_path / "runs.h5", tmp_path / "tuned.h5"
    with Writer(runs, example.example_info(per_iter_timing=True)) as writer:
        fill(writer, example)
    killed = Writer(runs, example.example_info())
    fill(killed, example)
    then = runs.read_bytes()
    killed.end("completed")
    runs.write_bytes(then)
    shape = Shape(
        library="Open MPI 5",
        processor="a processor",
        cores=2,
        backend="mpi",
        ranks=2,
        nodes=1,
        ranks_per_node=2,
        memory="host",
    )
    rows = {("all_reduce", "own"): (TableRow(0, Pick("ring")), TableRow(99, Pick("pairwise", 8)))}
    with Writer(tuned, example.example_info(per_iter_timing=True)) as writer:
        fill(writer, example)
        writer.add_group(
            stored.GROUP, lambda to: stored.write(to, Table(shape, "2026-11-22", rows))
        )
    assert stored.read(str(tuned))[0].rows == rows
    return [runs, tuned]


@pytest.mark.slow("each damaged file is read in a process of its own")
@pytest.mark.parametrize(
    "seeds",
    [
        range(10),
        *(
            pytest.param(range(at, at + 100), marks=pytest.mark.thorough)
            for at in range(100, 500, 100)
        ),
    ],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_what_is_shown_of_a_damaged_file_was_stored(tmp_path, files, seeds):
    counted, wrong = judged(tmp_path, files, seeds)
    assert not wrong
    assert counted.total() == len(seeds)


def place(path: Path) -> dict:
    with path.open("rb") as file:
        return seal.find(file.fileno()).content["runs"]["run0001"]


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_is_named_by_row_and_the_rest_is_given(tmp_path, files, example):
    path = files[0]
    at, _ = place(path)["rows"]
    for number in (7, 8, 12):
        spoil(path, at + number * coding.ROW_BYTES + 300)
    spoil(path, place(path)["samples"]["chunks"][0][0] + 40)
    status, out, err = called("show", str(path), "--run", "1")
    assert status == 2
    assert f"damaged: {path}: run0001: rows 7 to 8: stored checksum differs: not shown\n" in err
    assert f"damaged: {path}: run0001: row 12: stored checksum differs" in err
    assert "samples of rows 0 to" in err
    assert "Avg bus bandwidth" not in out
    run = reader.examine(path).runs[0]
    kept = [index for index in range(ROWS) if index not in (7, 8, 12)]
    assert run.numbers == tuple(kept)
    assert run.rows == tuple(example.example_row(index) for index in kept)
    np.testing.assert_array_equal(run.samples(-1), example.example_samples(ROWS - 1, 20) / 1e6)
    with pytest.raises(ResultsError, match="run0001: samples of row 0: stored checksum differs"):
        run.samples(0)
    status, out, _ = called("show", "--verify", str(path))
    first, second = out.splitlines()
    assert status == 2
    assert "run0001: completed, 37 rows: DAMAGED: rows 7 to 8:" in first
    assert (
        second == "run0002: interrupted, 40 rows: facts, rows and samples are as they were stored"
    )
    status, out, _ = called("export", str(path), "--format", "json", "--run", "1")
    document = json.loads(out)
    assert status == 2
    assert document["average_bus_bandwidth"]["bandwidth"] == "nan"
    assert document["out_of_bounds"] == {"count": None, "okay": "unchecked"}
    assert "rows 7 to 8: stored checksum differs: not shown" in document["errors"]
    before = path.read_bytes()
    for refusing in (lambda: reader.read(path), lambda: Writer(path, example.example_info())):
        with pytest.raises(ResultsError, match="is damaged or incomplete: run0001: rows 7 to 8"):
            refusing()
    assert path.read_bytes() == before


def test_every_byte_counts(tmp_path, files):
    """Of each region of a file, and its first and last bytes, one is flipped: it is always found."""
    original = files[0].read_bytes()
    path = tmp_path / "flipped.h5"
    path.write_bytes(original)
    assert called("show", "--verify", str(path))[0] == 0
    with path.open("rb") as file:
        found = seal.find(file.fileno())
    edges = {at for hole in found.holes for at in (hole[0] - 1, hole[0], hole[1] - 1, hole[1])}
    # The child would find nothing else here than that HDF5 does not mind.
    for at in sorted(edges | {0, found.size - 1, found.size, len(original) - 1}):
        data = bytearray(original)
        data[at] ^= 0x80
        path.write_bytes(data)
        with path.open("rb") as file:
            now = seal.find(file.fileno())
            unchanged = now is not None and seal.unchanged(file.fileno(), now) and now.copies == 2
        if unchanged:
            assert called("show", "--verify", str(path))[0] == 2, at


def old_file(path: Path, new: Path) -> None:
    """Write the file that hpccomm wrote before there were checksums."""
    with h5py.File(new) as source, h5py.File(path, "w") as target:
        target.attrs.update({"format": schema.FORMAT, "schema_version": 1})
        for name, run in source["runs"].items():
            source.copy(run, target.require_group("runs"), name)
            for table in ("rows", "state"):
                lines = run[table][()]
                kept = [name for name in lines.dtype.names if not name.endswith("checksum")]
                del target["runs"][name][table]
                old = np.zeros(lines.shape, [(each, run[table].dtype[each]) for each in kept])
                for each in kept:
                    old[each] = lines[each]
                target["runs"][name].create_dataset(table, data=old)


def test_a_file_of_before_there_were_checksums_is_read_and_gets_them(tmp_path, files, example):
    path = tmp_path / "old.h5"
    old_file(path, files[0])
    new, old = reader.examine(files[0]), reader.examine(path)
    assert (old.checked, old.damage) == (False, [])
    for one, other in zip(old.runs, new.runs, strict=True):
        assert (one.info, one.rows, one.status, one.ended) == (
            other.info,
            other.rows,
            other.status,
            other.ended,
        )
        np.testing.assert_array_equal(one.samples(5), other.samples(5))
    assert called("show", "--verify", str(path)) == (
        0,
        "run0001: completed, 40 rows: no checksums, written by an older version\n"
        "run0002: interrupted, 40 rows: no checksums, written by an older version\n",
        "",
    )
    with Writer(path, example.example_info()) as writer:
        fill(writer, example)
    status, out, _ = called("show", "--verify", str(path))
    assert (status, out.count("as they were stored")) == (0, 3)
    assert [run.rows for run in reader.read(path)] == [new.runs[0].rows] * 3
    np.testing.assert_array_equal(reader.read(path)[0].samples(5), new.runs[0].samples(5))


def test_a_file_without_a_whole_seal_is_refused(tmp_path, files):
    path = tmp_path / "unsealed.h5"
    path.write_bytes(files[0].read_bytes().replace(seal.MARK, bytes(len(seal.MARK))))
    with pytest.raises(ResultsError, match="both copies of its seal are"):
        reader.read(path)


def test_a_note_is_no_damage_but_another_fact_is(tmp_path, files, really_apart):
    path = files[0]
    before = reader.read(path)
    with h5py.File(path, "r+") as file:
        file["runs"].attrs["note"] = "of the old switch"
    assert reader.read(path) == before
    status, out, _ = called("show", "--verify", str(path))
    assert (status, "by another program or by damage" in out) == (2, True)
    with h5py.File(path, "r+") as file:
        file["runs/run0001"].attrs["user"] = "somebody else"
    assert reader.examine(path).runs == before
    with pytest.raises(
        ResultsError, match="run0001: user: HDF5 finds something else than was stored"
    ):
        reader.read(path)


def crash(_: str) -> None:
    os.abort()


def loop(_: str) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("name", "said"), [("crash", "crashes on it"), ("loop", "not come to an end")]
)
def test_a_library_that_crashes_or_loops_does_so_apart(monkeypatch, really_apart, name, said):
    monkeypatch.setattr(apart, "SECONDS", 1.0)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(apart.Failed, match=said):
        apart.call(f"{Path(__file__).stem}:{name}", "", size=0)
