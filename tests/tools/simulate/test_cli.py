"""``hpccomm simulate``: its tables, its comparison, its files, and what it refuses."""

import math
import re
from operator import attrgetter
from pathlib import Path

import pytest
from damage import called, output

from hpccomm.results import reader
from hpccomm.results.timings import crossovers
from hpccomm.schedules.cost.network import load, parse
from hpccomm.tools.simulate.simulate import SIMULATED, Cost, comparison

SMALL = ("--cluster", "lab1g", "-b", "1K", "-e", "1M", "-f", "32")


def simulated(*arguments):
    """Lines of standard output."""
    return output("simulate", *arguments).splitlines()


def numbers(lines):
    return [line.split() for line in lines if re.match(r" +\d", line)]


def test_a_table_for_each_algorithm_then_both_side_by_side():
    lines = simulated("all_reduce", *SMALL, "--algorithm", "ring,recursive_doubling")
    blocks = [line for line in lines if line.startswith("# Collective test starting")]
    assert [line.split()[-1] for line in blocks] == ["ring", "recursive_doubling"]
    table = numbers(lines)
    assert [row[0] for row in table] == ["1024", "32768", "1048576"] * 2
    assert table[0][1:5] == ["256", "float", "sum", "-1"]
    assert table[0][8:] == ["N/A"] * 5
    of = "# all_reduce float sum on lab1g, 8 ranks: "
    side = lines.index(f"{of}time of the last rank (and of the first one done) in us")
    for row, ring, doubling in zip(lines[side + 2 : side + 5], table[:3], table[3:], strict=True):
        fields = row.split()
        assert fields[1] == ring[0]
        assert (fields[2], fields[4]) == (ring[5], doubling[5])
        fastest = "ring" if float(ring[5]) < float(doubling[5]) else "recursive_doubling"
        assert fields[-1] == fastest
    for said in (
        "# Crossover: recursive_doubling up to 1 KiB, ring from 32 KiB on; about ",
        "# Bottleneck: ring at 1 MiB: across port out of node 0",
    ):
        assert sum(line.startswith(said) for line in lines) == 1
    assert "#  cluster lab1g: 8 ranks, 2 a node, 4 nodes" in lines


def test_the_page_shows_what_is_printed():
    given = ("--algorithm", "ring,tree", "-b", "1M", "-e", "1G", "-f", "4")
    lines = simulated("all_reduce", "--cluster", "ib400x32", *given)
    begin = next(i for i, line in enumerate(lines) if line.endswith("in us"))
    shown = "".join(f"   {line}\n" for line in lines[begin:-1])
    page = Path(__file__).parents[3] / "docs" / "how_to" / "simulate.rst"
    assert shown in page.read_text(encoding="utf-8")


def test_busbw_is_that_of_perf():
    given = ["--cluster", "nvlink8", "--algorithm", "ring", "-b", "16M", "-e", "16M"]
    (row,) = numbers(simulated("all_reduce", *given))
    size, time, algbw, busbw = row[0], *row[5:8]
    assert float(algbw) == pytest.approx(int(size) / float(time) / 1e3, abs=0.1)
    assert float(busbw) == pytest.approx(float(algbw) * 14 / 8, abs=0.1)


@pytest.mark.parametrize("name", sorted(SIMULATED))
def test_every_collective_and_algorithm(name):
    for cluster in ("lab1g", "nvlink8"):
        given = ("--cluster", cluster, "--algorithm", "all", *SMALL[2:])
        table = numbers(simulated(name, *given, "--ranks", 5))
        assert table
        assert all(float(row[5]) > 0 for row in table)
        # What takes no time has no bandwidth.
        lines = simulated(name, *given, "--ranks", 1)
        assert not re.search(r"\b(inf|nan)\b", "\n".join(lines))
        averages = [line.split()[-1] for line in lines if "Avg bus bandwidth" in line]
        assert name not in ("all_reduce", "broadcast") or set(averages) == {"0"}
    skipped = simulated("all_reduce,all_to_all", *SMALL, "--algorithm", "ring,bruck")
    assert "# Skipped, as they do not exist: bruck on all_reduce, ring on all_to_all" in skipped


@pytest.mark.parametrize("model", ["cost", "terms"])
def test_a_price_has_no_times_of_single_ranks(model):
    ring = ("all_reduce", *SMALL, "--algorithm", "ring", "--channels", 1)
    lines = simulated(*ring, "--model", model)
    assert [row[0] for row in numbers(lines)] == ["1024", "32768", "1048576"]
    assert f"#  model {model}" in lines
    assert "# all_reduce float sum on lab1g, 8 ranks: time of the last rank in us" in lines
    assert not any("Bottleneck" in line for line in lines)


def test_what_takes_minutes_to_walk_through_is_refused():
    command = ["all_reduce", "--cluster", "ib400x32", "--ranks", "65536"]
    command += ["--algorithm", "ring", "-b", "1M", "-e", "1M", "--model"]
    status, _, said = called("simulate", *command, "cost")
    assert status == 2
    assert "131070 rounds of 65536 ranks" in said
    assert "--model terms" in said
    simulated(*command, "terms")


def test_a_cluster_of_billions_of_ranks_is_refused(tmp_path):
    file = tmp_path / "huge.toml"
    described = "nodes = 2000000000\nranks_per_node = 1\nreduce = 1e9\n"
    file.write_text(f"{described}[across]\nlatency = 1e-6\nbandwidth = 1e9\n")
    status, _, said = called("simulate", "all_reduce", "--cluster", file)
    assert (status, "huge has 2000000000 ranks" in said) == (2, True)
    simulated("all_reduce", "--cluster", file, "--ranks", 4, *SMALL[2:])


def test_skew_is_drawn_by_the_seed():
    given = ("all_reduce", *SMALL, "--algorithm", "ring", "--skew", "1e-2")
    first = numbers(simulated(*given))
    assert numbers(simulated(*given)) == first
    assert numbers(simulated(*given, "--seed", 1)) != first
    still = numbers(simulated(*given[:-2]))
    assert all(float(row[5]) > float(other[5]) for row, other in zip(first, still, strict=True))


def test_the_results_file_holds_what_was_printed_and_what_was_simulated(tmp_path):
    file = tmp_path / "runs.h5"
    skew = ("--skew", "1e-3", "--seed", 7)
    lines = simulated("all_reduce", *SMALL, *skew, "--output", file, "--ranks", 6)
    (run,) = reader.read(file)
    assert run.status == "completed"
    assert len(run.rows) == len(numbers(lines))
    for index, row in enumerate(run.rows):
        assert row.backend == "simulated"
        samples = run.samples(index)
        assert samples.shape == (1, 6)
        assert samples.max() * 1e6 == pytest.approx(row.time)
    told = dict(run.info.simulation)
    described = parse(told.pop("network"), "lab1g", "stored")
    assert described.resized(6) == load("lab1g").resized(6)
    known = {"model": "events", "skew": "0.001 s, seed 7", "segment": "524288 B"}
    assert told.items() >= known.items()
    assert [rank.host for rank in run.info.ranks] == [f"node{rank // 2}" for rank in range(6)]
    # What is shown has no comparison, and facts before the tables.
    tables = lines[: next(i for i, line in enumerate(lines) if "time of the last rank" in line)]
    shown = output("show", file)
    assert "\n".join(tables) in shown
    assert "time of the last rank" not in shown
    simulated(
        "all_reduce", "--cluster", "lab1g", "-b", "1M", "-e", "2M", "-i", "1M", "--output", file
    )
    config = reader.read(file)[-1].info.config
    assert (config.step_factor, config.step_bytes) == (0, 1 << 20)


def test_a_stored_run_is_drawn_unless_there_is_nothing(tmp_path):
    pytest.importorskip("vl_convert")
    file, picture = tmp_path / "s.h5", tmp_path / "picture.svg"
    draw = ("plot", "--runs", file, "--output", picture)
    simulated("all_reduce", "--cluster", "lab1g", "-b", "0", "-e", "0", "--output", file)
    status, _, said = called(*draw)
    assert (status, "there is nothing to draw: all sizes or all times are 0" in said) == (2, True)
    assert not picture.exists()
    algorithms = "ring,recursive_doubling,dissemination"
    simulated("all_reduce,barrier", "--algorithm", algorithms, *SMALL, "--output", file)
    output(*draw, "--run", "2")
    drawn = picture.read_text()
    for word in ("ring", "recursive_doubling", "bus bandwidth in that time, GB/s", "8 ranks"):
        assert word in drawn


FLAT, STEEP = {1: 4.0, 16: 4.0}, {1: 1.0, 16: 16.0}
FALLEN_BEHIND = {1: 2.0, 2: 3.0, 4: 4.0}
LEADS = {
    "small": {1: 1.0, 4: 3.0, 16: 9.0, 64: 30.0},
    "middling": {1: 3.0, 4: 3.5, 16: 5.0, 64: 9.0},
    "large": {1: 4.0, 4: 4.0, 16: 4.0, 64: 4.0},
}


@pytest.mark.parametrize(
    ("curves", "found"),
    [
        # They lie where logarithms cross.
        ({"flat": FLAT, "steep": STEEP}, [("steep", "flat", 1, 16, pytest.approx(4.0))]),
        ({"flat": FLAT, "again": FLAT}, []),
        ({"flat": {0: 4.0, 16: 4.0}, "nothing": {0: 1.0, 16: 16.0}}, []),
        # What is the fastest nowhere has none.
        (LEADS, [("small", "large", 4, 16, pytest.approx(5.5, abs=0.5))]),
        # A tie between is no end of a lead.
        (
            {"one": {1: 1.0, 2: 3.0, 4: 5.0}, "other": FALLEN_BEHIND},
            [("one", "other", 2, 4, pytest.approx(2.0))],
        ),
        ({"before": {1: 1.0, 2: 3.0, 4: 3.0}, "other": FALLEN_BEHIND}, []),
    ],
)
def test_crossovers(curves, found):
    told = attrgetter("before", "after", "lower", "upper", "size")
    assert [told(each) for each in crossovers(curves)] == found


def test_what_ties_is_named_together():
    curves = {name: [Cost(8, 2e-6, math.nan, 1.0, "", 0.0)] for name in ("one", "other")}
    lines = comparison("all", curves).splitlines()
    assert lines[2].endswith("one = other")
    assert "# Crossover: none between these sizes" in lines
