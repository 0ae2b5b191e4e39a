"""Folds in device memory: which there are, and that the results are the host's."""

import cupy
import numpy as np
import pytest

from hpccomm import dtypes
from hpccomm.memory.cuda.arrays import DeviceFolder, folds
from hpccomm.memory.folding import Folder
from hpccomm.reductions import ReduceOp, meaningful

PAIRS = [
    pytest.param(op, dtype, id=f"{op.value}-{dtype}")
    for dtype in dtypes.REDUCIBLE
    for op in ReduceOp
    if meaningful(op, dtype) and folds(op, dtype)
]


def values(dtype, count, seed):
    random = np.random.default_rng(seed)
    if dtype == dtypes.BOOL:
        return random.integers(0, 2, count).astype(dtype)
    if dtypes.is_complex(dtype):
        parts = random.normal(size=(2, count))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if dtypes.is_integer(dtype):
        return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()
    return random.normal(size=count).astype(dtype)


def folded(op, dtype, contributions, average_over=0, target=None, final=True):
    """Return what a fold comes to; `target` is the number of the one that it overwrites."""
    sources = [cupy.asarray(x) for x in contributions]
    out = cupy.zeros_like(sources[0]) if target is None else sources[target]
    fold = DeviceFolder(op, dtype, 0, average_over)
    fold([x.data.ptr for x in sources], out.data.ptr, out.size, final)
    return out.get()


@pytest.mark.parametrize("target", [None, 0, 1, 2])
@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_folds_come_to_what_the_host_comes_to(op, dtype, target):
    average_over = 3 if op is ReduceOp.AVG else 0
    contributions = [values(dtype, 300, seed) for seed in range(3)]
    order = sorted(range(3), key=lambda source: source != target)  # what is overwritten comes first
    expected = np.empty_like(contributions[0])
    Folder(op, dtype, average_over)([contributions[source] for source in order], expected)
    found = folded(op, dtype, contributions, average_over, target)
    if op is ReduceOp.PROD and dtypes.is_complex(dtype):  # sums and products may be fused
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    else:
        assert found.tobytes() == expected.tobytes()


def test_an_average_divides_only_what_is_final():
    x = [np.full(4, 6.0), np.full(4, 3.0)]
    assert folded(ReduceOp.AVG, x[0].dtype, x, 3, final=False).tolist() == [9.0] * 4
    assert folded(ReduceOp.AVG, x[0].dtype, x, 3).tolist() == [3.0] * 4
