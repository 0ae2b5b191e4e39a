"""The example of docs/how_to/adding_an_algorithm.rst has the properties that the page states."""

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm, ring
from hpccomm.schedules.cost.network import load
from hpccomm.schedules.cost.rounds import price, simulate
from hpccomm.schedules.schedule import Schedule, Tuning, whole, world
from hpccomm.testing import prove, run_ranks
from hpccomm.tools.runs.trace import subject

EXAMPLE = Path(__file__).parents[2] / "docs/examples/two_way_ring.py"


@pytest.fixture(scope="module")
def build() -> Iterator[Callable[..., Schedule]]:
    """The example's build, registered as the page says."""
    found: Callable[..., Schedule] = runpy.run_path(str(EXAMPLE))["all_gather"]
    ALGORITHMS["all_gather"]["two_way_ring"] = Algorithm(found)
    yield found
    del ALGORITHMS["all_gather"]["two_way_ring"]


def test_it_is_short_and_proven(build: Callable[..., Schedule]) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
    for ranks in range(1, 65):
        prove("all_gather", build, ranks, count=2)
    for ranks in range(1, 9):
        counts = [3 * rank % 4 for rank in range(ranks)]
        for in_place in (False, True):
            prove("all_gather", build, ranks, count=counts, in_place=in_place, solo=True)


def cost(build: Callable[..., Schedule], ranks: int) -> tuple[int, list[int]]:
    """Rounds with messages, and the elements that each rank sends, one a block."""
    call = Signature("all_gather", np.dtype(np.float32), (1,) * ranks)
    (channel,) = build(world(ranks), call, Tuning(whole)).channels
    rounds = [each for each in channel() if each.sends]
    sent = np.zeros(ranks, np.int64)
    for table in (table for each in rounds for table in each.sends):
        np.add.at(sent, table.rank, table.count)
    return len(rounds), sent.tolist()


def test_it_takes_half_of_a_ring_s_rounds_and_as_many_elements(
    build: Callable[..., Schedule],
) -> None:
    for ranks in range(2, 20):
        elements = [ranks - 1] * ranks
        assert cost(build, ranks) == (ranks // 2, elements)
        assert cost(ring.all_gather, ranks) == (ranks - 1, elements)


def test_it_is_priced_as_it_is_simulated(build: Callable[..., Schedule]) -> None:
    for network in (load("nvlink8"), load("ib400x32")):
        for count in (1, 1_000_000):
            call = Signature("all_gather", np.dtype(np.float32), (count,) * network.ranks)
            seconds, of_a_ring = (
                simulate(each(world(network.ranks), call, Tuning(whole)), network, 4).seconds
                for each in (build, ring.all_gather)
            )
            assert seconds > 0
            assert seconds < 0.7 * of_a_ring or network.nodes > 1 or count > 1
            for each in (build, "two_way_ring"):
                found = price(network, call, each, Tuning(whole))
                assert found == pytest.approx(seconds, rel=0.05)


def test_named_it_runs_and_is_drawn(build: Callable[..., Schedule]) -> None:
    def gather(comm) -> bool:
        x = np.arange(3.0) + 10 * comm.rank
        assert comm.explain("all_gather", x, algorithm="two_way_ring").algorithm == "two_way_ring"
        gathered = comm.all_gather(x, algorithm="two_way_ring")
        uneven = comm.all_gather_v(x[: comm.rank % 3], algorithm="two_way_ring")
        expected = np.arange(3.0) + 10 * np.arange(comm.size)[:, None]
        assert np.array_equal(gathered, expected)
        parts = [expected[rank, : rank % 3] for rank in range(comm.size)]
        return np.array_equal(uneven, np.concatenate(parts))

    for ranks in range(1, 7):
        assert run_ranks(ranks, gather) == [True] * ranks
    assert subject("two_way_ring", ranks=6).collective == "all_gather"
