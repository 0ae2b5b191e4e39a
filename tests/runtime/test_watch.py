"""The service thread checks each watched object independently, keeps none alive, and hears while it waits."""

import gc
import os
import threading
import weakref
from collections.abc import Callable

import pytest
from conftest import Mpiexec
from until import until

from hpccomm.runtime import answering
from hpccomm.runtime.service import Service, service


class Watched:
    """Notes that it is looked after, and may fail once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen = threading.Event()
        self._error = error

    def look(self, now: float) -> None:
        """Note it."""
        self.seen.set()
        error, self._error = self._error, None
        if error is not None:
            raise error


def test_what_is_watched_may_go() -> None:
    watched = Watched()
    service.watch(watched.look)
    gone = weakref.ref(watched)
    assert watched.seen.wait(60)
    del watched
    until(lambda: gc.collect() < 0 or gone() is None)  # the watchdog may be at it just now


def test_one_that_fails_keeps_no_other_from_being_looked_after() -> None:
    wrong, others = Watched(ValueError("planted")), [Watched(), Watched()]
    for each in (others[0], wrong, others[1]):
        service.watch(each.look)
    for each in (wrong, *others):
        assert each.seen.wait(60)
        each.seen.clear()
    assert others[1].seen.wait(60)


Wait = Callable[[Service, threading.Lock], object]


def rests(own: Service, held: threading.Lock) -> None:
    while held.locked():
        own.rest(0.01)


def wants_the_lock(own: Service, held: threading.Lock) -> None:
    with own.holding(held):
        pass


def has_another_thread_wait(own: Service, held: threading.Lock) -> None:
    own.aside(lambda: held.acquire() and held.release())


@pytest.mark.parametrize("wait", [rests, wants_the_lock, has_another_thread_wait])
def test_the_thread_hears_while_a_look_waits(wait: Wait) -> None:
    own, held = Service("hpccomm-test"), threading.Lock()
    began, heard, over = threading.Event(), threading.Event(), threading.Event()
    reader, writer = os.pipe()

    class Waits:
        def look(self, now: float) -> None:
            began.set()
            wait(own, held)
            over.set()

    waits = Waits()
    own.hear(reader, lambda: os.read(reader, 1) and heard.set())
    with held:
        own.watch(waits.look)
        assert began.wait(60)
        os.write(writer, b"x")
        assert heard.wait(60)
    assert over.wait(60)
    own.forget(reader)
    os.close(reader)
    os.close(writer)


def test_what_fails_is_heard_no_more_and_others_are(caplog: pytest.LogCaptureFixture) -> None:
    own, heard = Service("hpccomm-test"), threading.Event()
    (bad, writer), (reader, other) = os.pipe(), os.pipe()
    own.hear(bad, lambda: 1 / 0)
    own.hear(reader, lambda: os.read(reader, 1) and heard.set())
    os.write(writer, b"x")  # which stays to be read
    own.turn(60)
    os.write(other, b"x")
    own.turn(60)
    assert heard.is_set()
    assert len(caplog.records) == 1
    for each in (bad, writer, reader, other):
        own.forget(each)
        os.close(each)


THREADS = """
import os, threading
import numpy as np
from mpi4py import MPI

def threads():
    names = [each.name for each in threading.enumerate()]
    return len(names) - 1, len(os.listdir("/proc/self/task"))

MPI.COMM_WORLD.Barrier()
own, before = threads()
assert own == 0

import hpccomm

with hpccomm.new_comm() as comm:
    x = np.ones(1000)
    for timeout in (None, 60):
        comm.all_reduce(x, timeout=timeout)
        comm.all_gather_object(x)
    comm.dup()
    comm.barrier()
    assert threads() == (1, before + 1), (before, threads())
    message = comm.recv(x, 1 - comm.rank, async_op=True)
    assert threads() == (2, before + 2), (before, threads())
    comm.barrier()
    comm.send(x, 1 - comm.rank)
    message.wait()
"""


def test_a_process_has_one_thread_and_a_second_with_asynchronous_calls(mpiexec: Mpiexec) -> None:
    job = mpiexec(2, "-c", THREADS)
    assert job.returncode == 0, job.stderr


def test_what_answers_may_end_together_with_its_class():
    def begin():
        class Answering:
            """Is taken by one garbage collection with its instance, and before its method."""

        Answering.last = Answering()
        Answering.answer = lambda its, question: {"itself": its}
        answering.serve("of a test", Answering.last.answer)

    begin()
    gc.collect()  # pytest fails a test during which an error in a callback is ignored
    assert answering.answer({"service": "of a test"}) == {"unknown": True}
