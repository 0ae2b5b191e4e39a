"""Registered memory of one process: arrays, their life, and the pages behind them, as the kernel counts them."""

import gc
import multiprocessing
import os
import sys
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import pytest
from alone import python

from hpccomm.memory.shared import heap as heaps
from hpccomm.memory.shared import pages as libc
from hpccomm.memory.shared.heap import LINE, SEGMENT, FreeRanges, Heap, process_memory
from hpccomm.memory.shared.pages import PAGE

MIB = 1 << 20


def pages(heap: Heap, data: np.ndarray) -> int:
    """Bytes that the segment of `data` takes of the machine's memory."""
    segment = heap.where(data.ctypes.data)
    return os.fstat(segment.key & 0xFFFFFFFF).st_blocks * 512


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    heap = Heap()
    data = heap.empty(MIB)
    at = data.ctypes.data
    view = data.view(np.float32)[5:].reshape(-1, 1)[::2]
    gone = weakref.ref(data.base)
    del data
    gc.collect()
    assert gone() is not None
    other = heap.empty(MIB)
    assert other.ctypes.data >= at + MIB
    view[:] = 3  # it is still there
    del view
    assert gone() is None
    assert heap.empty(MIB).ctypes.data == at
    assert heap.segments == 1


def test_free_in_a_cycle_and_while_the_heap_is_at_work_does_not_deadlock() -> None:
    heap = Heap()
    data = heap.empty(MIB)
    at = data.ctypes.data
    cycle: list[object] = [data]
    cycle.append(cycle)
    del data, cycle

    def collect(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is FreeRanges.take.__code__ and event == "call":
            gc.collect()

    sys.setprofile(collect)
    heap.empty(LINE)
    sys.setprofile(None)
    assert heap.empty(MIB).ctypes.data == at


def test_threads_allocate_and_free_at_once() -> None:
    heap = Heap()

    def work(value: int) -> None:
        kept: list[np.ndarray] = []
        for step in range(200):
            nbytes = 1 + (step * 7919 + value) % 50_000 + MIB * (step % 50 == 0)
            data = heap.empty(nbytes)
            assert data.nbytes == nbytes
            assert data.ctypes.data % (LINE if nbytes < MIB else PAGE) == 0
            data[:] = value
            kept.append(data)
            if len(kept) > 5:
                assert (kept.pop(step % 5) == value).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    gc.collect()
    assert heap.segments == 1
    whole = heap.empty(SEGMENT)  # all of it is free again, in one piece
    assert heap.segments == 1
    assert whole.nbytes == SEGMENT


def test_pages_that_nobody_asks_for_are_given_back_and_read_as_zeros() -> None:
    now = 1000.0
    heap = Heap(clock=lambda: now)
    anchor = heap.empty(LINE)
    anchor[:] = 7
    data = heap.empty(20 * MIB)
    at = data.ctypes.data
    data[:] = 1
    small = pages(heap, anchor) - data.nbytes
    for _ in range(3):  # a loop that frees and allocates keeps its pages
        del data
        now += heaps.PATIENCE - 1
        data = heap.empty(20 * MIB)
        assert data.ctypes.data == at
        assert data[0] == data[-1] == 1
    del data
    heap.housekeep()
    assert pages(heap, anchor) >= 20 * MIB
    now += heaps.PATIENCE + 1
    heap.housekeep()
    assert pages(heap, anchor) == small
    data = heap.empty(20 * MIB)
    assert data.ctypes.data == at
    assert not data.any()
    assert (anchor == 7).all()


def test_a_system_that_grants_only_what_it_has_is_asked_at_once() -> None:
    heap = Heap(commit=True)
    data = heap.empty(8 * MIB)
    assert pages(heap, data) >= 8 * MIB
    lazy = Heap()
    assert pages(lazy, lazy.empty(8 * MIB)) == 0


def test_more_than_the_machine_has_is_refused() -> None:
    heap = process_memory().heap
    with pytest.raises(MemoryError, match=r"more than the machine's memory \(\d+ bytes\)"):
        heap.empty(1 << 50)
    assert heap.empty(100).nbytes == 100


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("RLIMIT_AS", "Cannot allocate memory"), ("RLIMIT_NOFILE", "Too many open files")],
)
def test_limits_of_the_process_are_errors(limit: str, reason: str) -> None:
    script = f"""
        import resource, os
        from hpccomm.memory.shared.heap import process_memory
        heap = process_memory().heap
        if "{limit}" == "RLIMIT_AS":
            used = int(open("/proc/self/statm").read().split()[0]) * {PAGE}
            resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), -1))
            first = heap.empty(1 << 20)  # a smaller segment is tried
        else:
            # Pythons that were built for an old C library have no such function.
            os.__dict__.pop("memfd_create", None)
            first = heap.empty(1 << 20)
            assert not os.get_inheritable(heap.where(first.ctypes.data).key & 0xFFFFFFFF)
            open_files = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
        first[:] = 1
        try:
            heap.empty(80 << 20)
        except MemoryError as error:
            print(error)
        first[:] = 2
        assert heap.empty(0).size == 0
    """
    done = python("-c", textwrap.dedent(script))
    assert done.returncode == 0, done.stderr
    assert reason in done.stdout
    assert "ulimit" in done.stdout


def _in_child(heap: Heap, parents: list[np.ndarray], at: int) -> None:
    mine = process_memory().heap.empty(MIB)
    mine[:] = 9
    heaps.PATIENCE = 0.0  # type: ignore[misc]
    parents.clear()  # must not go back to anybody, nor lose its pages
    heap.housekeep()
    assert not at <= mine.ctypes.data < at + SEGMENT


def test_a_forked_process_hands_out_memory_of_its_own() -> None:
    heap = process_memory().heap
    parents = [heap.empty(4 * MIB)]
    parents[0][:] = 5
    segment = heap.where(parents[0].ctypes.data)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_in_child, args=(heap, parents, segment.at))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert (parents[0] == 5).all()
    assert not np.may_share_memory(parents[0], heap.empty(4 * MIB))


def test_where_the_system_has_no_such_files_there_is_no_memory(monkeypatch) -> None:
    # C libraries of before 2018, of which no system of the tests has one.
    monkeypatch.setattr(libc, "libc", lambda: object())
    with pytest.raises(MemoryError, match="has no memfd_create"):
        Heap().empty(MIB)
