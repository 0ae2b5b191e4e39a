"""Launches compared: slower cases are found, equal ones are not, and undecided ones are named."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from appending import add_run, example_info, example_row
from damage import called, output, refused
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results.comparison.matching import LaunchRow, matched_passes, side
from hpccomm.results.comparison.verdict import (
    Rules,
    compare,
    compare_passes,
    holm,
    slower,
    text,
)
from hpccomm.results.facts import UNKNOWN, Others
from hpccomm.results.schema import Timing
from hpccomm.results.writer import Writer, add_runs

from .test_across import launches, row


def write(
    path, launches, factors=(1.0, 1.0), *, seed=0, isolated=False, others=None, status="", **facts
):
    """Add launches of two cases, of 100 and 200 us times a factor each, with 0.5 % of noise."""
    chance, runs = np.random.default_rng(seed), []
    info = replace(example_info(), **facts)
    for number in range(launches):
        rows, samples = [], []
        for case, factor in enumerate(factors):
            middle = 100e-6 * (1 + case) * factor * chance.normal(1, 0.005)
            samples.append(middle * chance.normal(1, 0.02, (30, 4)))
            rows.append(example_row(2 * case, wrong=0, time=middle * 1e6))
        end = status if status and number == 0 else "completed"
        runs.append((info, rows, samples, end, info.started))
    if not (isolated or others):  # all at once, as each `Writer` copies the file
        add_runs(path, runs)
        return path
    for _, rows, samples, *_ in runs:
        with Writer(path, info) as writer:
            for row, each in zip(rows, samples, strict=True):
                stamps = np.stack([np.zeros((30, 4)), each / 2], axis=2)
                writer.append(row, each, stamps if isolated else None)
            (others or UNKNOWN).store(writer)
    return path


def test_what_was_measured_on_busy_nodes_decides_nothing(tmp_path):
    # Equal series, of which one ran beside other work, were 88 % apart.
    base = write(tmp_path / "base.h5", 5, (1.0,))
    busy = Others(["n0"] * 4, [0.0] * 4, [0.01, 0.6, 0.01, 0.01])
    new = write(tmp_path / "new.h5", 5, (1.9,), seed=1, others=busy)
    status, out, _ = called("compare", base, new, "--require-decision")
    assert (status, out.count("  undecided: busy\n"), "need" in out) == (1, 1, False)
    assert "# Other processes      : 60% of the cores of n0, 0% before; busy, above 10%\n" in out
    # Where quiet launches are left on a side, they decide.
    status, out, _ = called("compare", base, write(new, 5, (1.9,), seed=2))
    assert (status, "1 slower" in out) == (1, True)
    assert "# Left out: new.h5 run0001: busy\n" in out


def test_a_slowdown_is_found_and_the_other_case_is_the_same(tmp_path):
    base = write(tmp_path / "base.h5", 7)
    new = write(tmp_path / "new.h5", 7, (1.0, 1.05), seed=1)
    xml, document = tmp_path / "v.xml", tmp_path / "v.json"
    status, out, _ = called("compare", base, new, "--junit", xml, "--json", document)
    worst = out.splitlines()[1]
    assert (status, worst.endswith("slower"), "16 B" in worst) == (1, True, True)
    assert "1 slower, 1 same" in out
    slow, other = json.loads(document.read_text())["cases"]
    assert [slow["verdict"], other["verdict"]] == ["slower", "same"]
    assert slow["ratio"] == pytest.approx(1.05, abs=0.01)
    assert slow["ratio_low"] < slow["ratio"] < slow["ratio_high"]
    suite = ET.parse(xml).getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["2", "1", "0"]
    (failure,) = suite.iter("failure")
    assert "% slower" in failure.get("message")
    # The other way round it is faster, which is no failure; and 5 % may be declared too small to count.
    assert "1 same, 1 faster" in output("compare", new, base)
    output("compare", base, new, "--minimum", "8%")


def test_equal_sides_are_told_apart_as_seldom_as_is_said(pytestconfig):
    # One in ten is expected at most; more than `most` come by chance once in 200 times.
    comparisons, most = (150, 25) if pytestconfig.getoption("--all") else (50, 11)
    chance, alarms = np.random.default_rng(0), 0
    rows = [row(100, bytes=8 << number) for number in range(6)]
    for _ in range(comparisons):
        sides = (launches(*rows, scales=chance.lognormal(0, 0.2, (10, 6))) for _ in "ab")
        # Without a minimum effect, which would hide how often the test errs.
        verdicts = compare(*sides, Rules(minimum=0.0, level=0.1)).cases
        alarms += any(each.verdict in ("slower", "faster") for each in verdicts)
    assert alarms <= most


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.2))
def test_adjusted_values_reject_what_the_step_down_procedure_does(p, level):
    rejected, order = set(), sorted(range(len(p)), key=p.__getitem__)
    for step, number in enumerate(order):
        if p[number] * (len(p) - step) > level:
            break
        rejected.add(number)
    adjusted = holm(p)
    assert {number for number, each in enumerate(adjusted) if each <= level} == rejected


def test_too_few_launches_are_said_and_enough_of_them_find_what_is_clear(tmp_path):
    def sides(launches):
        return [
            write(tmp_path / f"{factor}-{launches}.h5", launches, (factor, factor))
            for factor in (1.0, 2.0)
        ]

    out = output("compare", *sides(1))
    assert ("2 untested" in out, "100." in out) == (True, True)
    assert called("compare", *sides(1), "--require-decision")[0] == 1
    needed = compare(*(side([path]) for path in sides(1))).needed
    assert f"need {needed} launches a side" in out
    for number, verdict in ((needed - 1, "untested"), (needed, "slower")):
        found = compare(*(side([path]) for path in sides(number)))
        assert {each.verdict for each in found.cases} == {verdict}


def test_another_machine_is_refused_and_another_version_is_told(tmp_path):
    machine = {"processor": "a"}
    base = write(tmp_path / "base.h5", 2, machine=machine)
    other = write(tmp_path / "other.h5", 2, machine={"processor": "b"})
    newer = write(tmp_path / "newer.h5", 2, machine=machine, versions={"nccl": "2.33"})
    differ = r"different machines: processor: a and b.*--any-machine"
    with pytest.raises(ResultsError, match=differ):
        compare(side([base]), side([other]))
    assert compare(side([base]), side([other]), any_machine=True).machines
    write(newer, 1, machine=machine, versions={"nccl": "2.34"})
    told = called("compare", base, newer)[1]
    for version in ("2.33", "2.34"):  # of any of its launches
        assert f"version of nccl: 2.32.3 and {version}" in told


def test_what_did_not_complete_is_left_out_and_what_is_wrong_fails(tmp_path):
    base = write(tmp_path / "base.h5", 3, status="failed: interrupted")
    assert len(side([base]).runs) == 2
    assert side([base]).left_out == (f"{base} run0001: failed: interrupted",)
    wrong, xml = add_run(tmp_path / "wrong.h5", rows=[example_row(0, wrong=3)]), tmp_path / "v.xml"
    status, out, _ = called("compare", base, wrong, "--junit", xml)
    assert (status, "1 wrong" in out, "Only on the base side" in out) == (1, True, True)
    suite = ET.parse(xml).getroot()
    assert int(suite.get("failures")) == len([*suite.iter("failure")]) == 1
    (nothing := tmp_path / "none").mkdir()
    with pytest.raises(ResultsError, match=r"holds no file \*.h5"):
        side([nothing])


def test_all_launches_of_a_case_take_the_same_measure(tmp_path):
    isolated = write(tmp_path / "isolated.h5", 2, isolated=True)
    plain = write(tmp_path / "plain.h5", 2)

    def measures(base, new):
        return {each.values.measure for each in compare(side([base]), side([new])).cases}

    assert measures(isolated, isolated) == {"isolated"}
    assert measures(isolated, plain) == measures(plain, plain) == {"median"}
    with pytest.raises(UsageError, match="--measure isolated: a launch has none of all_reduce"):
        compare(side([isolated]), side([plain]), Rules(measure="isolated"))


def test_a_case_without_a_time_does_not_hide_the_others(tmp_path):
    base = write(tmp_path / "base.h5", 6)
    new = write(tmp_path / "new.h5", 5, (1.0, 1.1), seed=1)
    write(new, 1, (0.0, 1.1), seed=2)
    status, out, _ = called("compare", base, new)
    assert status == 1
    for words in ("1 slower", "# Left out", "a launch has no time above 0"):
        assert words in out
    none = LaunchRow(example_row(0, time=0.0), Timing(median=0.0, low=0.0, high=0.0))
    found = compare_passes(matched_passes([none, none], [none, none]), ("ring", "tree"))
    assert (found.cases, found.failed) == ((), False)
    assert "# Left out: all_reduce" in text(found)
    assert "a pass has no time above 0" in text(found)


def test_a_run_with_rows_counts_once_and_on_one_side(tmp_path):
    base, new = write(tmp_path / "base.h5", 6), write(tmp_path / "new.h5", 6, seed=1)
    (link := tmp_path / "again.h5").symlink_to(base)
    assert "2 and 6" in output("compare", base, new, "--base-runs", "1,run0001,-6,2")
    assert "is on both sides" in refused("compare", base, link)
    add_run(new, [], info=example_info(ranks=2))  # without rows, as `perf pairs` writes one
    assert "6 and 6" in output("compare", base, new)


def test_a_change_of_exactly_the_minimum_is_none():
    times = np.full(8, 100.0) + np.arange(8) * 0.01
    assert slower(times, times * 1.02, 0.02) > 0.4


def test_runs_of_one_file_can_be_compared_with_each_other(tmp_path):
    series = {"launch": "1", "launches": "4"}
    runs = write(tmp_path / "runs.h5", 4, series={"name": "first", **series})
    write(runs, 4, seed=5, series={"name": "second", **series})
    command = ("compare", runs, runs)
    assert "2 and 1" in called(*command, "--base-runs", "1,2", "--new-runs", "run0003")[1]
    named = called(*command, "--base-series", "first", "--new-series", "second")[1]
    assert "4 and 4" in named
    none = "holds no completed run of series 'third'"
    assert none in refused(*command, "--base-series", "third")
