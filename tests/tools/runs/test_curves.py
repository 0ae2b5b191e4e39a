"""Charts show the measured values: those of runs whose times follow from a latency and a bandwidth."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from damage import called
from stored_runs import SIZES, write

from hpccomm.results import pairs, reader
from hpccomm.results.schema import Timing
from hpccomm.results.timings import crossovers
from hpccomm.tools import drawing
from hpccomm.tools.drawing import Canvas, as_json
from hpccomm.tools.runs import charts, curves


def test_curves_are_named_by_what_differs_and_cross_where_times_are_equal(tmp_path):
    # 2 + s / 1000 and 10 + s / 5000 microseconds are equal at 10,000 bytes.
    path = write(tmp_path / "run.h5", {"ring": (2.0, 1.0), "tree": (10.0, 5.0)})
    drawn = curves.curves(reader.read(path))
    assert list(drawn) == ["ring", "tree"]
    assert [point.size for point in drawn["ring"]] == SIZES
    ring = drawn["ring"][0]
    assert ring.time == pytest.approx(2.008, rel=1e-6)
    assert (ring.low, ring.high) == pytest.approx((2.008 * 0.91, 2.008 * 1.09), rel=1e-3)
    times = {name: {each.size: each.time for each in points} for name, points in drawn.items()}
    (crossing,) = crossovers(times)
    assert crossing.size == pytest.approx(10_000, rel=0.2)  # straight between 8 and 32 KiB
    assert (crossing.before, crossing.after) == ("ring", "tree")


def test_launches_of_a_series_are_one_curve_of_medians(tmp_path):
    path = tmp_path / "runs.h5"
    for launch, latency in enumerate((1.0, 2.0, 9.0)):
        series = {"name": "s", "launch": str(launch + 1), "launches": "3"}
        write(path, {"ring": (latency, 1.0)}, days=launch, series=series)
    runs = reader.read(path)
    ((name, points),) = curves.curves(runs).items()
    assert name == "all_reduce mpi ring float sum out of place"  # nothing differs
    assert points[0].time == pytest.approx(2.008, rel=1e-6)
    of_a_variant = replace(runs[0], info=replace(runs[0].info, series={"variant": "A=1"}))
    assert list(curves.curves([of_a_variant])) == [f"A=1 {name}"]
    found = curves.history(runs)
    assert len(found) == len(SIZES)
    first = found["all_reduce mpi ring float sum 8 B out of place"]
    assert [moment.point.time for moment in first] == pytest.approx([1.008, 2.008, 9.008])
    assert [moment.started.day for moment in first] == [1, 2, 3]


def slower(row, times):
    return replace(row, time=times * row.time, algbw=row.algbw / times, busbw=row.busbw / times)


def test_a_point_has_one_statistic_which_the_axis_names(tmp_path):
    """Of bus bandwidth and time: nccl-tests, doc/PERFORMANCE.md; 2 (n - 1) / n is 1 on 2 ranks."""
    (kept,) = reader.read(write(tmp_path / "kept.h5", {"ring": (2.0, 1.0)}))
    # What is printed is a mean, here of a few slow repetitions.
    skewed = replace(kept, rows=tuple(slower(row, 1.5) for row in kept.rows))
    untold = (Timing(*[math.nan] * 3),) * len(skewed.rows)
    imported = replace(skewed, path=tmp_path / "imported.h5", timings=untold)
    info = replace(skewed.info, config=replace(skewed.info.config, report_cputime=True))
    calls = replace(imported, info=info, rows=tuple(replace(row, time=0.1) for row in skewed.rows))
    four, info = [], replace(skewed.info, series={"name": "s"})
    for factor in (1, 2, 4, 9):
        timings = tuple(replace(each, median=factor * each.median) for each in kept.timings)
        four.append(replace(skewed, info=info, timings=timings))
    for runs, factor, statistic in (
        ([skewed], 1.0, "median"),
        ([skewed, imported], 1.5, "mean"),  # a log has no repetitions
        ([imported], 1.5, "mean"),
        ([calls], 1.5, "mean"),  # -C prints the time of the calls, and the bandwidth of the work
        (four, 3.0, "median"),
    ):
        for points in curves.curves(runs).values():
            for size, point in zip(SIZES, points, strict=True):
                assert point.time == pytest.approx(factor * (2.0 + size / 1e3), rel=1e-6)
                assert point.busbw == pytest.approx(size / point.time / 1e3, rel=1e-6)
                assert statistic in point.statistic
    found = curves.history([kept, replace(imported, name="log")])
    assert {each.point.statistic for case in found.values() for each in case} == {curves.MEAN}


def test_a_history_mixes_neither_numbers_of_ranks_nor_roots(tmp_path):
    (run,) = reader.read(write(tmp_path / "run.h5", {"ring": (2.0, 1.0)}))
    single = replace(run.info, ranks=run.info.ranks[:1])
    runs = []
    for info, root, name in product((run.info, single), (0, 1), ("first", "second")):
        rows = tuple(replace(row, root=root) for row in run.rows)
        runs.append(replace(run, name=f"{name} {len(runs)}", info=info, rows=rows))
    found = curves.history(runs)
    assert len(found) == 4 * len(SIZES)
    assert {len(moments) for moments in found.values()} == {2}


def test_what_is_left_out_is_the_oldest_and_the_title_says_so(tmp_path):
    (run,) = reader.read(write(tmp_path / "run.h5", {"ring": (2.0, 1.0)}))
    drawn = charts.MOST_MOMENTS // len(SIZES)
    runs = [replace(run, name=f"run{number}") for number in range(drawn + 2)]
    history = charts.histories(curves.history(runs))
    assert history["title"] == f"History of {len(SIZES)} cases; the last {drawn} runs of each"
    names = {row["run"] for row in history["data"]["values"]}
    assert names == {f"run.h5 {each.name}" for each in runs[2:]}
    files = [replace(run, path=tmp_path / f"{number:02}.h5") for number in range(22)]
    over_size = charts.over_size("all_reduce", curves.curves(files))
    assert over_size["title"] == "all_reduce (2 of 22 curves are not drawn)"
    names = {row["curve"] for row in over_size["data"]["values"]}
    assert names == {each.path.name for each in files[2:]}


def test_a_heat_map_has_the_slowest_pair_of_each_block(tmp_path):
    ranks = 4 * charts.MOST_CELLS
    links = [pairs.PairLink(0, rank, 1e-6, 1e9, 1e9) for rank in range(1, ranks)]
    links[41] = pairs.PairLink(0, 42, 4e-6, 25e7, 5e8)
    nodes, hosts = tuple(range(ranks)), tuple(f"n{rank}" for rank in range(ranks))
    measured = pairs.MeasuredPairs(nodes, hosts, tuple(links), len(links), 8, 1 << 20, 1.0)
    chart = charts.pairs_of_ranks(measured, pairs.locate_slow(measured, pairs.Thresholds()))
    latency, bandwidth = [each["data"]["values"][0] for each in chart["hconcat"]]
    assert bandwidth["names"][10] == "40-43"
    assert len(bandwidth["value"]) == charts.MOST_CELLS**2
    row, column = 10, 10 * charts.MOST_CELLS  # from rank 0, and to it
    for record, at, value, part in (
        (latency, row, 4, 25),
        (latency, column, 4, 25),
        (bandwidth, row, 0.25, 25),
        (bandwidth, column, 0.5, 50),
        (bandwidth, row + 1, 1, 100),
    ):
        assert (record["value"][at], record["part"][at]) == pytest.approx((value, part))
    assert np.isnan(bandwidth["value"][-1])
    assert "slow: pair 0 and 42" in chart["title"]["text"]


def test_a_chart_is_json_that_html_may_hold():
    text = as_json({"title": "</script>\udcff", "value": [math.nan, math.inf, 1 / 3, 10**9]})
    assert "<" not in text
    assert json.loads(text) == {"title": "</script>\ufffd", "value": [None, None, 0.333333, 10**9]}


@pytest.mark.parametrize("strange", ["\0", "\x1b", "\uffff", "\udcff"])
def test_no_text_ends_the_process_that_draws(strange):
    rows, named = [{"x": strange, strange: 1}], drawing.encoding("x", "nominal", f"x{strange}")
    axes = {"x": named, "y": drawing.encoding("y", "nominal")}
    drawn = [drawing.svg(drawing.chart(f"a{strange}\tb", rows, 9, 9, mark="bar", encoding=axes))]
    canvas = Canvas(1, 1)
    canvas.text((0, 0), f"<{strange}>", 9)
    drawn.append(canvas.svg())
    for each in drawn:
        assert "\ufffd" in "".join(ET.fromstring(each).itertext())
    assert drawing.rendered(drawn[1], "png").startswith(b"\x89PNG")


def test_skew_is_what_ranks_are_late_by(tmp_path):
    run = reader.read(write(tmp_path / "run.h5", {"ring": (2.0, 1.0)}))[0]
    starts, ends = curves.skew(run.isolated(0))
    np.testing.assert_allclose(starts, [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_allclose(ends, 0)


def test_a_part_of_a_run_has_the_samples_of_its_own_rows(tmp_path):
    run = reader.read(write(tmp_path / "run.h5", {"ring": (2.0, 1.0)}))[0]
    part = run.part([2, 5])
    for index, whole in enumerate((2, 5)):
        np.testing.assert_array_equal(part.samples(index), run.samples(whole))
        np.testing.assert_array_equal(part.isolated(index), run.isolated(whole))
    assert (part.samples(0) != run.samples(0)).all()


def test_pictures_show_the_names(tmp_path):
    paths = [write(tmp_path / f"{name}.h5", {"ring": (2.0, 1.0)}) for name in "ab"]
    picture = tmp_path / "picture.svg"
    for what, words in {
        "size": ["a.h5", "b.h5", "median of repetitions", "bus bandwidth in that time", "1 KiB"],
        "skew": ["starts"],
        "history": ["8 B", "median of repetitions"],
    }.items():
        command = ("plot", "--runs", *map(str, paths), "--what", what, "--output", str(picture))
        assert called(*command)[::2] == (0, "")
        assert not [word for word in words if word not in picture.read_text()]


def test_what_cannot_be_drawn_is_refused(tmp_path):
    path = write(tmp_path / "run.h5", {"ring": (2.0, 1.0)})
    for words, said in (
        (("--case", "all_gather"), "no such row to draw"),
        (("--what", "history"), "no case was measured by two runs"),
    ):
        status, _, err = called("plot", "--runs", path, *words, "--output", tmp_path / "p.png")
        assert (status, said in err) == (2, True), err
