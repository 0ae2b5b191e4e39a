"""Groups that measure at the same time, as nccl-tests splits ranks (src/common.cu and README.md of 2.19.6)."""

import argparse
import json
import re
from dataclasses import replace

import pytest

from hpccomm.errors import UsageError
from hpccomm.results import expectations, facts, reader
from hpccomm.tools.perf import nccl_tests
from hpccomm.tools.perf.options import split

from .test_run import options, perf

# The colors of ranks 0 to 7, by C's operators, as `run` of common.cu computes them.
COLORS = {
    "AND 0x7": [0, 1, 2, 3, 4, 5, 6, 7],
    "AND0x1": [0, 1, 0, 1, 0, 1, 0, 1],
    "&0b10": [0, 0, 2, 2, 0, 0, 2, 2],
    "OR 0x7": [7, 7, 7, 7, 7, 7, 7, 7],
    "or 1": [1, 1, 3, 3, 5, 5, 7, 7],
    "| 0X3": [3, 3, 3, 3, 7, 7, 7, 7],
    "MOD 3": [0, 1, 2, 0, 1, 2, 0, 1],
    "%2": [0, 1, 0, 1, 0, 1, 0, 1],
    "Div 4": [0, 0, 0, 0, 1, 1, 1, 1],
    "/ 010": [0, 0, 0, 0, 0, 0, 0, 0],  # base 8
}


@pytest.mark.parametrize("text", COLORS)
def test_a_color_is_nccl_tests(text):
    assert [split(text).color(rank) for rank in range(8)] == COLORS[text]


@pytest.mark.parametrize("text", ["", "MOD", "MOD 0", "DIV 0x0", "XOR 1", "AND 7x", "AND -1", "2"])
def test_what_is_no_split_says_what_is(text):
    with pytest.raises(argparse.ArgumentTypeError, match="AND, OR, MOD or DIV and a number"):
        split(text)


def measured(tmp_path, ranks, how, *words):
    """Return the run, the JSON document and the table of four collectives in groups."""
    files = tmp_path / "run.h5", tmp_path / "run.json"
    asked = ("-b", 96, "-e", 96, "-n", 3, "--split", how, *words, "--output", files[0])
    four = "all_reduce,all_gather,broadcast,send_recv"
    table, err, status = perf(ranks, four, *asked, "-J", files[1])
    assert (err, status) == ("", 0)
    (run,) = reader.read(files[0])
    return run, json.loads(files[1].read_text()), table


def test_groups_measure_as_nccl_tests_prints_them(tmp_path):
    """The time of a row is over the ranks of all groups; its bandwidth is that of rank 0's group."""
    run, document, table = measured(tmp_path, 6, "MOD 3", "-r", "all", "-a", "3")
    colors = [0, 1, 2, 0, 1, 2]
    assert [rank.group for rank in run.info.ranks] == colors
    assert [each["group"] for each in document["config"]["devices"]] == colors
    shown = re.findall(r"^#  Rank +\d+ Group +(\d+) Pid", table, re.MULTILINE)
    assert list(map(int, shown[:6])) == colors
    factors = {"all_reduce": 1.0, "all_gather": 0.5, "broadcast": 1.0, "send_recv": 1.0}
    for number, row in enumerate(run.rows):
        samples = run.samples(number)
        assert samples.shape == (3, 6)
        assert row.time == pytest.approx(samples.mean(axis=0).max() * 1e6)
        assert row.algbw == pytest.approx(row.bytes / 1e3 / row.time)
        assert row.busbw == pytest.approx(row.algbw * factors[row.collective])
        assert row.wrong == 0
    assert {row.root for row in run.rows if row.collective == "broadcast"} == {0, 1}


def test_unequal_groups_have_the_figures_of_the_first(tmp_path):
    """As nccl-tests has process 0's size of the group; roots are those that every group has."""
    run, _, _ = measured(tmp_path, 5, "DIV 3", "-r", "all")
    assert [rank.group for rank in run.info.ranks] == [0, 0, 0, 1, 1]
    summed = [row for row in run.rows if row.collective == "all_reduce"]
    assert [row.busbw for row in summed] == pytest.approx([row.algbw * 4 / 3 for row in summed])
    assert {row.root for row in run.rows if row.collective == "broadcast"} == {0, 1}
    apart = tuple(replace(rank, node=rank.rank % 2) for rank in run.info.ranks[:4])
    assert expectations.share_of_node(apart, "all_reduce") is None  # groups share the link
    together = tuple(replace(rank, group=0) for rank in apart)
    assert expectations.share_of_node(together, "all_reduce") == 1.5
    assert facts.fingerprint(run.info)["groups"] == "1 x 2 ranks on 1 nodes, 1 x 3 ranks on 1 nodes"


@pytest.mark.parametrize(
    ("ranks", "words", "said"),
    [
        (7, ("all_reduce,hypercube", "--split", "DIV 4"), "groups of 4 and 3 ranks"),
        (5, ("broadcast", "-r", "2", "--split", "DIV 3"), "there are 2 ranks"),
    ],
)
def test_groups_that_cannot_measure_the_same_are_refused(ranks, words, said):
    with pytest.raises(UsageError, match=said):
        perf(ranks, *words)


# What each of several ranks does that a launcher has started, once for each of the variables' values.
PROGRAM = """
import json, os, sys
from hpccomm.tools.perf.nccl_tests import main

for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    status = main(["all_gather_perf", "-b", "64", "-e", "64", "-n", "2"])
    print("status", status, flush=True)
    for name in variables:
        del os.environ[name]
"""


@pytest.mark.slow("three ranks measure six times")
def test_programs_go_by_nccl_tests_variables(shared_job):
    """Of two variables the mask counts; it is always of base 16 (``strtoul`` in common.cu)."""
    cases = [
        ("0 1 2", {"SPLIT": "AND 0x7"}),
        ("1 1 3", {"SPLIT": "|1"}),
        ("0 1 0", {"SPLIT_MASK": "11", "SPLIT": "DIV 2"}),
        ("0 0 2", {"SPLIT_MASK": "0x2", "SPLITMASK": "1"}),
        ("0 0 0", {"MIN_BW": "1000"}),
        ("0 0 0", {"MIN_BW": "0"}),
        ("", {"SPLIT": "FOO 2"}),
        ("", {"DEVICE": "x"}),
    ]
    given = [{f"NCCL_TESTS_{name}": text for name, text in each.items()} for _, each in cases]
    done = shared_job(3, "-c", PROGRAM, json.dumps(given))
    tables = done.stdout.split("# Collective test starting")[1:]
    found = [" ".join(re.findall(r"Rank +\d+ Group +(\d+)", table)) for table in tables]
    assert found == [groups for groups, _ in cases[:6]], done.stderr
    statuses = re.findall(r"status (\d)", done.stdout)
    assert sorted(statuses) == ["0"] * 5 * 3 + ["1"] * 3 + ["2"] * 2 * 3
    assert ["FAILED" in table for table in tables] == [False] * 4 + [True, False]
    assert re.search(r"# Avg bus bandwidth    : \S+ OK\n", tables[5])
    meant = "SPLITMASK is not a variable of nccl-tests.*; did you mean NCCL_TESTS_SPLIT_MASK"
    for said in (meant, "'FOO 2' is not a split", "argument --device: 'x' is not an integer"):
        assert len(re.findall(said, done.stderr)) == 1


def test_a_device_is_that_of_each_process_or_of_the_first_that_it_starts():
    """``gpus[i] = gpu0 + i`` of each process (common.cu), which starts ranks in place of its devices."""
    started = nccl_tests.launch_environment({"NCCL_TESTS_DEVICE": "2", "NCCL_TESTS_MIN_BW": "1"})
    assert nccl_tests.flags_for(started, 3) == ["--min-bw=1", "--device=5"]
    assert nccl_tests.flags_for({"NCCL_TESTS_DEVICE": "2"}, 3) == ["--device=2"]
    assert nccl_tests.flags_for({"NCCL_TESTS_DEVICE": "-1"}, 3) == []
    assert options("all_reduce", "--device", 2).device == 2
