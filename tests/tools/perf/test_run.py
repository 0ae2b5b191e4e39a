"""Whole runs over ranks that are threads: output, files and found errors."""

import csv
import io
import itertools
import json
import re
import time

import numpy as np
import pytest
from perf_options import options, stays_open

from hpccomm.errors import PeerLost, ResultsError, UsageError
from hpccomm.results import reader
from hpccomm.runtime.service import Status
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing import run_ranks
from hpccomm.tools.main import main
from hpccomm.tools.perf import sweep
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.facts import on_root


def perf(ranks, *arguments, disturb=None):
    """Run perf; returns what rank 0 printed, what it complained of, and the status."""
    out, err = io.StringIO(), io.StringIO()
    asked = options(*arguments)

    def on_rank(comm):
        if disturb is not None:
            disturb(comm)
        return sweep.run(stays_open(comm), asked, out, err)

    # A sweep over every type and reduction takes half a minute where nothing else runs.
    (status,) = set(run_ranks(ranks, on_rank, timeout=200))
    return out.getvalue(), err.getvalue(), status


def table_lines(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.slow("a sweep of every collective, type and reduction")
@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_everything_is_right_on(ranks):
    sizes = ("-b", 0, "-e", 16 if ranks == 1 else 256, "-f", 16, "-n", 3)
    text, err, status = perf(ranks, "all", *sizes, "-d", "all", "-o", "all")
    assert (err, status) == ("", 0)
    possible = [each for each in COLLECTIVES.values() if not each.possible(ranks)]
    assert text.count("Out of bounds values : 0 OK") == len(possible)
    verdicts = {tuple(line.split()[at] for at in (8, 12)) for line in table_lines(text)}
    assert verdicts == {("0", "0"), ("N/A", "N/A")}  # the barrier has nothing to check
    assert "# Skipped, as they " in text
    assert "avg on bool" in text


FLAGS = "-m 3,-z 2,-z 3,-z 1 -m 2,-w 0 -n 1,-c 3,-c 0,-M 1,-u 3,-r all,-N 2,-i 64"


@pytest.mark.parametrize("flags", FLAGS.split(","))
def test_flags_do_not_disturb_the_results(flags):
    text, err, status = perf(2, "all", "-b", 64, "-e", 256, "-n", 4, *flags.split())
    assert (err, status) == ("", 0)
    assert (table_lines(text)[0].split()[8] == "N/A") == (flags == "-c 0")
    memory = "# Host memory usage    : Initialization .* User-Allocated .* Collective .* Total  .*B"
    assert bool(re.search(memory, text)) == (flags == "-M 1")
    times = {"-r all": ("rooted", 2), "-i 64": ("moves", 4), "-N 2": ("name", 2)}
    which, more = times.get(flags, ("name", 1))  # each has a name
    rows = [more if getattr(each.what, which) else 1 for each in COLLECTIVES.values()]
    assert len(table_lines(text)) == sum(rows)


def test_printed_time_and_stored_samples_are_of_the_same_block(tmp_path):
    file = tmp_path / "run.h5"
    for how, over_ranks in enumerate((lambda means: means[0], np.mean, np.min, np.max)):
        perf(3, "all_reduce", "-b", 64, "-e", 64, "-n", 5, "-a", how, "--output", file)
        run = reader.read(file)[-1]
        for index, row in enumerate(run.rows):
            samples = run.samples(index)
            assert samples.shape == (5, 3)
            assert row.time == pytest.approx(over_ranks(samples.mean(axis=0)) * 1e6)


def test_a_time_is_that_of_one_operation_of_a_batch(tmp_path):
    def disturb(comm):
        right = comm.all_reduce

        def slow(*args, **named):
            time.sleep(0.01)
            return right(*args, **named)

        comm.all_reduce = slow

    file = tmp_path / "run.h5"
    words = ("-b", 64, "-e", 64, "-n", 2, "-m", 3, "--output", file)
    perf(2, "all_reduce", *words, disturb=disturb)
    for row in reader.read(file)[-1].rows:
        assert 10_000 <= row.time < 25_000


def wrong_all_reduce(rank, index=None, call=None):
    """Return what makes one rank's all-reduces leave a wrong element, or one of them, by its number, not be written."""

    def disturb(comm):
        right, numbers = comm.all_reduce, itertools.count()

        def wrong(x, op, out=None, **how):
            forgotten = next(numbers) == call
            result = right(x, op, out=np.empty_like(x) if forgotten else out, **how)
            if index is not None and result.size > index:
                result[index] = 0
            return result

        if comm.rank == rank:
            comm.all_reduce = wrong

    return disturb


def test_a_wrong_element_is_found_and_located():
    words = ("all_reduce", "-b", 8, "-e", 64, "-f", 8, "-n", 4)
    text, err, status = perf(3, *words, disturb=wrong_all_reduce(rank=1, index=5))
    # The last repetition out of place, the first and a random one in place.
    assert status == Status.RAISED
    assert [line.split()[8::4] for line in table_lines(text)] == [["0", "0"], ["1", "2"]]
    assert "# Out of bounds values : 3 FAILED" in text
    located = "rank 1, index 5: expected .* got 0.0 .0x00000000.; 1 elements are wrong on ranks 1"
    places = ("out of place, timed operation 3", "in place, timed operation 0", "in place, .*")
    for line, place in zip(err.splitlines(), places, strict=True):
        assert re.search(f"all_reduce float sum, 64 B, {place}: {located}", line)


def test_a_timed_repetition_that_did_nothing_is_found():
    """Though all the others before it were right: its array was prepared for it alone."""
    words = ("all_reduce", "-b", 64, "-e", 64, "-n", 4)
    # After one warm-up and one operation ahead of the block.
    for call, place in ((5, "out of place, timed operation 3"), (7, "in place, timed operation 0")):
        text, err, status = perf(2, *words, disturb=wrong_all_reduce(rank=0, call=call))
        assert status == Status.RAISED
        assert "# Out of bounds values : 16 FAILED" in text
        assert f"64 B, {place}: rank 0, index 0: expected" in err


def test_json_and_csv_are_written_and_export_gives_the_same_csv(tmp_path, capsys):
    file, table, run = (tmp_path / name for name in ("run.json", "rows.csv", "run.h5"))
    small = ("all_reduce", "-b", 8, "-e", 8, "-n", 3, "-J", file, "--csv", table)
    perf(2, *small, "-I", 1, "--output", run)
    document = json.loads(file.read_text())
    assert document["version"] == 3
    assert len(document["results"][0]["in_place_per_iter"]["times_us"]) == 3
    assert main(["export", str(run), "--format", "csv"]) == 0
    assert capsys.readouterr().out == table.read_text()
    perf(2, *small)
    assert (tmp_path / "run.json.0").exists()  # nccl-tests does not overwrite either
    # The second run, which stores no samples, has their statistics too.
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len({row["started"] for row in rows}) == 2
    assert [row["repetitions"] for row in rows] == ["3"] * 4
    assert all(float(row["median_us"]) > 0 for row in rows)


@pytest.mark.parametrize("registered", [False, True])
def test_arrays_are_of_the_communicator_where_registered_ones_are_asked_for(tmp_path, registered):
    made = []

    def listen(comm):
        empty = comm.empty
        comm.empty = lambda *shape: made.append(shape) or empty(*shape)

    file = tmp_path / "run.h5"
    asked = ["-b", 64, "-e", "64K", "-f", 32, "-n", 3, "-R", int(registered), "--output", file]
    text, _, status = perf(2, "all_reduce", *asked, "--algorithm", "shm", disturb=listen)
    assert status == 0
    assert len(made) == 2 * registered
    assert ("# Registered memory" in text) == registered
    assert reader.read(file)[0].info.config.local_register == registered


@pytest.mark.parametrize("flag", ["--output", "--csv", "-J"])
def test_a_file_that_cannot_be_written_is_an_error_on_every_rank(tmp_path, flag):
    file = tmp_path / "nowhere" / "run.json"
    text = fails(3, file, "-b", 8, "-e", 8, flag, file)
    assert text == ""  # nothing was measured


@pytest.mark.parametrize(
    ("error", "everywhere", "said"),
    [
        (ResultsError("no table"), ResultsError, "no table"),
        (
            OSError(28, "No space left"),
            ResultsError,
            "rank 0 cannot read or write a file: [Errno 28]",
        ),
        (ValueError("a bug"), PeerLost, "left by ValueError: a bug"),
    ],
)
def test_an_error_of_rank_0_ends_all_ranks_at_once(error, everywhere, said):
    def action():
        raise error

    def on_rank(comm):
        begun = time.monotonic()
        kind = type(error) if comm.rank == 0 and everywhere is PeerLost else everywhere
        with pytest.raises(kind) as raised, comm:
            on_root(comm, action)
        if kind is everywhere:
            assert said in str(raised.value)
        assert time.monotonic() - begun < 20  # the deadline of calls is longer

    run_ranks(3, on_rank)


def fails(ranks, said, *arguments, out=None):
    """Run perf, which raises on every rank; return what rank 0 printed."""
    asked, out = options("all_reduce", *arguments), out or io.StringIO()

    def on_rank(comm):
        with pytest.raises(ResultsError, match=re.escape(str(said))):
            sweep.run(stays_open(comm), asked, out, out)
        comm.barrier()  # the communicator is as good as before

    run_ranks(ranks, on_rank)
    return out.getvalue()


@pytest.mark.parametrize(
    ("foreign", "content"),
    [("--csv", b"name,price\n"), ("--csv", bytes(range(256))), ("--output", b"no HDF5")],
)
def test_a_foreign_file_is_refused_and_no_other_is_left(tmp_path, foreign, content):
    names = {"-J": "run.json", "--csv": "rows.csv", "--output": "run.h5"}
    files = {flag: tmp_path / name for flag, name in names.items()}
    files[foreign].write_bytes(content)
    with pytest.raises(ResultsError, match=f"{files[foreign].name}.*(holds something else|HDF5)"):
        perf(1, "all_reduce", "-b", 8, "-e", 8, *(word for each in files.items() for word in each))
    assert list(tmp_path.iterdir()) == [files[foreign]]
    assert files[foreign].read_bytes() == content


def tables(text):
    """Return collective and algorithm of each table."""
    return re.findall(r"^# Collective test starting: (\S+) .* algorithm (\S+)", text, re.MULTILINE)


def test_what_the_table_names_is_what_runs(monkeypatch):
    small = ["-b", 8, "-e", 8, "-n", 1]
    monkeypatch.setenv("HPCCOMM_ALGORITHM", "linear")
    text, _, _ = perf(2, "all_reduce,broadcast", *small)
    assert tables(text) == [("all_reduce", "linear"), ("broadcast", "auto")]
    asked = set()

    def listen(comm):
        call = comm.all_reduce
        comm.all_reduce = lambda *args, **how: asked.add(how["algorithm"]) or call(*args, **how)

    text, _, _ = perf(2, "all_reduce", *small, "--algorithm", "auto", disturb=listen)
    assert tables(text) == [("all_reduce", "auto")]
    assert asked == {"auto"}  # which comes before the variable
    text, _, _ = perf(2, "gather,barrier", *small, "-w", 0, "--algorithm", "all")
    wanted = [(name, each) for name in ("gather", "barrier") for each in ALGORITHMS[name]]
    assert sorted(tables(text)) == sorted(wanted)


def test_an_algorithm_is_skipped_where_it_does_not_apply():
    small = ["-b", 8, "-e", 8, "-n", 1]
    text, _, _ = perf(2, "all_reduce,broadcast,send_recv", *small, "--algorithm", "auto,linear")
    found = [" ".join(each) for each in tables(text)]
    assert found == ["all_reduce auto", "all_reduce linear", "broadcast auto", "send_recv auto"]
    assert re.search("^# Skipped, as they .*: linear on broadcast$", text, re.MULTILINE)
    with pytest.raises(UsageError, match="--algorithm linear: broadcast float: algorithm is"):
        perf(2, "broadcast", *small, "--algorithm", "linear")
    with pytest.raises(UsageError, match="send_recv takes no algorithm"):
        perf(2, "send_recv", *small, "--algorithm", "linear")


class Watched(io.StringIO):
    """Standard output that looks into the results file before each row, and may be full at some word."""

    def __init__(self, file, full=" "):
        super().__init__()
        self.stored, self._file, self._full = [], file, full

    def write(self, text):
        if table_lines(text):
            self.stored.append(len(reader.read(self._file)[-1].rows))
        if text.lstrip().startswith(self._full):
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_row_is_in_the_file_before_it_is_shown(tmp_path):
    file = tmp_path / "run.h5"
    words = ("-b", "8", "-e", "32", "-f", "2", "--output", str(file))
    asked, out = options("all_reduce", *words), Watched(file)
    run_ranks(2, lambda comm: sweep.run(stays_open(comm), asked, out, io.StringIO()))
    assert out.stored == [2, 4, 6]
    full = Watched(file, full="16 ")
    fails(3, "cannot be written: No space left on device", *words, out=full)
    run = reader.read(file)[-1]
    assert run.status.startswith("failed: ResultsError")
    assert len(run.rows) == 4


def test_more_than_the_memory_is_refused_before_anything_is_measured():
    with pytest.raises(UsageError, match=r"-e/--maxbytes \d+: 2 ranks on"):
        perf(2, "all_reduce", "-b", 8, "-e", "900000G")


def test_progress_is_for_terminals():
    terminal, out = io.StringIO(), io.StringIO()
    asked = options("all_reduce", "-b", 8, "-e", 8, "-n", 2)
    run_ranks(2, lambda comm: sweep.run(stays_open(comm), asked, out, out, terminal))
    shown = r"\rall_reduce float sum 8 B in place   0%\|.*\| 0/2 \[00:00<\?\]\x1b\[K\r"
    assert re.search(shown, terminal.getvalue())
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\x1b" not in out.getvalue()
