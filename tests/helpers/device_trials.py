"""Device arrays of any dtype, and calls on them beside the suite's oracle, with any keyword arguments."""

from dataclasses import replace

import cupy
import numpy as np
import pytest

from front.device_calls import DeviceTrial
from front.device_inputs import stream_of
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp, premul_sum
from hpccomm.testing.conformance.collectives import trial


def carried_out(comm, spec, **how):
    """Make the call of `spec` on device arrays, twice, and check it; collective over `comm`."""
    host = trial(comm, spec)
    host = replace(host, arguments={**host.arguments, **how})
    with stream_of(comm) as stream:
        DeviceTrial(host, cupy).run(comm, "call")
        stream.synchronize()


def every_kind(comm):
    """Make NCCL's calls of each kind, and a communicator of a group."""
    size, rank = comm.size, comm.rank
    with cupy.cuda.Device(comm.device):
        x = cupy.full(4, rank + 1, np.float32)
        assert comm.all_reduce(x).get().tolist() == [size * (size + 1) / 2] * 4
        assert comm.all_gather(cupy.full(1, rank)).ravel().get().tolist() == list(range(size))
        x = cupy.full(size, rank + 1, np.float32)
        assert comm.reduce_scatter(x, op=ReduceOp.MAX).get().tolist() == [size]
        assert comm.reduce(x, 0, op=ReduceOp.MAX) is None or x.get().tolist() == [size] * size
        average = comm.all_reduce(cupy.full(2, rank, np.float32), op=premul_sum(0.5))
        assert average.get().tolist() == [sum(range(size)) / 2] * 2
        ring = comm.all_reduce(cupy.ones(4), algorithm="ring")
        assert ring.get().tolist() == [size] * 4
        y = cupy.zeros(1, int)
        comm.send_recv(cupy.full(1, rank), (rank + 1) % size, y, (rank - 1) % size)
        assert y.get().tolist() == [(rank - 1) % size]
        with comm.batch():
            a, b = comm.all_reduce(cupy.ones(1)), comm.broadcast(cupy.full(1, rank), root=1)
        assert [a.get().tolist(), b.get().tolist()] == [[size], [1]]
        with comm.split(0, name="half") as half:
            assert half.all_reduce(cupy.ones(1)).get().tolist() == [size]
        with pytest.raises(UsageError):
            comm.all_reduce(cupy.ones(4), algorithm="nothing")


def device_array(x):
    """Return a device array with a host array's bits; CuPy itself makes none of float8."""
    return cupy.ndarray(x.shape, x.dtype, cupy.asarray(x.view(np.uint8)).data)


def host_array(x):
    """Return the elements of a device array, of one axis, after the current stream's work."""
    cupy.cuda.get_current_stream().synchronize()
    return cupy.ndarray((x.nbytes,), np.uint8, x.data).get().view(x.dtype)
