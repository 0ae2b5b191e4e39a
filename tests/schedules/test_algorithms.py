"""Every algorithm is right for any number of ranks, root and count, and cannot deadlock."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chosen import everything
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from proofs import EVERY, Which, calls, prove_sizes, topologies_of

from hpccomm.contracts.collectives import BLOCKWISE, ROOTED
from hpccomm.dtypes import BFLOAT16
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.proof import check_same_program, prove_all
from hpccomm.schedules.schedule import whole
from hpccomm.topology import arrange

EVERY_SIZE = [range(1, 17), range(17, 33), range(33, 49), range(49, 65)]
CHOSEN_SIZES = [(*range(1, 10), 13, 16, 33)]
"""Small numbers of ranks, then a prime, and those at and past a power of two."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the numbers of ranks that are proven by this run."""
    if "sizes" in metafunc.fixturenames:
        sizes = EVERY_SIZE if metafunc.config.getoption("--all") else CHOSEN_SIZES
        metafunc.parametrize("sizes", sizes, ids=lambda each: f"{each[0]}-{each[-1]}")


@pytest.mark.parametrize("which", EVERY, ids=str)
def test_proof(which: Which, sizes: Sequence[int], pytestconfig: pytest.Config) -> None:
    prove_sizes(which, sizes, everything=pytestconfig.getoption("--all"))


@pytest.mark.parametrize("which", EVERY, ids=str)
def test_a_ranks_own_program_is_its_part_of_all(which: Which, pytestconfig: pytest.Config) -> None:
    everything = pytestconfig.getoption("--all")
    alone = []
    for n in (1, 2, 3, 5, 8, 12) if everything else (2, 4, 7):
        asked = list(calls(which, n))
        some = [
            which.case(n, **each)
            for each in asked[:: max(len(asked) // (3 if everything else 2), 1)]
        ]
        for case in some:
            check_same_program(case)
        alone += [replace(case, solo=True) for case in some]
    prove_all(alone)


@pytest.mark.parametrize(
    "which",
    [each for each in EVERY if each.deterministic and each.collective != "scan"],
    ids=str,
)
def test_narrow_floats_round_once_where_the_order_is_fixed(
    which: Which, pytestconfig: pytest.Config
) -> None:
    # Scans of narrow floats are carried out in float32.
    every = []
    for n in (2, 3, 4, 5, 8, 9, 17) if pytestconfig.getoption("--all") else (2, 3, 5, 8, 9):
        for topology in topologies_of(which, n):
            for segment in (whole, 2):
                asked: dict[str, Any] = {"root": n // 2, "segment": segment, "topology": topology}
                every.append(which.case(n, count=2 * n + 1, dtype=BFLOAT16, **asked))
                average = {"dtype": np.dtype(np.float16), "op": ReduceOp.AVG}
                every.append(which.case(n, count=n, **average, **asked))
    prove_all(every)


@settings(max_examples=(3 if everything() else 2) * settings.default.max_examples)
@given(st.sampled_from(EVERY), st.data())
def test_proof_of_odd_cases(which: Which, data: st.DataObject) -> None:
    heavy = which.collective == "all_to_all" or which.name in ("linear", "pairwise", "shm")
    n = data.draw(st.integers(1, 40 if heavy else 200), "ranks")
    count: Any = data.draw(st.integers(0, 500 if which.collective not in BLOCKWISE else 7), "count")
    solo = n <= 12 and data.draw(st.booleans(), "solo")
    if which.collective in BLOCKWISE and not which.algorithm.uniform and n <= 60:
        few = st.integers(0, 9)
        row = st.lists(few, min_size=n, max_size=n)
        if which.collective != "all_to_all":
            count = data.draw(row, "count of each rank")
        elif n <= 9:
            count = data.draw(st.lists(row, min_size=n, max_size=n), "counts of each rank")
    segment = data.draw(st.integers(1, 600), "segment")
    largest = count if isinstance(count, int) else 9 * n
    assume(largest * n <= 40 * segment * max(n, 20))  # not too many pieces
    topology = None
    if which.name == "hierarchical":
        nodes = st.lists(st.integers(0, 7), min_size=n, max_size=n)
        topology = arrange(data.draw(nodes, "nodes"))
    in_place: Any = data.draw(st.booleans(), "in place")
    if n <= 30 and which.collective not in ROOTED:
        mixed = st.lists(st.booleans(), min_size=n, max_size=n)
        in_place = data.draw(st.one_of(st.just(in_place), mixed), "in place on each rank")
    case = which.case(
        n,
        count=count,
        root=data.draw(st.integers(0, n - 1), "root"),
        segment=segment,
        channels=data.draw(st.integers(1, 4), "channels"),
        in_place=in_place,
        exclusive=which.collective == "scan" and data.draw(st.booleans(), "exclusive"),
        topology=topology,
        solo=solo,
    )
    prove_all([case])
