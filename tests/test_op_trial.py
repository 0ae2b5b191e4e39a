"""A user's function is tried before it reduces: what is no reduction is refused with what shows it."""

from typing import Any

import numpy as np
import pytest

from hpccomm import dtypes
from hpccomm.errors import UsageError
from hpccomm.memory.folding import try_out
from hpccomm.testing import run_ranks

FLOATS = (*dtypes.WIDE, np.dtype(np.float16))
INTEGERS = (*dtypes.SIGNED, *dtypes.UNSIGNED)


@pytest.mark.parametrize(
    ("op", "dtype", "law", "shown"),
    [
        (sum, "f8", "elementwise", "it makes [1"),
        (sum, "?", "elementwise", "it makes"),
        (lambda a, b: np.sort(a + b), "f4", "elementwise", "it makes"),
        (np.subtract, "f8", "commutative", "subtract(1.0, 2.0) is -1.0"),
        (np.subtract, "i1", "commutative", "subtract(1, 2) is -1"),
        (np.subtract, "u8", "commutative", "subtract(1, 2) is"),
        (np.subtract, dtypes.FLOAT8_E5M2, "commutative", "is"),
        (np.copysign, "f4", "commutative", "is"),
        (lambda a, b: np.conj(a) * b, "c16", "commutative", "is"),
        (lambda a, b: (a + b) / 2, "f4", "associative", "is 2.25"),
        (lambda a, b: abs(a - b), "i4", "associative", "is"),
        (np.equal, "i4", "associative", "is"),
    ],
)
def test_what_is_no_reduction_is_refused(op: Any, dtype: Any, law: str, shown: str) -> None:
    with pytest.raises(UsageError, match=f"not {law} on") as caught:
        try_out(op, np.dtype(dtype))
    assert shown in str(caught.value)


@pytest.mark.parametrize(
    ("op", "of"),
    [
        (np.maximum, dtypes.REDUCIBLE),
        (np.add, dtypes.REDUCIBLE),
        (np.logical_or, dtypes.REDUCIBLE),
        (lambda a, b: a * b, dtypes.REDUCIBLE),
        (np.fmin, dtypes.REDUCIBLE),
        (lambda a, b: np.where(abs(a) > abs(b), a, b), dtypes.REDUCIBLE),
        (np.gcd, INTEGERS),
        (np.lcm, INTEGERS),
        (np.bitwise_xor, INTEGERS),
        (np.hypot, FLOATS),
        (np.logaddexp, (*FLOATS, dtypes.BFLOAT16)),
        (lambda a, b: a + b - a * b, FLOATS),
        (lambda a, b: 1 / (1 / a + 1 / b), FLOATS),
        (lambda a, b: np.exp(np.log(a) + np.log(b)), FLOATS),  # NaN where a value is negative
    ],
)
def test_reductions_are_accepted_on_every_dtype_that_they_take(op: Any, of: Any) -> None:
    for dtype in of:
        try_out(op, dtype)


def test_it_is_tried_once_for_each_dtype() -> None:
    calls = []

    def product(a: Any, b: Any) -> Any:
        calls.append(a.dtype)
        return a * b

    for dtype in (np.float64, np.float32):
        try_out(product, np.dtype(dtype))
        tried = len(calls)
        try_out(product, np.dtype(dtype))
        assert len(calls) == tried


def test_a_call_refuses_it_before_anything_is_sent() -> None:
    def on_rank(comm: Any) -> None:
        for op in (sum, np.subtract):
            with pytest.raises(UsageError, match="is not"):
                comm.all_reduce(np.arange(4.0), op=op)
        comm.barrier()

    run_ranks(2, on_rank, timeout=60)
