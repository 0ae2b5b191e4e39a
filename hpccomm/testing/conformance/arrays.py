"""Cases: arrays at odd addresses, or within others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

ARRAYS = Behaviours("arrays")


@ARRAYS.behaviour()
def views_that_are_contiguous(comm: Communicator) -> None:
    """A contiguous piece of a larger array is written within its bounds."""
    base = np.full((4, 5), comm.rank, np.int32)
    comm.all_reduce(base[1:3])
    total = sum(range(comm.size))
    equal(base[1:3], np.full((2, 5), total, np.int32), "inside")
    equal(base[::3].copy(), np.full((2, 5), comm.rank, np.int32), "outside")
    comm.broadcast(base[3, 1:4], 0)
    equal(base[3], np.array([comm.rank, 0, 0, 0, comm.rank], np.int32), "part of a row")


@ARRAYS.behaviour()
def alignment_does_not_matter(comm: Communicator) -> None:
    """An array that starts at an odd address works, on some ranks or on all."""
    for odd in (True, comm.rank % 2 == 0):
        memory = bytearray(8 * 5 + 1)
        x = np.frombuffer(memory, np.float64, 5, offset=int(odd))
        x[:] = comm.rank
        comm.all_reduce(x)
        equal(x, np.full(5, float(sum(range(comm.size)))), "all_reduce")
        equal(comm.all_gather(x), np.full((comm.size, 5), x[0]), "all_gather")
