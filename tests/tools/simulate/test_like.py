"""``hpccomm simulate --like``: parameters that are known are found again in stored times."""

import math
import re
import sys
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from costed_calls import call_of
from damage import called, output

from hpccomm.results import reader
from hpccomm.results.reader import choose
from hpccomm.results.schema import Row
from hpccomm.schedules.cost.network import Level, Network, dump, load
from hpccomm.schedules.cost.rounds import price
from hpccomm.schedules.schedule import Tuning, whole
from hpccomm.tools.simulate.like import Measurement, fit, like, measurements, parameters

LEVELS = {"inner": Level(1.5e-6, 80e9, 8), "across": Level(6e-6, 12e9, 8)}
TRUTH = Network("truth", 16, 8, reduce=20e9, **LEVELS, copy=30e9, overhead=3e-6)
GUESS = Level(1e-6, 5e9, 8)
UNKNOWN = Network("unknown", 16, 8, reduce=math.inf, inner=GUESS, across=GUESS)
NODE, NODE_UNKNOWN = (replace(each, ranks=8, across=None) for each in (TRUTH, UNKNOWN))
EVERYTHING = (
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_gather", "ring"),
    ("all_gather", "hierarchical"),
    ("broadcast", "binomial"),
    ("barrier", "dissemination"),
)


@cache
def priced(network, algorithms):
    found = []
    for collective, algorithm in algorithms:
        for size in (8,) if collective == "barrier" else (8, 256 << 10, 16 << 20):
            call = call_of(collective, network.ranks, size)
            tuning = Tuning(whole, 1, network.topology())
            case = collective, "mpi", algorithm, "float", "sum", -1, size, size // 4, False
            seconds = price(network, call, algorithm, tuning)
            found.append(Measurement(Row(*case, 0, 0, 0, 0, 1), call, tuning, seconds))
    return found


def scaled(measured, factor):
    return measured._replace(seconds=measured.seconds * factor)


def timed(network, algorithms, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    every = priced(network, algorithms)
    return [scaled(each, math.exp(noise * rng.standard_normal())) for each in every]


def test_known_parameters_are_found():
    found, truth = fit(UNKNOWN, timed(TRUTH, EVERYTHING)), parameters(TRUTH)
    assert parameters(found.network) == pytest.approx(truth, rel=1e-6)
    assert found.residuals == pytest.approx(0, abs=1e-9)
    assert not found.blank
    # Noise moves them by about their errors.
    found = fit(UNKNOWN, timed(TRUTH, EVERYTHING, noise=0.02))
    assert 0.001 < found.errors["across bandwidth"] < 0.1
    for name, value in parameters(found.network).items():
        assert value == pytest.approx(truth[name], rel=4 * found.errors[name])


def test_what_one_algorithm_does_not_tell_is_said():
    node, known = replace(NODE, ranks=2), replace(NODE_UNKNOWN, ranks=2)
    found = fit(known, timed(node, (("all_reduce", "ring"),)))
    # Two ranks: a call's overhead is as constant as two latencies, folds are as many as bytes.
    assert found.blank == {
        "reduce": "indistinguishable from those above",
        "overhead": "indistinguishable from those above",
        "copy": "no row depends on it",
    }
    assert found.residuals == pytest.approx(0, abs=1e-9)


def test_work_of_ranks_leaves_time_to_messages():
    truth = replace(NODE, inner=replace(NODE.inner, latency=0.0))
    # Rings send more messages than others, and are a little quicker.
    every = timed(truth, EVERYTHING)
    every = [scaled(each, 0.95 if each.row.algorithm == "ring" else 1.0) for each in every]
    found = fit(NODE_UNKNOWN, every)
    assert found.network.inner.latency > 0
    assert found.blank["overhead"] == "messages would take no time"


def test_nothing_is_negative_and_what_was_not_fitted_is_as_described():
    rings = (("all_reduce", "ring"), ("all_gather", "ring"))
    # The second fit ends where the latency is in no row's price.
    for ranks, algorithms, noise, seed in ((8, EVERYTHING, 0.5, 3), (2, rings, 0.6, 5)):
        node, unknown = replace(NODE, ranks=ranks), replace(NODE_UNKNOWN, ranks=ranks)
        found = fit(unknown, timed(node, algorithms, noise=noise, seed=seed))
        shown, described = parameters(found.network), parameters(unknown)
        assert all(value >= 0 for value in shown.values())
        assert all(shown[name] == described[name] for name in found.blank)
        assert set(found.blank) | set(found.errors) == set(shown)


ONE, SEVERAL = ("-b", "64K", "-e", "64K"), ("-b", "1K", "-e", "1M", "-f", "32")
simulated = partial(output, "simulate")


def refused(*words):
    """Return what a simulation says that is refused."""
    status, _, said = called("simulate", *words)
    assert status == 2
    return said


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A simulated run of 16 ranks of ib400x32 without gaps, which no test changes."""
    folder = tmp_path_factory.mktemp("simulated")
    network, file = load("ib400x32"), folder / "run.h5"
    without_gaps = replace(network, across=replace(network.across, gap=0.0))
    (folder / "mine.toml").write_text(dump(without_gaps))
    command = ["all_reduce,all_gather,broadcast", "--cluster", folder / "mine.toml"]
    command += ["--ranks", "16", "--algorithm", "ring,binomial,hierarchical"]
    command += ["-b", "1K", "-e", "64M", "-f", "256"]
    simulated(*command, "--segment", "1G", "--channels", "1", "--output", file)
    return file


def test_a_cluster_is_found_in_its_run_within_the_errors(stored):
    more = ("--ranks", "64", "--algorithm", "tree")
    said = simulated("all_reduce", "--like", stored, *more, *ONE)
    assert "16 ranks, 8 a node; " in said
    truth = load("ib400x32")
    for name, value, unit in (
        ("inner bandwidth", truth.inner.bandwidth / 1e9, "GB/s"),
        ("across latency", truth.across.latency * 1e6, "us"),
        ("reduce", truth.reduce / 1e9, "GB/s"),
    ):
        fitted, told, error = re.search(rf"# {name} +([\d.]+) (\S+) +([\d.]+)%", said).groups()
        assert told == unit
        assert float(fitted) == pytest.approx(value, rel=3 * float(error) / 100 + 1e-3)
    assert float(re.search(r"([\d.]+)% in the median", said)[1]) < 1
    assert "64 ranks: time of the last rank" in said


def test_a_description_gives_ports_and_what_the_run_does_not_tell(tmp_path):
    mine, run = tmp_path / "mine.toml", tmp_path / "run.h5"
    mine.write_text(
        "nodes = 4\nranks_per_node = 2\nreduce = 7e9\n[inner]\nlatency = 2e-6\nbandwidth = 6e9\n"
        "[across]\nlatency = 4e-5\nbandwidth = 2e8\nports = 1\ngap = 2e-6\n"
    )
    command = ["all_reduce,all_gather", "--cluster", mine, "--algorithm", "ring,hierarchical"]
    simulated(*command, *SEVERAL, "--output", run)
    fitted, report, _ = like(choose(reader.read(run), None), load("lab1g"), 6)
    assert (fitted.ranks, fitted.across.ports, fitted.across.gap) == (6, 1, 2e-6)
    # A table must not say that it is of the described network.
    assert fitted.name == "lab1g like run0001 of run.h5"
    assert fitted.across.bandwidth == pytest.approx(2e8, rel=0.03)
    assert fitted.across.latency == pytest.approx(4e-5, rel=0.03)
    assert "copy" in report
    said = refused("all_reduce", "--like", run, "--cluster", "ib400x32", *ONE)
    assert "8 ranks on a node, and run0001 2" in said


def test_a_run_says_nothing_of_what_it_did_not_use(tmp_path):
    file = tmp_path / "run.h5"
    command = ["all_reduce,all_gather", "--cluster", "lab1g", "--ranks", 2, "--algorithm", "ring"]
    simulated(*command, *SEVERAL, "--output", file)
    said = simulated("all_reduce", "--like", file, "--algorithm", "ring", *ONE)
    assert "2 ranks, 2 a node; 6 of 6 rows used" in said
    assert said.count("unknown: no message of the run passed there") == 2  # [across]


def test_a_file_of_perf_is_read_whatever_its_times_tell(shared_job, tmp_path):
    """On a busy machine they may tell too little."""
    file = tmp_path / "run.h5"
    command = ["perf", "all_reduce,all_gather", "--algorithm", "ring", *SEVERAL, "-n", "20"]
    shared_job(2, "-m", "hpccomm", *command, "--output", file)
    like_it = ("all_reduce", "--like", file, *ONE)
    status, out, err = called("simulate", *like_it, "--algorithm", "ring")
    assert ("12 of 12 rows used" in out) == (status == 0)
    assert status == 0 or "the 12 rows of own algorithms of run0001 do not tell" in err
    why = "do not tell" if status else "is one node of 2 ranks, and 4096 were asked for"
    assert why in refused(*like_it, "--ranks", "4096")


def test_one_size_does_not_tell_latency_from_bandwidth(tmp_path):
    file = tmp_path / "run.h5"
    command = ["all_gather", "--cluster", "nvlink8", "--algorithm", "ring", "-d", "float,int32"]
    simulated(*command, *ONE, "--output", file)
    said = refused("all_reduce", "--like", file, *ONE)
    assert "the 2 rows of own algorithms of run0001 do not tell inner bandwidth" in said
    # Of a row that is damaged, a refusal for too few says it as well.
    time = np.float64(choose(reader.read(file), None).rows[0].time).tobytes()
    file.write_bytes(file.read_bytes().replace(time, time[::-1], 1))
    said = refused("all_reduce", "--like", file, *ONE)
    assert re.search("row 0: .*\n.*: 1 rows of own algorithms", said)


def test_without_scipy_it_says_what_to_install(stored, monkeypatch):
    # Other tests have loaded SciPy: this is how an import fails all the same.
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert "--like needs SciPy" in refused("all_reduce", "--like", stored)


def test_rows_that_say_nothing_are_counted(stored):
    run = choose(reader.read(stored), None)
    first = run.rows[0]
    useless = [replace(first, algorithm="native"), replace(first, wrong=1), replace(first, count=0)]
    rows = (*useless, *run.rows[3:5])
    known = replace(run, rows=rows, numbers=tuple(range(5)))
    used, others, damage = measurements(known, load("ib400x32").resized(16))
    assert [each.row for each in used] == list(rows[3:])
    assert {each.tuning.channels for each in used} == {1}  # the run's own
    by_variable = replace(run.info, simulation={}, environment={"HPCCOMM_SEGMENT": "4096"})
    other, _, _ = measurements(replace(known, info=by_variable), load("ib400x32").resized(16))
    assert {each.tuning.segment for each in other} == {1024}  # elements
    assert sorted(others) == [
        "all_reduce by native: what it does is not known",
        "its result was wrong",
        "size 0: nothing is sent",
    ]
    assert not damage
