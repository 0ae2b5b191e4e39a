"""hpccomm on one GPU in one process: every reduction of every dtype, folds, memory. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_one_process.py

Folds are the largest part of hpccomm's own code on a device. Their results are compared with the host's,
bit for bit. A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpccomm
from contest.device import check, one_rank, to_device, to_host
from contest.verdicts import Verdicts
from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.arrays import DeviceFolder
from hpccomm.memory.cuda.arrays import folds as on_device
from hpccomm.memory.folding import Folder
from hpccomm.reductions import ReduceOp, meaningful, premul_sum

SIZES = (1 << 10, 1 << 20, 16 << 20, 64 << 20)
"""Bytes of registered memory."""


def first_kernel(verdicts: Verdicts) -> None:
    """Take the time of a first kernel: it makes the context, and loads or compiles."""
    import cupy

    begin = time.perf_counter()
    float(cupy.ones(4).sum())
    verdicts.note(f"the first kernel of this process took {time.perf_counter() - begin:.2f} s")


def calls(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Check the calls of one rank, which give back what they are given."""
    import cupy

    assert comm.device is not None
    with cupy.cuda.Device(comm.device):
        with verdicts.part("all_reduce of one rank"):
            reductions(comm, verdicts)
        with verdicts.part("a message of a rank to itself over NCCL"):
            x, y = cupy.arange(1000.0), cupy.zeros(1000)
            comm.send_recv(x, 0, y, 0)  # the one call of a single rank that NCCL carries out
            right = bool((y.get() == x.get()).all())
            verdicts.limit(right, "a message of a rank to itself over NCCL")
        with verdicts.part("explain"):
            verdicts.note(str(comm.explain("all_reduce", x)))
        for nbytes in SIZES:
            with verdicts.part(f"comm.empty of {nbytes} bytes"):
                begin = time.perf_counter()
                held = comm.empty(nbytes, np.uint8, device=comm.device)
                took = time.perf_counter() - begin
                held.fill(1)
                right = bool((comm.all_reduce(held) == 1).all())
                text = f"comm.empty of {nbytes} bytes on the device: {took * 1e3:.2f} ms"
                verdicts.limit(right, text)


def reductions(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Check every reduction of every dtype, and factors."""
    wrong, count = [], 0
    for dtype in dtypes.REDUCIBLE:
        given = values(dtype, 5)
        for op in (each for each in ReduceOp if meaningful(each, dtype)):
            got = comm.all_reduce(to_device(given), op=op, out=to_device(given[::-1].copy()))
            count += 1
            if to_host(got, dtype).tobytes() != given.tobytes():
                wrong.append(f"{op.value} of {dtype}")
    verdicts.limit(not wrong, f"all_reduce of one rank, {count} reductions: {named(wrong)}")
    wrong = []
    for dtype in (dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2, dtypes.BFLOAT16, dtypes.FLOAT32):
        given = np.arange(5).astype(dtype)
        got = comm.all_reduce(to_device(given), op=premul_sum(2), out=to_device(given))
        if to_host(got, dtype).tolist() != (2 * np.arange(5)).tolist():
            wrong.append(str(dtype))
    verdicts.limit(not wrong, f"a factor of 2 on four floats: {named(wrong)}")


def folds(verdicts: Verdicts) -> None:
    """Compare each fold with the host's."""
    for dtype in dtypes.REDUCIBLE:
        there = [op for op in ReduceOp if meaningful(op, dtype) and on_device(op, dtype)]
        if not there:
            continue
        begin = time.perf_counter()
        wrong = [op.value for op in there if not folds_alike(op, dtype)]
        took = time.perf_counter() - begin
        verdicts.limit(not wrong, f"folds of {dtype} as the host's: {named(wrong)} ({took:.1f} s)")


def folds_alike(op: ReduceOp, dtype: DType) -> bool:
    """Tell whether a fold of three contributions has the host's bits, but for which NaN it is."""
    average = 3 if op is ReduceOp.AVG else 0
    given = [bits(dtype, 3000, seed) for seed in range(3)]
    expected = np.empty_like(given[0])
    Folder(op, dtype, average)(given, expected)
    sources, out = [to_device(each) for each in given], to_device(np.zeros_like(given[0]))
    fold = DeviceFolder(op, dtype, 0, average)
    fold([each.data.ptr for each in sources], out.data.ptr, given[0].size)
    got = to_host(out, dtype)
    if op is ReduceOp.PROD and dtypes.is_complex(dtype):  # sums and products may be fused
        return bool(np.allclose(got, expected, rtol=1e-5))
    return all(
        a.tobytes() == b.tobytes() or bool(a != a and b != b) for a, b in both(got, expected)
    )


def both(got: NDArray[Any], expected: NDArray[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the elements that differ."""
    width = got.dtype.itemsize
    a, b = (each.view(np.uint8).reshape(-1, width) for each in (got, expected))
    for at in np.flatnonzero((a != b).any(axis=1)):
        yield got[at], expected[at]


def values(dtype: DType, count: int) -> NDArray[Any]:
    """Return small numbers that every dtype has."""
    return (np.arange(count) % 2 if dtype == dtypes.BOOL else np.arange(count)).astype(dtype)


def bits(dtype: DType, count: int, seed: int) -> NDArray[Any]:
    """Return elements, of integers any bits."""
    random = np.random.default_rng(seed)
    if dtype == dtypes.BOOL:
        return random.integers(0, 2, count).astype(dtype)
    if dtypes.is_complex(dtype):
        return (random.normal(size=count) + 1j * random.normal(size=count)).astype(dtype)
    if dtypes.is_integer(dtype):
        return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()
    return random.normal(size=count).astype(dtype)


def named(wrong: list[str]) -> str:
    """Return what is wrong, as text."""
    return f"wrong: {', '.join(wrong)}" if wrong else "right"


if __name__ == "__main__":
    parts = {
        "the first kernel": first_kernel,
        "a communicator of one rank": one_rank(calls),
        "folds": folds,
    }
    check("one process, one rank", parts)
