"""Binned sums have the same bits in any order and on any ranks; `math.fsum` says what they should be."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm import ReduceOp
from hpccomm.dtypes import BINNED
from hpccomm.memory.binned import add
from hpccomm.testing import run_ranks


def in_parts(x: Any, rng: np.random.Generator) -> Any:
    """Sum in another order and in parts, as ranks would."""
    x = rng.permutation(x)
    cuts = sorted(rng.integers(0, len(x) + 1, rng.integers(0, 6)))
    parts = [hpccomm.binned_sum(x[a:b]) for a, b in pairwise([0, *cuts, len(x)])]
    total = np.zeros(1, BINNED)
    for part in rng.permutation(np.array(parts)):
        add(total, np.array([part]), total)
    return hpccomm.rounded(total)[0]


@pytest.mark.parametrize("spread", [0, 5, 30, 500, 1050])
def test_any_order_gives_the_bits_of_the_exact_sum(spread: int) -> None:
    rng = np.random.default_rng(spread)
    for _ in range(100):
        most = min(spread, 1000)
        x = rng.uniform(1, 2, rng.integers(1, 80)) * 2.0 ** rng.integers(-spread, most + 1)
        x *= 2.0 ** rng.integers(-min(spread, 30), 1, len(x))
        got = hpccomm.rounded(hpccomm.binned_sum(x))
        assert got == math.fsum(x)
        assert got.tobytes() == in_parts(x, rng).tobytes()


def test_what_cancels_is_lost_below_72_bits_of_the_largest_number() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.normal(size=30) * 2.0 ** rng.integers(-40, 40, 30)
        x = np.concatenate([x, -x, rng.normal(size=3) * 2.0 ** rng.integers(-60, 0)])
        got = hpccomm.rounded(hpccomm.binned_sum(x))
        assert got.tobytes() == in_parts(x, rng).tobytes()
        exact = math.fsum(x)
        assert abs(got - exact) <= len(x) * abs(x).max() * 2.0**-72 + np.spacing(abs(exact)) / 2


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([], 0.0),
        ([-0.0, -0.0], 0.0),
        ([5e-324] * 3, 1.5e-323),
        ([2.2250738585072014e-308, -5e-324], 2.225073858507201e-308),
        ([1e308, 1e308, -1e308], 1e308),  # too large on the way only
        ([1.7976931348623157e308] * 2, math.inf),
        ([-1.7976931348623157e308, -1e292], -math.inf),
        ([1.7976931348623157e308, 1.0], 1.7976931348623157e308),
        ([1.0, math.inf, 1e308], math.inf),
        ([-math.inf, 5e-324], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.inf, math.nan], math.nan),
        ([1.0, 2.0**-53, 2.0**-90], 1.0),  # a tie, but for what is lost
        ([1.0, 2.0**-53, 2.0**-70], 1.0000000000000002),
        ([-1.0, -(2.0**-53)], -1.0),
        ([1.0] * 200_000 + [2.0**-36, 2.0**-60], 200_000 + 2.0**-35),
    ],
    ids=lambda value: str(value)[:30],
)
def test_edges(x: list[float], expected: float) -> None:
    rng = np.random.default_rng(0)
    got = {hpccomm.rounded(hpccomm.binned_sum(np.array(x))).tobytes()}
    got |= {in_parts(np.array(x), rng).tobytes() for _ in range(5)}
    (only,) = got
    np.testing.assert_array_equal(np.frombuffer(only), expected)
    if expected == 0:
        assert not np.signbit(np.frombuffer(only))


def test_axes_dtypes_and_misuse() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("f4")
    for axis in (0, 1, -1):
        sums = hpccomm.binned_sum(x, axis)
        exact = np.apply_along_axis(math.fsum, axis, x.astype("f8"))
        np.testing.assert_array_equal(hpccomm.rounded(sums), exact)
        np.testing.assert_array_equal(hpccomm.rounded(sums, "f4"), exact.astype("f4"))
    assert hpccomm.rounded(hpccomm.binned_sum(x)) == math.fsum(x.ravel().tolist())
    assert hpccomm.rounded(hpccomm.binned_sum(x.astype(">f8"))) == math.fsum(x.ravel().tolist())
    for wrong in ([1, 2], [1j]):
        with pytest.raises(hpccomm.UnsupportedDtype, match="real floating numbers"):
            hpccomm.binned_sum(np.array(wrong))
    for axis in (3, "x"):
        with pytest.raises(hpccomm.UsageError, match=f"axis is {axis!r}"):
            hpccomm.binned_sum(x, axis)
    with pytest.raises(hpccomm.UsageError, match=r"hpccomm\.binned_sum"):
        hpccomm.rounded(x)


RNG = np.random.default_rng(1)
TABLE = RNG.normal(size=(36, 40)) * 2.0 ** RNG.integers(-30, 30, (36, 40))


def test_any_number_of_ranks_has_the_same_bits() -> None:
    exact = np.array([math.fsum(each) for each in TABLE.T])

    def on_rank(comm: Any, order: Any) -> Any:
        sums = hpccomm.binned_sum(TABLE[order][comm.rank :: comm.size], 0)
        total = np.zeros(40, BINNED)
        with comm.window(total) as window:
            window.accumulate(sums, 0)
            window.fence()
        if comm.rank == 0:
            np.testing.assert_array_equal(hpccomm.rounded(total), exact)
        return hpccomm.rounded(comm.all_reduce(sums))

    for size in range(1, 10):
        for each in run_ranks(size, on_rank, np.random.default_rng(size).permutation(36)):
            np.testing.assert_array_equal(each, exact)


@pytest.mark.values
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16", "c8"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, hpccomm.premul_sum(0.3)], ids=str)
def test_any_order_of_ranks_has_the_same_bits(dtype: str, op: Any) -> None:
    def on_rank(comm: Any, order: Any) -> Any:
        x = (TABLE[order[comm.rank]] * 2.0**-30).astype(dtype)
        x = x + np.array(1j, dtype) * x[::-1] if dtype[0] == "c" else x
        how = {"op": op, "deterministic": "any ranks"}
        blocks = comm.reduce_scatter(np.tile(x, (comm.size, 1)), **how)
        results = [comm.all_reduce(x.copy(), **how), blocks[0]]
        results.append(comm.all_reduce(x.copy(), async_op=True, **how).wait())
        at_root = comm.reduce(x.copy(), **how)
        results += [at_root] if comm.rank == 0 else []
        if op is not ReduceOp.AVG:
            prefix, before = comm.scan(x, **how), comm.scan(x, exclusive=True, **how)
            results += [prefix] if comm.rank == comm.size - 1 else []
            assert comm.rank or (before == 0).all()
        planned = x.copy()
        comm.plan("all_reduce", planned, **how)()
        return [each.tobytes() for each in (*results, planned)]

    for size in (1, 4, 5):
        found: set[bytes] = set()
        for order in (range(size), [*reversed(range(size))]):
            found.update(*run_ranks(size, on_rank, order))
        assert len(found) == 1


def test_any_ranks_is_for_sums() -> None:
    def on_rank(comm: Any) -> Any:
        x = np.ones(3)
        for op in (ReduceOp.MAX, ReduceOp.PROD, lambda a, b: a + b):
            with pytest.raises(hpccomm.UsageError, match="takes SUM, AVG and premul_sum"):
                comm.all_reduce(x, op, deterministic="any ranks")
        with pytest.raises(hpccomm.UsageError, match="give True or False, or 'any ranks'"):
            comm.all_reduce(x, deterministic="any rank")
        return comm.all_reduce(np.arange(3), ReduceOp.MAX, deterministic="any ranks").tolist()

    assert run_ranks(2, on_rank) == [[0, 1, 2]] * 2
