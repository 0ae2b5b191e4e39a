"""The flags: nccl-tests' names, defaults and meanings; what does not fit is refused by name."""

from pathlib import Path

import planted_sysfs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perf_options import options

from hpccomm.errors import UsageError
from hpccomm.tools.perf import arrays, flags
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.options import Sizes

LINES = Path(__file__).with_name("nccl_tests_flags.tsv").read_text().splitlines()[1:]
NCCL_TESTS = {name: (short, default) for name, short, default in map(str.split, LINES)}


def read(*words):
    return options("all_reduce", *words)


def test_every_flag_of_nccl_tests_is_there_with_its_default():
    every = [flag for group in flags.FLAGS.values() for flag in group]
    ours = {tuple(flag.names): flag for flag in every if flag.names[1:]}  # hpccomm's have no letter
    assert set(ours) == {(short, f"--{name}") for name, (short, _) in NCCL_TESTS.items()}
    for name, (short, default) in NCCL_TESTS.items():
        flag = ours[short, f"--{name}"]
        if name not in ("stepbytes", "stepfactor"):  # two ways to say one thing, see below
            expected = None if default == "-" else flag.read(default)
            assert (flag.default and flag.read(flag.default)) == expected


def test_sizes_grow_by_one_megabyte_unless_told_otherwise():
    assert read().sizes == Sizes(32 << 20, 32 << 20, factor=0, step=1 << 20)
    assert read("-f", "1").sizes.step == 1 << 20
    assert read("-f", "1", "-i", "4").sizes.step == 4
    assert read("-f", "2").sizes == Sizes(32 << 20, 32 << 20, factor=2, step=0)
    assert read("-b", "8", "-i", "8").sizes == Sizes(8, 32 << 20, factor=0, step=8)


def test_a_value_may_be_said_in_several_ways():
    for flag in ("-t", "-g", "-p", "-x", "-D", "-V"):  # they do nothing here
        default = next(d for short, d in NCCL_TESTS.values() if short == flag)
        assert read(flag, default) == read()
    assert read("-d", "float32").types == read("-d", "float").types == ("float",)
    assert read("-r", "-1") == read("-r", "all")  # nccl-tests' name for it
    assert read("--algorithm", "auto,linear,auto").algorithms == ("auto", "linear")
    assert read("--backend", "mpi,mpi").backends == ("mpi",)


def test_pairs_that_mean_nothing_are_left_out_and_listed():
    options = read("-d", "all", "-o", "all")
    pairs = options.pairs(COLLECTIVES["all_reduce"])
    assert ("bool", "avg") not in pairs
    assert ("int8", "band") in pairs
    assert options.types[:3] == ("int8", "uint8", "int32")
    assert len(pairs) + len(options.skipped()) == 17 * 9
    assert "max on complex64" in options.skipped()
    assert options.pairs(COLLECTIVES["all_gather"])[0] == ("int8", "none")
    # Named sum, as in nccl-tests, and measured once.
    assert len(options.pairs(COLLECTIVES["send_recv"])) == 17
    assert read().skipped() == ()


def test_roots():
    assert read().roots(COLLECTIVES["all_reduce"], 4) == (-1,)
    assert read("-r", "3").roots(COLLECTIVES["reduce"], 4) == (3,)
    assert read("-r", "all").roots(COLLECTIVES["broadcast"], 3) == (0, 1, 2)


@given(
    smallest=st.integers(0, 1000),
    room=st.integers(0, 10_000),
    growth=st.integers(2, 99),
    by_factor=st.booleans(),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_sizes_grow_by_a_factor_or_a_step(smallest, room, growth, by_factor, itemsize):
    ways = (growth, 0) if by_factor else (0, growth)
    asked = Sizes(smallest, smallest + room, *ways)
    sizes, expected = list(asked.measured(itemsize)), [smallest]
    while expected[-1] <= smallest + room:
        last = expected[-1]  # one element follows a size of zero
        grown = last * growth if by_factor else last + growth
        expected.append(grown if last else itemsize)
    assert sizes == expected[:-1]
    assert len(sizes) == asked.number(itemsize)


def test_sizes_are_counted_without_being_listed():
    assert Sizes(0, 1 << 60, 0, 1).number(4) == (1 << 60) - 2
    assert list(Sizes(0, 8, 0, 8).warmups(2)) == [0, 2, 4, 8]


def test_memory_that_is_not_there_is_refused_with_what_fits():
    gib = 1 << 30
    needs = [arrays.Need(0, "a", 3 * gib, 64 * gib)] * 2 + [arrays.Need(1, "b", 3 * gib, 5 * gib)]
    arrays.require(needs, gib)
    with pytest.raises(UsageError, match=r"2 ranks on b would take 6.00 GB .* 5.00 GB are avail"):
        arrays.require([*needs, arrays.Need(1, "b", 3 * gib, 5 * gib)], gib)


# Files of Linux (cgroups(7)), and the memory that they leave.
VERSION_2 = """
sys/fs/cgroup/cgroup.controllers memory
sys/fs/cgroup/job/step/memory.max max
sys/fs/cgroup/job/step/memory.current 5
sys/fs/cgroup/job/memory.max 100
sys/fs/cgroup/job/memory.current 30
proc/self/cgroup 0::/job/step
"""
VERSION_1 = """
sys/fs/cgroup/memory/job/memory.limit_in_bytes 50
sys/fs/cgroup/memory/job/memory.usage_in_bytes 30
proc/self/cgroup 4:cpu,memory:/job;0::/job/step
"""


@pytest.mark.parametrize(("files", "left"), [(VERSION_2, [70]), (VERSION_1, [20]), ("", [])])
def test_memory_is_what_the_tightest_control_group_leaves(tmp_path, files, left):
    lines = (line.split(" ") for line in files.split("\n") if line)
    planted_sysfs.plant(tmp_path, {name: text.replace(";", "\n") for name, text in lines})
    assert arrays.left_by_groups(tmp_path) == left
