"""`hpccomm perf memory`: the measured cores and memory, the count of bytes, and found errors."""

import mmap
import os
import re
import time
from functools import partial
from itertools import pairwise

import numpy as np
import planted_sysfs
import pytest
from damage import called, output

from hpccomm.results import reader
from hpccomm.testing import run_ranks
from hpccomm.tools.perf import links

SMALL = ("perf", "memory", "-b", "1M", "-n", "2")

COUNTED = {"memory_copy": 2, "memory_add": 3, "memory_update": 2}
"""How often Copy and Add count the bytes of an array: ``bytes[4]`` in stream.c 5.10. An update reads and writes it."""


def test_bytes_are_counted_as_stream_does_and_the_run_is_stored_and_shown(tmp_path):
    """The limit of an all-reduce: all n arrays of S bytes are read and written, so t >= 2 n S / B.

    Its busbw is 2 (n-1)/n S / t (nccl-tests).
    """
    path, before = tmp_path / "memory.h5", os.sched_getaffinity(0)
    out = output(*SMALL, "--output", path)
    assert os.sched_getaffinity(0) == before
    (run,) = reader.read(path)
    cores = len(links.numa_nodes(before)[0])
    assert run.rows[0].algorithm == "1 core"
    assert f"{cores} core{'s' * (cores > 1)}" in {row.algorithm for row in run.rows}
    for row in run.rows:
        assert 0.9 * 2**20 < row.bytes <= 2**20
        assert row.busbw == pytest.approx(COUNTED[row.collective] * row.bytes / row.time / 1e3)
        assert row.wrong == 0
    best = max(row.busbw for row in run.rows if COUNTED[row.collective] == 2)
    limits = re.findall(r"(\d+) ranks ([\d.]+)", out[out.index("(n-1)/n^2") :])
    assert [int(ranks) for ranks, _ in limits][:3] == [2, 4, 8]
    for n, limit in ((int(ranks), float(limit)) for ranks, limit in limits):
        seconds_a_byte = 2 * n / (best * 1e9)
        assert limit == pytest.approx(2 * (n - 1) / n / seconds_a_byte / 1e9, rel=0.01)
    assert out[out.index("# what") :] in output("show", path)
    output("show", path, "--expect", "nvlink4", status=2)
    output("export", path, "--format", "csv")


def test_arrays_are_four_times_the_caches(tmp_path):
    """STREAM's rule: "Each array must be at least 4 times the size of the available cache memory" (stream.c)."""
    ((rates, _),) = run_ranks(1, links.memory_rates, None)
    first = sorted(links.numa_nodes(os.sched_getaffinity(0))[0])[:1]
    assert rates[0].nbytes == max(4 * links.caches(first), 8 << 20)
    cache = "/sys/devices/system/cpu/cpu{}/cache/index{}/{}"
    facts = ("level", "type", "size", "shared_cpu_list")
    four = ["1 Data 32K {}", "1 Instruction 32K {}", "2 Unified 1024K {}", "3 Unified 16384K {}"]
    files = {
        cache.format(cpu, index, name): text.format(cpu if index < 3 else ("0-1", "2-3")[cpu // 2])
        for cpu in range(4)
        for index, each in enumerate(four)
        for name, text in zip(facts, each.split(), strict=True)
    }
    root = planted_sysfs.plant(tmp_path, files)
    private, shared = (32 + 32 + 1024) << 10, 16 << 20
    assert links.caches([0], root) == private + shared
    assert links.caches([0, 1], root) == 2 * private + shared
    assert links.caches([0, 1, 2, 3], root) == 4 * private + 2 * shared
    assert links.caches([9], root) == 0
    # cache_default_attrs_is_visible in Linux' drivers/base/cacheinfo.c: a size of 0 is hidden, as on many Arm machines.
    (root / "sys/devices/system/cpu/cpu0/cache/index2/size").unlink()
    assert links.caches([0], root) == private + shared - (1024 << 10)


def test_a_core_with_two_threads_is_one_and_only_cpus_that_may_be_used_count(tmp_path):
    planted_sysfs.cpus(tmp_path, ["0-3,8-11", "4-7,12-15"], sockets=2, threads=2)
    assert links.numa_nodes(set(range(16)), tmp_path) == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
    assert links.numa_nodes({2, 10, 11}, tmp_path) == {0: [2, 11]}
    assert links.numa_nodes({5}, tmp_path) == {1: [5]}
    assert links.numa_nodes({3, 1}, tmp_path / "nothing") == {0: [1, 3]}


def measured(capsys, kernels, nodes=None):
    """Measure small arrays; return the status and the words of each line that is no comment."""
    plan = partial(links.memory_rates, nbytes=1 << 20, kernels=kernels, nodes=nodes)
    status = links.run(plan, min, 2, None, print)
    lines = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    return status, [line for line in lines if line[0] in kernels]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_threads_are_bound_and_the_memory_is_where_the_line_says(capsys, monkeypatch):
    """Linux gives a page a place in the node of the core that first writes to it (numa_memory_policy.rst)."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    copied, made = [], []

    def new_pages(*arguments, real=mmap.mmap):
        made.append(os.sched_getaffinity(0))
        return real(*arguments)

    # With one NUMA node, nothing else shows which core makes the pages.
    monkeypatch.setattr(mmap, "mmap", new_pages)

    def copy(a, _, c):
        copied.append(os.sched_getaffinity(0))
        np.copyto(c, a)

    kernels = {"memory_copy": (copy, lambda a, *_: a)}
    status, lines = measured(capsys, kernels, nodes={0: [first], 1: [second]})
    pairs = [f"cores of node {one}, memory of node {other}" for one in (0, 1) for other in (0, 1)]
    assert status == 0
    assert [where for _, where, *_ in lines] == ["1 core", "2 cores", *pairs]
    assert made[3:] == [{first}, {second}, {first}, {second}]
    assert all(cores in ({first}, {second}) for cores in copied)
    turns = [cores for cores, after in pairwise([*copied, None]) if cores != after]
    assert turns[-2:] == [{first}, {second}]  # the cores of node 0 came before those of node 1


@pytest.mark.parametrize("what", COUNTED)
def test_what_was_not_done_is_wrong(capsys, what):
    operate, expected = links.KERNELS[what]

    def first_half(*arrays):
        operate(*(each[: len(each) // 2] for each in arrays))

    status, lines = measured(capsys, {**links.KERNELS, what: (first_half, expected)})
    assert status == 1
    for name, _, size, *_, wrong in lines:
        assert int(wrong) == (int(size) // 16 if name == what else 0), name


def test_what_a_core_raises_is_raised_at_once(capsys):
    def refused(*_):
        raise ValueError("a broken kernel")

    begun = time.monotonic()
    with pytest.raises(ValueError, match="a broken kernel"):
        measured(capsys, {"memory_copy": (refused, None)})
    assert time.monotonic() - begun < 30  # and not after the minute that cores wait for each other


def test_a_repetition_is_as_long_as_it_takes_all_of_the_node_and_counts_once_for_each_pass():
    def on_rank(comm):
        seconds = 2e-3 if comm.rank == 0 else 40e-3
        kernels = {"memory_copy": (lambda *_: time.sleep(seconds), lambda *_: -1.0)}
        rates, _ = links.memory_rates(comm, 1 << 16, kernels)
        return rates[0].repeat(3)

    (own, wrong), (other, _) = run_ranks(2, on_rank, ranks_per_node=1)
    assert wrong == 0
    assert 2e-3 <= own.min() < 40e-3 <= other.min() < 80e-3  # two passes of 40 ms
    together = run_ranks(2, on_rank)
    np.testing.assert_array_equal(together[0][0], together[1][0])
    assert together[0][0].min() >= 40e-3


def test_arrays_that_do_not_fit_are_refused_with_what_would():
    status, _, err = called("perf", "memory", "-b", "8000G")
    assert status == 2
    size = int(re.search(r"give -b (\d+) or less", err)[1])
    assert 0 < 3 * size <= links.available() * 1.1


def test_ranks_share_out_the_cores_and_measure_at_the_same_time(shared_job, tmp_path):
    path = tmp_path / "memory.h5"
    done = shared_job(2, "-m", "hpccomm", *SMALL, "--output", path)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = reader.read(path)
    assert run.rows[0].algorithm == "2 ranks of 1 core"
    assert run.rows[0].bytes == 2 << 20
    samples = run.samples(0)
    assert samples.shape == (2, 2)
    # From the first that begins to the last that ends, on the clock of the node.
    np.testing.assert_array_equal(samples[:, 0], samples[:, 1])
