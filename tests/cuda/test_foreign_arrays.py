"""Device arrays of a library like JAX: immutable, in either memory, and made later than they are there.

What they do is JAX's: jaxlib's py_array.cc, `PyArray::CudaArrayInterface` (an AttributeError off the GPU; version 2,
read-only, no stream, and no wait for the contents), and jax/_src/dlpack.py (capsules without a version, so without
a flag, which are ordered before the consumer's stream).
"""

import cupy
import pytest
from nccl_ranks import on_devices, ranked

from hpccomm.errors import UsageError
from hpccomm.memory.cuda.streams import make_event, order, record


class LikeJax:
    """An array of JAX, on a GPU or in host memory."""

    def __init__(self, values, stream=None):
        self.values = values
        self.stream = stream

    @property
    def __cuda_array_interface__(self):
        told = {**self.values.__cuda_array_interface__, "version": 2}
        del told["stream"]
        return {**told, "data": (told["data"][0], True)}

    def __dlpack_device__(self):
        kind, number = self.values.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, *, stream=None, max_version=None):
        if self.stream is not None and stream is not None:
            event = make_event()
            record(event, self.stream.ptr)
            order(event, stream)
        return self.values.__dlpack__()


def made_late(comm):
    """Return an array whose contents come late, on the library's own stream."""
    x = cupy.zeros(1000)
    cupy.cuda.get_current_stream().synchronize()
    own = cupy.cuda.Stream(non_blocking=True)
    with own:
        for _ in range(10):
            cupy.add(x, comm.rank + 1.0, out=x)
    return LikeJax(x, own)


@pytest.mark.standin
@pytest.mark.parametrize("backend", ["nccl", "loopback"])
@pytest.mark.parametrize("apart", [False, True])
def test_trap_contents_that_come_later_are_waited_for(late, backend, apart):
    def main(comm):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            given = cupy.cuda.Stream(non_blocking=True) if apart else None
            for _ in range(3):
                x, out = made_late(comm), cupy.zeros(1000)
                stream.synchronize()
                comm.all_reduce(x, out=out, stream=given)
                comm.send_recv(x, comm.rank, out2 := cupy.zeros(1000), comm.rank, stream=given)
                (given or stream).synchronize()
                assert (out.get() == 30.0).all()
                assert (out2.get() == 10.0 * (comm.rank + 1)).all()

    on_devices(2, main, backend=backend)


@ranked(2)
def test_trap_an_array_that_never_changes_is_not_written(comm):
    x = LikeJax(cupy.full(4, comm.rank + 1.0))
    with pytest.raises(UsageError, match=r"x is read-only .*; give out, or a copy"):
        comm.all_reduce(x)
    with pytest.raises(UsageError, match=r"out is read-only .*; give a copy"):
        comm.all_reduce(cupy.ones(4), out=x)
    assert comm.all_reduce(x, out=cupy.empty(4)).get().tolist() == [3.0] * 4
    assert x.values.get().tolist() == [comm.rank + 1.0] * 4
