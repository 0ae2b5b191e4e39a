"""Values written as text are read as the same values, and the other way round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm import units

NUMBERS = st.sets(st.integers(0, 300), max_size=40)


@given(st.integers(0, 1 << 45) | st.integers(0, 1 << 12).map(lambda number: number << 20))
def test_a_size_that_is_written_is_read_as_the_same(nbytes):
    assert units.size(units.size_text(nbytes)) == nbytes
    assert units.size(units.size_text(nbytes).replace(" ", "").lower()) == nbytes


def test_sizes_are_written_as_short_as_is_exact_and_read_as_by_nccl_tests():
    for nbytes, text in ((0, "0 B"), (1000, "1000 B"), (65536, "64 KiB"), (3 << 20, "3 MiB")):
        assert units.size_text(nbytes) == text
    # K is 1024 in nccl-tests (2.19.6, src/common.cu, parsesize), which has no T and no kB.
    for text, nbytes in (("4k", 4096), (".5K", 512), ("1e3", 1000), ("2 G", 2 << 30)):
        assert units.size(text) == nbytes
    for text in ("", "K", "1T", "-8", "1e999", "0x10", "1 K B", "5s", "4kB", "4K4"):
        with pytest.raises(ValueError, match="is not a size; give bytes, or a number with K, M or"):
            units.size(text)


@given(
    st.just(0.0) | st.floats(1e-12, 1e9),
    st.sampled_from([("us", 1e-6), ("ms", 1e-3), ("s", 1), ("m", 60), ("h", 3600)]),
)
def test_a_time_is_read_in_its_unit(value, unit):
    name, factor = unit
    assert units.seconds(f"{value:g}{name}") == pytest.approx(float(f"{value:g}") * factor)
    assert units.seconds(f"{value:g}") == float(f"{value:g}")


def test_what_is_no_time_is_refused_with_what_fits():
    for text in ("", "soon", "inf", "nan", "-1", "5 min 3 s", "1d", "5S"):
        with pytest.raises(ValueError, match="is not a time; give seconds"):
            units.seconds(text)


def test_rates_have_units_of_1000():
    assert [units.rate(text) for text in ("10G", "2.5m", "7")] == [10e9, 2.5e6, 7]
    with pytest.raises(ValueError, match="is not a rate"):
        units.rate("10GMK")


@given(NUMBERS)
def test_ranges_that_are_written_are_read_as_the_same(numbers):
    assert units.numbers(units.ranges(numbers)) == sorted(numbers)
    assert sum(last - first + 1 for first, last in units.spans(numbers)) == len(numbers)


@given(NUMBERS.filter(bool))
def test_the_ranks_of_a_sentence_are_all_ranks(ranks):
    text = units.ranks_named(ranks)
    words = text.removeprefix("ranks ").removeprefix("rank ").replace(" and ", ", ").split(", ")
    more = int(words.pop().removesuffix(" more")) if text.endswith(" more") else 0
    named = [rank for word in words for rank in units.numbers(word)]
    assert named == sorted(ranks)[: len(named)]
    assert len(named) + more == len(ranks)
    assert len(words) <= units.MOST_NAMED
    assert text.startswith("rank " if len(ranks) == 1 else "ranks ")


def test_a_size_is_rounded_before_its_unit_is_chosen():
    assert units.rounded_size((1 << 20) - 1) == "1 MiB"
    assert units.rounded_size(1_550_000, 2) == "1.5 MiB"
    assert units.rounded_size(12.0) == "12 B"
