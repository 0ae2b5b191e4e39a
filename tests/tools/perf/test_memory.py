"""`hpccomm perf memory`: the measured cores and memory, the count of bytes, and found errors."""

import itertools
import mmap
import os
import re

import numpy as np
import planted_sysfs
import pytest
from damage import called

from hpccomm.results import reader
from hpccomm.tools.perf import links

SMALL = ("perf", "memory", "-b", "1M", "-n", "2")

COUNTED = {"memory_copy": 2, "memory_add": 3, "memory_update": 2}
"""How often Copy and Add count the bytes of an array: ``bytes[4]`` in stream.c 5.10. An update reads and writes it."""

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(links, "_LONG", 1e-4)


def test_bytes_are_counted_as_stream_does_and_the_run_is_stored_and_shown(tmp_path):
    path = tmp_path / "memory.h5"
    status, out, err = called(*SMALL, "--output", str(path))
    assert status == 0, err
    (run,) = reader.read(path)
    cores = len(links.numa_nodes(os.sched_getaffinity(0))[0])
    assert run.rows[0].algorithm == "1 core"
    assert f"{cores} core{'s' * (cores > 1)}" in {row.algorithm for row in run.rows}
    for row in run.rows:
        assert 0.9 * 2**20 < row.bytes <= 2**20
        assert row.busbw == pytest.approx(COUNTED[row.collective] * row.bytes / row.time / 1e3)
        assert row.wrong == 0
    status, shown, _ = called("show", str(path))
    assert status == 0
    assert out[out.index("# what") :] in shown
    for words in (("show", "--expect", "nvlink4"), ("export", "--format", "csv")):
        done = called(words[0], str(path), *words[1:])
        assert done[0] == (2 if words[0] == "show" else 0), done


def test_the_limit_of_an_all_reduce_stands_beside_its_busbw(tmp_path):
    """All n arrays of S bytes are read and written: t >= 2 n S / B, and busbw is 2 (n-1)/n S / t (nccl-tests)."""
    path = tmp_path / "memory.h5"
    _, out, _ = called(*SMALL, "--output", str(path))
    (run,) = reader.read(path)
    best = max(row.busbw for row in run.rows if COUNTED[row.collective] == 2)
    limits = re.findall(r"(\d+) ranks ([\d.]+)", out[out.index("(n-1)/n^2") :])
    assert [int(ranks) for ranks, _ in limits][:3] == [2, 4, 8]
    for ranks, limit in limits:
        n, size = int(ranks), 1e6
        seconds = 2 * n * size / (best * 1e9)
        assert float(limit) == pytest.approx(2 * (n - 1) / n * size / seconds / 1e9, rel=0.01)


def test_arrays_are_four_times_the_caches(monkeypatch, tmp_path):
    """STREAM's rule: "Each array must be at least 4 times the size of the available cache memory" (stream.c)."""
    with monkeypatch.context() as patch:
        patch.setattr(links, "caches", lambda cores: 1 << 20)
        patch.setattr(links, "_LEAST", 0)
        _, out, _ = called("perf", "memory", "-n", "1")
    assert re.search(r"1 core +4194304 ", out)
    cache = "/sys/devices/system/cpu/cpu{}/cache/index{}/{}"
    facts = ("level", "type", "size", "shared_cpu_list")
    own = [
        ("1", "Data", "32K", "{}"),
        ("1", "Instruction", "32K", "{}"),
        ("2", "Unified", "1024K", "{}"),
    ]
    files = {}
    for cpu in range(4):
        pair = "0-1" if cpu < 2 else "2-3"
        for index, each in enumerate([*own, ("3", "Unified", "16384K", pair)]):
            for name, text in zip(facts, each, strict=True):
                files[cache.format(cpu, index, name)] = text.format(cpu)
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


@two_cores
def test_threads_are_bound_and_the_memory_is_where_the_line_says(monkeypatch):
    """Linux gives a page a place in the node of the core that first writes to it (numa_memory_policy.rst)."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(links, "numa_nodes", lambda allowed: {0: [first], 1: [second]})
    copied, made = [], []

    def copy(a, _, c):
        copied.append(os.sched_getaffinity(0))
        np.copyto(c, a)

    def new_pages(*arguments, real=mmap.mmap):
        made.append(os.sched_getaffinity(0))
        return real(*arguments)

    monkeypatch.setattr(links, "KERNELS", {"memory_copy": (copy, lambda a, *_: a)})
    monkeypatch.setattr(links.mmap, "mmap", new_pages)
    status, out, err = called(*SMALL)
    assert status == 0, err
    where = re.findall(r"  memory_copy +(.*?)  ", out)
    assert where == ["1 core", "2 cores"] + [
        f"cores of node {one}, memory of node {other}" for one in (0, 1) for other in (0, 1)
    ]
    assert made[3:] == [{first}, {second}, {first}, {second}]
    assert all(cores in ({first}, {second}) for cores in copied)
    turns = [
        cores for cores, after in zip(copied, [*copied[1:], None], strict=True) if cores != after
    ]
    assert turns[-2:] == [{first}, {second}]  # the cores of node 0 came before those of node 1


@pytest.mark.parametrize("what", COUNTED)
def test_what_was_not_done_is_wrong(monkeypatch, what):
    kernel, expected = links.KERNELS[what]

    def first_half(*arrays):
        kernel(*(each[: len(each) // 2] for each in arrays))

    monkeypatch.setitem(links.KERNELS, what, (first_half, expected))
    status, out, _ = called(*SMALL)
    assert status == 1
    lines = [line.split() for line in out.splitlines() if line[0] != "#"]
    for name, *_, size, _, _, wrong in lines:
        assert int(wrong) == (int(size) // 16 if name == what else 0), name


def test_what_a_core_raises_is_raised_at_once(monkeypatch):
    def refused(*_):
        raise ValueError("a broken kernel")

    monkeypatch.setitem(links.KERNELS, "memory_copy", (refused, None))
    monkeypatch.setattr(links, "_DEADLINE", 1e9)
    with pytest.raises(ValueError, match="a broken kernel"):
        called(*SMALL)


@two_cores
def test_the_process_may_use_the_same_cores_afterwards():
    before = os.sched_getaffinity(0)

    def repeat(times):
        os.sched_setaffinity(0, {min(before)})
        return np.ones(times), 0

    rate = links.Rate("memory_copy", "1 core", 8, repeat)
    links.run(lambda comm: ([rate], {}), min, 2, None, lambda text: None)
    assert os.sched_getaffinity(0) == before


class Beside:
    """A communicator with another rank on the node, which always begins 1 earlier and ends 2 later."""

    node, rank = 0, 0

    def barrier(self):
        pass

    def all_gather_object(self, mine):
        if isinstance(mine, float):
            return [mine]
        node, begun, ended = mine
        return [mine, (node, begun - 1, ended + 2), (node + 1, begun - 100, ended + 100)]


def test_a_repetition_is_as_long_as_it_takes_all_of_the_node_and_counts_once_for_each_pass(
    monkeypatch,
):
    """On a clock that goes on by 1 each time somebody looks at it."""
    monkeypatch.setattr(links, "_LONG", 30.0)
    for cores, passes in ((1, 30), (2, 10)):
        monkeypatch.setattr(links, "perf_counter", itertools.count().__next__)
        own = sorted(os.sched_getaffinity(0))[:1] * cores
        seconds, wrong = links._repeat_kernel(Beside(), "memory_update", own, own, 4096, 3)
        assert wrong == 0
        assert seconds.tolist() == [(2 * cores - 1 + 3) / passes] * 3


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
