"""Large messages within a node: from several threads, and where the system refuses to map memory."""

import resource
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from until import until

from hpccomm.backends.mpi.backend import make
from hpccomm.backends.mpi.transport import COPIED, NOTE_BYTES, NearbyTransport
from hpccomm.errors import CommunicationError
from hpccomm.memory.shared.heap import SEGMENT, process_memory

MANY = 2000
"""Messages of a thread: enough for two threads to come between each other's many times."""

LARGE = SEGMENT + (8 << 20)
"""Bytes; in a segment of its own, which no peer has mapped before."""


@pytest.fixture
def backend(mpi_comm: Any) -> Iterator[Any]:
    made = make(mpi_comm)
    if not isinstance(made.messages, NearbyTransport) or made.topology.num_nodes > 1:
        pytest.skip("needs several ranks on one node")
    yield made
    mpi_comm.Barrier()
    made.close()


def test_two_threads_that_send_at_once_keep_their_arrays_whole(backend: Any) -> None:
    together = Barrier(2)

    def send(number: int) -> None:
        together.wait()
        for _ in range(MANY):  # each with a note before it, which nothing may part from it
            until(backend.messages.isend(np.full(NOTE_BYTES, number, np.uint8), 0, 5))

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    if backend.rank == 1:
        threads = [Thread(target=send, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if backend.rank == 0:
        came = np.zeros((2 * MANY, NOTE_BYTES), np.uint8)
        for each in came:
            until(backend.messages.irecv(each, 1, 5))
        assert (came == came[:, :1]).all()
        assert np.bincount(came[:, 0]).tolist() == [0, MANY, MANY]
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("plain", [True, False])
def test_the_sender_goes_on_where_its_array_cannot_be_mapped(backend, plain, monkeypatch) -> None:
    shared = backend.messages.shared
    if not COPIED or (plain and not shared.plain):
        pytest.skip("this MPI library copies by itself, or pages are not to be had")
    if backend.rank == 1:
        data = process_memory().heap.empty(LARGE)
        data[:] = 7
        until(backend.messages.isend(data, 0, 5))
    if backend.rank == 0:
        array, limits = np.zeros(LARGE, np.uint8), resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + LARGE // 8
        if not plain:  # as where the system lets no process read another's pages
            # What the kernel allows is no setting.
            monkeypatch.setattr(shared, "plain", False)
        resource.setrlimit(resource.RLIMIT_AS, (room, limits[1]))
        refused = pytest.raises(CommunicationError, match="cannot be mapped")
        try:
            with nullcontext() if plain else refused:
                until(backend.messages.irecv(array, 1, 5))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert (array == 7).all() == plain
