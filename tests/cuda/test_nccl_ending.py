"""The end of NCCL's communicators and memory: aborted, closed, shrunk, forked, forgotten."""

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pytest
from held import Held, in_thread
from nccl_ranks import bare, on_ranks, sound

from hpccomm.backends.nccl import libnccl
from hpccomm.contracts.signature import Signature
from hpccomm.errors import CommunicationError, PeerLost, UsageError
from hpccomm.memory.cuda import memory
from hpccomm.reductions import ReduceOp

nccl = pytest.importorskip("cupy.cuda.nccl")

runtime = cupy.cuda.runtime
FLOAT32 = np.dtype(np.float32)
COUNT = 1000
SUM = Signature("all_reduce", FLOAT32, (COUNT,), op=ReduceOp.SUM, in_place=True)


def summed(backend, value=1):
    """Sum an array over the ranks and return its first element."""
    x, stream = cupy.full(COUNT, value, np.float32), cupy.cuda.get_current_stream()
    backend.native(SUM, "native").launch(x.data.ptr, x.data.ptr, stream.ptr)
    return float(x.get()[0])


@bare(2)
def test_trap_abort_by_another_thread_releases_a_stream_that_waits_for_a_peer(rank):
    backend, x = rank.opened(), cupy.ones(COUNT, np.float32)
    summed(backend)
    rank.control.all_gather(b"")
    if rank.rank == 0:  # rank 1 never makes the second call
        stream = cupy.cuda.Stream(non_blocking=True)
        launch = backend.native(SUM, "native").launch
        launch(x.data.ptr, x.data.ptr, stream.ptr)
        time.sleep(0.05)  # nothing comes, however long
        assert not stream.done
        in_thread(backend.abort)
        stream.synchronize()
        backend.abort()  # idempotent
        backend.check()  # and looks at nothing that is gone
        with pytest.raises(nccl.NcclError) as told:
            launch(x.data.ptr, x.data.ptr, stream.ptr)
        assert isinstance(backend.translate(told.value), CommunicationError)
        backend.close()
    rank.control.all_gather(b"")
    backend.abort()


@pytest.mark.standin
@bare(1)
def test_an_error_that_nccl_notices_by_itself_is_told_from_any_thread(rank):
    from standin.nccl import calls

    backend = rank.opened()
    backend.check()
    made = calls.find(backend._communicators.native.comm)
    made.notice(6)
    with ThreadPoolExecutor(1) as threads:
        assert isinstance(threads.submit(backend.check).exception(), PeerLost)
    backend.abort()
    assert not made.revoked, "no thread was inside, and an abort waits for the device"


@pytest.mark.standin
def test_trap_no_destructor_destroys_a_communicator():
    """It would block until the other ranks came, whenever the garbage collector came by."""
    from standin.nccl import calls

    before = {*calls.all_communicators()}
    sound(on_ranks(2, lambda rank: bool(rank.opened())))
    gc.collect()
    assert len({*calls.all_communicators()} - before) == 2
    for device in range(2):
        memory.release(device, memory.NCCL)


@bare(1)
def test_trap_after_a_fork_nothing_of_nccl_is_touched(rank, monkeypatch):
    backend = rank.opened()
    communicator, parent = backend._communicators.native, os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: parent + 1)
        backend._communicators.abort()
        backend._communicators.destroy()
        backend.check()
    assert communicator.comm
    backend.close()
    assert communicator.comm == 0


def registered(backend, algorithm="native"):
    """Return how many buffers are registered with a communicator of the stand-in."""
    from standin.nccl import calls

    return len(calls.find(backend._communicators.made[algorithm].comm).registered)


@pytest.mark.standin
@bare(2)
def test_memory_is_registered_on_all_ranks_or_on_none(rank, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL_REGISTER", "1")
    backend = rank.opened()
    memory = backend.empty(4 * COUNT)
    pointer = memory.pointer
    assert backend.place(pointer, 4 * COUNT) == (0, 0, 4 * COUNT)
    assert backend.place(pointer + 400, 40) == (0, 400, 4 * COUNT)  # views count
    assert backend.place(pointer, 4 * COUNT + 1) is None
    assert not backend.register([pointer])
    assert registered(backend, "registered") == 0
    rank.control.all_gather(b"")
    monkeypatch.delenv("STANDIN_FAIL_REGISTER", raising=False)
    rank.control.all_gather(b"")
    for _ in range(2):  # once
        assert backend.register([pointer])
    assert backend.place(pointer, 4) == (1, 0, 4 * COUNT)
    assert registered(backend, "registered") == 1
    assert registered(backend) == 0, "what carries other calls knows no memory"
    # Released, and freed when memory is next asked for.
    del memory
    gc.collect()
    assert backend.place(pointer, 4) is None
    another = backend.empty(16)
    assert registered(backend, "registered") == 0
    backend.close()
    assert backend.place(another.pointer, 16) is None


@pytest.mark.standin
@bare(2)
def test_memory_is_not_registered_where_that_is_switched_off(rank, monkeypatch):
    monkeypatch.setenv("NCCL_LOCAL_REGISTER", "0")
    backend = rank.opened()
    memory = backend.empty(64)
    assert not backend.register([memory.pointer])
    backend.close()


@pytest.mark.standin
@bare(1)
def test_trap_dropped_memory_is_freed_when_some_is_made_and_never_in_a_capture(rank):
    """Also what has outlived its communicator."""
    from standin import heap

    def there(block):
        return heap.find(block.pointer) is block

    backend, stream = rank.opened(), cupy.cuda.Stream(non_blocking=True)
    dropped = heap.find(backend.empty(4 * COUNT).pointer)
    gc.collect()
    with stream:
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        with pytest.raises(UsageError, match="make arrays before"):
            backend.empty(16)
        stream.end_capture()
    assert there(dropped)
    memory = backend.empty(16)
    assert not there(dropped)
    backend.close()
    dropped = heap.find(memory.pointer)
    del memory
    gc.collect()
    backend, held = rank.opened(), Held(stream)
    runtime.memsetAsync(dropped.pointer, 0, 16, stream.ptr)  # it is freed when that is done
    threading.Timer(0.1, held.let_go).start()
    backend.empty(64)
    assert not there(dropped)
    stream.synchronize()
    backend.close()


@bare(1)
def test_no_registered_memory_where_the_library_has_none(rank, monkeypatch):
    monkeypatch.setattr(libnccl, "functions", lambda: None)
    backend = rank.opened()
    assert (backend.empty(64), backend.place(4096, 1)) == (None, None)
    assert summed(backend) == 1.0
    backend.close()


@pytest.mark.standin
@bare(1)
def test_a_full_device_is_a_memory_error(rank):
    backend = rank.opened()
    with pytest.raises(MemoryError, match="free_all_blocks"):
        backend.empty(1 << 50)
    backend.close()


@pytest.mark.parametrize("failed", [False, True])
def test_trap_what_nccl_shrinks_itself_has_one_owner_and_what_failed_is_made_anew(failed):
    """Through the raw pointer: a communicator that CuPy does not own."""
    if "ncclCommShrink" not in libnccl.present():
        pytest.skip("NCCL shrinks from 2.27")

    def main(rank):
        with cupy.cuda.Device(rank.device):
            whole = rank.opened()
            if failed:
                whole.abort()
            if rank.rank == 1:
                return whole.close()
            backend = rank.group([0, 2], 3).opened(parent=whole, left_out=(1,))
            told = type(backend._communicators.native).__name__, summed(backend, rank.rank + 1)
            backend.check()
            backend.close()
            whole.abort()
            return told

    told = ("NcclCommunicator" if failed else "RawCommunicator"), 4.0
    assert sound(on_ranks(3, main)) == [told, None, told]
