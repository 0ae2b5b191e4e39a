"""The memory of `GradientSync`: only the buckets, if gradients lie in them."""

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
    return {name: int(found[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem")}

comm = hpccomm.new_comm(timeout=30)
model = {f"p{n}": np.zeros(EACH // 4, np.float32) for n in range(ARRAYS)}
for x in model.values():
    x[:] = 1  # its pages are there
warm = GradientSync(comm, {"warm": np.zeros(4)})
warm.sync()
kept = []  # so that none gets the memory of another
for way, deterministic in WAYS:
    before = resident()
    tracemalloc.start()
    sync = GradientSync(comm, model, deterministic=deterministic)
    kept.append(sync)
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    right = True
    for step in range(3):
        for name in reversed(model):
            sync.gradients[name].fill(comm.rank + step)
            if way == "ready":
                sync.ready(name)
        sync.sync() if way == "sync" else sync.wait()
        mean = step + (comm.size - 1) / 2
        right = right and all(x[0] == x[-1] == mean for x in sync.gradients.values())
    peak = tracemalloc.get_traced_memory()[1] - start
    tracemalloc.stop()
    after = resident()
    grown = {name: after[name] - before[name] for name in before}
    told = comm.all_gather_object({"right": right, "peak": peak, **grown})
    if comm.rank == 0:
        print(json.dumps(told))
comm.finalize()
"""


def test_steps_on_views_of_buckets_take_the_buckets_alone(mpiexec: Mpiexec) -> None:
    done = mpiexec(2, "-c", PROGRAM, *map(json.dumps, (ARRAYS, EACH, WAYS)))
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    buckets = ARRAYS * EACH
    for (way, deterministic), ranks in zip(WAYS, told, strict=True):
        # Open MPI's own asynchronous all-reduce, which small buckets take, keeps copies of the first bucket.
        own = 2 * MIB if deterministic or way == "sync" else 2 * MIB + 3 * EACH
        for rank in ranks:
            assert rank["right"]
            assert rank["peak"] < MIB, (way, deterministic)
            assert rank["Pss_Anon"] < own, (way, deterministic)
        shared = sum(rank["Pss_Shmem"] for rank in ranks)
        assert len(ranks) * buckets * 0.9 < shared < len(ranks) * (buckets + MIB)
