"""The text of the kernels for narrow floats, as C: two compilers read it, and no GPU is needed.

What comes out of the C compiler is compared with `ml_dtypes`, bit for bit. NVIDIA's compiler, from the wheel
``nvidia-cuda-nvrtc-cu12`` or ``-cu13``, says that it is CUDA. `tests/cuda/test_folding.py` has the same values.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import wheels

from hpccomm import dtypes
from hpccomm.dtypes import FLOAT32
from hpccomm.memory.cuda import narrow
from hpccomm.reductions import ReduceOp

C = {np.dtype(np.uint8): "unsigned char", np.dtype(np.uint16): "unsigned short", FLOAT32: "float"}

INTRINSICS = """
#include <stddef.h>
#include <string.h>
static float __uint_as_float(unsigned int u) { float f; memcpy(&f, &u, 4); return f; }
static unsigned int __float_as_uint(float f) { unsigned int u; memcpy(&u, &f, 4); return u; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
"""
"""CUDA Math API, Single Precision Intrinsics and Type Casting Intrinsics."""

OF_NUMPY = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
}  # fmt: skip


def kernels():
    """Return each kernel's name, its sources, its target and its text."""
    for dtype in narrow.FORMATS:
        yield f"widen_{dtype}", (dtype,), FLOAT32, narrow.operation((dtype,), FLOAT32)
        yield f"round_{dtype}", (FLOAT32,), dtype, narrow.operation((FLOAT32,), dtype)
        product = narrow.operation((dtype,), dtype, last=narrow.MULTIPLIED)
        yield f"product_{dtype}", (dtype,), dtype, product
        for op, combined in narrow.COMBINED.items():
            text = narrow.operation((dtype, dtype), dtype, combined)
            yield f"{op.value}_{dtype}", (dtype, dtype), dtype, text


def function(name, sources, target, text, index):
    """Return a function around a kernel's text; `index` gives the element's number."""
    kinds = [C[narrow.carrier(each)] for each in (*sources, target)]
    takes = ", ".join(f"const {kind} *p{n}" for n, kind in enumerate(kinds[:-1]))
    reads = " ".join(f"const {kind} x{n} = p{n}[i];" for n, kind in enumerate(kinds[:-1]))
    return (
        f"void {name}(size_t count, {takes}, float c, {kinds[-1]} *out) {{\n{index} {{\n"
        f"{reads} {kinds[-1]} y;\n{text}\nout[i] = y; }} }}\n"
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: cc")
    folder = tmp_path_factory.mktemp("kernels")
    loop = "for (size_t i = 0; i < count; i++)"
    texts = (function(*each, loop) for each in kernels())
    (folder / "kernels.c").write_text(INTRINSICS + "".join(texts), encoding="utf-8")
    options = ("-O1", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unused", "-fPIC", "-shared")
    command = [compiler, *options, "kernels.c", "-o", "kernels.so"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "kernels.so"))

    def call(name, sources, target, number=1.0):
        out = np.empty(sources[0].size, target)
        at = [ctypes.c_void_p(x.ctypes.data) for x in (*sources, out)]
        count, last = ctypes.c_size_t(out.size), ctypes.c_float(number)
        getattr(library, name)(count, *at[:-1], last, at[-1])
        return out

    return call


def same(a, b):
    """Tell whether two arrays have the same bits, but for which NaN it is."""
    a_nan, b_nan = a != a, b != b
    return (a_nan == b_nan).all() and a[~a_nan].tobytes() == b[~b_nan].tobytes()


def each_of(dtype):
    bits = narrow.FORMATS[dtype].bits
    return np.arange(np.iinfo(bits).max + 1, dtype=np.uint32).astype(bits).view(dtype)


@pytest.mark.parametrize("dtype", narrow.FORMATS, ids=str)
def test_each_value_is_widened_rounded_and_multiplied_as_ml_dtypes_does(compiled, dtype):
    x = each_of(dtype)
    assert same(compiled(f"widen_{dtype}", [x], FLOAT32), x.astype(FLOAT32))
    with np.errstate(all="ignore"):
        expected = (x.astype(FLOAT32) * np.float32(0.7)).astype(dtype)
        assert same(compiled(f"product_{dtype}", [x], dtype, 0.7), expected)
        upper = np.arange(1 << 16, dtype=np.uint32) << 16
        for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):  # at ties and beside them
            floats = (upper | np.uint32(lower)).view(FLOAT32)
            assert same(compiled(f"round_{dtype}", [floats], dtype), floats.astype(dtype))


@pytest.mark.parametrize("dtype", narrow.FORMATS, ids=str)
@pytest.mark.parametrize("op", narrow.COMBINED, ids=lambda op: op.value)
def test_each_pair_is_folded_in_float32_and_rounded_once(compiled, op, dtype):
    x = each_of(dtype)
    a, b = (each.ravel() for each in np.meshgrid(x[:: x.size // 256], x[:: x.size // 256]))
    if dtype == dtypes.BFLOAT16:  # too many: all of them, each with another
        a, b = x, np.random.default_rng(1).permutation(x)
    divisor = 3 if op is ReduceOp.AVG else 1
    with np.errstate(all="ignore"):
        wide = OF_NUMPY[op](a.astype(FLOAT32), b.astype(FLOAT32)) / np.float32(divisor)
        expected = wide.astype(dtype)
    found = compiled(f"{op.value}_{dtype}", [a, b], dtype, divisor)
    zeros = expected == 0 if op in (ReduceOp.MIN, ReduceOp.MAX) else np.zeros(a.size, bool)
    assert (found[zeros] == 0).all()  # of either sign, as with NumPy
    assert same(found[~zeros], expected[~zeros])


def nvrtc():
    """Return NVIDIA's compiler as an installed wheel has it, or None."""
    for folder in (*wheels.folders("cuda_nvrtc"), *wheels.folders("cu13")):
        for path in folder.glob("lib/libnvrtc.so.*"):
            return ctypes.CDLL(str(path))
    return None


@pytest.mark.skipif(nvrtc() is None, reason="no wheel of NVRTC is installed")
@pytest.mark.parametrize("architecture", ["compute_80", "compute_90"])
def test_nvidias_compiler_takes_the_text_and_fuses_nothing(architecture):
    library = nvrtc()
    index = "size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < count)"
    texts = [f'extern "C" __global__ {function(*each, index)}' for each in kernels()]
    source, program = "".join(texts).encode(), ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    assert library.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None) == 0
    status, size = library.nvrtcCompileProgram(program, 1, options), ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    assert library.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    code = ctypes.create_string_buffer(size.value)
    assert library.nvrtcGetPTX(program, code) == 0
    assert code.value.count(b".visible .entry") == len(texts)
    assert b"add.rn.f32" in code.value
    for fused in (b"fma.rn.f32", b".ftz", b"div.approx", b"div.full"):
        assert fused not in code.value, fused
    library.nvrtcDestroyProgram(ctypes.byref(program))
