"""Sizes, counts and factors: nccl-tests' (src/*.cu); and each sent byte is received."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.tools.perf.collectives import ALIGNMENT, COLLECTIVES, Member, uneven_bytes
from hpccomm.tools.perf.patterns import REDUCED


def layouts(name, size, itemsize, ranks, root=0):
    return [COLLECTIVES[name].arrange(size, itemsize, Member(r, ranks, root)) for r in range(ranks)]


@pytest.mark.parametrize(
    ("names", "ranks", "nbytes", "count"),
    [
        ("all_reduce reduce broadcast send_recv", 4, 1000, 250),
        # 250 elements over 4 ranks are 62, rounded down to 60: a multiple of 16 bytes.
        ("all_gather reduce_scatter all_to_all gather scatter", 4, 960, 60),
        ("all_to_all_v", 4, 960, 60),  # by distance 0:1:2:3, 0, 160, 320 and 480 bytes
        ("all_gather", 3, 960, 80),
        ("all_to_all_v", 1, 992, 248),
    ],
)
def test_size_and_count_of_a_thousand_bytes_of_float(names, ranks, nbytes, count):
    for name in names.split():
        for layout in layouts(name, 1000, 4, ranks):
            assert (layout.nbytes, layout.count) == (nbytes, count)


def test_bus_bandwidth_over_algorithm_bandwidth_on_eight_ranks():
    parts = "reduce_scatter all_gather all_to_all all_to_all_v gather scatter"
    for names, factor in (
        ("all_reduce", 2 * 7 / 8),
        (parts, 7 / 8),
        ("broadcast reduce send_recv", 1),
    ):
        for name in names.split():
            assert COLLECTIVES[name].what.bus_factor(8) == factor


@given(
    name=st.sampled_from(list(COLLECTIVES)),
    size=st.integers(0, 10**5),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
    ranks=st.integers(1, 9),
    where=st.data(),
)
def test_arrays_hold_together(name, size, itemsize, ranks, where):
    root = where.draw(st.integers(0, ranks - 1))
    ours = layouts(name, size, itemsize, ranks, root)
    assert len({(layout.nbytes, layout.count) for layout in ours}) == 1
    for layout in ours:
        assert layout.nbytes <= size
        # In place, both fit the one array of the printed size.
        assert (layout.input_at + layout.input_size) * itemsize <= layout.nbytes
        assert (layout.output_at + layout.output_size) * itemsize <= layout.nbytes
        for segment in layout.outputs or ():
            # What comes out is within what went in.
            source = ours[0 if segment.source == REDUCED else segment.source]
            assert segment.start + segment.count <= source.input_size
    received = [layout.recv_counts for layout in ours]
    for sender, layout in enumerate(ours):
        assert layout.send_counts == tuple(
            counts[sender] for counts in received if layout.send_counts
        )


@given(total=st.integers(0, 2**50), ranks=st.integers(2, 64))
def test_all_to_all_v_is_uneven_but_balanced(total, ranks):
    rows = [[uneven_bytes(total, i, j, ranks) for j in range(ranks)] for i in range(ranks)]
    columns = list(zip(*rows, strict=True))
    assert len({sum(row) for row in rows} | {sum(column) for column in columns}) == 1
    assert sum(rows[0]) <= total
    assert rows[0] == sorted(rows[0])
    assert all(amount % ALIGNMENT == 0 for amount in rows[0])
