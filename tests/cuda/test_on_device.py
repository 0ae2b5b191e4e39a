"""hpccomm's own schedules on device arrays, put on a stream and moved by NCCL's messages; and what is staged instead.

What comes out is NumPy's by the suite's oracle, or has the bits that host arrays get.
"""

from functools import partial

import cupy
import numpy as np
import pytest
from device_trials import carried_out, device_array, host_array
from nccl_ranks import ranked, run_ranks

from front.device_graphs import capture
from hpccomm import CommOptions, dtypes
from hpccomm.backends.nccl import collectives
from hpccomm.calls import on_device
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.memory import Scratch
from hpccomm.reductions import ReduceOp, loc_dtype, premul_sum
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import same_bits
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, Spec
from hpccomm.topology import Topology

I32, F32, F64 = (np.dtype(t) for t in ("i4", "f4", "f8"))


@pytest.fixture
def own(monkeypatch):
    """Have NCCL lack all collectives, whose names some of hpccomm's own have; these move few elements at a time."""
    # No version of NCCL lacks them all.
    monkeypatch.setattr(collectives, "algorithms", lambda call, ability: ())
    monkeypatch.setenv("HPCCOMM_SEGMENT", "256")
    made = on_device.OnDevice.__init__

    def in_nodes(self, rank, topology, *more):  # ranks of one node have a device each
        made(self, rank, Topology(tuple(each // 2 for each in range(topology.size))), *more)

    # Threads with a device each are one node.
    monkeypatch.setattr(on_device.OnDevice, "__init__", in_nodes)


ALL = [
    pytest.param(collective, name, id=f"{collective}-{name}")
    for collective, known in ALGORITHMS.items()
    if collective != "barrier"
    for name, each in known.items()
    if not each.shared
]


@pytest.mark.pairs
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_every_algorithm_moves_and_folds_device_arrays(own, n, collective, algorithm):
    def main(comm):
        # In place or not is each rank's own affair.
        for results in (OUT,), (IN_PLACE, OUT):
            spec = Spec(collective, 30 * n, I32, root=n - 1, results=results)
            carried_out(comm, spec, algorithm=algorithm)

    run_ranks(n, main, backend="nccl")


def test_blocks_may_be_uneven_and_empty(own):
    spec = Spec("all_to_all", (0, 300, 200))
    run_ranks(3, partial(carried_out, spec=spec, algorithm="pairwise"), backend="nccl")


STAGED = [
    *((dtype, {"deterministic": True}) for dtype in (F32, F64, dtypes.BFLOAT16)),
    (F32, {"deterministic": "any ranks"}),
    (F32, {"deterministic": True, "op": premul_sum(0.3)}),
    (np.dtype(np.int16), {"op": ReduceOp.SUM}),
    (I32, {"op": ReduceOp.BXOR}),
    (I32, {"op": lambda a, b: a | b}),
    (np.dtype(np.complex64), {"op": ReduceOp.PROD}),
    (loc_dtype(F32), {"op": ReduceOp.MAXLOC}),
    (dtypes.BFLOAT16, {"algorithm": "binomial"}),
    (F32, {"algorithm": "shm"}),
]


def drawn(dtype, rank):
    random = np.random.default_rng(rank)
    if dtype.names:
        x = np.empty(100, dtype)
        x["value"], x["index"] = random.integers(0, 4, 100), rank
        return x
    return random.normal(0, 9, 100).astype(dtype)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "scan"])
@pytest.mark.parametrize(("dtype", "how"), STAGED)
@ranked(3)
def test_what_nccl_lacks_goes_through_the_host_with_its_bits(comm, dtype, how, collective):
    call = partial(getattr(comm, collective), **how)
    x = drawn(dtype, comm.rank)
    there = device_array(x)
    choice = comm.explain(collective, there, **how)
    assert choice.path == "staged", choice
    assert "through pinned host memory, since " in choice.reason, choice
    found, expected = call(there), call(x.copy())
    if expected is not None:
        same_bits(host_array(found), expected)


@ranked(2, options=CommOptions(algorithm="shm"))
def test_a_setting_for_host_arrays_sends_no_device_array_there(comm):
    choice = comm.explain("all_reduce", cupy.ones(4, F32))
    assert (choice.backend, choice.algorithm) == ("nccl", "native"), choice


@pytest.mark.parametrize("async_op", [False, True])
@ranked(3)
def test_a_batch_has_what_nccl_does_and_what_goes_through_the_host(comm, async_op):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for turn in range(3):
            x, bits = cupy.full(1000, comm.rank + turn), cupy.full(1000, 1 << comm.rank)
            sent, came = cupy.full(10, comm.rank + turn), cupy.empty(10, int)
            with comm.batch(async_op=async_op) as batch:
                comm.all_reduce(bits, ReduceOp.BOR)
                comm.all_reduce(x)
                comm.send(sent, right)
                comm.recv(came, left)
            if async_op:
                batch.work.wait()
            stream.synchronize()
            assert (bits.get() == (1 << comm.size) - 1).all()
            assert (x.get() == 3 * turn + 3).all()
            assert (came.get() == left + turn).all()


@ranked(2)
def test_trap_what_the_host_takes_part_in_is_not_captured(comm):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x, y = cupy.ones(10), cupy.ones(10)

        def in_a_batch():
            with comm.batch():
                comm.all_reduce(y)
                comm.all_reduce(x, deterministic=True)

        comm.all_reduce(x, deterministic=True)
        stream.synchronize()
        with capture(stream):
            for call in (partial(comm.all_reduce, x, deterministic=True), in_a_batch):
                with pytest.raises(UsageError, match="CUDA graph: the host takes part"):
                    call()
        in_a_batch()
        assert x.get(stream=stream).tolist() == [4.0] * 10


def test_trap_scratch_for_a_graph_is_never_given_to_anything_else():
    """A replay comes back to the memory that the graph was captured with."""
    scratch = Scratch()
    stream = cupy.cuda.Stream(non_blocking=True)
    with streams.used(stream.ptr, 0):
        warm = scratch.empty(1 << 20, F32).data.ptr
        with capture(stream):
            captured = scratch.empty(1 << 20, F32).data.ptr
        assert captured == warm
        assert scratch.empty(1 << 20, F32).data.ptr != captured
        scratch.free()
        taken = [scratch.empty(1 << 20, F32) for _ in range(2)]
        assert captured in [each.data.ptr for each in taken]


def test_trap_a_graph_cannot_have_scratch_that_cuda_has_yet_to_give():
    scratch = Scratch()
    stream = cupy.cuda.Stream(non_blocking=True)
    with streams.used(stream.ptr, 0):
        spoilt = pytest.raises(cupy.cuda.runtime.CUDARuntimeError)
        refused = pytest.raises(UsageError, match="make the call once on the same stream")
        with spoilt, capture(stream), refused:
            scratch.empty(1 << 22, F32)
