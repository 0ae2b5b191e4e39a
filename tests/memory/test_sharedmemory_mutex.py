"""Mutexes in memory that processes share: one at a time has one, and a lost holder is named."""

import mmap
import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import numpy as np
import pytest

from hpccomm.errors import PeerLost
from hpccomm.memory.shared.heap import MUTEX_BYTES, NodeMutex

TURNS = 2000


def shared_memory() -> np.ndarray:
    """Memory for a mutex and a number, which processes share that are forked from now on."""
    memory = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
    NodeMutex(memory[:MUTEX_BYTES], 0).make()
    return memory


def forked(program: Callable[[], object]) -> BaseProcess:
    """Run a function in another process."""
    child = multiprocessing.get_context("fork").Process(target=program)
    child.start()
    return child


def test_one_process_at_a_time_has_it() -> None:
    memory = shared_memory()
    number = memory[MUTEX_BYTES:].view(np.int64)

    def count(rank: int) -> None:
        mutex = NodeMutex(memory[:MUTEX_BYTES], rank)
        for _ in range(TURNS):
            while not mutex.taken():
                pass
            before = int(number[0])
            for _ in range(20):
                pass
            number[0] = before + 1
            mutex.released()

    children = [forked(lambda rank=rank: count(rank)) for rank in (1, 2)]
    count(0)
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert number[0] == 3 * TURNS


def test_a_holder_that_has_ended_is_named() -> None:
    memory = shared_memory()
    mutex = NodeMutex(memory[:MUTEX_BYTES], 0)
    forked(lambda: NodeMutex(memory[:MUTEX_BYTES], 7).taken()).join()
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 7") as lost:
            mutex.taken()
        assert lost.value.ranks == (7,)
