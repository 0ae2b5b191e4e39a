"""A user's function is tried before it reduces; if it is not a reduction, the values show it."""

from collections.abc import Callable
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


class WithoutHash:
    def __call__(self, a: Any, b: Any) -> Any:
        return np.maximum(a, b)

    def __hash__(self) -> int:
        raise TypeError("it holds a list")


def test_a_call_refuses_it_before_anything_is_sent() -> None:
    def on_rank(comm: Any) -> None:
        for op in (lambda a, b: a + b.sum(), np.subtract):
            with pytest.raises(UsageError, match="is not"):
                comm.all_reduce(np.arange(4.0), op=op)
        assert comm.all_reduce(np.array([comm.rank]), WithoutHash()).item() == 1

    run_ranks(2, on_rank, timeout=60)


EXTREMES = """
import numpy as np
from itertools import product
import hpccomm
from hpccomm import ReduceOp

# C99 (annex G.5.1) makes an infinity of (inf + 0j) (0 + 1j); NumPy's formula makes NaN of it.
LEFT = np.array([complex(np.inf, 0), complex(-np.inf, np.nan), complex(np.inf, np.inf), -0.0, 2 + 1j])
RIGHT = np.array([1j, complex(np.inf, 1), 1 + 1j, complex(0, -0.0), 3 - 1j])
with hpccomm.new_comm() as comm, np.errstate(all="ignore"):
    for dtype, length in product(("c16", "c8", "f8"), (1, 7, 5000, 100_000)):
        real = "f4" if dtype == "c8" else "f8"  # so that NaN is compared in each part
        given = [np.resize(each.view("f8") if dtype == "f8" else each, length).astype(dtype)
                 for each in (LEFT, RIGHT)]
        for op, ufunc in ((ReduceOp.PROD, np.multiply), (ReduceOp.SUM, np.add)):
            right = ufunc(*given)
            mine = given[comm.rank]
            results = [comm.all_reduce(mine.copy(), op, algorithm=way)
                       for way in (None, "recursive_doubling", "ring", "shm")]
            results += [comm.all_reduce(mine.copy(), op, async_op=True).wait()]
            at_root, prefix = comm.reduce(mine.copy(), op=op), comm.scan(mine, op)
            for each in (*results, prefix if comm.rank else at_root):
                np.testing.assert_array_equal(each.view(real), right.view(real), f"{op} {dtype} {length}")
"""


def test_the_library_s_reductions_are_tried_on_extremes(shared_job: Callable[..., Any]) -> None:
    """Every size and algorithm gives what NumPy does, whatever the library's own arithmetic is."""
    job = shared_job(2, "-c", EXTREMES)
    assert job.returncode == 0, job.stderr


WELFORD = np.dtype([("count", "i8"), ("mean", "f8"), ("spread", "f8", 2)])
BEST = np.dtype([("cost", "f4"), ("inner", [("place", "i4"), ("name", "S3")])])


def merged(a: Any, b: Any) -> Any:
    """Chan, Golub and LeVeque, 1983, formula 2.1."""
    whole = np.empty_like(a)
    whole["count"] = count = a["count"] + b["count"]
    step = b["mean"] - a["mean"]
    whole["mean"] = a["mean"] + step * b["count"] / count
    added = step**2 * a["count"] * b["count"] / count
    whole["spread"] = a["spread"] + b["spread"] + added[:, None]
    return whole


def cheaper(a: Any, b: Any) -> Any:
    before = b["inner"]["place"] < a["inner"]["place"]
    return np.where((b["cost"] < a["cost"]) | ((b["cost"] == a["cost"]) & before), b, a)


def cheaper_of_equals(a: Any, b: Any) -> Any:
    return np.where(b["cost"] < a["cost"], b, a)


def test_functions_of_structures_are_tried_by_field() -> None:
    try_out(merged, WELFORD)
    try_out(cheaper, BEST)
    for wrong, law in (
        (lambda a, _: np.sort(a, order="mean"), "elementwise"),
        (lambda a, _: a, "commutative"),
    ):
        with pytest.raises(UsageError, match=f"not {law} on .*count"):
            try_out(wrong, WELFORD)
    with pytest.raises(UsageError, match=r"not commutative on .*deterministic=True"):
        try_out(cheaper_of_equals, BEST)
    for dtype, op in ((WELFORD, np.add), (BEST, lambda a, b: a["cost"] + b["cost"])):
        with pytest.raises(UsageError, match=r"fails on|keep the dtype"):
            try_out(op, dtype)
    with pytest.raises(UsageError, match="writes to its arguments"):
        try_out(lambda a, _: a.sort(order="mean") or a, WELFORD)


def test_in_rank_order_a_function_need_only_be_elementwise() -> None:
    for op in (np.subtract, lambda a, b: a * 2 + b, np.copysign):
        try_out(op, np.dtype("f8"), ordered=True)
        with pytest.raises(UsageError, match="commutative"):
            try_out(op, np.dtype("f8"))
    try_out(cheaper_of_equals, BEST, ordered=True)
    with pytest.raises(UsageError, match=r"elementwise .*np\.maximum$"):
        try_out(lambda a, b: np.sort(a + b), np.dtype("f8"), ordered=True)
