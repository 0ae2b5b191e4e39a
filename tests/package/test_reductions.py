"""The results of reductions, against Python's and NumPy's wide arithmetic."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from folds import FOLDS, average
from hypothesis import given, settings
from hypothesis import strategies as st

import hpccomm
from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.memory import folding
from hpccomm.memory.folding import Folder, premultiply, try_out
from hpccomm.reductions import Op, ReduceOp, check, identity, meaningful

Array = np.ndarray[Any, np.dtype[Any]]

PAIRS = [(op, dtype) for dtype in dtypes.REDUCIBLE for op in ReduceOp if meaningful(op, dtype)]


def fold(op: Op, contributions: Sequence[Any], out: Array) -> None:
    Folder(op, out.dtype, len(contributions) if op is ReduceOp.AVG else 0)(contributions, out)


def name(value: object) -> str:
    return getattr(value, "name", str(value))


def draw(dtype: DType, count: int, seed: int, ranks: int) -> list[Array]:
    """Contributions over the whole range of integers, and of floats that no sum overflows."""
    random = np.random.default_rng(seed)
    shape = (ranks, count)
    if dtype == dtypes.BOOL:
        return list(random.integers(0, 2, shape).astype(bool))
    if dtypes.is_integer(dtype):
        bounds = np.iinfo(dtype)
        drawn = random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
        return list(np.where(random.random(shape) < 0.1, dtype.type(bounds.min), drawn))
    if dtypes.is_complex(dtype):
        return list((random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype))
    return list(random.normal(size=shape).astype(dtype))


def truth(op: ReduceOp, contributions: Sequence[Array], dtype: DType) -> Array:
    """The reduction, one contribution after the other, in arithmetic that can do no wrong."""
    integers, narrow = dtypes.is_integer(dtype), dtypes.is_narrow(dtype)
    wide: Any = object if integers else np.float32 if narrow else dtype
    total = reduce(FOLDS[op], [each.astype(wide) for each in contributions])
    if integers:  # Python's, of which the last bits are those of C's
        bits = 8 * dtype.itemsize
        total = np.array([each % (1 << bits) for each in total], f"u{dtype.itemsize}").view(dtype)
    if op is ReduceOp.AVG:
        total = average(total, len(contributions))
    return total.astype(dtype)


def same(a: Array, b: Array) -> bool:
    """Bit for bit, but that one NaN is as good as another."""
    if a.dtype.kind in "fcV" and not dtypes.is_integer(a.dtype):
        nan_a, nan_b = a != a, b != b
        return bool((nan_a == nan_b).all()) and a[~nan_a].tobytes() == b[~nan_b].tobytes()
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=name)
@settings(max_examples=min(50, settings.default.max_examples // 2))
@given(ranks=st.integers(1, 12), count=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_fold(op: ReduceOp, dtype: DType, ranks: int, count: int, seed: int) -> None:
    contributions = draw(dtype, count, seed, ranks)
    expected = truth(op, contributions, dtype)
    untouched = [each.copy() for each in contributions]
    out = np.empty(count, dtype)
    fold(op, contributions, out)
    assert same(out, expected)
    assert all(same(a, b) for a, b in zip(contributions, untouched, strict=True))
    for place in {0, ranks // 2, ranks - 1}:  # out may be any of the contributions
        aliased = [each.copy() for each in contributions]
        fold(op, aliased, aliased[place])
        assert same(aliased[place], expected)


class Pieces:
    """A contribution that is read piece by piece, into memory that all of them share."""

    shared = np.empty(folding.FAR_BLOCK_BYTES, np.uint8)

    def __init__(self, data: Array) -> None:
        self.data = data

    def __getitem__(self, where: slice, /) -> Array:
        part = self.data[where]
        read = self.shared[: part.nbytes].view(part.dtype)
        read[:] = part
        return read


@pytest.mark.parametrize("dtype", [dtypes.BOOL, dtypes.BFLOAT16, *map(np.dtype, ("f4", "i8"))])
def test_fold_over_block_boundaries_and_of_what_is_read_piece_by_piece(dtype: DType) -> None:
    op = ReduceOp.PROD if dtype == dtypes.BOOL else ReduceOp.AVG
    near, far = (n // dtype.itemsize for n in (folding.BLOCK_BYTES, folding.FAR_BLOCK_BYTES))
    for count in (near - 1, near, near + 1, 2 * far + 5):
        for ranks in (1, 2, 3, 4) if count < far or dtype.kind != "i" else (2, 3):
            given = draw(dtype, count, ranks, ranks)
            expected = truth(op, given, dtype)
            out = np.empty(count, dtype)
            fold(op, [Pieces(each) for each in given], out)
            assert same(out, expected)
            for own in range(ranks):  # the one that is an array; the result goes there
                sources: list[Any] = [Pieces(each) for each in given]
                sources[own] = out = given[own].copy()
                fold(op, sources, out)
                assert same(out, expected)
            fold(op, given, given[-1])
            assert same(given[-1], expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.int8), np.dtype(np.uint8)], ids=name)
@pytest.mark.parametrize("ranks", [127, 128, 200, 256, 1000])
def test_average_over_more_ranks_than_the_dtype_counts(dtype: DType, ranks: int) -> None:
    contributions = draw(dtype, 50, ranks, ranks)
    out = np.empty(50, dtype)
    fold(ReduceOp.AVG, contributions, out)
    assert same(out, truth(ReduceOp.AVG, contributions, dtype))


@pytest.mark.parametrize("dtype", dtypes.NARROW + dtypes.WIDE, ids=name)
def test_a_nan_anywhere_gives_nan_and_an_overflow_is_silent(dtype: DType) -> None:
    for op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.SUM):
        for place in range(3):
            contributions = [np.ones(300, dtype) for _ in range(3)]
            contributions[place][7] = np.nan
            out = np.empty(300, dtype)
            fold(op, contributions, out)
            assert np.flatnonzero(np.isnan(out.astype(np.float32))).tolist() == [7]
    largest = np.array([ml_dtypes.finfo(dtype).max], dtype)
    out = np.empty(1, dtype)
    fold(ReduceOp.SUM, [largest, largest], out)
    assert not np.isfinite(out.astype(np.float64))[0]
    premultiply(hpccomm.premul_sum(2), largest, out)
    assert not np.isfinite(out.astype(np.float64))[0]


@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=name)
def test_identity(op: ReduceOp, dtype: DType) -> None:
    if op is ReduceOp.AVG:
        with pytest.raises(UsageError, match="avg has no identity"):
            identity(op, dtype)
        return
    x = draw(dtype, 30, 5, 1)[0]
    neutral = np.full(30, identity(op, dtype), dtype)
    for pair in ([neutral, x], [x, neutral]):
        out = np.empty(30, dtype)
        fold(op, pair, out)
        assert same(out, x)


@pytest.mark.parametrize("dtype", [d for d in dtypes.REDUCIBLE if d != dtypes.BOOL], ids=name)
def test_premultiply(dtype: DType) -> None:
    op = hpccomm.premul_sum(2)
    check(op, dtype)
    x = np.arange(-3, 4).astype(dtype)
    expected = (np.arange(-3, 4) * 2).astype(dtype)
    out = np.empty_like(x)
    premultiply(op, x, out)
    assert same(out, expected)
    premultiply(op, x, x)
    assert same(x, expected)


def test_what_means_nothing_is_refused() -> None:
    for op, dtype in ((np.add, np.dtype("M8[s]")), (hpccomm.premul_sum(2), dtypes.BOOL)):
        with pytest.raises(UnsupportedDtype, match=r"(add|premul_sum) means nothing on"):
            check(op, dtype)
    for factor in ("2", None, True, np.array([2.0]), [1]):
        with pytest.raises(UsageError, match="factor is"):
            hpccomm.premul_sum(factor)  # type: ignore[arg-type]


def test_a_callable_is_folded_in_order_and_must_keep_shape_and_dtype() -> None:
    contributions = [np.full(5, 10.0**i) for i in range(3)]
    out = np.empty(5)
    fold(lambda a, b: a * 2 + b, contributions, out)
    assert out.tolist() == [124.0] * 5  # ((1 * 2 + 10) * 2 + 100)
    for wrong in (lambda a, _: a[:-1], lambda a, b: a + b * 1j, lambda a, _: a.astype(str)):
        with pytest.raises(UsageError, match="must be elementwise and keep the dtype"):
            fold(wrong, contributions, out)


@pytest.mark.parametrize("dtype", ["?", "i4", "f4", "c16", dtypes.BFLOAT16])
@pytest.mark.parametrize("which", [0, 1])
def test_a_callable_that_writes_to_its_arguments_is_refused(which: int, dtype: Any) -> None:
    def product(*arrays: Any) -> Any:
        arrays[which][:] = arrays[0] * arrays[1]
        return arrays[which]

    with pytest.raises(UsageError, match="product writes to its arguments"):
        try_out(product, np.dtype(dtype))


@pytest.mark.parametrize("flag", ["deterministic", "exclusive"])
@pytest.mark.parametrize("x", [np.ones(2), 2.0], ids=["array", "number"])
def test_1_is_no_flag_also_where_true_was_taken(flag: str, x: Any) -> None:
    """Python's 1 is equal to True, and has its hash."""
    with hpccomm.new_comm("loopback") as comm:
        call = comm.scan if flag == "exclusive" else comm.all_reduce
        for right, wrong in ((True, 1), (False, 0)):
            call(x, **{flag: right})
            with pytest.raises(UsageError, match=f"{flag} is {wrong}"):
                call(x, **{flag: wrong})
