"""Nothing that interrupts a call, of any form, leaves it behind."""

import gc
import inspect
import random
import re
import signal
import sys
from contextlib import suppress

import numpy as np
import pytest

import hpccomm


class Stopped(BaseException):
    """As Ctrl-C's KeyboardInterrupt."""


FORMS = {
    "barrier": lambda comm, x: comm.barrier,
    "array": lambda comm, x: lambda: comm.all_reduce(x),
    "asynchronous": lambda comm, x: lambda: comm.all_reduce(x, async_op=True).wait(),
    "plan": lambda comm, x: comm.plan("all_reduce", x),
    "number": lambda comm, x: lambda: comm.all_reduce(1.0),
    "object": lambda comm, x: lambda: comm.broadcast_object("x"),
    "wait in vain": lambda comm, x: comm.recv(x, 0, async_op=True).wait,
    "message": lambda comm, x: lambda: comm.send_recv(x, 0, x.copy(), 0),
    "split": lambda comm, x: lambda: comm.split(0),
}


@pytest.mark.parametrize("form", [each for each in FORMS if each != "split"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a destructor
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_signal_raises_at_any_moment_leaves_neither_turn_nor_call_behind(form: str):
    calling = False

    def handle(*_):
        nonlocal calling
        if calling:
            calling = False
            raise Stopped

    def made():
        comm = hpccomm.new_comm(backend="loopback")
        return comm, FORMS[form](comm, np.ones(3))

    before, rolled = signal.signal(signal.SIGALRM, handle), random.Random(1)
    comm, call = made()
    try:
        for _ in range(500 if form == "barrier" else 100):
            calling = True
            with suppress(Stopped):
                signal.setitimer(signal.ITIMER_REAL, rolled.uniform(2e-5, 2e-4))
                while calling:
                    call()
            # As other ranks would be told; the receive is still under way.
            assert form == "wait in vain" or comm._core.calls.waiting() is None
            try:
                comm.barrier()
            except hpccomm.CommunicatorAborted:
                comm, call = made()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        del comm, call
        gc.collect()  # what is warned of in a destructor is of this test


def at_the_limit(call, room: int) -> None:
    """Make a call where recursion has so many levels left."""

    def deeper(levels: int) -> None:
        deeper(levels - 1) if levels else call()

    with suppress(RecursionError):
        deeper(sys.getrecursionlimit() - len(inspect.stack(0)) - 2 - room)


@pytest.mark.parametrize("form", ["array", "asynchronous", "number", "object", "plan", "split"])
def test_no_room_for_a_call_leaves_right_numbers_or_an_error(form: str) -> None:
    """A lone rank's sum is its own array."""
    said = set()
    for room in range(1, 60):
        with hpccomm.new_comm("loopback") as comm:
            call = FORMS[form](comm, np.ones(2))
            call()
            at_the_limit(call, room)
            try:
                said.add(comm.all_reduce(1, async_op=True).wait())
            except hpccomm.HpccommError as error:
                said.add(
                    re.search("RecursionError|was left by an exception", str(error)) and "an error"
                )
    assert said == {1, "an error"}
