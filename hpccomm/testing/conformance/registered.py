"""Cases: registered memory: arrays of `Communicator.empty`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.testing.conformance.algorithms import cut, in_memory
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.inputs import MOVABLE, SHAPES

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

REGISTERED = Behaviours("registered")


@REGISTERED.behaviour()
def empty(comm: Communicator) -> None:
    """`empty` gives an array of any shape and dtype, which behaves like NumPy's own."""
    for dtype in MOVABLE:
        for shape in SHAPES:
            x = comm.empty(shape, dtype)
            assert isinstance(x, np.ndarray), type(x)
            assert (x.shape, x.dtype) == (shape, dtype), f"{x.shape}, {x.dtype}"
            assert x.flags.c_contiguous, "C-contiguous"
            assert x.flags.writeable, "writeable"
            assert x.flags.aligned, "aligned"
    assert comm.empty(3, "f4").shape == (3,), "one number for a shape, and any name of a dtype"


@REGISTERED.behaviour()
def arrays_are_apart(comm: Communicator) -> None:
    """Arrays that live at the same time share no byte; released memory is reused.

    On each rank in another order.
    """
    random = np.random.default_rng(comm.rank)
    arrays: dict[int, Array] = {}
    for number in range(200):
        x = comm.empty(int(random.integers(1, 50_000)), np.int64)
        x.fill(number)
        arrays[number] = x
        if len(arrays) > 10:
            del arrays[int(random.choice(list(arrays)))]
    for number, x in arrays.items():
        assert (x == number).all(), f"array {number} was written to"
        del x
    some = comm.empty(64, np.int64)
    some.fill(comm.rank)
    comm.all_reduce(some, algorithm=in_memory(comm))
    equal(some, np.full(64, sum(range(comm.size))), "in one of them")


@REGISTERED.behaviour()
def a_view_keeps_its_array(comm: Communicator) -> None:
    """Memory is given back with the last view of it."""
    part = comm.empty(1000, np.int32)[500:]
    part.fill(comm.rank)
    gc.collect()
    others = [comm.empty(1000, np.int32) for _ in range(8)]
    for other in others:
        other.fill(-1)
    equal(part, np.full(500, comm.rank, np.int32), "before")
    comm.all_reduce(part, algorithm=in_memory(comm))
    equal(part, np.full(500, sum(range(comm.size)), np.int32), "after")


@REGISTERED.behaviour()
def arrays_outlive_their_communicator(comm: Communicator) -> None:
    """An array may be used after `finalize`, in other communicators too."""
    other = another(comm)
    x = other.empty((3, 50), np.float32)
    x.fill(1)
    other.finalize()
    equal(x, np.ones((3, 50), np.float32), "after finalize")
    comm.all_reduce(x, algorithm=in_memory(comm))
    equal(x, np.full((3, 50), comm.size, np.float32), "in another communicator")


@REGISTERED.behaviour()
def explained(comm: Communicator) -> None:
    """`explain` knows registered arrays and views of them, and says how plain ones are reached."""
    memory, plain = comm.empty(100, np.float32), np.zeros(100, np.float32)
    assert not comm.explain("all_reduce", plain).registered, "a plain array"
    registered = comm.explain("all_reduce", memory).registered
    assert comm.explain("all_reduce", memory[7:19]).registered == registered, "a view"
    both = comm.explain("all_reduce", memory, out=plain)
    assert not both.registered, "one of two"
    assert not comm.explain("barrier").registered, "no array"
    if in_memory(comm) is not None:
        reasons = {}
        for reached in ("auto", "staging"):
            with cut(comm, None, reached) as chosen:
                reasons[reached] = chosen.explain("all_reduce", plain, algorithm="shm").reason
        assert reasons["auto"] != reasons["staging"], reasons
