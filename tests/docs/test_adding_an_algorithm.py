"""The example of docs/how_to/adding_an_algorithm.rst has the properties that the page states."""

import importlib.util
from collections.abc import Callable
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
def build() -> Callable[..., Schedule]:
    spec = importlib.util.spec_from_file_location("two_way_ring", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.all_gather


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40


def test_it_is_proven(build: Callable[..., Schedule]) -> None:
    for ranks in range(1, 65):
        prove("all_gather", build, ranks, count=2)
    for ranks in range(1, 9):
        counts = [3 * rank % 4 for rank in range(ranks)]
        for in_place in (False, True):
            prove("all_gather", build, ranks, count=counts, in_place=in_place, solo=True)


def test_it_takes_half_of_a_ring_s_rounds_and_as_many_elements(
    build: Callable[..., Schedule],
) -> None:
    for ranks in range(2, 20):
        mine, its = (cost(each, ranks) for each in (build, ring.all_gather))
        assert mine[0] == ranks // 2
        assert its[0] == ranks - 1
        assert mine[1] == its[1] == ranks - 1


def cost(build: Callable[..., Schedule], ranks: int) -> tuple[int, int]:
    """Rounds with messages, and the elements that each rank sends, one a block."""
    call = Signature("all_gather", np.dtype(np.float32), (1,) * ranks)
    (channel,) = build(world(ranks), call, Tuning(whole)).channels
    rounds = [each for each in channel() if each.sends]
    sent = np.zeros(ranks, np.int64)
    for each in rounds:
        for table in each.sends:
            np.add.at(sent, table.rank, table.count)
    assert (sent == sent[0]).all()
    return len(rounds), int(sent[0])


def test_it_is_simulated(build: Callable[..., Schedule]) -> None:
    network = load("nvlink8")
    call = Signature("all_gather", np.dtype(np.float32), (1,) * network.ranks)
    mine, its = (
        simulate(each(world(network.ranks), call, Tuning(whole)), network, 4).seconds
        for each in (build, ring.all_gather)
    )
    assert 0 < mine < 0.7 * its


def test_it_is_priced_as_it_is_simulated(
    build: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS["all_gather"], "two_way_ring", Algorithm(build))
    for network in (load("nvlink8"), load("ib400x32")):
        for count in (1, 1_000_000):
            call = Signature("all_gather", np.dtype(np.float32), (count,) * network.ranks)
            schedule = build(world(network.ranks), call, Tuning(whole))
            wanted = simulate(schedule, network, 4).seconds
            assert price(network, call, build, Tuning(whole)) == pytest.approx(wanted, rel=0.05)
            assert price(network, call, "two_way_ring", Tuning(whole)) == pytest.approx(
                wanted, rel=0.05
            )


def test_named_it_runs_and_is_drawn(
    build: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS["all_gather"], "two_way_ring", Algorithm(build))

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
