"""The end of NCCL's communicators and memory: aborted, closed, shrunk, forked, forgotten."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import cupy
import pytest
from held import Held
from nccl_ranks import bare, on_ranks, sound

from hpccomm.errors import PeerLost, UsageError
from hpccomm.memory.cuda import memory

runtime = cupy.cuda.runtime
COUNT = 1000


@pytest.mark.standin
@bare(1)
def test_an_error_that_nccl_notices_by_itself_is_told_from_any_thread(rank, nccl_made):
    backend = rank.opened()
    backend.check()
    memory = backend.empty(16)
    assert backend.register([memory.pointer])
    (made, of_memory) = nccl_made()
    of_memory.notice(6)
    with ThreadPoolExecutor(1) as threads:
        assert isinstance(threads.submit(backend.check).exception(), PeerLost)
    backend.abort()
    assert not made.revoked, "no thread was inside, and an abort waits for the device"


@pytest.mark.standin
def test_trap_no_destructor_destroys_a_communicator(nccl_made):
    """It would block until the other ranks came, whenever the garbage collector came by."""
    sound(on_ranks(2, lambda rank: bool(rank.opened())))
    gc.collect()
    assert len(nccl_made()) == 2
    for device in range(2):
        memory.release(device, memory.NCCL)


@pytest.mark.standin
@bare(1)
def test_trap_dropped_memory_is_freed_when_some_is_made_and_never_in_a_capture(rank):
    """Also what has outlived its communicator. There may be none."""
    from standin import heap

    def there(block):
        return heap.find(block.pointer) is block

    backend, stream = rank.opened(), cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(MemoryError, match="free_all_blocks"):
        backend.empty(1 << 50)
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
