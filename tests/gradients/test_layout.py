"""Which gradient lies in which bucket, against the limits that `ReductionSettings` documents."""

from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from hpccomm.gradients import Parameter, ReductionSettings, layout
from hpccomm.gradients.layout import ALIGNMENT, mean_order, ordered, padded, scale

DTYPES = [np.dtype(each) for each in (np.float32, np.float64, ml_dtypes.bfloat16)]

shapes = st.lists(st.integers(0, 40), max_size=2).map(tuple)
models = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=30).map(
    lambda pairs: [Parameter(f"p{n}", shape, dtype) for n, (shape, dtype) in enumerate(pairs)]
)
settings = st.builds(
    ReductionSettings,
    order=st.sampled_from(["reverse", "ready", "largest"]),
    bucket_bytes=st.integers(1, 8000),
    first_bucket_bytes=st.integers(1, 2000),
    min_bucket_bytes=st.integers(0, 1000),
    bucketing=st.booleans(),
)


@given(models, settings, st.randoms())
def test_every_gradient_lies_in_one_bucket_of_its_dtype_within_the_limits(
    model: list[Parameter], chosen: ReductionSettings, random: Any
) -> None:
    readiness = [each.name for each in model]
    random.shuffle(readiness)
    buckets = layout(model, chosen, readiness)
    assert buckets == layout(model, chosen, readiness)
    placed = [each for bucket in buckets for each in bucket.parameters]
    assert sorted(placed, key=model.index) == model
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    order = ordered(model, chosen.order, readiness)
    for dtype in DTYPES:
        own = [bucket for bucket in buckets if bucket.dtype == dtype]
        inside = [each for bucket in own for each in bucket.parameters]
        assert inside == [each for each in order if each.dtype == dtype]
        for number, bucket in enumerate(own):
            limit = chosen.bucket_bytes if number else chosen.first_bucket_bytes
            last = number == len(own) - 1
            merged = chosen.min_bucket_bytes if last and chosen.bucketing else 0
            assert (
                bucket.nbytes <= limit + merged
                or len(bucket.parameters) == 1
                or (merged and padded(bucket.parameters[0]) > limit)
            )
            assert chosen.bucketing or len(bucket.parameters) == 1
            end = 0
            for each, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                assert offset >= end
                assert offset * dtype.itemsize % ALIGNMENT == 0
                end = offset + each.size
            assert end <= bucket.length


def test_buckets_come_in_the_order_in_which_they_are_complete() -> None:
    small, wide = np.dtype(np.float32), np.dtype(np.float64)
    model = [Parameter("a", (4,), wide), Parameter("b", (4,), small), Parameter("c", (4,), wide)]
    buckets = layout(model, ReductionSettings())
    assert [[each.name for each in bucket.parameters] for bucket in buckets] == [["b"], ["c", "a"]]
    assert str(buckets[1]) == "bucket 1: 2 of float64, 128 bytes, c to a"


def test_one_order_of_readiness_for_ranks_that_differ() -> None:
    assert mean_order([["a", "b", "c"], ["b", "a", "c"], ["b", "c", "a"]]) == ["b", "a", "c"]
    assert mean_order([["a"], ["b", "a"]]) == ["a", "b"]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_scaled_values_are_the_products_rounded_once(dtype: Any) -> None:
    given = np.arange(100.0)
    scaled = given.astype(dtype)
    scale(scaled, 0.3)
    np.testing.assert_array_equal(scaled, (given * 0.3).astype(dtype))
