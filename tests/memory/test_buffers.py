"""Arrays that cannot be shared are refused with a remedy, and the remedy leads to the values of their own library.

What is taken, and what calls refuse of NumPy's arrays: ``tests/front``, on every path.
"""

import ctypes
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpccomm import dtypes
from hpccomm.contracts.device import Span
from hpccomm.errors import BackendUnavailable, UsageError
from hpccomm.memory import views as buffers


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


class Foreign:
    """An array of a library that offers DLPack alone, in memory of some kind."""

    def __init__(self, values: Any, kind: int = 1) -> None:
        self.values, self.kind = values, kind

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.kind < 0:
            raise ZeroDivisionError  # it does not know where it lies
        return self.kind, 0


PLACE = {"data": (64, False), "typestr": "<f4", "shape": (3,), "version": 3}


class OnDevice:
    """In memory that nothing is asked of where there is no CuPy to ask."""

    __cuda_array_interface__ = PLACE


@pytest.mark.parametrize("kind", [1, 3, 11, 13])
def test_dlpack_in_memory_that_the_host_reads(kind: int) -> None:
    x = np.arange(4.0)
    assert np.shares_memory(buffers.view(Foreign(x, kind), "x"), x)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "masked": (
        lambda: np.ma.masked_equal([1, 2], 1),
        r"x is a masked array.*x\.filled\(\) or \.data",
    ),
    # What memoryview and NumPy raise of these are other errors: ValueError, BufferError.
    "released": (released, "x .*memoryview.* cannot be shared: .*released"),
    "pointer": (lambda: ctypes.pointer(ctypes.c_double(1)), r"ctypeslib.as_array\(x, shape\)"),
    "wchar": (lambda: (ctypes.c_wchar * 2)(), "x .*wchar.* cannot be shared.*; give a NumPy array"),
    "addresses": (lambda: memoryview(bytearray(8)).cast("P"), "x .*memoryview.* cannot be shared"),
    # A library whose own code fails: None has no memory to offer.
    "faulty": (lambda: Foreign(None), r"x .* cannot be shared"),
    "lost": (lambda: Foreign(None, -1), r"x .* cannot be shared"),
    "turned": (lambda: np.zeros((3, 4)).T, r"\(4, 3\), strides .*numpy.ascontiguousarray\(x\)"),
    "every second": (lambda: memoryview(bytearray(6))[::2], "not C-contiguous"),
}
ON_DEVICES: dict[str, tuple[Callable[[], object], str]] = {
    "CUDA's interface": (OnDevice, r"CuPy|CUDA"),
    "DLPack of CUDA": (lambda: Foreign(np.zeros(3), 2), r"CuPy|CUDA"),
    "Metal": (lambda: Foreign(np.zeros(3), 8), "x lies on a device .*Foreign"),
    "ROCm": (lambda: Foreign(np.zeros(3), 10), "not CUDA's"),
}


@pytest.mark.parametrize("what", [*REFUSED, *ON_DEVICES])
def test_what_cannot_be_shared_is_refused_with_what_to_do(what: str) -> None:
    make, says = (REFUSED | ON_DEVICES)[what]
    with pytest.raises(BackendUnavailable if what in ON_DEVICES else UsageError, match=says):
        buffers.check_layout(buffers.view(make(), "x"), "x", written=False)


def test_what_the_caller_wants_of_an_array_is_said() -> None:
    """A copy alone would lose the result: numpy.ascontiguousarray(x) is no array of the caller's."""
    with pytest.raises(UsageError, match=r"c = numpy.ascontiguousarray\(x\), .* by x\[...\] = c"):
        buffers.check_layout(np.zeros((3, 4)).T, "x", written=True)
    with pytest.raises(UsageError, match=r"x is a device array .*OnDevice.*NumPy"):
        buffers.host_view(OnDevice(), "x")


def checked(x: object, *, written: bool) -> np.ndarray[Any, Any]:
    view = buffers.view(x, "x")
    buffers.check_dtype("x", view.dtype)
    buffers.check_layout(view, "x", written=written)
    return view


def cured(x: object, *, written: bool) -> np.ndarray[Any, Any]:
    """Return what the lines in the messages lead to, as a user would follow them."""
    for _ in range(3):
        try:
            return checked(x, written=written)
        except UsageError as error:
            said = str(error)
        found = re.search(r"[cx] = (x\S*|numpy\S*|bytearray\S*?)(?:,|$)", said) or re.search(
            r"(x\.\w+\(\)|numpy\.[\w.]+\(x[^)]*\))", said
        )
        assert found, said
        x = eval(found[1], {"x": x, "numpy": np})
    raise AssertionError(said)


def foreign(library: str, make: Callable[[Any], object]) -> Callable[[], object]:
    """Return what makes an array of a library, or skips."""
    return lambda: make(pytest.importorskip(library))


def frozen() -> np.ndarray[Any, Any]:
    x = np.arange(3.0)
    x.flags.writeable = False
    return x


def shown(x: Any) -> list[Any]:
    """Return the values that an array has, as its own library says."""
    if hasattr(x, "toarray"):
        return x.toarray().tolist()
    if hasattr(x, "to_dense"):
        return x.to_dense().clone().resolve_conj().resolve_neg().tolist()
    return list(x) if isinstance(x, bytes) else np.asarray(getattr(x, "values", x)).tolist()


def zeros_of_autograd(torch: Any) -> object:
    return torch._efficientzerotensor(3)  # which no public function makes


def in_file(h5py: Any) -> object:
    file = h5py.File("x", "w", driver="core", backing_store=False)
    return file.create_dataset("x", data=np.arange(3.0))


LIBRARIES = {
    "numpy": frozen,
    "numpy.broadcast_to": lambda: np.broadcast_to(np.arange(3.0), (2, 3)),
    "bytes": lambda: b"\0\1\2",
    "memoryview": lambda: memoryview(np.arange(3.0)).toreadonly(),
    "scalar": lambda: np.float64(3),
    "big endian": lambda: np.arange(3.0).astype(">f8"),
    "big endian in a field": lambda: np.ones(2, [("a", "i4"), ("b", ">i2")]),
    "dlpack": lambda: Foreign(np.arange(3.0), 1),
    "jax": foreign("jax.numpy", lambda jnp: jnp.arange(3.0)),
    "jax.bfloat16": foreign("jax.numpy", lambda jnp: jnp.arange(3, dtype=jnp.bfloat16)),
    "jax.float8": foreign("jax.numpy", lambda jnp: jnp.ones(3).astype(jnp.float8_e5m2)),
    "jax.int4": foreign("jax.numpy", lambda jnp: jnp.arange(3).astype(jnp.int4)),
    "pandas.Series": foreign("pandas", lambda pd: pd.Series([0.0, 1.0, 2.0])),
    "pandas.DataFrame": foreign("pandas", lambda pd: pd.DataFrame({"a": [0.0], "b": [1.0]})),
    "polars.Series": foreign("polars", lambda pl: pl.Series([0.0, 1.0, 2.0])),
    "pyarrow.array": foreign("pyarrow", lambda pa: pa.array([0.0, 1.0, 2.0])),
    "pyarrow.chunked_array": foreign("pyarrow", lambda pa: pa.chunked_array([[0.0], [1.0]])),
    "xarray": foreign("xarray", lambda xr: xr.DataArray(np.arange(3.0))),
    "h5py": foreign("h5py", in_file),
    "scipy.sparse": foreign("scipy.sparse", lambda sparse: sparse.eye_array(2)),
    "torch.conj": foreign("torch", lambda torch: torch.tensor([1 + 2j]).conj()),
    "torch.imag of conj": foreign("torch", lambda torch: torch.tensor([1 + 2j]).conj().imag),
    "torch.neg of a view": foreign("torch", lambda torch: torch.tensor(1 + 2j).conj().imag[None]),
    "torch.zeros": foreign("torch", zeros_of_autograd),
    "torch.T": foreign("torch", lambda torch: torch.arange(6.0).reshape(2, 3).T),
    "torch.channels_last": foreign(
        "torch", lambda torch: torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last)
    ),
    "torch.sparse": foreign("torch", lambda torch: torch.eye(2).to_sparse()),
}


@pytest.mark.slow("the first array of a library imports it")
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_lines_in_the_messages_lead_to_an_array_of_the_same_values(name: str) -> None:
    x = LIBRARIES[name]()
    values = shown(x)
    for written in (False, True):
        view = cured(x, written=written)
        assert view.tolist() == values
    view[...] = view  # it can be written


@pytest.mark.parametrize("kind", ["zeros", "fake", "storage given back"])
def test_torch_tensors_without_memory(torch, kind: str) -> None:
    """Each has the address 0, and NumPy's DLPack takes memory of its own for it, with what lies there."""
    if kind == "zeros":
        x = zeros_of_autograd(torch)
    elif kind == "fake":
        from torch._subclasses import FakeTensorMode  # of compilations

        with FakeTensorMode():
            x = torch.ones(3)
    else:
        x = torch.ones(3)
        x.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of looking at a fake's address
        with pytest.raises(UsageError, match="x has no memory"):
            buffers.view(x, "x")


def test_torch_tensors_and_jax_arrays_that_are_traced_are_refused(torch) -> None:
    def refused(x: Any) -> Any:
        text = r"outside of jit, vmap and grad|cannot be shared|has no memory"
        with pytest.raises(UsageError, match=text):
            buffers.view(x, "x")
        return x.sum()

    torch.func.vmap(refused)(torch.ones(2, 3))
    torch.func.functionalize(refused)(torch.ones(3))
    jax = pytest.importorskip("jax")
    jax.jit(refused)(jax.numpy.ones(3))
    jax.vmap(refused)(jax.numpy.ones((2, 3)))
    jax.grad(refused)(jax.numpy.ones(3))
    gone = jax.numpy.ones(3)
    gone.delete()
    with pytest.raises(UsageError, match="cannot be shared"):
        buffers.view(gone, "x")


# Of its wider unsigned integers PyTorch converts none.
@pytest.mark.parametrize(
    "name",
    [each.name for each in dtypes.REDUCIBLE if each.name not in ("uint16", "uint32", "uint64")],
)
def test_torch_tensors_share_their_memory(torch, name: str) -> None:
    dtype = getattr(torch, name)
    tensor = torch.zeros((2, 3), dtype=torch.uint8).to(dtype)
    view = buffers.view(tensor, "x")
    assert view.dtype == np.dtype(name)
    buffers.check_layout(view, "x", written=True)
    view[1, 2] = 1
    assert bool(tensor[1, 2].to(torch.complex128) == 1)
    result = buffers.empty_like_kind(tensor, (4,), view.dtype)
    assert (result.dtype, tuple(result.shape)) == (tensor.dtype, (4,))
    for shape in ((), (0,), (3, 0), (1, 2, 3)):
        assert buffers.view(torch.empty(shape, dtype=dtype), "x").shape == shape
    if dtype.is_floating_point:
        with pytest.raises(UsageError, match=r"x requires grad.*x\.detach\(\)"):
            buffers.view(tensor.requires_grad_(), "x")
    with pytest.raises(UsageError, match="cannot be shared by DLPack"):
        buffers.view(torch.empty(3, dtype=dtype, device="meta"), "x")


def test_spans_that_touch_have_no_memory_in_common() -> None:
    one, behind, amid = (Span(at, 4, np.dtype(np.float64)) for at in (64, 96, 88))
    assert not one.overlaps(behind)
    assert not behind.overlaps(one)
    assert one.overlaps(amid)
    assert amid.overlaps(behind)
