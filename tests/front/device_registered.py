"""Registered device memory: arrays of ``empty(device=...)``."""

import gc

import numpy as np

from front.device_inputs import filled, full, holds, ranks_sum, stream_of
from hpccomm import Communicator
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.oracle import MOVABLE, SHAPES

REGISTERED = Behaviours("devices.registered")


@REGISTERED.behaviour()
def empty(comm: Communicator) -> None:
    """`empty` gives an array of any shape and dtype on the device, which behaves like CuPy's own."""
    with stream_of(comm):
        for dtype in MOVABLE:
            for shape in SHAPES:
                x = comm.empty(shape, dtype, device=comm.device)
                assert isinstance(x, cupy().ndarray), type(x)
                assert (x.shape, x.dtype) == (shape, dtype), f"{x.shape}, {x.dtype}"
                assert x.flags.c_contiguous, "C-contiguous"
                assert x.device.id == comm.device, x.device
        assert comm.empty(3, "f4", device=comm.device).shape == (3,), "one number for a shape"


@REGISTERED.behaviour()
def arrays_outlive_what_they_come_from(comm: Communicator) -> None:
    """Memory is given back with the last view of it, which may be used after `finalize`, in other communicators."""
    with stream_of(comm):
        other = comm.dup()
        x = other.empty((6, 50), np.float32, device=comm.device)[3:]
        x.fill(1)
        gc.collect()
        for each in [other.empty((6, 50), np.float32, device=comm.device) for _ in range(8)]:
            each.fill(-1)
        other.all_reduce(x)
        other.finalize()
        comm.all_reduce(x)
        holds(x, np.full((3, 50), comm.size**2, np.float32), "in another communicator")
        comm.barrier()
        del x, other
        gc.collect()
        y = filled(comm)
        comm.all_reduce(y)
        holds(y, full(ranks_sum(comm)), "afterwards")
