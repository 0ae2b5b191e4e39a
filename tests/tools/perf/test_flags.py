"""The flags: nccl-tests' names, defaults and meanings; what does not fit is refused by name."""

import argparse
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.errors import UsageError
from hpccomm.tools.flags import add_flags
from hpccomm.tools.perf import arrays, flags
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.options import Sizes

# nccl-tests 2.19.6, src/common.cu: long names, short names and defaults.
NCCL_TESTS = {
    "nthreads": ("-t", 1),
    "ngpus": ("-g", 1),
    "minbytes": ("-b", 32 * 1024 * 1024),
    "maxbytes": ("-e", 32 * 1024 * 1024),
    "stepbytes": ("-i", 1024 * 1024),
    "stepfactor": ("-f", 1),
    "iters": ("-n", 20),
    "agg_iters": ("-m", 1),
    "warmup_iters": ("-w", 1),
    "run_cycles": ("-N", 1),
    "parallel_init": ("-p", 0),
    "check": ("-c", 1),
    "op": ("-o", ("sum",)),
    "datatype": ("-d", ("float",)),
    "root": ("-r", 0),
    "blocking": ("-z", 0),
    "stream_null": ("-y", 0),
    "timeout": ("-T", 0),
    "cudagraph": ("-G", 0),
    "report_cputime": ("-C", 0),
    "report_timestamps": ("-S", 0),
    "output_file": ("-J", None),
    "average": ("-a", 1),
    "local_register": ("-R", 0),
    "cta_policy": ("-x", -1),
    "device_implementation": ("-D", 0),
    "device_cta_count": ("-V", 16),
    "memory": ("-M", 0),
    "unalign": ("-u", 0),
    "per_iter_timing": ("-I", 0),
    "per_iter_skip": ("-K", 0),
}


def read(*arguments):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, flags.ARGUMENTS)
    return flags.options(parser.parse_args(["all_reduce", *arguments]))


def test_every_flag_of_nccl_tests_is_there_with_its_default():
    every = [flag for group in flags.FLAGS.values() for flag in group]
    ours = {
        flag.names[1]: flag for flag in every if len(flag.names) == 2
    }  # hpccomm's have no letter
    assert set(ours) == {f"--{name}" for name in NCCL_TESTS}
    for name, (short, default) in NCCL_TESTS.items():
        flag = ours[f"--{name}"]
        assert flag.names[0] == short
        if name not in ("stepbytes", "stepfactor"):  # two ways to say one thing, see below
            assert (flag.default and flag.read(flag.default)) == default


def test_sizes_grow_by_one_megabyte_unless_told_otherwise():
    assert read().sizes == Sizes(32 << 20, 32 << 20, factor=0, step=1 << 20)
    assert read("-f", "1").sizes.step == 1 << 20
    assert read("-f", "1", "-i", "4").sizes.step == 4
    assert read("-f", "2").sizes == Sizes(32 << 20, 32 << 20, factor=2, step=0)
    assert read("-b", "8", "-i", "8").sizes == Sizes(8, 32 << 20, factor=0, step=8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0"], "-n/--iters: 0 is out of range; give an integer from 1"),
        (["-z", "4"], "give an integer from 0 to 3"),
        (["-b", "1T"], "-b/--minbytes: '1T' is not a size"),
        (["-n", "010"], "'010' is not an integer"),
        (["-n", "1000", "-m", "1001"], "-n/--iters 1000 times -m/--agg_iters 1001 is more than"),
        (["-o", "avg", "-d", "bool"], "-o/--op avg means nothing on -d/--datatype bool"),
        (["--csv", ""], "--csv: an empty name"),
        (["--csv", "a.json", "-J", "./a.json"], "-J/--output_file and --csv a.json name the same"),
        (["-b", "9" * 400], "is above -e/--maxbytes"),
        (["-e", "8"], "-b/--minbytes 33554432 is above -e/--maxbytes 8"),
        (["-i", "0"], "-i/--stepbytes 0"),
        (["-i", "1M", "-f", "2"], "give one of them"),
        (["-f", "0"], "-f/--stepfactor: 0 is out of range"),
        (["-K", "1"], "give -I 1 too"),
        (["-K", "20", "-I", "1"], "give 0 to 19"),
        (["-o", "mode"], "'mode' is not a reduction; give all or some of sum, prod"),
        (["-d", "quad"], "'quad' is not a type"),
        (["-o", "band,max", "-d", "complex64"], "-o/--op band,max means nothing on -d/--data"),
        (["-d", "half,,float"], "-d/--datatype: 'half,,float' has an empty name"),
        (["-r", "-2"], "-r/--root: -2 is out of range"),
        (["-J", "out.txt"], "give a name ending in .json"),
        (["--backend", "mpi,"], "empty name"),
        (["-t", "2"], "a rank is a process here"),
        (["-G", "1", "--arrays", "host"], "CUDA graphs hold device work, and --arrays is host"),
        (["-C", "1", "--arrays", "host"], "-C/--report_cputime 1: calls on host arrays return"),
        (["-y", "1", "--arrays", "host"], "host arrays have no stream"),
        (
            ["-G", "2", "-z", "1"],
            "-G/--cudagraph and -z/--blocking 1: a recorded block cannot wait",
        ),
        (["-G", "2", "-I", "1"], "-G/--cudagraph and -I/--per_iter_timing 1"),
        (["-G", "2", "-y", "1"], "-G/--cudagraph and -y/--stream_null 1"),
        (["--arrays", "gpu"], "'gpu' is not a kind of memory; give one of auto, host, device"),
        (["-R", "2"], "-R/--local_register: 2 is out of range"),
        (["-D", "1"], "hpccomm has no kernels of its own"),
        (["-V", "8"], "set NCCL_MIN_CTAS and NCCL_MAX_CTAS"),
        (["-p", "1"], "one thread a process"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, said):
    with pytest.raises((argparse.ArgumentError, UsageError)) as caught:
        read(*arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("flag", ["-t", "-g", "-p", "-x", "-D", "-V"])
def test_flags_that_do_nothing_here_are_taken_at_their_defaults(flag):
    default = next(d for short, d in NCCL_TESTS.values() if short == flag)
    assert read(flag, str(default)) == read()


def test_types_go_by_the_names_of_nccl_tests_and_of_numpy():
    assert read("-d", "float32").types == read("-d", "float").types == ("float",)
    assert len(read("-d", "all").types) == 17
    assert read("-d", "all").types[:3] == ("int8", "uint8", "int32")


def test_pairs_that_mean_nothing_are_left_out_and_listed():
    options = read("-d", "all", "-o", "all")
    pairs = options.pairs(COLLECTIVES["all_reduce"])
    assert ("bool", "avg") not in pairs
    assert ("int8", "band") in pairs
    assert len(pairs) + len(options.skipped()) == 17 * 9
    assert "max on complex64" in options.skipped()
    assert options.pairs(COLLECTIVES["all_gather"])[0] == ("int8", "none")
    assert (
        len(options.pairs(COLLECTIVES["send_recv"])) == 17
    )  # named sum, as in nccl-tests, and measured once
    assert read().skipped() == ()


def test_roots():
    assert read().roots(COLLECTIVES["all_reduce"], 4) == (-1,)
    assert read("-r", "3").roots(COLLECTIVES["reduce"], 4) == (3,)
    assert read("-r", "all").roots(COLLECTIVES["broadcast"], 3) == (0, 1, 2)
    assert read("-r", "-1") == read("-r", "all")  # nccl-tests' name for it
    with pytest.raises(UsageError, match=r"-r/--root 4: there are 4 ranks; give 0 to 3, or all"):
        read("-r", "4").roots(COLLECTIVES["gather"], 4)


@given(
    smallest=st.integers(0, 1 << 20),
    room=st.integers(0, 1 << 20),
    factor=st.integers(2, 9),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_a_sweep_by_a_factor(smallest, room, factor, itemsize):
    sizes = list(Sizes(smallest, smallest + room, factor, 0).measured(itemsize))
    assert sizes[0] == smallest
    assert sizes[-1] <= smallest + room
    for before, after in itertools.pairwise(sizes):
        assert after == (before * factor if before else itemsize)


@given(
    smallest=st.integers(0, 100),
    room=st.integers(0, 1000),
    step=st.integers(1, 99),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_a_sweep_by_a_step(smallest, room, step, itemsize):
    asked = Sizes(smallest, smallest + room, 0, step)
    sizes = list(asked.measured(itemsize))
    assert len(sizes) == asked.number(itemsize)
    assert sizes[0] == smallest
    for before, after in itertools.pairwise(sizes):
        assert after == (before + step if before else itemsize)


def test_a_size_of_zero_is_followed_by_one_element():
    assert Sizes(0, 1 << 60, 0, 1).number(4) == (1 << 60) - 2
    assert list(Sizes(0, 64, 4, 0).measured(4)) == [0, 4, 16, 64]
    assert list(Sizes(0, 20, 0, 8).measured(4)) == [0, 4, 12, 20]
    assert list(Sizes(0, 0, 4, 0).measured(4)) == [0]
    assert list(Sizes(0, 8, 0, 8).warmups(2)) == [0, 2, 4, 8]


def test_memory_that_is_not_there_is_refused_with_what_fits():
    gib = 1 << 30
    needs = [arrays.Need(0, "a", 3 * gib, 64 * gib)] * 2 + [arrays.Need(1, "b", 3 * gib, 5 * gib)]
    arrays.require(needs, gib)
    with pytest.raises(UsageError, match=r"2 ranks on b would take 6.00 GB .* 5.00 GB are avail"):
        arrays.require([*needs, arrays.Need(1, "b", 3 * gib, 5 * gib)], gib)


@pytest.mark.parametrize(
    ("groups", "left"),
    [
        (
            {
                "sys/fs/cgroup": {"cgroup.controllers": "memory"},
                "sys/fs/cgroup/job/step": {"memory.max": "max", "memory.current": "5"},
                "sys/fs/cgroup/job": {"memory.max": "100", "memory.current": "30"},
                "proc/self": {"cgroup": "0::/job/step\n"},
            },
            [70],
        ),
        (
            {
                "sys/fs/cgroup/memory/job": {
                    "memory.limit_in_bytes": "50",
                    "memory.usage_in_bytes": "30",
                },
                "proc/self": {"cgroup": "4:cpu,memory:/job\n0::/job/step\n"},
            },
            [20],
        ),
        ({"proc/self": {}}, []),
    ],
    ids=["version 2", "version 1", "none"],
)
def test_memory_is_what_the_tightest_control_group_leaves(tmp_path, groups, left):
    for folder, files in groups.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    assert arrays.left_by_groups(tmp_path) == left


def test_a_name_that_is_given_twice_counts_once():
    assert read("--algorithm", "auto,linear,auto").algorithms == ("auto", "linear")
    assert read("--backend", "mpi,mpi").backends == ("mpi",)


def test_the_table_of_collectives_is_the_whole_of_perf():
    assert " ".join(COLLECTIVES) == (
        "all_reduce reduce_scatter all_gather broadcast reduce all_to_all all_to_all_v gather scatter "
        "send_recv hypercube neighbor_all_to_all barrier"
    )


def test_contradictions_are_about_flags_and_their_values():
    for row in flags.CONTRADICTIONS:
        fields = [
            name for names in (*row["given"], *row.get("lacks", ())) for name in names.split("|")
        ]
        assert set(fields) <= set(flags.DEFAULTS)
        values = dict.fromkeys(flags.DEFAULTS, 1)
        assert "{" not in row["says"].format_map(values)
