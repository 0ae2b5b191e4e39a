"""The example of docs/how_to/adding_an_algorithm.rst has the properties that the page states."""

import runpy
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm, ring
from hpccomm.schedules.schedule import Schedule, Tuning, whole, world
from hpccomm.testing import prove, run_ranks
from hpccomm.tools.runs.trace import subject

Build = Callable[..., Schedule]
EXAMPLE = Path(__file__).parents[2] / "docs/examples/two_way_ring.py"


@pytest.fixture(scope="module")
def build() -> Iterator[Build]:
    """The example's build, registered as the page says."""
    found: Build = runpy.run_path(str(EXAMPLE))["all_gather"]
    ALGORITHMS["all_gather"]["two_way_ring"] = Algorithm(found)
    yield found
    del ALGORITHMS["all_gather"]["two_way_ring"]


def test_it_is_short_and_proven(build: Build) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
    for ranks in range(33, 65):  # the page proves it on fewer
        prove("all_gather", build, ranks, count=2)
    for ranks, in_place in product(range(1, 9), (False, True)):
        counts = [3 * rank % 4 for rank in range(ranks)]
        prove("all_gather", build, ranks, count=counts, in_place=in_place, solo=True)


def cost(build: Build, ranks: int) -> tuple[int, list[int]]:
    """Rounds with messages, and the elements that each rank sends, one a block."""
    call = Signature("all_gather", np.dtype(np.float32), (1,) * ranks)
    (channel,) = build(world(ranks), call, Tuning(whole)).channels
    rounds = [each for each in channel() if each.sends]
    sent = np.zeros(ranks, np.int64)
    for table in (table for each in rounds for table in each.sends):
        np.add.at(sent, table.rank, table.count)
    return len(rounds), sent.tolist()


def test_it_takes_half_of_a_ring_s_rounds_and_as_many_elements(build: Build) -> None:
    for ranks in range(2, 20):
        elements = [ranks - 1] * ranks
        assert cost(build, ranks) == (ranks // 2, elements)
        assert cost(ring.all_gather, ranks) == (ranks - 1, elements)


def test_named_it_runs_and_is_drawn(build: Build) -> None:
    def gather(comm) -> None:
        x = np.arange(3.0) + 10 * comm.rank
        assert comm.explain("all_gather", x, algorithm="two_way_ring").algorithm == "two_way_ring"
        expected = np.arange(3.0) + 10 * np.arange(comm.size)[:, None]
        gathered = comm.all_gather(x, algorithm="two_way_ring")
        np.testing.assert_array_equal(gathered, expected)
        uneven = comm.all_gather_v(x[: comm.rank % 3], algorithm="two_way_ring")
        parts = [expected[rank, : rank % 3] for rank in range(comm.size)]
        np.testing.assert_array_equal(uneven, np.concatenate(parts))

    for ranks in range(1, 7):
        run_ranks(ranks, gather)
    assert subject("two_way_ring", ranks=6).collective == "all_gather"
