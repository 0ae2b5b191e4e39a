"""``hpccomm.cupyx`` on arrays of CuPy."""

import cupy
import pytest
from cupyx_calls import check_all
from nccl_ranks import run_ranks

from hpccomm.cupyx import NCCLBackend


@pytest.mark.parametrize("n", [1, 2])
def test_every_call(n):
    def calls(comm):
        cupy.cuda.Device(comm.rank).use()
        backend = NCCLBackend(n, comm.rank)
        assert (backend.comm.backends["cuda"], backend.comm.device) == ("nccl", comm.rank)
        check_all(backend, cupy)
        backend.comm.finalize()

    run_ranks(n, calls)


def test_calls_are_ordered_on_the_stream_that_is_given():
    def calls(comm):
        cupy.cuda.Device(1 - comm.rank).use()
        backend = NCCLBackend(2, comm.rank)
        assert backend.comm.device == 1 - comm.rank
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x, out = cupy.full(1000, 1.0 + comm.rank), cupy.empty(1000)
            backend.all_reduce(x, out, stream=stream)
            assert (out == 3).all()
        backend.comm.finalize()

    run_ranks(2, calls)
