"""A communicator of one rank over NCCL: its calls are copies, on its own device, and of every dtype.

What NCCL does there: src/device/onerank.cu (2.19 to 2.30), which src/enqueue.cc calls for one rank
before it sets a device.
"""

import cupy
import numpy as np
import pytest
from device_trials import device_array, host_array
from nccl_ranks import on_devices, ranked

from hpccomm import dtypes
from hpccomm.memory.cuda import library
from hpccomm.reductions import ReduceOp, meaningful, premul_sum

FLOATS = (dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2, dtypes.BFLOAT16, np.dtype(np.float32))


def values(dtype):
    """Return 0, 1 and some more that every dtype has."""
    return np.array([0, 1, 1, 0, 1] if dtype == dtypes.BOOL else [0, 1, 2, 3, 4], dtype)


@pytest.mark.parametrize("dtype", dtypes.REDUCIBLE, ids=str)
@ranked(1)
def test_trap_every_reduction_of_one_rank_gives_its_own_elements(comm, dtype):
    given = values(dtype)
    x = device_array(given)
    for op in (each for each in ReduceOp if meaningful(each, dtype)):
        for call in (comm.all_reduce, comm.reduce, comm.reduce_scatter):
            for out in (x, empty(given)):
                got = call(x, op=op, out=out)
                assert host_array(got).tolist() == given.tolist(), (op, call)
    comm.plan("all_reduce", x, op=ReduceOp.SUM)()
    with comm.batch():
        comm.all_reduce(x)
    assert host_array(x).tolist() == given.tolist()
    for algorithm in ("native", "ring", "tree") if dtype in FLOATS else ():
        average = comm.all_reduce(x, op=ReduceOp.AVG, out=empty(given), algorithm=algorithm)
        assert host_array(average).tolist() == given.tolist()
        product = comm.all_reduce(x, op=premul_sum(2), out=empty(given))
        assert host_array(product).tolist() == (given.astype(np.float32) * 2).tolist()


@pytest.mark.skipif(library.visible_devices() < 2, reason="needs a second device")
@pytest.mark.parametrize("split", [False, True])
def test_trap_another_device_is_the_current_one(split):
    """On the default stream, which is another stream on each device."""

    def calls(comm):
        x, y, rows = cupy.arange(4.0), cupy.zeros(4), cupy.zeros((1, 4))
        with comm.split(comm.rank) if split else comm as own, cupy.cuda.Device(1 - own.device):
            found = [own.broadcast(x)]
            found += [call(x, out=y) for call in (own.all_reduce, own.reduce, own.reduce_scatter)]
            found += [call(x, out=rows) for call in (own.all_gather, own.gather)]
            found += [own.all_to_all(x, out=y), own.scatter(rows, out=y)]
        assert [each.ravel().get().tolist() for each in found] == [[0.0, 1.0, 2.0, 3.0]] * 8

    on_devices(1 + split, calls)


def empty(x):
    """Return a device array of zeros like a host array."""
    return device_array(np.zeros_like(x))
