"""The table against nccl-tests' own C format strings, printed by the C library."""

import ctypes
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from appending import example_info, example_row
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.errors import UsageError
from hpccomm.results import expectations, table, timings
from hpccomm.results.schema import DeviceInfo
from hpccomm.units import figure

libc = ctypes.CDLL(None)

LINE = "%12li  %12li  %8s  %6s  %6s"
HALF = "  %7s  %6s  %6s  %6g"
UNCHECKED = "  %7s  %6s  %6s    N/A"


def printf(form, *arguments):
    """What C prints."""
    kinds = {int: ctypes.c_long, float: ctypes.c_double, str: lambda text: text.encode()}
    text = ctypes.create_string_buffer(1000)
    libc.snprintf(text, 1000, form.encode(), *(kinds[type(value)](value) for value in arguments))
    return text.value.decode()


@given(st.floats(0, 1e12), st.sampled_from([6, 7]))
def test_a_figure_has_the_most_decimals_that_fit(value, width):
    candidates = [printf(f"%{width}.{precision}f", value) for precision in (2, 1, 0)]
    fitting = [text for text in candidates if len(text) <= width]
    exponent = printf(f"%{width}.{1 if width >= 7 else 0}e", value)
    assert figure(value, width) == (fitting[0] if fitting else exponent)
    assert len(figure(value, width)) == width


@given(st.floats(0, 1e9), st.integers(0, 1 << 40), st.integers(0, 10**9), st.integers(-1, 63))
def test_a_line_is_what_c_prints(value, size, wrong, root):
    values = {"bytes": size, "count": size // 2, "dtype": "half", "op": "prod", "root": root}
    values |= {"time": value, "algbw": value / 3, "busbw": value / 7}
    out = example_row(0, wrong=wrong, **values)
    inside = example_row(1, wrong=-1, **values)
    figures = (figure(value, 7), figure(value / 3, 6), figure(value / 7, 6))
    expected = (
        printf(LINE, size, size // 2, "half", "prod", printf("%6i", root))
        + printf(HALF, *figures, float(wrong))
        + printf(UNCHECKED, *figures)
    )
    assert table.line(example_info(), (out, None), (inside, None)) == expected + "\n"


HEADING = (
    "#",
    f"#{'out-of-place':>74}{'in-place':>31}          ",
    "#       size         count      type   redop    root"
    + "     time   algbw   busbw  #wrong" * 2 + " ",
    "#        (B)    (elements)                          "
    + "     (us)  (GB/s)  (GB/s)        " * 2 + " ",
)  # fmt: skip
"""As nccl-tests 2.19 prints it."""


def test_the_heading_is_nccl_tests():
    assert table.heading(example_info().config) == "\n".join(HEADING) + "\n"
    flags = {"report_cputime": True, "per_iter_timing": True, "report_timestamps": True}
    wide = table.heading(example_info(**flags).config).splitlines()
    names = "cputime algbw busbw #wrong i_min i_max i_p99 i_cv%"
    assert wide[2].split()[-9:] == [*names.split(), "timestamp"]
    assert wide[2].endswith("i_cv%           timestamp")
    assert wide[3].endswith("    (%)   %Y-%m-%d %H:%M:%S")


def test_lines_with_one_half():
    info = example_info()
    out, inside = (example_row(0), None), (example_row(1), None)
    half = table.line(info, out)
    assert half.split()[-4:] == ["N/A"] * 4
    assert len(half) == len(table.line(info, out, (example_row(1, wrong=-1), None)))
    full = table.line(info, out, inside).split()
    assert table.line(info, inside).split()[-4:] == full[-4:]
    with pytest.raises(UsageError):
        table.line(info)
    with pytest.raises(UsageError, match="two of one case"):
        table.line(info, out, (example_row(1, bytes=4096), None))


def test_statistics_and_time_stamp():
    flags = {"per_iter_timing": True, "per_iter_skip": 1, "report_timestamps": True}
    info = example_info(**flags)
    samples = np.array([[9.0, 9.0], [1e-6, 3e-6], [2e-6, 1e-6], [4e-6, 1e-6]])
    out, inside = example_row(0), example_row(1)
    text = table.line(info, (out, samples), (inside, samples))
    # Each repetition's slowest rank, the first left out: 3, 2 and 4 us.
    deviation = math.sqrt(2 / 3) / 3 * 100
    fields = ["2.00", "4.00", "4.00", f"{deviation:.2f}"]
    assert text.split()[9:13] == fields
    assert text.split()[17:21] == fields
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(inside.finished))
    assert text.endswith(printf("%21s", stamp) + "\n")


def test_percentiles_are_nearest_rank():
    samples = np.arange(1, 201)[:, None] * 1e-6
    assert not timings.iteration_statistics(samples, skip=200)
    summary = timings.iteration_statistics(samples, skip=0)
    found = [summary[key] for key in ("min_us", "p50_us", "p95_us", "p99_us", "max_us")]
    assert found == pytest.approx([1, 101, 190, 198, 200])


@pytest.mark.parametrize(
    ("wrong", "backend", "verdict"),
    [
        (0, "mpi", "0 OK"),
        (7, "mpi", "7 FAILED"),
        (-1, "mpi", "0 OK"),
        (-1, "simulated", "N/A"),  # which has no values that were right
    ],
)
def test_footer(wrong, backend, verdict):
    rows = [
        example_row(index, backend=backend, wrong=wrong if index or backend != "mpi" else 0)
        for index in range(2)
    ]
    assert table.footer(table.tallied(rows), "all_reduce") == (
        f"# Out of bounds values : {verdict}\n# Avg bus bandwidth    : 1.25 \n"
        "#\n# Collective test concluded: all_reduce\n#\n\n"
    )


def devices(peaks, ranks=2, uuids="abcd"):
    info = example_info(ranks=ranks)
    lines = [
        DeviceInfo(f"GPU-{uuid}", "NVLink", peak) for uuid, peak in zip(uuids, peaks, strict=False)
    ]
    return replace(info, devices=tuple(lines))


def test_the_best_bus_bandwidth_is_compared_with_the_slowest_link():
    info = devices([450.0, 50.0])
    rows = [example_row(0, busbw=20.0), example_row(1, busbw=40.0)]
    assert expectations.bounding_link(info) == info.devices[1]
    line = "# Peak bus bandwidth   : 40 (80% of the link's 50) \n"
    footer = table.footer(table.tallied(rows), "all_reduce", 50.0)
    assert footer.splitlines(keepends=True)[2] == line
    text = table.run_text(info, rows, lambda index: None, finished=True)
    assert line in text
    assert "# Link of a device: NVLink, 50 GB/s in one direction\n" in text
    assert "host memory, GPU-a, node 0" in text


@pytest.mark.parametrize(
    "about",
    [
        {"peaks": []},  # host memory
        {"peaks": [450.0, 0.0]},  # one is not known
        {"peaks": [450.0, 450.0], "uuids": "aa"},  # two ranks on a device
        {"peaks": [450.0], "ranks": 1},
        {"peaks": [450.0] * 4, "ranks": 4},  # on two nodes
    ],
)
def test_no_link_is_named_where_it_does_not_bound_the_bandwidth(about):
    info = devices(**about)
    assert expectations.bounding_link(info) is None
    assert "Link" not in table.run_header(info, "all_reduce", "nccl", "auto")
    assert "Peak" not in table.footer(table.tallied([example_row(0)]), "all_reduce", None)


def test_a_run_is_printed_block_by_block():
    rows = [example_row(index) for index in range(4)]
    rows += [example_row(4, collective="broadcast", root=1)]
    text = table.run_text(example_info(), rows, lambda index: None, finished=False)
    first, second = text.split("# Collective test concluded: all_reduce\n")
    for block, lines in ((first, 2), (second, 1)):
        assert block.count("# Using devices") == 1
        assert len([line for line in block.splitlines() if line and line[0] == " "]) == lines
    assert "#  Rank  3 Group  0 Pid   1003 on      node1 device -1 [none]" in first
    assert "Out of bounds values" not in second
