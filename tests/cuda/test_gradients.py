"""`GradientSync` on device arrays, against NumPy."""

import cupy
import numpy as np
import pytest
from cupy.cuda.nccl import NCCL_AVG as AVG
from cupy.cuda.nccl import NCCL_SUM as SUM

from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import TopK
from hpccomm.gradients.settings import LossScale

pytestmark = [pytest.mark.mpi, pytest.mark.parametrize("way", ["nccl", "staged"], scope="session")]


@pytest.fixture(autouse=True)
def on_own_device(comm):
    with cupy.cuda.Device(comm.device):
        yield


CASES = [
    # dtype, op, how, small buckets
    ("f4", "average", "sync", False),
    ("f8", "sum", "ready", True),
    ("f4", "weighted", "ready", False),
    ("f2", "average", "ready", True),
    ("f8", "average", "views", True),
]


def give(sync, how, grads):
    if how == "sync":
        return sync.sync(grads)
    for name, grad in grads.items():
        if how == "ready":
            sync.ready(name, grad)
        else:
            sync.gradients[name][...] = grad
    return sync.wait() if how == "ready" else sync.sync()


@pytest.mark.parametrize(("dtype", "op", "how", "small"), CASES)
def test_steps_give_what_numpy_does(comm, dtype, op, how, small):
    model = {"w": cupy.zeros((6, 5), dtype), "host": np.zeros(3, dtype), "b": cupy.zeros(5, dtype)}
    sizes = {"first_bucket_bytes": 1, "min_bucket_bytes": 0} if small else {}
    sync = GradientSync(comm, model, op=op, **sizes)
    assert isinstance(sync.gradients["w"], cupy.ndarray)
    assert isinstance(sync.gradients["host"], np.ndarray)
    weights = [float(rank + 1) if op == "weighted" else 1.0 for rank in range(comm.size)]
    divisor = 1 if op == "sum" else sum(weights)
    for step in range(3):
        if op == "weighted":
            sync.weigh(weights[comm.rank])
        grads = {}
        for name, x in model.items():
            content = np.full(x.shape, 6 * (comm.rank + step), dtype)
            grads[name] = content if name == "host" else cupy.asarray(content)
        assert give(sync, how, grads)
        right = sum(6 * (rank + step) * weights[rank] for rank in range(comm.size)) / divisor
        for name in model:
            np.testing.assert_allclose(cupy.asnumpy(sync.gradients[name]), right, rtol=2e-3)
            if how == "sync":
                np.testing.assert_allclose(cupy.asnumpy(grads[name]), right, rtol=2e-3)


def test_parameters_and_norms_are_of_both_memories(comm):
    model = {"a": cupy.full(4, comm.rank, "f8"), "host": np.full(7, comm.rank, "f4")}
    sync = GradientSync(comm, model, op="sum", unused="skip", initial="ignore")
    sync.broadcast_parameters(comm.size - 1)
    sync.check_consistency()
    assert all((cupy.asnumpy(array) == comm.size - 1).all() for array in model.values())
    assert sync.sync({"a": cupy.ones(4)})
    assert sync.clip_by_global_norm(1.0) == pytest.approx(2 * comm.size)
    assert np.linalg.norm(cupy.asnumpy(sync.gradients["a"])) == pytest.approx(1)
    if comm.size > 1:
        model["a"][0] += comm.rank
        with pytest.raises(RankMismatch, match="parameter 'a'"):
            sync.check_consistency()


def test_results_are_divided_by_the_loss_scale(comm):
    sync = GradientSync(comm, {"a": cupy.zeros(4, "f4")}, loss_scale=LossScale(64.0))
    for good in (True, False, True):
        scale = sync.loss_scale
        given = cupy.full(4, scale if good else np.inf, "f4")
        sync.ready("a", given)
        assert sync.wait() == good
        assert (cupy.asnumpy(sync.gradients["a"]) == good).all()
    assert sync.loss_scale == 32


def test_what_is_for_other_arrays_is_refused(comm):
    for settings in {"compressor": TopK()}, {"adaptive": 3}:
        (text,) = settings
        with pytest.raises(UsageError, match=f"{text}.* is for host arrays.*'a'"):
            GradientSync(comm, {"a": cupy.zeros(4)}, **settings)
    sync = GradientSync(comm, {"a": cupy.zeros(4), "h": np.zeros(4)})
    for name, given, text in (
        ("a", np.zeros(4), "CuPy array"),
        ("h", cupy.zeros(4), "lies on a device"),
        ("a", sync.gradients["a"][::-1], "overlaps"),
    ):
        with pytest.raises(UsageError, match=text):
            sync.ready(name, given)
    assert sync.sync()


@pytest.mark.standin
def test_averages_are_sums_and_a_factor_where_that_is_exact_enough(comm, way, seen):
    """NVLS has sums of floats and no averages (NCCL 2.30, include/device.h: ncclNvlsSupported)."""
    for dtype, averages in (("f4", False), ("f8", False), (BFLOAT16, False), ("f2", True)):
        sync = GradientSync(comm, {"a": cupy.zeros(4, dtype)})
        seen.clear()
        sync.gradients["a"].set(np.full(4, comm.rank, dtype))
        assert sync.sync()
        assert (cupy.asnumpy(sync.gradients["a"]).astype("f8") == (comm.size - 1) / 2).all()
        if way == "nccl" and comm.size > 1:
            ops = [of[-1].op for name, *of in seen if name == "all_reduce"]
            assert ops == [AVG if averages else SUM], dtype


@pytest.mark.standin
def test_a_step_waits_for_the_device_once_a_bucket_and_not_once_a_parameter(comm, seen):
    model = {f"p{number}": cupy.zeros(3, "f4") for number in range(20)}
    sync = GradientSync(comm, model, nonfinite="raise")
    del seen[:]
    for name in model:
        sync.ready(name, cupy.ones(3, "f4"))
    assert sync.wait()
    assert [name for name, *_ in seen].count("streamSynchronize") < 8
