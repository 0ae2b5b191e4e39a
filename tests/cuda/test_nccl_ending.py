"""The end of NCCL's communicators and memory: aborted, closed, shrunk, forked, forgotten."""

import gc
import os
import sys
import threading
import time

import numpy as np
import pytest
from nccl_ranks import bare, on_ranks, sound

from hpccomm.backends.nccl import libnccl
from hpccomm.contracts.signature import Signature
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda import streams, users
from hpccomm.reductions import ReduceOp

cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

FLOAT32 = np.dtype(np.float32)
COUNT = 1000
SUM = Signature("all_reduce", FLOAT32, (COUNT,), op=ReduceOp.SUM, in_place=True)


def opened(rank, **keywords):
    """Return the rank's NCCL side, with its device current in this thread."""
    cupy.cuda.runtime.setDevice(rank.device)
    return rank.opened(**keywords)


def summed(backend, x, stream=None):
    """Sum an array over the ranks and return its first element."""
    stream = stream or cupy.cuda.get_current_stream()
    backend.native(SUM, "native").launch(x.data.ptr, x.data.ptr, stream.ptr)
    stream.synchronize()
    return float(x.get()[0])


def test_trap_abort_by_another_thread_releases_a_stream_that_waits_for_a_peer():
    released = threading.Event()

    def main(rank):
        backend = opened(rank)
        summed(backend, cupy.ones(COUNT, np.float32))
        rank.control.all_gather(b"")
        if rank.rank == 1:  # never makes the second call
            assert released.wait(20)
            backend.abort()
            return
        stream = cupy.cuda.Stream(non_blocking=True)
        x = cupy.ones(COUNT, np.float32)
        cupy.cuda.get_current_stream().synchronize()
        launch = backend.native(SUM, "native").launch
        launch(x.data.ptr, x.data.ptr, stream.ptr)
        event = streams.make_event()
        streams.record(event, stream.ptr)
        time.sleep(0.05)  # nothing comes, however long
        assert not streams.ready(event)
        watchdog = threading.Thread(target=backend.abort)
        watchdog.start()
        stream.synchronize()
        released.set()
        watchdog.join()
        assert streams.ready(event)
        streams.drop_event(event)
        backend.abort()  # idempotent
        backend.check()  # and looks at nothing that is gone
        with pytest.raises(nccl.NcclError) as told:
            launch(x.data.ptr, x.data.ptr, stream.ptr)
        assert isinstance(backend.translate(told.value), CommunicationError)
        backend.close()

    sound(on_ranks(2, main))


@pytest.mark.standin
def test_an_error_that_nccl_notices_by_itself_is_told_from_any_thread():
    from standin.nccl import calls

    def main(rank):
        backend = opened(rank)
        backend.check()
        made = calls.find(backend._communicators.native.comm)
        made.notice(6)
        told = []

        def look():
            try:
                backend.check()
            except CommunicationError as error:
                told.append(error)

        watchdog = threading.Thread(target=look)
        watchdog.start()
        watchdog.join()
        backend.abort()
        assert not made.revoked, "no thread was inside, and an abort waits for the device"
        return told

    (told,) = sound(on_ranks(1, main))
    assert [type(each).__name__ for each in told] == ["PeerLost"]


def test_trap_no_destructor_destroys_a_communicator(monkeypatch):
    """It would block until the other ranks came, whenever the garbage collector came by."""
    from hpccomm.backends.nccl import communicators

    kept = []
    keep = communicators.kept
    monkeypatch.setattr(communicators, "kept", lambda made: kept.append(made) or keep(made))

    def main(rank):
        backend = opened(rank)
        del backend
        return True

    sound(on_ranks(2, main))
    gc.collect()
    # One more than what only a list holds: the one that is never given back.
    alone = [object(), object()]
    held, only_listed = ([sys.getrefcount(each) for each in some] for some in (kept, alone))
    assert held == [count + 1 for count in only_listed]
    for device, each in enumerate(kept):
        each.abort()
        communicators.let_go(each)
        users.release(device, users.NCCL)


def test_trap_after_a_fork_nothing_of_nccl_is_touched(monkeypatch):
    def main(rank):
        backend = opened(rank)
        communicator = backend._communicators.native
        number = communicator.comm
        parent = os.getpid()
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: parent + 1)
            backend._communicators.abort()
            backend._communicators.destroy()
            backend.check()
        assert communicator.comm == number
        result = summed(backend, cupy.ones(COUNT, np.float32))
        backend.close()
        assert communicator.comm == 0
        return result

    assert sound(on_ranks(1, main)) == [1.0]


def array_over(memory, device):
    """Return a CuPy array over memory of NCCL's allocator."""
    owned = cupy.cuda.UnownedMemory(memory.pointer, memory.nbytes, memory, device)
    return cupy.ndarray((memory.nbytes // 4,), np.float32, cupy.cuda.MemoryPointer(owned, 0))


def registered(backend, algorithm="native"):
    """Return how many buffers are registered with a communicator of the stand-in."""
    from standin.nccl import calls

    return len(calls.find(backend._communicators.made[algorithm].comm).registered)


@pytest.mark.standin
def test_memory_is_registered_on_all_ranks_or_on_none(monkeypatch):
    fails = threading.local()
    register = libnccl.functions().ncclCommRegister

    class Library:
        """NCCL, that refuses to register memory on one rank."""

        def __getattr__(self, name):
            if name == "ncclCommRegister" and getattr(fails, "here", False):
                return lambda *_: 3
            return register if name == "ncclCommRegister" else getattr(library, name)

    library, changed = libnccl.functions(), Library()
    monkeypatch.setattr(libnccl, "functions", lambda: changed)

    def main(rank):
        backend = opened(rank)
        memory = backend.empty(4 * COUNT)
        assert backend.place(memory.pointer, 4 * COUNT) == (0, 0, 4 * COUNT)
        assert backend.place(memory.pointer + 400, 40) == (0, 400, 4 * COUNT)  # views count
        assert backend.place(memory.pointer, 4 * COUNT + 1) is None
        fails.here = rank.rank == 1
        assert not backend.register([memory.pointer])
        assert registered(backend, "registered") == 0
        fails.here = False
        assert backend.register([memory.pointer])
        assert backend.register([memory.pointer])  # once
        assert backend.place(memory.pointer, 4) == (1, 0, 4 * COUNT)
        assert registered(backend, "registered") == 1
        assert registered(backend) == 0, "what carries other calls knows no memory"
        # Released, and freed when memory is next asked for.
        pointer = memory.pointer
        del memory
        gc.collect()
        assert backend.place(pointer, 4) is None
        third = backend.empty(16)
        assert registered(backend, "registered") == 0
        backend.close()
        # What is held outlives the communicator, and goes in any order.
        assert backend.place(third.pointer, 16) is None
        y = array_over(third, rank.device)
        y.fill(3)
        assert float(y.get()[0]) == 3
        del third, y
        return True

    assert sound(on_ranks(2, main)) == [True] * 2


@pytest.mark.standin
def test_memory_is_not_registered_where_that_is_switched_off(monkeypatch):
    monkeypatch.setenv("NCCL_LOCAL_REGISTER", "0")

    def main(rank):
        backend = opened(rank)
        memory = backend.empty(64)
        told = backend.register([memory.pointer])
        backend.close()
        del memory
        return told

    assert sound(on_ranks(2, main)) == [False] * 2


@pytest.mark.standin
def test_trap_to_free_memory_or_make_it_would_end_a_capture():
    from standin import heap

    def main(rank):
        backend = opened(rank)
        memory = backend.empty(4 * COUNT)
        pointer = memory.pointer
        del memory
        gc.collect()
        stream = cupy.cuda.Stream(non_blocking=True)
        mode = cupy.cuda.runtime.streamCaptureModeThreadLocal
        with stream:
            stream.begin_capture(mode)
            with pytest.raises(UsageError, match="make arrays before"):
                backend.empty(16)
            stream.end_capture()
        assert heap.find(pointer) is not None
        second = backend.empty(16)
        assert second.pointer == pointer or heap.find(pointer) is None
        backend.close()
        del second

    sound(on_ranks(1, main))


@pytest.mark.standin
def test_memory_that_outlived_its_communicator_is_freed_by_the_next():
    from standin import heap

    def main(rank):
        first = opened(rank)
        memory = first.empty(4000)
        pointer = memory.pointer
        first.close()
        del memory
        gc.collect()
        second = opened(rank)
        other = second.empty(64)
        freed = other.pointer == pointer or heap.find(pointer) is None
        del other
        second.close()
        return freed

    assert sound(on_ranks(1, main)) == [True]


def test_no_registered_memory_where_the_library_has_none(monkeypatch):
    monkeypatch.setattr(libnccl, "functions", lambda: None)

    def main(rank):
        backend = opened(rank)
        told = backend.empty(64), backend.place(4096, 1)
        result = summed(backend, cupy.ones(COUNT, np.float32))
        backend.close()
        return (*told, result)

    assert sound(on_ranks(1, main)) == [(None, None, 1.0)]


@pytest.mark.standin
@bare(1)
def test_a_full_device_is_a_memory_error(rank, monkeypatch):
    backend = opened(rank)
    with pytest.raises(MemoryError, match="free_all_blocks"):
        backend.empty(1 << 50)
    backend.close()


def test_trap_what_nccl_shrinks_itself_has_one_owner():
    """Through the raw pointer: a communicator that CuPy does not own, with all calls."""
    if "ncclCommShrink" not in libnccl.present():
        pytest.skip("NCCL shrinks from 2.27")

    def main(rank):
        whole = opened(rank)
        if rank.rank == 1:
            whole.close()
            return None
        left = rank.group([0, 2], 3)
        backend = left.opened(parent=whole, left_out=(1,))
        made = type(backend._communicators.native).__name__
        x = cupy.full(COUNT, rank.rank + 1, np.float32)
        told = [made, summed(backend, x), *others(backend)]
        backend.check()
        backend.close()
        whole.abort()
        return told

    results = sound(on_ranks(3, main))
    assert results[0] == results[2] == ["RawCommunicator", 4.0, [0.0, 2.0], [2.0], [0.0]]


def others(backend):
    """Return what an all-gather, a reduce-scatter and a message give."""
    mine = cupy.full(1, 2 * backend.rank, np.float32)
    both = cupy.zeros(2, np.float32)
    stream = cupy.cuda.get_current_stream()
    gather = Signature("all_gather", FLOAT32, (1, 1))
    backend.native(gather, "native").launch(mine.data.ptr, both.data.ptr, stream.ptr)
    told = [both.get().tolist()]
    scatter = Signature("reduce_scatter", FLOAT32, (1, 1), op=ReduceOp.MAX)
    ones = cupy.full(2, 1 + (backend.rank == 0), np.float32)
    backend.native(scatter, "native").launch(ones.data.ptr, both.data.ptr, stream.ptr)
    told.append(both.get()[:1].tolist())
    spread = Signature("broadcast", FLOAT32, (1,), root=0)
    backend.native(spread, "native").launch(0, mine.data.ptr, stream.ptr)
    told.append(mine.get().tolist())
    return told


def test_a_parent_that_failed_is_not_shrunk_but_made_anew():
    def main(rank):
        whole = opened(rank)
        if rank.rank == 1:
            whole.abort()
            return None
        if rank.rank == 0:
            whole.abort()
        left = rank.group([0, 2], 3)
        backend = left.opened(parent=whole, left_out=(1,))
        made = type(backend._communicators.native).__name__
        result = summed(backend, cupy.ones(COUNT, np.float32))
        backend.close()
        whole.abort()
        return made, result

    results = sound(on_ranks(3, main))
    assert results == [("NcclCommunicator", 2.0), None, ("NcclCommunicator", 2.0)]
