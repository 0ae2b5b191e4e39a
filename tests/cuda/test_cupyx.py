"""``hpccomm.cupyx`` on arrays of CuPy."""

import cupy
import pytest
from cupyx_calls import check_all
from nccl_ranks import run_ranks

from hpccomm.cupyx import NCCLBackend


@pytest.mark.parametrize("n", [1, 2])
def test_every_call_on_the_current_device_and_the_stream_that_is_given(n):
    def calls(comm):
        cupy.cuda.Device(n - 1 - comm.rank).use()
        backend = NCCLBackend(n, comm.rank)
        assert (backend.comm.backends["cuda"], backend.comm.device) == ("nccl", n - 1 - comm.rank)
        check_all(backend, cupy)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x, out = cupy.full(1000, 1.0 + comm.rank), cupy.empty(1000)
            backend.all_reduce(x, out, stream=stream)
            assert (out == n * (n + 1) / 2).all()
        backend.comm.finalize()

    run_ranks(n, calls)
