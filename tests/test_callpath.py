"""The generated functions of the path of a call behave like hand-written ones."""

import linecache
import random
import signal
from contextlib import suppress

import numpy as np
import pytest

import hpccomm


def test_a_traceback_shows_the_generated_line_and_the_record_the_programs():
    with hpccomm.new_comm(backend="loopback") as comm:
        comm.register_pre_hook(lambda info: 1 / 0)
        with pytest.raises(ZeroDivisionError) as raised:
            comm.all_reduce(np.ones(3))
    entry = next(each for each in raised.traceback if "callpath.py: polled" in str(each.path))
    file, line = entry.frame.code.raw.co_filename, entry.lineno + 1
    assert linecache.getline(file, line).strip().startswith("calls.failed(")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3)])
def test_arrays_of_any_shape_take_the_short_way(shape):
    x, out = np.full(shape, 2.0), np.empty(shape)
    with hpccomm.new_comm(backend="loopback") as comm:
        for _ in range(3):
            assert comm.all_reduce(x, out=out) is out
            np.testing.assert_array_equal(out, x)
            assert comm.all_reduce(x, out=x) is x
            comm.send_recv(x, 0, out, 0)
            np.testing.assert_array_equal(out, x)


class Stopped(BaseException):
    """As Ctrl-C's KeyboardInterrupt."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a destructor
def test_what_a_signal_raises_at_any_moment_leaves_neither_turn_nor_call_behind():
    calling = False

    def handle(*_):
        nonlocal calling
        if calling:
            calling = False
            raise Stopped

    before, rolled = signal.signal(signal.SIGALRM, handle), random.Random(1)
    comm = hpccomm.new_comm(backend="loopback")
    try:
        for _ in range(500):
            calling = True
            with suppress(Stopped):
                signal.setitimer(signal.ITIMER_REAL, rolled.uniform(2e-5, 2e-4))
                while calling:
                    comm.barrier()
            assert comm._core.calls.waiting() is None
            try:
                comm.barrier()
            except hpccomm.CommunicatorAborted:
                comm = hpccomm.new_comm(backend="loopback")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
