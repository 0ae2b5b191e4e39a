"""Expected rates of runs: from files, from links, and from links between nodes."""

import math
import tomllib
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from appending import add_run, example_info, example_row
from damage import called, output, refused

from hpccomm.errors import UsageError
from hpccomm.results import expectations, table
from hpccomm.results.expectations import Judge, entries, links, targets
from hpccomm.results.facts import UNKNOWN, Others
from hpccomm.results.schema import DeviceInfo, Timing
from hpccomm.results.writer import Writer
from hpccomm.runtime.service import Status
from hpccomm.tools.perf.collectives import COLLECTIVES

NDR = "mlx5_0 400 Gb/sec (4X NDR)"


def on_nodes(nodes, ranks_per_node, **facts):
    info = example_info(nodes * ranks_per_node)
    ranks = tuple(replace(each, node=each.rank // ranks_per_node) for each in info.ranks)
    return replace(info, ranks=ranks, **facts)


def moves(nodes, ranks_per_node):
    """Of each block source and target: whoever gathers needs it once, and each share of a sum comes once."""
    node = [rank // ranks_per_node for rank in range(nodes * ranks_per_node)]
    return {
        "all_gather": product(node, range(nodes)),
        "gather": product(node, [0]),
        "reduce_scatter": product(range(nodes), node),
        "scatter": product([0], node),
        "all_to_all": product(node, node),
        "send_recv": zip(node, [*node[1:], 0], strict=True),
    }


def crossing(collective, nodes, ranks_per_node):
    """Count the blocks that must leave or enter a node at least, by following each of them."""
    moved = moves(nodes, ranks_per_node)[collective]
    crossed = [(source, target) for source, target in moved if source != target]
    return max(max(Counter(nodes).values()) for nodes in zip(*crossed, strict=True))


def test_a_nodes_link_bounds_what_must_cross_it():
    def share(info, collective):
        return expectations.share_of_node(info.ranks, collective)

    for nodes, ranks_per_node in product(range(2, 6), range(1, 5)):
        info = on_nodes(nodes, ranks_per_node)
        ranks, found = nodes * ranks_per_node, {}
        for collective in moves(nodes, ranks_per_node):
            blocks = 1 if collective == "send_recv" else ranks  # of 1 B, in nccl-tests' size
            seconds = crossing(collective, nodes, ranks_per_node)  # over a link of 1 B/s
            busbw = blocks / seconds * COLLECTIVES[collective].what.bus_factor(ranks)
            found[collective] = share(info, collective)
            assert found[collective] == pytest.approx(busbw)
        # An all_reduce is a reduce_scatter and an all_gather.
        halves = np.mean([found["reduce_scatter"], found["all_gather"]])
        assert share(info, "all_reduce") == pytest.approx(halves)
    two = on_nodes(2, 2)
    for info, collective in (
        (replace(two, ranks=two.ranks[:3]), "all_reduce"),  # uneven
        (on_nodes(1, 4), "all_reduce"),
        (two, "barrier"),
    ):
        assert share(info, collective) is None


def test_the_table_says_how_much_of_the_fabric_there_is():
    info = on_nodes(2, 1, machine={"fabric": f"{NDR}, mlx5_1 400 Gb/sec (4X NDR)"})
    rows = [example_row(0, busbw=82.0)]
    text = table.run_text(info, rows, lambda index: None, finished=True)
    assert "# Peak bus bandwidth   : 82 (82% of the link's 100) \n" in text
    assert "100 GB/s in one direction\n" in text
    (found,) = expectations.published(info, "all_reduce")
    assert found.url.startswith("https://github.com/NVIDIA/nccl-tests/issues/")
    differ = replace(info, machine={"fabric": f"{NDR} on 1 node; none on 1 node"})
    assert expectations.bound(differ, "all_reduce") is None
    device = tuple(DeviceInfo(f"GPU-{n}", "NVLink, 18 of 25 GB/s", 450.0) for n in range(2))
    inside = replace(on_nodes(1, 2), devices=device)
    assert expectations.bound(inside, "all_gather") == 450
    found = {each.busbw for each in expectations.published(inside, "all_reduce")}
    assert found == {478.87, 370.0}  # of the link of this rate alone


def test_every_link_has_a_source_for_each_figure():
    for link in links().values():
        for each in (link, *link.published):
            assert each.source
            assert each.url.startswith("https://")
        assert link.rate > 0
        for each in link.published:
            # Switches that reduce let all_reduce pass the rate.
            assert 0.3 < each.busbw / (link.rate * each.ports) < 1.1


FILE = """
[[expect]]
collective = "all_reduce"
to = "1K"
time = 20.0

[[expect]]
collective = "all_reduce"
from = 65536
to = "1M"
ranks = 4
busbw = 10.0

[[expect]]
collective = "all_reduce"
busbw = 40
"""


def judged(text, rows, near=0.9):
    Path("f.toml").write_text(text)
    judge = Judge("f.toml", example_info(), near)
    for each in rows:
        judge.add(each)
    return judge, judge.finish()


def test_rows_are_held_beside_their_entry(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        example_row(0, bytes=8, time=10.0, busbw=0.1),
        example_row(0, bytes=1024, time=40.0, busbw=0.1),  # twice as long as it may
        example_row(0, bytes=1 << 16, busbw=9.5),
        example_row(0, bytes=1 << 20, busbw=5.0),  # half
        example_row(0, bytes=1 << 21, busbw=20.0),
        example_row(0, bytes=1 << 22, busbw=38.0),  # the best
    ]
    judge, text = judged(FILE, rows)
    assert (judge.judged, judge.failed, judge.failures) == (5, 2, 2)
    first, *lines = text.splitlines()
    assert first.endswith(": 50% of 20 us by f.toml, the least of 5 rows: FAILED, below 90%")
    assert lines == [
        "#   1024 B float sum out of place: 40.00 us, 50% of 20 us",
        "#   1048576 B float sum out of place: 5.00 GB/s, 50% of 10 GB/s",
    ]
    judge, text = judged(FILE, rows, near=0.5)
    assert (judge.failures, text.endswith(": OK\n")) == (0, True)
    judge, text = judged(FILE, [example_row(0, collective="broadcast")])
    assert (judge.failures, "nothing of this table" in text) == (1, True)
    assert "FAILED, as it was not judged" in judge.nothing()
    by_nccl_tests_name = tomllib.loads(ENTRY.replace("reduce", "alltoall") + "busbw = 1")
    assert entries("f.toml", by_nccl_tests_name)[0].collective == "all_to_all"


def test_a_stored_run_is_judged_and_expects_of_others_what_it_had(tmp_path):
    expected, rows = tmp_path / "expected.toml", [example_row(index) for index in range(4)]
    rows[0] = replace(rows[0], time=0.0)  # it is expected of nobody
    path = add_run(tmp_path / "run.h5", rows=rows)
    text = output("export", path, "--format", "expect")
    assert len(entries("f.toml", tomllib.loads(text))) == 3
    expected.write_text(text)
    assert "100% of" in output("show", path, "--expect", expected)
    add_run(path, rows=rows[1:2], status="failed: interrupted")
    faster = text.replace("busbw = ", "busbw = 1")  # ten times as much and more
    for expects, run, said in (
        (text, "2", "# The run did not complete (failed: interrupted): FAILED"),
        (faster, "1", "FAILED, below 90%"),
    ):
        expected.write_text(expects)
        status, out, _ = called("show", path, "--run", run, "--expect", expected)
        assert (status, said in out) == (1, True)


def test_one_late_repetition_is_not_expected_of_others_and_fails_nobody(tmp_path):
    # A mean was stored that was 340 times the median: one repetition of twenty had waited for its core.
    path, expected = tmp_path / "run.h5", tmp_path / "expected.toml"
    busy = Others(["n"] * 4, [0.0] * 4, [0.0, 0.0, 0.3, 0.0])
    for mean, median, others in ((3400, 10, UNKNOWN), (10, 10, UNKNOWN), (30, 30, busy)):
        with Writer(path, example_info()) as writer:
            row = example_row(0, time=float(mean), busbw=60 / mean)
            writer.append(row, np.full((20, 4), median * 1e-6))
            others.store(writer)
    text = output("export", path, "--format", "expect", "--run", "1")
    assert tomllib.loads(text)["expect"][0]["busbw"] == pytest.approx(6.0)
    assert "by medians where these are known" in text.splitlines()[0]
    expected.write_text(text)
    found = [called("show", path, "--expect", expected, "--run", number) for number in "123"]
    assert [status for status, *_ in found] == [0, 0, Status.UNDECIDED]
    for said in (
        "33% of 6 GB/s by",
        "undecided: busy, below 90%",
        "# Other processes      : 30% of the cores of n, 0% before; busy",
    ):
        assert said in found[2][1]


def test_a_link_by_its_name():
    info = on_nodes(2, 4)
    found = targets("8xinfiniband-ndr", info)
    by_name = {each.collective: each.busbw for each in found}
    assert by_name["all_reduce"] == pytest.approx(400 * 7 / 8 * 2)
    assert by_name["broadcast"] == 400
    slow = targets("ethernet-1g", info)[0].busbw
    assert slow == pytest.approx(0.125 * 0.9415 * 7 / 8 * 2)
    for name, of, said in (
        ("nvlink4", info, "connects devices of one node, and the run has 2 nodes"),
        ("infiniband-ndr", on_nodes(1, 4), "connects nodes, and the run has 1 node;"),
        ("infiniband-ndx", info, "did you mean infiniband-ndr"),
        ("0xinfiniband-ndr", info, "no link has that name"),
    ):
        with pytest.raises(UsageError, match=said):
            targets(name, of)


ENTRY = '[[expect]]\ncollective = "reduce"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds other things"),
        ("a = 1", "holds other things"),
        ("expect = [1]", "holds other things"),
        ("[[expect]", "is not TOML"),
        ("[[expect]]\nbusbw = 1.0", "needs a collective"),
        (ENTRY, "needs a collective, and busbw or time"),
        (ENTRY + "busbww = 1.0", "did you mean busbw"),
        (ENTRY + 'busbw = "370"', "busbw is '370'; give a number above 0"),
        (ENTRY + "busbw = true", "give a number above 0"),
        (ENTRY + "busbw = 1\nin_place = 1", "give true or false"),
        (ENTRY + "busbw = -1", "give a number above 0"),
        (ENTRY + f"busbw = 1{'0' * 400}", "give a number above 0"),
        (ENTRY + 'busbw = 1\nfrom = "x"', "'x' is not a size"),
        (ENTRY + "busbw = 1\nranks = 0", "give 1 or more"),
        (ENTRY + "busbw = 1\nfrom = 8\nto = 4", "is for no size"),
        (ENTRY.replace("reduce", "all_redcue") + "busbw = 1", "did you mean all_reduce"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(tmp_path, text, message):
    path = tmp_path / "expected.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        targets(str(path), example_info())


def test_variants_in_turns_are_judged_as_a_table_each(tmp_path):
    path, expected = tmp_path / "run.h5", tmp_path / "expected.toml"
    info = replace(example_info(), series={"base": "ring", "new": "tree"})
    with Writer(path, info) as writer:
        for _, (number, busbw), name in product(
            range(2), {8: 0.1, 1 << 20: 40.0}.items(), ("ring", "tree")
        ):
            row = example_row(0, algorithm=name, bytes=number, busbw=busbw)
            writer.append(row, None, timing=Timing(*[math.nan] * 3, variant=name))
    expected.write_text('[[expect]]\ncollective = "all_reduce"\nbusbw = 40')
    out = output("show", path, "--expect", expected)
    assert out.count("# Expected ") == 2
    assert " [tree]\n# Expected             : 100% of 40 GB/s" in out
    for name in ("json", "expect"):  # files of one table
        assert "has two variants" in refused("export", path, "--format", name)


def test_an_expectation_that_would_not_be_looked_at_is_refused(tmp_path):
    path = add_run(tmp_path / "run.h5")
    for words, said in (
        (("--expect", "nvlink4", "--list"), "--expect is about the rows of one run"),
        (("--expect", "nvlink4", "--verify"), "--expect is about the rows of one run"),
        (("--at-least", "50%"), "--at-least is about what --expect names"),
    ):
        assert said in refused("show", path, *words)
