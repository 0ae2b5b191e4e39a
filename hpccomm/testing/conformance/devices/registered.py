"""Cases: registered device memory: arrays of ``empty(device=...)``."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.devices.inputs import (
    filled,
    full,
    gathered,
    holds,
    ranks_sum,
    stream_of,
)
from hpccomm.testing.conformance.inputs import MOVABLE, SHAPES

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

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
def calls(comm: Communicator) -> None:
    """Registered arrays, views of them, and plain ones mix, on each rank in another way."""
    with stream_of(comm):
        whole = comm.empty(3000, np.float32, device=comm.device)
        for turn in range(3):
            x = (whole, whole[500:2000], filled(comm, 3000))[(comm.rank + turn) % 3][:1500]
            x.fill(comm.rank + 1)
            comm.all_reduce(x)
            holds(x, full(ranks_sum(comm), 1500), f"all_reduce, turn {turn}")
            x.fill(comm.rank + 1)
            out = comm.empty((comm.size, 1500), np.float32, device=comm.device)
            comm.all_gather(x, out=out)
            holds(out, gathered(comm, 1500), f"all_gather, turn {turn}")


@REGISTERED.behaviour()
def planned(comm: Communicator) -> None:
    """Plans use that arrays are registered where all ranks' are, in the same place; other plans do not."""
    with stream_of(comm):
        whole, plain = comm.empty(3000, np.float32, device=comm.device), filled(comm, 1000)
        odd = comm.rank % 2
        alike = comm.plan("all_reduce", whole[500:1500])
        mixed = comm.plan("all_reduce", plain if odd else whole[500:1500])
        moved = comm.plan("all_reduce", whole[1500:2500] if odd else whole[500:1500])
        used = alike.choice.registered
        assert not used or comm.explain("all_reduce", whole).registered
        for plan, x in (
            (alike, whole[500:1500]),
            (mixed, plain if odd else whole[500:1500]),
            (moved, whole[1500:2500] if odd else whole[500:1500]),
            (alike, whole[500:1500]),
        ):
            assert plan is alike or not plan.choice.registered, plan
            x.fill(comm.rank + 1)
            plan()
            holds(x, full(ranks_sum(comm), 1000), "a plan")
            comm.all_reduce(whole[:1500] if odd else filled(comm, 1500))  # beside it


@REGISTERED.behaviour()
def explained(comm: Communicator) -> None:
    """`explain` recognises registered arrays and views of them, and plain ones."""
    with stream_of(comm):
        memory, plain = comm.empty(100, np.float32, device=comm.device), filled(comm, 100)
        assert not comm.explain("all_reduce", plain).registered, "plain"
        registered = comm.explain("all_reduce", memory).registered
        assert comm.explain("all_reduce", memory[7:19]).registered == registered, "a view"
        assert not comm.explain("all_reduce", memory, out=plain).registered, "one of two"


@REGISTERED.behaviour()
def arrays_are_apart(comm: Communicator) -> None:
    """Arrays that live at the same time share no byte; they are released in any order."""
    random = np.random.default_rng(comm.rank)
    with stream_of(comm):
        arrays = {}
        for number in range(40):
            x = comm.empty(int(random.integers(1, 5000)), np.int64, device=comm.device)
            x.fill(number)
            arrays[number] = x
            if len(arrays) > 6:
                del arrays[int(random.choice(list(arrays)))]
        for number, x in arrays.items():
            holds(x, np.full(x.shape, number), f"array {number}")
            del x


@REGISTERED.behaviour()
def a_view_keeps_its_array(comm: Communicator) -> None:
    """Memory is given back with the last view of it."""
    with stream_of(comm):
        part = comm.empty(1000, np.int32, device=comm.device)[500:]
        part.fill(comm.rank + 1)
        gc.collect()
        others = [comm.empty(1000, np.int32, device=comm.device) for _ in range(8)]
        for other in others:
            other.fill(-1)
        comm.all_reduce(part)
        holds(part, full(ranks_sum(comm), 500, np.int32), "the view")


@REGISTERED.behaviour()
def arrays_outlive_their_communicator(comm: Communicator) -> None:
    """An array may be used after `finalize`, and in other communicators, and dropped after both."""
    with stream_of(comm):
        other = comm.dup()
        x = other.empty((3, 50), np.float32, device=comm.device)
        x.fill(1)
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
