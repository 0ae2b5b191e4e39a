"""Writing and reading results files: round trips, and refusals."""

import dataclasses
import errno
import json
import os
import resource
import signal
import zlib
from math import comb

import h5py
import numpy as np
import pytest
from appending import add_run, check_run, example_info, example_row, example_samples, unchanged
from at_calls import at_call, end_of, limited, refusal

from hpccomm.errors import ResultsError, SchemaMismatch, UsageError
from hpccomm.results import files, reader, schema
from hpccomm.results.archive import verify
from hpccomm.results.files import SCHEMA_VERSION, ForeignFile
from hpccomm.results.reader import WholeSamples, choose
from hpccomm.results.timings import median_interval
from hpccomm.results.timings import timing as timing_of
from hpccomm.results.writer import Writer


def test_everything_comes_back(tmp_path):
    path, lengths = tmp_path / "runs.h5", [20, 0, 7, 300]
    for ranks in (4, 3):
        # Capacity for less than is written: the file grows.
        add_run(path, lengths, info=example_info(ranks), expected_rows=2, expected_repetitions=10)
    runs = reader.read(path)
    assert [run.name for run in runs] == ["run0001", "run0002"]
    for run, ranks in zip(runs, (4, 3), strict=True):
        assert (run.status, run.info) == ("completed", example_info(ranks))
        assert run.ended is not None
        check_run(run, lengths)


def test_facts_that_a_record_lacks_have_their_defaults():
    devices = tuple(schema.DeviceInfo(f"GPU-{rank}", "NVLink", 450.5) for rank in range(4))
    info = dataclasses.replace(example_info(local_register=1), devices=devices)
    record = files.as_json(info)
    assert files.of_json(schema.RunInfo, json.loads(json.dumps(record))) == info
    del record["config"]["local_register"], record["devices"]
    assert files.of_json(schema.RunInfo, record) == example_info()
    del record["config"]["iterations"]  # which has none
    with pytest.raises(TypeError, match="iterations"):
        files.of_json(schema.RunInfo, record)


def test_the_file_is_what_the_page_says(tmp_path):
    path, during = tmp_path / "run.h5", tmp_path / "during.h5"
    with Writer(path, example_info()) as writer:
        writer.append(example_row(0, wrong=3), example_samples(0, 5))
        during.write_bytes(path.read_bytes())
    for name, ended in ((during, b""), (path, b"completed")):
        with h5py.File(name, "r") as file:
            assert file.attrs["format"] == b"hpccomm results"
            assert file.attrs["schema_version"] == SCHEMA_VERSION
            run = file["runs/run0001"]
            rows, samples, text = run["rows"], run["samples"][:5], run["facts"][()]
            columns = [each.name for each in (*schema.ROWS.own, *schema.ROWS.location)]
            assert list(rows.dtype.names) == columns
            first = rows[0]
            some = first[["collective", "wrong", "repetitions"]]
            assert some.item() == (b"all_reduce", 3, 5)
            np.testing.assert_array_equal(samples, example_samples(0, 5))
            state = run["state"][()]
            assert (state["rows"], bool(state["ended"]), state["status"]) == (1, bool(ended), ended)
            record = json.loads(text)
            assert (record["user"], record["environment"]) == ("mué", {"NCCL_DEBUG": "INFO"})
            line = first.tobytes()
            assert first["crc"] == int.from_bytes(line[-4:], "little")
            for of, data, crc in (
                (b"run0001", text, run["facts"].attrs["crc32"]),
                (b"run0001 rows 0", line[:-4], first["crc"]),
                (b"run0001 samples 0", samples.tobytes(), first["samples_crc"]),
            ):
                assert zlib.crc32(data, zlib.crc32(of)) == crc
            if ended:  # what was laid out and not used is gone
                assert (rows.shape, run["samples"].shape) == ((1,), (5, 4))


def test_a_run_in_progress_is_written_by_no_other_and_ends_once(tmp_path):
    path = tmp_path / "live.h5"
    writer = Writer(path, example_info())
    writer.append(example_row(0), None)
    with pytest.raises(ResultsError, match=r"live\.h5 is in use"):
        Writer(path, example_info())
    writer.append(example_row(1), None)
    writer.end("failed: lost a rank")
    (run,) = reader.read(path)
    assert (run.status, len(run.rows)) == ("failed: lost a rank", 2)
    with pytest.raises(UsageError, match="has ended"):
        writer.append(example_row(2), None)


def test_runs_end_as_their_block_does_and_are_chosen_by_number_or_name(tmp_path):
    path = tmp_path / "run.h5"
    for error in (ZeroDivisionError("division by zero"), KeyboardInterrupt()):
        with pytest.raises(type(error)), Writer(path, example_info()):
            raise error
    add_run(path)
    runs = reader.read(path)
    assert [run.status for run in runs] == [
        "failed: ZeroDivisionError: division by zero",
        "failed: interrupted",
        "completed",
    ]
    chosen = {None: 2, "1": 0, "-1": 2, "-3": 0, "run0002": 1}
    assert {wanted: runs.index(choose(runs, wanted)) for wanted in chosen} == chosen
    for wanted in ("0", "4", "-4", "other"):
        with pytest.raises(ResultsError, match="run0001, run0002, run0003"):
            choose(runs, wanted)


def test_the_next_version_of_a_secret_file_is_secret_and_keeps_its_group(tmp_path):
    path, partial = add_run(tmp_path / "run.h5"), tmp_path / "run.h5.partial"
    path.chmod(0o600)
    modes, given = set(), []

    def giving(_descriptor, owner, group):
        given.append((owner, group))
        if owner != -1:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    with (
        at_call(os, "posix_fallocate", lambda *_: modes.add(partial.stat().st_mode & 0o777)),
        at_call(os, "fchown", giving),
    ):
        add_run(path)
    assert modes == {0o600}
    owner, group = path.stat().st_uid, path.stat().st_gid
    assert set(given) == {(-1, group), (owner, group)}
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_people_added_to_a_file_stays(tmp_path):
    path = add_run(tmp_path / "run.h5", [])
    path.chmod(0o640)
    with h5py.File(path, "r+") as file:
        for number in range(20):  # more than HDF5 keeps beside the others
            file.attrs[f"note{number}"] = "before the new switch"
        file["runs"].attrs["note"] = "of both"
        file["runs/run0001"].attrs["note"] = "first"
        file["mine"] = [1, 2, 3]
        file["runs/run0001/mine"] = "text of any length"
        file["runs/comment"] = 1
        file["elsewhere"], file["nowhere"] = h5py.SoftLink("/mine"), h5py.SoftLink("/absent")
    assert verify(path)[1]
    (link := tmp_path / "link.h5").symlink_to(path)
    add_run(link, [])
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    with h5py.File(path, "r") as file:
        assert file.attrs["note19"] == "before the new switch"
        assert file["runs"].attrs["note"] == "of both"
        assert file["runs/run0001"].attrs["note"] == "first"
        assert file["runs/run0001/mine"][()] == b"text of any length"
        assert file["elsewhere"][:].tolist() == [1, 2, 3]
        assert file.get("nowhere", getlink=True).path == "/absent"
        assert sorted(file["runs"]) == ["comment", "run0001", "run0002"]


def test_refused_paths(tmp_path):
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.h5"
    text.write_text("not mine\n")
    with h5py.File(foreign, "w") as file:
        file["x"] = 1
    later = add_run(tmp_path / "later.h5")
    with h5py.File(later, "r+") as file:
        file.attrs["schema_version"] = SCHEMA_VERSION + 1
    for path, error, message in (
        (tmp_path / "absent" / "run.h5", ResultsError, "absent does not exist; make the directory"),
        (tmp_path, ResultsError, "it is a directory, not a regular file; name another file"),
        (text / "run.h5", ResultsError, "is not a directory"),
        (text, ResultsError, "is not an HDF5 file"),
        ("/dev/full", ResultsError, "it is a device, not a regular file"),
        (foreign, SchemaMismatch, "is an HDF5 file of another program"),
        (later, SchemaMismatch, f"has schema version {SCHEMA_VERSION + 1}"),
    ):
        with unchanged(tmp_path), pytest.raises(error, match=f"{path}.*{message}"):
            Writer(path, example_info())
    for path in (later, tmp_path / "absent.h5", tmp_path):
        with pytest.raises(ResultsError, match=str(path)):
            reader.read(path)
    foreign.write_bytes(foreign.read_bytes()[:1000])  # damaged, and still not hpccomm's
    text.write_text("These are hpccomm results.\n")
    for path, words in ((foreign, "HDF5 file of another program"), (text, "not an HDF5 file")):
        with pytest.raises(ForeignFile, match=f"{path}.*{words}"):
            reader.read(path)


DAMAGE = {
    "no runs": ("runs", None),
    "runs is no group": ("runs", [1, 2]),
    "a run is no group": ("runs/run0001", 1),
    "no rows": ("runs/run0001/rows", None),
    "rows is no table": ("runs/run0001/rows", [1.0]),
    "samples are texts": ("runs/run0001/samples", [b"1", b"2"]),
    "state is no state": ("runs/run0001/state", 1),
    "no facts": ("runs/run0001/facts", None),
    "facts are a group": ("runs/run0001/facts/group", 1),
    "format is an array": ("format", [1, 1]),
    "version is an array": ("schema_version", [1, 1]),
}
"""What is put into the place of what; None: nothing."""


@pytest.mark.parametrize(("name", "value"), DAMAGE.values(), ids=DAMAGE)
def test_a_file_of_other_members_is_refused_and_left_alone(tmp_path, name, value):
    path = add_run(tmp_path / "run.h5", [5])
    with h5py.File(path, "r+") as file:
        if name in file.attrs:
            file.attrs[name] = value
        else:
            del file[name.removesuffix("/group")]
            if value is not None:
                file[name] = value
    said = {"format": "another program", "schema_version": "has schema version"}
    for refusing in (reader.read, add_run):
        with (
            unchanged(tmp_path),
            pytest.raises(ResultsError, match=said.get(name, r"run\.h5 is damaged or incomplete")),
        ):
            refusing(path)


def test_the_capacity_for_a_long_run_is_bounded(tmp_path):
    path = tmp_path / "run.h5"
    most = {"expected_rows": 10**12, "expected_repetitions": 10**15}
    with pytest.MonkeyPatch.context() as small:
        # The bound itself would take half a gigabyte of the disk.
        small.setattr("hpccomm.results.writer.MOST_RESERVED", 1 << 16)
        writer = Writer(path, example_info(), **most)
    with writer:
        assert path.stat().st_size < 1 << 20
        for index in range(10):
            writer.append(example_row(index), example_samples(index, 500))
    check_run(reader.read(path)[0], [500] * 10)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(ResultsError, match="make it writable"):
        Writer(tmp_path / "run.h5", example_info())


def fill_up(path):
    """Add rows until that fails; those before stay, and the end can still be recorded."""
    writer = Writer(path, example_info(), expected_rows=1, expected_repetitions=1)

    def add_many():
        for index in range(1000):
            writer.append(example_row(index), example_samples(index, 500))

    with pytest.raises(ResultsError, match=str(path)) as caught:
        add_many()
    rows = len(reader.read(path)[0].rows)
    assert f"its {rows} rows so far are kept" in str(caught.value)
    writer.end("failed: disk full")
    with pytest.raises(ResultsError, match=str(path)):
        Writer(path, example_info(), expected_repetitions=1_000_000)
    (run,) = reader.read(path)
    assert (run.status, rows > 0) == ("failed: disk full", True)
    check_run(run, [500] * rows)


def test_full_disk(small_disk):
    (small_disk / "others").write_bytes(bytes(6 << 20))
    fill_up(small_disk / "run.h5")
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    with pytest.raises(ResultsError, match="No space left on device; free space"):
        Writer(small_disk / "other.h5", example_info(), expected_repetitions=50_000)
    assert {file.name for file in small_disk.iterdir()} == {"filler", "others", "run.h5"}


def test_limited_file_size(tmp_path):
    with limited(resource.RLIMIT_FSIZE, 2 << 20):
        fill_up(tmp_path / "run.h5")


def test_secrets_stay_out():
    environ = {"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_JOB_ID": "1"}
    environ["OMPI_MCA_num_procs"] = "2"  # no secret, but mpiexec's
    assert schema.recorded_environment(environ) == {"NCCL_DEBUG": "INFO"}
    assert schema.recorded_slurm(environ) == {"SLURM_JOB_ID": "1"}
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY"):
        dataclasses.replace(example_info(), environment=environ)


def test_what_does_not_fit_is_refused(tmp_path):
    with Writer(tmp_path / "run.h5", example_info()) as writer:
        with pytest.raises(UsageError, match=r"\(3, 2\).*\(repetitions, 4\)"):
            writer.append(example_row(0), np.zeros((3, 2)))
        with pytest.raises(UsageError, match="has 80 bytes; a results file holds 64"):
            writer.append(example_row(0, algorithm="a" * 80), None)
        with pytest.raises(UsageError, match="is not 'completed' or"):
            writer.end("fine")
    assert reader.read(tmp_path / "run.h5")[0].rows == ()


def test_a_second_run_that_started_at_once_does_not_replace_the_first(tmp_path):
    """Both see no file; the other makes it and goes on, until this one would."""
    path, other = tmp_path / "new.h5", []

    def runs(name, *_):
        if str(name).endswith(".partial") and not other:
            other.append(None)
            other[0] = end_of(lambda: add_run(path))

    in_use = "in use: another run has just made it"
    with at_call(os, "open", runs), pytest.raises(ResultsError, match=in_use):
        Writer(path, example_info())
    assert other == [signal.SIGTERM]
    (run,) = reader.read(path)
    assert (run.status, len(run.rows)) == ("completed", 1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_partial_file_of_the_user_is_left_alone(tmp_path):
    path, partial = tmp_path / "new.h5", tmp_path / "new.h5.partial"
    with h5py.File(partial, "w") as file:
        file["mine"] = 1
    others = b"notes on hpccomm results", bytes(1 << 17) + b"data", b"\x89HDF\r\n\x1a\n" + b"x" * 99
    not_ours = pytest.raises(ResultsError, match=r"new\.h5\.partial is not a file that hpccomm")
    for theirs in (b"notes", partial.read_bytes(), *others):
        partial.write_bytes(theirs)
        with unchanged(tmp_path), not_ours:
            Writer(path, example_info())
    partial.unlink()
    add_run(path)
    for ours in (b"", path.read_bytes()):
        partial.write_bytes(ours)
        add_run(path)
        assert not partial.exists()


@pytest.mark.parametrize(
    "refuses", [(os, "pread"), (h5py, "File"), (h5py.Group, "__getitem__")], ids=str
)
def test_what_the_system_refuses_is_no_damage(tmp_path, refuses):
    path = add_run(tmp_path / "run.h5", [3])
    samples = WholeSamples(reader.read(path)[0])
    with (
        at_call(*refuses, refusal(errno.ESTALE)),
        pytest.raises(ResultsError, match=r"cannot read .*: Stale file handle"),
    ):
        samples(0) if refuses[0] is os else reader.examine(path)


def test_timings_and_isolated_repetitions_come_back(tmp_path):
    path, chance, none = tmp_path / "isolated.h5", np.random.default_rng(1), np.empty((0, 4, 2))
    isolated = [np.sort(chance.random((50, 4, 2))) + 1e6 * index for index in range(6)]
    writer = Writer(path, example_info(per_iter_skip=2))  # the file grows on the way
    for index, stamps in enumerate(isolated):
        samples = chance.random((20, 4))
        slowest = samples[2:].max(axis=1) * 1e6
        expected = [np.median(slowest), *np.percentile(slowest, (5, 95))]
        if index % 2:
            given = timing_of(samples, 2, stamps, sync="window", late=index, clock_error=2e-6)
            timing = writer.append(example_row(index), samples, stamps, timing=given)
            took = (stamps[..., 1].max(axis=1) - stamps[..., 0].min(axis=1)) * 1e6
            expected += [np.median(took), 2.0]
            assert timing.certain_low < timing.isolated < timing.certain_high
            assert (timing.sync, timing.late) == ("window", index)
        else:
            timing = writer.append(example_row(index), samples)
            expected += [np.nan] * 2
            assert np.isnan(timing.certain_low)
        figures = [timing.median, timing.low, timing.high, timing.isolated, timing.clock_error]
        np.testing.assert_allclose(figures, expected)
    measured = reader.read(path)
    writer.end("completed")
    for (run,) in (measured, reader.read(path)):
        assert [each.sync for each in run.timings] == ["", "window"] * 3
        for index, stamps in enumerate(isolated):
            np.testing.assert_array_equal(run.isolated(index), stamps if index % 2 else none)
    with Writer(path, example_info()):  # copies it
        # By what they print: a NaN equals no other.
        assert repr(reader.read(path)[0].timings) == repr(measured[0].timings)


def test_the_interval_of_a_median_holds_it_as_often_as_it_says():
    """Against the binomial distribution: its ends are as close as 95 % allows."""
    assert np.isnan(median_interval(np.arange(5.0))).all()
    for count in (6, 7, 20, 100, 1001):
        low, high = map(int, median_interval(np.arange(1.0, count + 1)))
        assert low + high == count + 1
        misses, fewer = (2 * sum(comb(count, k) for k in range(n)) for n in (low, low + 1))
        assert misses * 20 <= 1 << count < fewer * 20
