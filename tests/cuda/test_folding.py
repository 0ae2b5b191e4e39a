"""Folds in device memory: the results equal the host's."""

from importlib import import_module

import cupy
import numpy as np
import pytest

from hpccomm import dtypes
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.folding import DeviceElements, DeviceFolder
from hpccomm.memory.cuda.memory import Scratch
from hpccomm.memory.cuda.narrow import AT_ONCE
from hpccomm.memory.folding import Folder
from hpccomm.memory.folding import premultiply as premultiply_on_host
from hpccomm.reductions import PremulSum, ReduceOp, identity, meaningful

PAIRS = [
    pytest.param(op, dtype, id=f"{op.value}-{dtype}")
    for dtype in dtypes.REDUCIBLE
    for op in ReduceOp
    if meaningful(op, dtype)
]


def values(dtype, count, seed):
    """Return `count` elements, of narrow floats any bits: infinities, NaNs and subnormals are there."""
    random = np.random.default_rng(seed)
    if dtype == dtypes.BOOL:
        return random.integers(0, 2, count).astype(dtype)
    if dtypes.is_complex(dtype):
        parts = random.normal(size=(2, count))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if dtypes.is_integer(dtype) or dtypes.is_narrow(dtype):
        return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()
    return random.normal(size=count).astype(dtype)


def to_device(x):
    return cupy.asarray(x.view(np.uint8))


def to_host(x, dtype):
    return x.get().view(dtype)


def same(a, b):
    """Tell whether two arrays have the same bits, but for which NaN it is."""
    if not (dtypes.is_float(a.dtype) or dtypes.is_complex(a.dtype)):
        return a.tobytes() == b.tobytes()
    a_nan, b_nan = a != a, b != b
    return (a_nan == b_nan).all() and a[~a_nan].tobytes() == b[~b_nan].tobytes()


def folded(op, dtype, contributions, average_over=0, target=None):
    """Return what a fold comes to; `target` is the number of the one that it overwrites."""
    sources = [to_device(x) for x in contributions]
    out = to_device(np.zeros_like(contributions[0])) if target is None else sources[target]
    fold = DeviceFolder(op, DeviceElements(dtype, 0, Scratch()), average_over)
    fold([x.data.ptr for x in sources], out.data.ptr, contributions[0].size)
    return to_host(out, dtype)


def on_host(op, dtype, contributions, average_over=0):
    out = np.empty_like(contributions[0])
    Folder(op, dtype, average_over)(contributions, out)
    return out


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_folds_come_to_what_the_host_comes_to(op, dtype):
    average_over = 3 if op is ReduceOp.AVG else 0
    contributions = [values(dtype, 300, seed) for seed in range(3)]
    expected = on_host(op, dtype, contributions, average_over)
    found = folded(op, dtype, contributions, average_over)
    if op is ReduceOp.PROD and dtypes.is_complex(dtype):
        # A product of complex numbers may be rounded otherwise where sums and products are fused.
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    else:
        assert same(found, expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), dtypes.BFLOAT16], ids=str)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_any_contribution_may_be_the_target(dtype, number):
    contributions = [values(dtype, 100, seed) for seed in range(number)]
    expected = on_host(ReduceOp.SUM, dtype, contributions)
    for target in range(number):
        assert same(folded(ReduceOp.SUM, dtype, contributions, target=target), expected)


@pytest.mark.parametrize("dtype", dtypes.NARROW, ids=str)
@pytest.mark.parametrize("number", [AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_many_contributions_are_rounded_once(dtype, number):
    contributions = [values(dtype, 200, seed) for seed in range(number)]
    for op, average_over in ((ReduceOp.PROD, 0), (ReduceOp.AVG, number)):
        expected = on_host(op, dtype, contributions, average_over)
        assert same(folded(op, dtype, contributions, average_over), expected)
        assert same(folded(op, dtype, contributions, average_over, number - 1), expected)


@pytest.mark.standin
@pytest.mark.parametrize("dtype", dtypes.NARROW, ids=str)
def test_a_fold_of_narrow_floats_is_one_kernel(dtype, monkeypatch):
    kernels, run = [], import_module("cupy._arrays").run

    def counted(function, out, *inputs):
        kernels.append(function)
        return run(function, out, *inputs)

    contributions = [values(dtype, 50, seed) for seed in range(4)]
    for module in ("_elementwise", "_ufuncs"):
        monkeypatch.setattr(import_module(f"cupy.{module}"), "run", counted)
    folded(ReduceOp.AVG, dtype, contributions, 4)
    assert len(kernels) == 1


@pytest.mark.parametrize("dtype", [dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2], ids=str)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PROD], ids=lambda op: op.value)
def test_each_pair_of_float8_is_folded_as_ml_dtypes_rounds_it(op, dtype):
    each = np.arange(256, dtype=np.uint8).view(dtype)
    pairs = [x.ravel() for x in np.meshgrid(each, each)]
    ufunc = np.add if op is ReduceOp.SUM else np.multiply
    with np.errstate(all="ignore"):
        expected = ufunc(*(x.astype(np.float32) for x in pairs)).astype(dtype)
    assert same(folded(op, dtype, pairs), expected)


def test_a_contribution_may_be_folded_with_itself():
    x = values(np.dtype(np.float64), 50, 1)
    device = to_device(x)
    fold = DeviceFolder(ReduceOp.SUM, DeviceElements(x.dtype, 0, Scratch()))
    fold([device.data.ptr] * 2, device.data.ptr, x.size)
    assert same(to_host(device, x.dtype), x + x)


def test_an_average_divides_only_what_is_final():
    x = np.full(8, 6, np.int32)
    device = to_device(x)
    fold = DeviceFolder(ReduceOp.AVG, DeviceElements(x.dtype, 0, Scratch()), 3)
    fold([device.data.ptr], device.data.ptr, x.size, False)
    assert (to_host(device, x.dtype) == 6).all()
    fold([device.data.ptr], device.data.ptr, x.size)
    assert (to_host(device, x.dtype) == 2).all()


def test_trap_averages_of_integers_are_divided_towards_zero_and_in_64_bits():
    # CuPy's fmod of integers goes through doubles, which hold 53 bits; and 200 does not fit int8.
    large = np.array([2**62 + 1, -(2**62) - 1, -7, 7, -(2**63), 2**63 - 1], np.int64)
    expected = np.array([int(x) // 3 if x >= 0 else -(-int(x) // 3) for x in large.tolist()])
    assert folded(ReduceOp.AVG, large.dtype, [large], 3).tolist() == expected.tolist()
    small = np.array([-128, 127, -100], np.int8)
    assert folded(ReduceOp.AVG, small.dtype, [small], 200).tolist() == [0, 0, 0]
    unsigned = np.array([2**64 - 1, 2**63], np.uint64)
    assert folded(ReduceOp.AVG, unsigned.dtype, [unsigned], 2).tolist() == [2**63 - 1, 2**62]


@pytest.mark.parametrize("dtype", dtypes.NARROW, ids=str)
def test_trap_every_narrow_float_is_widened_and_rounded_as_on_the_host(dtype):
    bits = np.uint8 if dtype.itemsize == 1 else np.uint16
    every = np.arange(np.iinfo(bits).max + 1, dtype=np.uint32).astype(bits).view(dtype)
    wide, device = cupy.empty(every.size, np.float32), to_device(every)
    elements = DeviceElements(dtype, 0, Scratch())
    elements.to_float32(device.data.ptr, wide.data.ptr, every.size)
    assert same(wide.get(), every.astype(np.float32))
    # Below, at and above each tie of each of them: the lower half of float32's bits as it may be.
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        floats = (upper | np.uint32(lower)).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = floats.astype(dtype)
        source, target = to_device(floats), to_device(np.zeros_like(expected))
        elements.from_float32(source.data.ptr, target.data.ptr, floats.size)
        assert same(to_host(target, dtype), expected)


@pytest.mark.parametrize("dtype", [x for x in dtypes.REDUCIBLE if x != dtypes.BOOL], ids=str)
def test_contributions_are_multiplied_as_on_the_host(dtype):
    op = PremulSum(3 if dtypes.is_integer(dtype) else 0.7)
    x = values(dtype, 200, 5)
    expected = np.empty_like(x)
    premultiply_on_host(op, x, expected)
    source, target = to_device(x), to_device(np.zeros_like(x))
    elements = DeviceElements(dtype, 0, Scratch())
    elements.premultiply(op, source.data.ptr, target.data.ptr, x.size)
    assert same(to_host(target, dtype), expected)
    assert same(to_host(source, dtype), x)


@pytest.mark.parametrize("dtype", dtypes.REDUCIBLE, ids=str)
def test_memory_is_filled_with_an_identity_element(dtype):
    op = ReduceOp.PROD if dtypes.is_complex(dtype) else ReduceOp.MAX
    target = to_device(np.zeros(9, dtype))
    DeviceElements(dtype, 0, Scratch()).fill(target.data.ptr, 9, identity(op, dtype))
    assert same(to_host(target, dtype), np.full(9, identity(op, dtype), dtype))


def test_a_users_function_is_given_device_arrays():
    contributions = [values(np.dtype(np.float32), 40, seed) for seed in range(2)]
    expected = np.hypot(*contributions)
    found = folded(lambda a, b: (a * a + b * b) ** 0.5, expected.dtype, contributions)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (lambda a, b: np.add(a.tolist(), b.tolist()), "elementwise and keep the dtype"),
        (lambda a, b: a[:1] + b[:1], "elementwise and keep the dtype"),
        (lambda a, b: a.no_such_method(b), "fails on CuPy arrays of float32"),
        (lambda a, b: cupy.add(a, b, out=b), "writes to its arguments"),
    ],
)
def test_a_function_that_does_not_take_device_arrays_is_refused_beforehand(op, words):
    with pytest.raises(UsageError, match=words):
        DeviceFolder(op, DeviceElements(np.dtype(np.float32), 0, Scratch()))
