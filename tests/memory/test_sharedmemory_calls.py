"""What a rank copies in a broadcast on shared memory: the root writes a share from 64 KiB on, as measured."""

import numpy as np
import pytest

from hpccomm.calls.program import compiled
from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.schedule import Tuning, world

F8 = np.dtype(np.float64)
SIZE = 2


@pytest.mark.parametrize(("kilobytes", "share"), [(32, 0), (64, 32), (256, 128)])
def test_the_root_of_a_broadcast_writes_its_share_where_that_is_worth_it(kilobytes, share) -> None:
    count = kilobytes * 1024 // 8
    call = Signature("broadcast", F8, (count,), root=0)
    moved = []
    for rank in range(SIZE):
        group = world(SIZE, np.array([rank]))
        schedule = ALGORITHMS["broadcast"]["shm"].build(group, call, Tuning(512 * 1024 // 8))
        program = compiled(schedule, call.lengths_of(rank))
        wheres = [step.target.where for steps, _ in program.in_memory for step in steps]
        moved.append(sum(len(range(count)[where or slice(None)]) * 8 // 1024 for where in wheres))
    assert moved == [share, kilobytes - share]
