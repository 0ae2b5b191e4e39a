"""Large messages within a node: from several threads, and where memory cannot be mapped."""

import errno
import time
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from until import until

from hpccomm.errors import CommunicationError

if TYPE_CHECKING:
    from hpccomm import Communicator

LARGE = 2 << 20


@pytest.fixture
def nearby(comm: "Communicator") -> Any:
    from hpccomm.backends.mpi.transport import NearbyTransport

    transport = comm._core.backend.messages
    if comm.num_nodes > 1 or not isinstance(transport, NearbyTransport):
        pytest.skip("needs several ranks on one node")
    return transport


def test_two_threads_that_send_at_once_keep_their_arrays_whole(
    comm: "Communicator", nearby: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == 1:
        isend = nearby._isend

        def slow(*args: Any) -> Any:
            request = isend(*args)
            time.sleep(0.02)  # time for the other thread
            return request

        monkeypatch.setattr(nearby, "_isend", slow)
        together = Barrier(2)

        def send(number: int) -> None:
            data = np.full(LARGE, number, np.uint8)
            together.wait()
            until(nearby.isend(data, 0, 5))

        threads = [Thread(target=send, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if comm.rank == 0:
        arrays = [np.zeros(LARGE, np.uint8) for _ in range(2)]
        for array in arrays:
            until(nearby.irecv(array, 1, 5))
        assert sorted(int(array[0]) for array in arrays) == [1, 2]
        assert all((array == array[0]).all() for array in arrays)
    comm.barrier()


@pytest.mark.parametrize("plain", [True, False])
def test_the_sender_goes_on_where_its_array_cannot_be_mapped(
    comm: "Communicator", nearby: Any, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccomm.backends.mpi.transport import COPIED

    if not COPIED or (plain and not nearby.shared.plain):
        pytest.skip("this MPI library copies by itself, or pages are not to be had")
    if comm.rank == 1:
        data = comm.empty(LARGE, np.uint8)
        data[:] = 7
        until(nearby.isend(data, 0, 5))
    if comm.rank == 0:

        def refused(pid: int, key: int) -> Any:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        with monkeypatch.context() as patch:
            patch.setattr(nearby.shared, "plain", plain)
            patch.setattr(nearby.shared._segments, "find", refused)
            array = np.zeros(LARGE, np.uint8)
            request = nearby.irecv(array, 1, 5)
            if plain:
                until(request)
                assert (array == 7).all()
            else:
                with pytest.raises(CommunicationError, match="cannot be mapped"):
                    until(request)
    comm.barrier()
