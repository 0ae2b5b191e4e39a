"""Memory does not grow with use: with functions, tags and calls that a program never makes again.

What is decided for a kind of call is kept for `callpath.KEPT_CALLS` kinds: memory is compared when as many are kept.
"""

import gc
import tracemalloc

import numpy as np
import pytest
from conftest import Mpiexec

from hpccomm import Communicator
from hpccomm.testing import run_ranks

BLOCK = 256 * 1024
"""Bytes in which folds work: what one function may need while it is called."""

FUNCTIONS = 30
"""More than there are blocks of folds at the same time, whose number depends on which ranks meet."""


@pytest.mark.parametrize("call", ["all_reduce", "all_reduce deterministic", "scan"])
def test_functions_share_the_memory_they_need_while_they_are_called(call: str) -> None:
    name, *flags = call.split()

    def program(comm: Communicator) -> int:
        x, sizes = np.zeros(BLOCK // 8), []
        for functions in (2, FUNCTIONS, 0):
            comm.barrier()
            gc.collect()  # which returns at once while another rank's thread collects
            comm.barrier()
            sizes.append(tracemalloc.get_traced_memory()[0])
            comm.barrier()
            for _ in range(functions):
                getattr(comm, name)(x, lambda a, b: a + b, **dict.fromkeys(flags, True))
        return sizes[2] - sizes[1]

    tracemalloc.start()
    try:
        grown = max(run_ranks(3, program))
    finally:
        tracemalloc.stop()
    assert grown < FUNCTIONS * BLOCK / 2, "each keeps a block on some rank"


TAGS = """
import gc, sys, tracemalloc
from itertools import pairwise
import numpy as np
import hpccomm
from hpccomm.runtime import callpath

callpath.KEPT_CALLS = 16  # kinds of calls that are known
CALLS = 112  # a multiple of it: what is known is counted at one moment of its rounds

def send_recv(comm, other, tag):
    comm.send_recv(np.zeros(4), other, np.zeros(4), other, tag=tag)

def asynchronous(comm, other, tag):
    work = comm.recv(np.zeros(4), other, tag=tag, async_op=True)
    comm.send(np.zeros(4), other, tag=tag)
    work.wait()

def in_a_batch(comm, other, tag):
    with comm.batch():
        comm.send(np.zeros(4), other, tag=tag)
        comm.recv(np.zeros(4), other, tag=tag)

def grown(comm):
    tag, told = 0, {}
    for exchange in send_recv, asynchronous, in_a_batch:
        sizes = []
        for _ in range(3):
            for _ in range(CALLS):
                exchange(comm, (comm.rank + 1) % comm.size, tag)
                tag += 1
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        # The least: the first long wait, which a busy machine brings, imports what it needs.
        told[exchange.__name__] = min(after - before for before, after in pairwise(sizes))
    return {name: size for name, size in told.items() if size > 200 * CALLS}

tracemalloc.start()
with hpccomm.new_comm(options=hpccomm.CommOptions(record=False)) as comm:  # which keeps some calls
    kept = grown(comm)
assert not kept, kept
"""


def test_a_tag_that_is_used_once_is_forgotten(mpiexec: Mpiexec) -> None:
    # A job of its own: what others have left in a shared one may ask for memory meanwhile.
    job = mpiexec(2, "-c", TAGS)
    assert job.returncode == 0, job.stderr
