"""A rank that is late or makes other calls than the others: all raise an error that names it.

One that is lost: ``tests/chaos`` has such jobs; here an error of any kind is raised wherever it happens.
"""

import threading

import numpy as np
import pytest

from hpccomm import CollectiveTimeout, CommunicationError, Communicator, RankMismatch
from hpccomm.gradients import GradientSync, LocalSteps
from hpccomm.testing import run_ranks

OTHER_WAY = {"sync": "ready", "ready": "sync"}
DIFFERENT = (RankMismatch, "the ranks call different things.*rank 2: ")
LATE = (CollectiveTimeout, "rank 2 .*has not called all_")
FAULTS = {
    "late": LATE,
    "late to be made": LATE,
    "late for local steps": LATE,
    "other way": DIFFERENT,
    "a step more": DIFFERENT,
    "a step less": DIFFERENT,
}


def step(sync: GradientSync, way: str) -> None:
    if way == "sync":
        sync.sync()
        return
    for name in reversed(list(sync.gradients)):
        sync.ready(name)
    sync.wait()


@pytest.mark.parametrize("way", OTHER_WAY)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_rank_is_named(fault: str, way: str) -> None:
    failed = threading.Semaphore(0)

    def body(comm: Communicator) -> None:
        model = {f"p{n}": np.zeros(100, np.float32) for n in range(4)}
        sizes = {"first_bucket_bytes": 1, "min_bucket_bytes": 0, "bucket_bytes": 800}
        sync = GradientSync(comm, model, **sizes, timeout=1)
        local = LocalSteps(comm, model, every=1, timeout=1)
        for _ in range(3):
            step(sync, way)
        local.step()
        faulty = comm.rank == 2
        if faulty and fault.startswith("late"):
            assert failed.acquire(timeout=50)
            assert failed.acquire(timeout=50)
        mine = OTHER_WAY[way] if faulty and fault == "other way" else way
        steps = 2 + faulty * {"a step more": 1, "a step less": -1}.get(fault, 0)

        def calls() -> None:
            if fault == "late to be made":
                GradientSync(comm, model, timeout=1)
            if fault == "late for local steps":
                model["p0"] += 1
                local.step()
            for _ in range(steps):
                step(sync, mine)
            comm.barrier(timeout=1)

        kind, says = (CommunicationError, None) if faulty else FAULTS[fault]
        with pytest.raises(kind, match=says) as caught:
            calls()
        assert faulty or caught.value.ranks == (2,)
        assert faulty or fault != "late for local steps" or (model["p0"] == 1).all()
        failed.release()
        comm.abort()

    run_ranks(3, body, timeout=50)
