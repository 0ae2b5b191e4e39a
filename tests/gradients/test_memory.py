"""The memory of `GradientSync`, as the kernel and `tracemalloc` count it: only the buckets, if gradients lie in them."""

import json

from conftest import Mpiexec

MIB = 2**20
ARRAYS, EACH = 8, 4 * MIB
WAYS = [("ready", False), ("sync", True), ("sync", False), ("ready", True)]
PROGRAM = """
import json, sys, tracemalloc
from pathlib import Path
import numpy as np
import hpccomm
from hpccomm.gradients import GradientSync

ARRAYS, EACH, WAYS = map(json.loads, sys.argv[1:])

def resident():
    # In bytes. A page that both ranks have mapped counts half for each.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    found = dict(line.split(":") for line in lines)
    return np.array([int(found[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem")])

comm = hpccomm.new_comm(timeout=30)
model = {f"p{n}": np.ones(EACH // 4, np.float32) for n in range(ARRAYS)}  # its pages are there
GradientSync(comm, {"warm": np.zeros(4)}).sync()
kept = []  # so that none gets the memory of another
for way, deterministic in WAYS:
    before = resident()
    tracemalloc.start()
    kept.append(sync := GradientSync(comm, model, deterministic=deterministic))
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    for step in range(3):
        for name in reversed(model):
            sync.gradients[name].fill(comm.rank + step)
            if way == "ready":
                sync.ready(name)
        sync.sync() if way == "sync" else sync.wait()
        for x in sync.gradients.values():
            assert x[0] == x[-1] == step + (comm.size - 1) / 2
    peak = tracemalloc.get_traced_memory()[1] - start
    tracemalloc.stop()
    told = comm.all_gather_object([peak, *(resident() - before).tolist()])
    if comm.rank == 0:
        print(json.dumps(told))
"""


def test_steps_on_views_of_buckets_take_the_buckets_alone(mpiexec: Mpiexec) -> None:
    done = mpiexec(2, "-c", PROGRAM, *map(json.dumps, (ARRAYS, EACH, WAYS)))
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    buckets = ARRAYS * EACH
    for (way, deterministic), ranks in zip(WAYS, told, strict=True):
        # Open MPI's own asynchronous all-reduce, which small buckets take, keeps copies of the first bucket.
        own = 2 * MIB if deterministic or way == "sync" else 2 * MIB + 3 * EACH
        for peak, anonymous, _ in ranks:
            assert peak < MIB, (way, deterministic)
            assert anonymous < own, (way, deterministic)
        shared = sum(each for *_, each in ranks)
        assert len(ranks) * buckets * 0.9 < shared < len(ranks) * (buckets + MIB)
