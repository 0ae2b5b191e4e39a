"""A communicator whose calls go over NCCL loses a rank, and is shrunk: NCCL begins anew."""

import threading
from functools import reduce
from operator import and_

import cupy
import numpy as np
import pytest
from nccl_ranks import on_devices

import hpccomm

LOST = 2


class Survivors:
    """Survival of threads: the others are told that one of them is lost, and meet in this process."""

    def __init__(self, backend, gone, meeting, votes):
        self.backend, self.gone, self.meeting, self.votes = backend, gone, meeting, votes
        self.epoch = 0

    def lost(self, seconds=0.0):
        """Return who is said to be lost."""
        return self.gone

    def release(self):
        """Nothing is blocked in a library."""

    def shrunk(self, epoch, attempt):
        """Return the backend of the others."""
        left = [rank for rank in range(self.backend.size) if rank not in self.gone]
        made = self.backend.group(left, 1000 + 10 * epoch + attempt)
        return made, self.gone

    def agreed(self, flags):
        """Return the flags that both have."""
        self.votes.append(flags)
        self.meeting.wait(20)
        return reduce(and_, self.votes[-2:])


@pytest.mark.standin
def test_nccl_begins_anew_without_the_lost_rank(nccl_made):
    meeting, votes = threading.Barrier(2), []
    done = threading.Barrier(3)

    def main(comm):
        x = cupy.full(4, comm.rank + 1, np.float32)
        comm.all_reduce(x, async_op=True).wait(block=True)
        if comm.rank == LOST:
            done.wait(30)
            comm.abort()
            return None
        x = cupy.full(4, comm.rank + 1, np.float32)
        work = comm.all_reduce(x, async_op=True)  # the lost rank is not there
        # Survival is MPI's, which needs processes that are killed; these ranks are threads.
        backend = comm._core.backend
        backend.survival = Survivors(backend, (LOST,), meeting, votes)
        with pytest.raises(hpccomm.CommunicationError) as caught:
            work.wait(block=True)
        left = comm.shrink()
        x = cupy.full(4, comm.rank + 1, np.float32)
        summed = left.all_reduce(x)
        cupy.cuda.get_current_stream().synchronize()
        assert not any("shrunk" in each.name for each in nccl_made()), (
            "what has failed cannot shrink"
        )
        told = left.name, left.backends["cuda"], summed.get().tolist(), left.node_comm.size
        done.wait(30)
        left.finalize()
        return caught.value, told

    first, second, _ = on_devices(3, main)
    for error, told in (first, second):
        assert isinstance(error, hpccomm.PeerLost), error
        assert error.ranks == (LOST,)
        assert told == ("world.e1", "nccl", [3.0] * 4, 2)
