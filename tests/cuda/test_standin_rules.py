"""The stand-in sees code that breaks the rules of CUDA and NCCL, where the real ones would say nothing.

``tests/standin/README.md`` has the rules and their sources. No GPU has shown them.
"""

import ctypes
import threading
from importlib import import_module

import numpy as np
import pytest
from held import Held, in_thread
from raw_ranks import broken, raw, status_of
from until import until

control = pytest.importorskip("standin.control")
cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

calls = import_module("standin.nccl.calls")
heap = import_module("standin.heap")
library = import_module("standin.nccl.library").library
runtime = cupy.cuda.runtime
Event, Stream = cupy.cuda.Event, cupy.cuda.Stream

pytestmark = pytest.mark.standin

SIZE = 3
FLOAT32 = nccl.NCCL_FLOAT32
SUM, AVG = nccl.NCCL_SUM, nccl.NCCL_AVG


@pytest.mark.parametrize("asked", ["eventQuery", "setDevice"])
def test_a_stream_has_room_for_so_much_and_whoever_puts_more_on_it_waits(asked, monkeypatch):
    """A launch, a record and a copy wait for it (PyTorch pull requests 97066, 122732).

    CuPy's eventQuery and setDevice hold the interpreter's lock (CuPy 14.2, runtime.pyx:1077, 417: no nogil),
    and may wait in the driver for a lock of the thread that waits there.
    """
    monkeypatch.setenv("STANDIN_QUEUE", "3")
    with cupy.cuda.Device(1):
        held, event = Held(Stream(non_blocking=True)), Event(disable_timing=True)
        there = import_module("standin.streams").find(held.stream.ptr)
        thread = threading.Thread(target=lambda: [event.record(held.stream) for _ in range(5)])
        thread.start()
        until(lambda: there.crowd)
        threading.Thread(target=lambda: until(lambda: control.violations) or held.let_go()).start()
        in_thread(lambda: getattr(runtime, asked)(event.ptr if asked == "eventQuery" else 1))
        thread.join()
    broken("holds the interpreter's lock")


def test_memory_let_go_of_while_another_stream_uses_it_is_seen():
    held = Held(Stream(non_blocking=True))
    read, written, y = cupy.ones(4), cupy.ones(77), cupy.zeros(4)
    Stream.null.synchronize()
    with held.stream:
        cupy.add(read, 0, out=y)
        written.fill(5)
    del read, written
    Stream.null.synchronize()
    held.let_go()
    held.stream.synchronize()
    assert (y.view(np.uint8).get() == heap.POISON).all()
    cupy.empty(77).get()
    broken("written after it was freed")


# NCCL: calls.


def summed(c, x, stream):
    """Return the status of a sum of one element of float32 in place."""
    return status_of(c.allReduce, x, x, 1, FLOAT32, SUM, stream.ptr)


@raw(breaks="overlaps", times=3 * SIZE)
def test_memory_of_one_group_overlaps_nowhere(rank, c, stream):
    x = cupy.ones(2 * SIZE, np.float32)
    at = x.data.ptr
    for send, recv, count in [(at, at + 4, 1), (at, at, 1), (at, at + 4, 2)]:
        nccl.groupStart()
        c.send(send, count, FLOAT32, (rank + 1) % SIZE, stream.ptr)
        c.recv(recv, count, FLOAT32, (rank - 1) % SIZE, stream.ptr)
        nccl.groupEnd()
    c.allReduce(at, at + 4, 2, FLOAT32, SUM, stream.ptr)
    stream.synchronize()


@raw(1)
def test_one_thread_at_a_time_uses_a_communicator_which_ends_once(rank, c, stream):
    x, handle = cupy.ones(1, np.float32).data.ptr, c.comm
    with calls.find(handle).using:  # as another thread inside a call has it
        assert summed(c, x, stream) == 5
    broken("two threads")
    for _ in range(2):
        c.destroy()
    assert summed(c, x, stream) == 4
    assert control.violations == []
    for end, *what in ((calls.destroy,), (calls.told, "error")):  # through the raw pointer
        assert end(handle, *what) in (4, (4, 0))
        broken("had ended")


@raw(1)
def test_one_rank_copies_on_the_current_device_and_has_no_factor_of_float8(rank, c, stream):
    x, y = cupy.asarray(np.arange(4, dtype=np.float32)), cupy.zeros(4, np.float32)
    given = x.data.ptr, y.data.ptr, 4
    for datatype in (10, 11):
        told = [status_of(c.allReduce, *given, datatype, op, stream.ptr) for op in (SUM, AVG)]
        assert told == [0, 4]
    assert not control.violations
    with cupy.cuda.Device(1):
        c.allReduce(*given, FLOAT32, SUM, 0)
    broken("NCCL copies on the current device, 1, and not on its")


# NCCL: memory.


def allocated(nbytes):
    """Return memory of ncclMemAlloc."""
    pointer = ctypes.c_void_p()
    assert library.ncclMemAlloc(ctypes.byref(pointer), nbytes) == 0
    return pointer


@raw(1)
def test_memory_of_nccl_is_freed_once_when_it_is_registered_no_more(rank, c, stream):
    pointer, handle = allocated(4), ctypes.c_void_p()
    library.ncclCommRegister(c.comm, pointer, 4, ctypes.byref(handle))
    for status, words in ((0, "memory that is registered"), (4, "ncclMemAlloc has not given")):
        assert library.ncclMemFree(pointer) == status
        broken(words)
    assert library.ncclCommDeregister(c.comm, handle) == 0
    assert library.ncclCommDeregister(c.comm, handle) == 4
    broken("what is not registered")


@raw(2, breaks="registered on some ranks", times=3)
def test_registered_memory_is_for_all_ranks_of_a_call_at_one_offset(rank, c, stream):
    pointer, handle = allocated(4 * SIZE), ctypes.c_void_p()
    for registered in ((0, 1), (1,), (0,)):
        if rank in registered:
            library.ncclCommRegister(c.comm, pointer, 4 * SIZE, ctypes.byref(handle))
        summed(c, pointer.value, stream)
        if registered == (0, 1):
            summed(c, pointer.value + 4 * rank, stream)
        stream.synchronize()
        if rank in registered:
            assert library.ncclCommDeregister(c.comm, handle) == 0
