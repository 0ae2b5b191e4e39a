"""Arrays of every kind are seen over their own memory, or refused with a remedy."""

import array
import ctypes
import mmap
from typing import ClassVar

import numpy as np
import pytest

from hpccomm import dtypes
from hpccomm.errors import BackendUnavailable, UnsupportedDtype, UsageError
from hpccomm.memory import views as buffers

TORCH_DTYPES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "bfloat16": dtypes.BFLOAT16,
    "float8_e4m3fn": dtypes.FLOAT8_E4M3FN,
    "float8_e5m2": dtypes.FLOAT8_E5M2,
}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def shares(x: object, view: np.ndarray) -> bool:
    """Whether what is written through the view is seen in x."""
    view.reshape(-1).view(np.uint8)[0] ^= 1
    return memoryview(x).cast("B")[0] == view.reshape(-1).view(np.uint8)[0]


@pytest.mark.parametrize(
    ("x", "dtype", "shape"),
    [
        (np.zeros((2, 3)), "f8", (2, 3)),
        (np.zeros((), "i2"), "i2", ()),
        (bytearray(5), "u1", (5,)),
        (memoryview(bytearray(8)).cast("i"), "i4", (2,)),
        (memoryview(bytearray(24)).cast("B").cast("d", (1, 3)), "f8", (1, 3)),
        (array.array("f", [1, 2, 3]), "f4", (3,)),
        ((ctypes.c_int32 * 4)(), "i4", (4,)),
        (mmap.mmap(-1, 4096), "u1", (4096,)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_the_buffer_protocol(x: object, dtype: str, shape: tuple[int, ...]) -> None:
    view = buffers.view(x, "x")
    assert (view.dtype, view.shape) == (np.dtype(dtype), shape)
    buffers.check_layout(view, "x", written=True)
    assert shares(x, view)


def test_numpy_arrays_and_their_subclasses(tmp_path) -> None:
    plain = np.zeros(3)
    assert buffers.view(plain, "x") is plain
    mapped = np.memmap(tmp_path / "x", np.int32, "w+", shape=(4, 2))
    view = buffers.view(mapped, "x")
    assert view.shape == (4, 2)
    assert np.shares_memory(view, mapped)
    record = np.zeros(2, [("a", "i4"), ("b", "f8")]).view(np.recarray)
    buffers.check_dtype("x", buffers.view(record, "x").dtype)


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(UsageError, match=r"x is a masked array.*x\.filled\(\) or \.data"):
        buffers.view(np.ma.masked_equal([1, 2], 1), "x")


@pytest.mark.parametrize("x", [b"abc", memoryview(b"abc"), np.broadcast_to(1.0, 1)])
def test_what_is_read_only_is_not_written(x: object) -> None:
    view = buffers.view(x, "x")
    buffers.check_layout(view, "x", written=False)
    with pytest.raises(UsageError, match="x is read-only and would be written"):
        buffers.check_layout(view, "x", written=True)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ([1, 2], r"x is \[1, 2\].*numpy.asarray"),
        ((1.0,), "numpy.asarray"),
        (3, "x is 3; give a NumPy or CuPy array"),
        (None, "x is None"),
        ("text", "x is 'text'"),
        (np.float64(3), None),  # NumPy's scalars have a read-only buffer
    ],
    ids=str,
)
def test_what_is_no_array(x: object, says: str | None) -> None:
    if says is None:
        with pytest.raises(UsageError, match="read-only"):
            buffers.check_layout(buffers.view(x, "x"), "x", written=True)
        return
    with pytest.raises(UsageError, match=says):
        buffers.view(x, "x")


def test_a_device_array_is_no_host_array() -> None:
    class OnDevice:
        """In memory that nothing is asked of where there is no CuPy to ask."""

        __cuda_array_interface__: ClassVar = {
            "data": (64, False),
            "typestr": "<f4",
            "shape": (3,),
            "version": 3,
        }

    with pytest.raises(BackendUnavailable, match=r"CuPy|CUDA"):
        buffers.view(OnDevice(), "x")
    with pytest.raises(UsageError, match=r"x is a device array .*OnDevice.*NumPy"):
        buffers.host_view(OnDevice(), "x")


class Foreign:
    """An array of a library that offers DLPack alone, in memory of some kind."""

    def __init__(self, values: np.ndarray, kind: int) -> None:
        self.values, self.kind = values, kind

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


@pytest.mark.parametrize("kind", [1, 3, 11, 13])
def test_dlpack_in_memory_that_the_host_reads(kind: int) -> None:
    x = np.arange(4.0)
    assert np.shares_memory(buffers.view(Foreign(x, kind), "x"), x)


@pytest.mark.parametrize(
    ("kind", "says"), [(2, r"CuPy|CUDA"), (8, "x lies on a device .*Foreign"), (10, "not CUDA's")]
)
def test_dlpack_on_a_device(kind: int, says: str) -> None:
    with pytest.raises(BackendUnavailable, match=says):
        buffers.view(Foreign(np.zeros(3), kind), "x")


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros((3, 4)).T, r"shape \(4, 3\), strides .*numpy.ascontiguousarray\(x\)"),
        (np.zeros(6)[::2], "not C-contiguous"),
        (np.zeros(6)[::-1], "not C-contiguous"),
        (np.zeros((3, 4), order="F"), "not C-contiguous"),
        (memoryview(bytearray(6))[::2], "not C-contiguous"),
    ],
)
def test_what_is_not_contiguous(x: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        buffers.check_layout(buffers.view(x, "x"), "x", written=False)


def test_what_is_written_is_copied_back() -> None:
    """A copy alone would lose the result: numpy.ascontiguousarray(x) is no array of the caller's."""
    with pytest.raises(UsageError, match=r"c = numpy.ascontiguousarray\(x\), .* by x\[...\] = c"):
        buffers.check_layout(np.zeros((3, 4)).T, "x", written=True)


@pytest.mark.parametrize(
    ("dtype", "error", "says"),
    [
        (">f4", UsageError, r"dtype >f4.*x\.astype\(x\.dtype\.newbyteorder\('='\)\)"),
        ([("a", "i4"), ("b", ">i2")], UsageError, "byte order"),
        ("O", UnsupportedDtype, r"\*_object calls"),
        ([("a", "O")], UnsupportedDtype, "not plain bytes"),
        ("V0", UnsupportedDtype, "not plain bytes"),
        (np.dtypes.StringDType(), UnsupportedDtype, "not plain bytes"),
    ],
    ids=str,
)
def test_dtypes_that_do_not_move(dtype: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        buffers.check_dtype("x", np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["M8[s]", "U3", "S5", "V7", [("a", "i4", (2,))], "f8,?", "g"])
def test_dtypes_that_move(dtype: object) -> None:
    buffers.check_dtype("x", np.dtype(dtype))


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_torch_tensors_share_their_memory(torch, name: str) -> None:
    tensor = torch.zeros((2, 3), dtype=torch.uint8).to(getattr(torch, name))
    view = buffers.view(tensor, "x")
    assert view.dtype == np.dtype(TORCH_DTYPES[name])
    assert view.shape == (2, 3)
    buffers.check_layout(view, "x", written=True)
    view[1, 2] = 1
    assert bool(tensor[1, 2].to(torch.complex128) == 1)
    result = buffers.empty_like_kind(tensor, (4,), view.dtype)
    assert (result.dtype, tuple(result.shape)) == (tensor.dtype, (4,))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 2, 3)])
def test_torch_shapes(torch, name: str, shape: tuple[int, ...]) -> None:
    assert buffers.view(torch.empty(shape, dtype=getattr(torch, name)), "x").shape == shape


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_torch_tensors_that_cannot_be_shared(torch, name: str) -> None:
    dtype = getattr(torch, name)
    square = torch.zeros((3, 3)).to(dtype)
    with pytest.raises(UsageError, match="not C-contiguous"):
        buffers.check_layout(buffers.view(square.T, "x"), "x", written=False)
    with pytest.raises(UsageError, match=r"x requires grad.*x\.detach\(\)"):
        buffers.view(torch.zeros(3).to(dtype).requires_grad_(), "x")
    with pytest.raises(UsageError, match="cannot be shared by DLPack"):
        buffers.view(torch.empty(3, dtype=dtype, device="meta"), "x")


def test_torch_tensors_of_odd_kinds(torch) -> None:
    with pytest.raises(UsageError, match="x"):
        buffers.view(torch.eye(3).to_sparse(), "x")
    with pytest.raises(UsageError, match="x"):
        buffers.view(torch.zeros(2, dtype=torch.complex64).conj(), "x")


def test_overlap() -> None:
    x = np.zeros(10)
    assert buffers.overlap(x[:5], x[4:])
    assert not buffers.overlap(x[:5], x[5:])
    assert not buffers.overlap(x[:0], x)
    assert buffers.overlap(x, x)
