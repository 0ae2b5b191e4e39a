"""hpccomm's own schedules on device arrays, put on a stream and moved by NCCL's messages.

What comes out is NumPy's by the suite's oracle, or has the bits that host arrays get.
"""

from functools import partial

import cupy
import numpy as np
import pytest
from device_trials import carried_out, device_array, host_array
from nccl_ranks import run_ranks

from hpccomm import dtypes
from hpccomm.backends.nccl import collectives
from hpccomm.dispatch import device_schedules
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.memory import Scratch
from hpccomm.reductions import PremulSum, ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.check import same_bits
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, Spec
from hpccomm.topology import Topology

I32, F32, F64 = (np.dtype(t) for t in ("i4", "f4", "f8"))


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Have NCCL lack all collectives; hpccomm's own take two ranks for a node, and move few elements at a time."""
    monkeypatch.setattr(collectives, "algorithms", lambda call, ability: ())
    schedules = device_schedules.DeviceSchedules.__init__

    def made(self, rank, topology, device, segment):
        nodes = Topology(tuple(each // 2 for each in range(topology.size)))
        schedules(self, rank, nodes, device, 256)

    monkeypatch.setattr(device_schedules.DeviceSchedules, "__init__", made)


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
def test_every_algorithm_moves_and_folds_device_arrays(n, collective, algorithm):
    def main(comm):
        # In place or not is each rank's own affair.
        for results in (OUT,), (IN_PLACE, OUT):
            spec = Spec(collective, 30 * n, I32, root=n - 1, results=results)
            carried_out(comm, spec, algorithm=algorithm)

    run_ranks(n, main, backend="nccl")


def test_blocks_may_be_uneven_and_empty():
    spec = Spec("all_to_all", (0, 300, 200))
    run_ranks(3, partial(carried_out, spec=spec, algorithm="pairwise"), backend="nccl")


ORDERED = [
    pytest.param(dtype, collective, name, id=f"{collective}-{name}-{dtype}")
    for collective in ("all_reduce", "reduce", "reduce_scatter", "scan")
    for name, each in ALGORITHMS[collective].items()
    for dtype in (F32, F64, dtypes.BFLOAT16)
    if each.ordered is not None and not each.shared
]
OTHERS = [
    *((dtype, "all_reduce", "linear", ReduceOp.AVG) for dtype in (I32, F32, dtypes.FLOAT8_E5M2)),
    *((dtype, "all_reduce", "ring", PremulSum(0.3)) for dtype in (F32, np.dtype(np.float16))),
    *((F32, "scan", "linear", op, True) for op in (ReduceOp.PROD, ReduceOp.MIN)),
]


def as_on_the_host(dtype, collective, algorithm, op=ReduceOp.SUM, exclusive=False):
    """Compare the bits of what a host array and a device array get in rank order."""

    def main(comm):
        call = partial(getattr(comm, collective), op=op, deterministic=True)
        if exclusive:
            call = partial(call, exclusive=True)
        x = np.random.default_rng(comm.rank).normal(0, 9, 100).astype(dtype)
        with cupy.cuda.Device(comm.device):
            found = call(device_array(x), algorithm=algorithm)
            expected = call(x)
            if expected is not None:
                same_bits(host_array(found), expected)

    run_ranks(4, main, backend="nccl")


@pytest.mark.pairs
@pytest.mark.parametrize(("dtype", "collective", "algorithm"), ORDERED)
def test_in_rank_order_the_bits_are_the_hosts(dtype, collective, algorithm):
    as_on_the_host(dtype, collective, algorithm)


@pytest.mark.parametrize("case", OTHERS)
def test_averages_factors_and_exclusive_scans_have_the_hosts_bits(case):
    as_on_the_host(*case)


def test_trap_scratch_for_a_graph_is_never_given_to_anything_else():
    """A replay comes back to the memory that the graph was captured with."""
    scratch = Scratch()
    stream = cupy.cuda.Stream(non_blocking=True)
    with streams.used(stream.ptr, 0):
        warm = scratch.empty(1 << 20, F32).data.ptr
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        captured = scratch.empty(1 << 20, F32).data.ptr
        stream.end_capture()
        assert captured == warm
        assert scratch.empty(1 << 20, F32).data.ptr != captured
        scratch.free()
        taken = [scratch.empty(1 << 20, F32) for _ in range(2)]
        assert captured in [each.data.ptr for each in taken]


def test_trap_a_graph_cannot_have_scratch_that_cuda_has_yet_to_give():
    scratch = Scratch()
    stream = cupy.cuda.Stream(non_blocking=True)
    with streams.used(stream.ptr, 0):
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        with pytest.raises(UsageError, match="make the call once on the same stream"):
            scratch.empty(1 << 22, F32)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            stream.end_capture()
