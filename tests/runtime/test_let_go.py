"""A failed call releases its arrays and objects at once, without the garbage collector."""

import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpccomm import BufferMismatch, HpccommError, ReduceOp
from hpccomm.testing import run_ranks


class Unpicklable:
    def __reduce__(self):
        raise TypeError("it is open")


class Many(list):
    """A list to which there may be weak references."""


class Seen(np.ndarray):
    """Likewise an array."""


def array() -> np.ndarray:
    return np.zeros(10).view(Seen)


def recv(comm, x, **keywords) -> Any:
    if comm.rank == 0:
        comm.send(np.zeros(3), 1)
        raise BufferMismatch("the receiver's")
    return comm.recv(x, 0, **keywords)


def batch(comm, x) -> None:
    with comm.batch():
        if comm.rank == 0:
            comm.send(np.zeros(3), 1)
        else:
            comm.recv(x, 0)
    if comm.rank == 0:
        raise BufferMismatch("the receiver's")


def fails(a, b) -> None:
    raise ArithmeticError


def many() -> list[object]:
    return Many([Unpicklable(), Unpicklable()])


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "broadcast_object": (lambda comm, x: comm.broadcast_object(x), Unpicklable),
    "scatter_object": (lambda comm, x: comm.scatter_object(x), many),
    "gather_object": (lambda comm, x: comm.gather_object(x), Unpicklable),
    "all_gather_object": (lambda comm, x: comm.all_gather_object(x), Unpicklable),
    "send_object": (lambda comm, x: comm.send_object(x, 0), Unpicklable),
    "all_reduce, dtype": (lambda comm, x: comm.all_reduce(x, ReduceOp.BAND), array),
    "all_reduce, layout": (lambda comm, x: comm.all_reduce(x[::2]), array),
    "all_reduce, op": (lambda comm, x: comm.all_reduce(x, fails), array),
    "all_gather_v": (lambda comm, x: comm.all_gather_v(x, out=np.zeros(3)), array),
    "recv": (recv, array),
    "recv, asynchronous": (lambda comm, x: recv(comm, x, async_op=True).wait(), array),
    "batch": (batch, array),
    "plan": (lambda comm, x: comm.plan("all_reduce", x, ReduceOp.BAND), array),
    "window": (lambda comm, x: comm.window(x[::2]), array),
    "split": (lambda comm, x: comm.split(x), Many),
    "split_ranks": (lambda comm, x: comm.split_ranks(x), lambda: Many([5])),
}


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="it counts no references")
def test_a_refused_call_keeps_nothing() -> None:
    kept: list[str] = []

    def refused(comm, call, x) -> weakref.ref[Any]:
        known = weakref.ref(x)
        with pytest.raises(HpccommError):
            call(comm, x)
        return known

    def program(comm) -> None:
        for name, (call, make) in REFUSED.items():
            known = refused(comm, call, make())
            for _ in range(100):  # the watchdog may just look at this thread's frames
                if known() is None:
                    break
                time.sleep(0.01)
            else:
                kept.append(f"{name} on rank {comm.rank}")

    enabled = gc.isenabled()
    gc.disable()
    try:
        run_ranks(2, program)
    finally:
        if enabled:
            gc.enable()
    assert kept == []
