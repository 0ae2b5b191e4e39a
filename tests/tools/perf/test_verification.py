"""The data that perf checks with: exact in any order, and any corruption is found and located."""

import random
from fractions import Fraction
from functools import partial, reduce
from itertools import product

import numpy as np
import pytest
from folds import FOLDS, average
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccomm import dtypes
from hpccomm.reductions import PremulSum, ReduceOp, meaningful
from hpccomm.tools.perf import patterns
from hpccomm.tools.perf.patterns import (
    OPS,
    PREMUL_FACTOR,
    REDUCED,
    TYPES,
    CheckedData,
    RankSlice,
    compare,
    fill,
    poison,
)

PAIRS = [
    pytest.param(dtype, op, id=f"{type_name}-{op_name}")
    for type_name, dtype in TYPES.items()
    for op_name, op in OPS.items()
    if meaningful(op, dtype)
]
COUNT = 97


def made(source, dtype, op, ranks, seed, start=0, count=COUNT):
    array = np.empty(count, dtype)
    fill(array, CheckedData(dtype, op, ranks, seed), [RankSlice(source, start, count)])
    return array


expectation = partial(made, REDUCED)


def contributions(dtype, op, ranks, *where, **how):
    """What is folded: of a sum of multiplied arrays, these."""
    factor = dtype.type(PREMUL_FACTOR if isinstance(op, PremulSum) else 1)
    every = [made(rank, dtype, op, ranks, *where, **how) for rank in range(ranks)]
    return [each * factor for each in every]


def finish(total, op, ranks):
    if op is not ReduceOp.AVG:
        return total
    wide = total.astype(np.float32) if dtypes.is_narrow(total.dtype) else total
    return average(wide, ranks).astype(total.dtype)


def same(a, b):
    """Equal bit for bit; a complex zero may have either sign."""
    if dtypes.is_complex(a.dtype):
        return bool(np.all(a == b))
    return a.tobytes() == b.tobytes()


@settings(max_examples=20 * settings.default.max_examples)
@given(
    pair=st.sampled_from([pair.values for pair in PAIRS]),
    ranks=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    start=st.integers(0, 2**40),
    order=st.randoms(use_true_random=False),
)
def test_every_order_of_reduction_gives_the_expected_bits(
    pair, ranks, seed, start, order: random.Random
):
    dtype, op = pair
    terms = contributions(dtype, op, ranks, seed, start)
    while len(terms) > 1:  # a random tree over the ranks in a random order
        order.shuffle(terms)
        terms.append(FOLDS.get(op, np.add)(terms.pop(), terms.pop()))
    expected = expectation(dtype, op, ranks, seed, start)
    assert same(finish(terms[0], op, ranks), expected)


@pytest.mark.parametrize("dtype", [d for d in dtypes.REDUCIBLE if dtypes.is_float(d)], ids=str)
@pytest.mark.parametrize("ranks", [1, 3, 9, 64, 1000])
def test_float_sums_match_exact_arithmetic(dtype, ranks):
    count = 20
    total = [Fraction(0)] * count
    for share in contributions(dtype, ReduceOp.SUM, ranks, 5, count=count):
        total = [t + Fraction(float(s)) for t, s in zip(total, share, strict=True)]
    expected = expectation(dtype, ReduceOp.SUM, ranks, 5, count=count)
    assert [Fraction(float(e)) for e in expected] == total
    assert np.all(expected != 0)


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_a_missing_or_repeated_contribution_shows(dtype, op):
    """At some element for every rank, or the check would not see that rank at all."""
    ranks = 4
    shares = contributions(dtype, op, ranks, 11, count=512)
    for missing in range(ranks):
        rest = shares[:missing] + shares[missing + 1 :]
        total = reduce(FOLDS.get(op, np.add), rest)
        assert not same(finish(total, op, ranks), expectation(dtype, op, ranks, 11, count=512))


def test_ranks_seeds_and_positions_differ():
    places = product(range(4), range(4), (0, 64, 2**40))
    streams = [patterns.moved(*place, 64, np.dtype(np.int64)).tobytes() for place in places]
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize(("dtype", "op"), [*PAIRS, *[(d, None) for d in TYPES.values()]])
def test_poison_is_wrong_everywhere_and_data_nowhere(dtype, op):
    data = CheckedData(dtype, op, 3, 7)
    count = patterns.BLOCK + 13  # more than one block
    segments = [RankSlice(1, 5, 20), RankSlice(REDUCED if op else 2, 3, count)]
    array = np.empty(20 + count, dtype)
    fill(array, data, segments)
    assert compare(array, data, segments) is None
    poison(array, data, segments)
    found = compare(array, data, segments)
    assert found is not None
    assert (found.wrong, found.index) == (array.size, 0)


@settings(max_examples=settings.default.max_examples)
@given(dtype=st.sampled_from(list(TYPES.values())), count=st.integers(1, 40000), where=st.data())
def test_one_flipped_bit_is_found_and_located(dtype, count, where):
    data = CheckedData(dtype, None, 2, 1)
    segments = [RankSlice(0, 9, count)]
    array = np.empty(count, dtype)
    fill(array, data, segments)
    index = where.draw(st.integers(0, count - 1))
    byte = index * dtype.itemsize + where.draw(st.integers(0, dtype.itemsize - 1))
    array.view(np.uint8)[byte] ^= 1
    found = compare(array, data, segments)
    assert found is not None
    assert (found.wrong, found.index) == (1, index)
    assert found.expected != found.got


FLOATS = [dtype for dtype in TYPES.values() if dtypes.is_float(dtype) or dtypes.is_complex(dtype)]


def averaged_as_nccl_does(shares):
    """Sum contributions times 1 / ranks, everything rounded to the dtype."""
    real = shares[0].real.dtype
    factor = np.asarray(1 / len(shares)).astype(real)
    parts = [(share.view(real) * factor).astype(real) for share in shares]
    return reduce(lambda a, b: (a + b).astype(real), parts).view(shares[0].dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 29])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_averages_that_nccl_rounds_pass_and_others_do_not(dtype, ranks):
    data = CheckedData(dtype, ReduceOp.AVG, ranks, 5, multiplied=True)
    whole = [RankSlice(REDUCED, 0, COUNT)]
    shares = contributions(dtype, ReduceOp.AVG, ranks, 5)
    got = averaged_as_nccl_does(shares)
    assert compare(got, data, whole) is None
    if ranks & (ranks - 1) == 0:  # nothing is rounded, so nothing is allowed
        assert np.array_equal(got, expectation(dtype, ReduceOp.AVG, ranks, 5))
        assert not data.inexact
    got[7] = np.nan
    assert compare(got, data, whole).index == 7
    assert compare(sum(shares[1:], np.zeros_like(shares[0])), data, whole) is not None
