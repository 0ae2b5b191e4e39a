"""Rounds, messages and elements of the algorithms agree with their pages."""

from collections.abc import Callable
from itertools import chain, product
from math import ceil
from typing import NamedTuple

import numpy as np
import pytest
from proofs import EVERY, Which

from hpccomm.contracts.collectives import BLOCKWISE
from hpccomm.schedules.proof import ProofCase
from hpccomm.schedules.schedule import whole
from hpccomm.topology import arrange

BLOCK = 4
"""Elements of the block of a rank."""


class Cost(NamedTuple):
    """What a schedule costs.

    Attributes
    ----------
    rounds : int
        Rounds of the longest channel that send anything.
    path : int
        Messages on the longest path: each waits for the one before.
    messages, elements : ndarray of shape (ranks,)
        Sent by each rank.
    """

    rounds: int
    path: int
    messages: np.ndarray
    elements: np.ndarray


def cost_of(case: ProofCase) -> Cost:
    messages, elements = np.zeros((2, case.size), np.int64)
    rounds = path = 0
    # One schedule serves all ranks, unless their calls differ: then each has its own.
    for channels in zip(*(part.schedule.channels for part in case.parts()), strict=True):
        depth = np.zeros(case.size, np.int64)
        used = 0
        for each in zip(*(channel() for channel in channels), strict=True):
            before = depth.copy()
            for table in chain.from_iterable(part.receives for part in each):
                np.maximum.at(depth, table.rank, before[table.peer] + 1)
            sends = [table for part in each for table in part.sends]
            for table in sends:
                np.add.at(messages, table.rank, 1)
                np.add.at(elements, table.rank, table.count)
            used += any(len(table.rank) for table in sends)
        rounds, path = max(rounds, used), max(path, int(depth.max()))
    return Cost(rounds, path, messages, elements)


def cost(collective: str, name: str, n: int) -> Cost:
    """The cost on `n` ranks, of which each has a block of `BLOCK`; the root is 0."""
    count = n * BLOCK if collective not in BLOCKWISE else BLOCK
    return cost_of(Which(collective, name).case(n, count=count, channels=1))


def pipelined(collective: str, name: str, n: int, segments: int) -> Cost:
    """The cost where the array, or what a tree has of it, is cut into `segments`."""
    count = segments * BLOCK * (2 if name == "tree" else 1)
    return cost_of(Which(collective, name).case(n, count=count, segment=BLOCK, channels=1))


def log2(n: int) -> int:
    """The logarithm, rounded up."""
    return (n - 1).bit_length()


def doubling(n: int) -> int:
    """Rounds of a recursive doubling: of the largest power of two, and two more if n is none."""
    k = n.bit_length() - 1
    return k if n == 1 << k else k + 2


class Most(float):
    """A bound: no rank sends more elements."""


COSTS: dict[tuple[str, str], Callable[[int], tuple[int, float | None]]] = {
    ("all_reduce", "ring"): lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    ("reduce_scatter", "ring"): lambda n: (n - 1, (n - 1) / n),
    ("all_gather", "ring"): lambda n: (n - 1, (n - 1) / n),
    ("all_reduce", "binomial"): lambda n: (2 * log2(n), Most(log2(n))),
    ("broadcast", "binomial"): lambda n: (log2(n), log2(n)),
    ("reduce", "binomial"): lambda n: (log2(n), 1),
    ("gather", "binomial"): lambda n: (log2(n), Most(1 / 2)),
    ("scatter", "binomial"): lambda n: (log2(n), (n - 1) / n),
    ("all_reduce", "tree"): lambda n: (2 * log2(n), Most(2)),
    ("broadcast", "tree"): lambda n: (log2(n), Most(1)),
    ("reduce", "tree"): lambda n: (log2(n), Most(1)),
    ("all_reduce", "chain"): lambda n: (2 * (n - 1), 2 if n > 2 else 1),
    ("broadcast", "chain"): lambda n: (n - 1, 1),
    ("reduce", "chain"): lambda n: (n - 1, 1),
    ("all_reduce", "recursive_doubling"): lambda n: (doubling(n), None),
    ("all_gather", "recursive_doubling"): lambda n: (doubling(n), None),
    ("all_gather", "bruck"): lambda n: (log2(n), (n - 1) / n),
    ("all_to_all", "bruck"): lambda n: (log2(n), Most(log2(n) / 2)),
    ("all_to_all", "pairwise"): lambda n: (n // 2, (n - 1) / n),
    ("reduce", "pairwise"): lambda n: (n, 1),
    ("broadcast", "scatter_all_gather"): lambda n: (log2(n) + n - 1, Most(2 * (n - 1) / n)),
    ("barrier", "dissemination"): lambda n: (log2(n), 0),
    ("scan", "linear"): lambda n: (n - 1, 1),
    ("scan", "binomial"): lambda n: (log2(n), log2(n)),
    ("scan", "pairwise"): lambda n: (2 * (n - 1), Most(2 * (n - 1) / n)),
    ("all_reduce", "linear"): lambda n: (1, n - 1),
    ("all_gather", "linear"): lambda n: (1, (n - 1) / n),
    ("all_to_all", "linear"): lambda n: (1, (n - 1) / n),
    ("gather", "linear"): lambda n: (1, 1 / n),
    ("scatter", "linear"): lambda n: (1, (n - 1) / n),
    ("neighbor_all_to_all", "linear"): lambda n: (1, None),
}
"""Rounds on n > 1 ranks, of an array that is not cut; and elements that the busiest rank sends, in arrays (of a gather:
in results)."""

SIZES = (*range(2, 18), 31, 32, 33, 48, 63, 64)


@pytest.mark.parametrize(("collective", "name"), COSTS, ids="-".join)
def test_rounds_and_elements(collective: str, name: str) -> None:
    for n in SIZES:
        found, (rounds, elements) = cost(collective, name, n), COSTS[collective, name](n)
        busiest = found.elements.max() / (n * BLOCK)
        assert found.path <= found.rounds == rounds, n
        if isinstance(elements, Most):
            assert busiest <= elements, n
        elif elements is not None:
            assert busiest == pytest.approx(elements), n


def test_every_algorithm_that_sends_has_its_cost_stated() -> None:
    for which in EVERY:
        if not which.algorithm.shared and which.name not in ("hierarchical", "halving_doubling"):
            assert (which.collective, which.name) in COSTS


def test_ring_sends_no_more_than_it_must() -> None:
    for n in SIZES:
        for count in (1, n - 1, n, 3 * n + 2):
            found = cost_of(Which("all_reduce", "ring").case(n, count=count, channels=1))
            assert found.elements.sum() == 2 * (n - 1) * count  # in the mean 2(n-1)/n of it
            assert found.elements.max() <= 2 * (n - 1) * ceil(count / n)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64])
def test_halving_doubling_on_powers_of_two(n: int) -> None:
    k, array = log2(n), n * BLOCK
    scattered = cost("reduce_scatter", "halving_doubling", n)
    assert (scattered.rounds, scattered.elements.max()) == (k, (n - 1) * BLOCK)
    reduced = cost("all_reduce", "halving_doubling", n)
    assert (reduced.rounds, reduced.elements.max()) == (2 * k, 2 * (n - 1) * BLOCK)
    rooted = cost("reduce", "halving_doubling", n)
    assert rooted.rounds == 2 * k
    assert rooted.elements.max() <= (3 / 2 - 1 / n) * array
    doubled = cost("all_reduce", "recursive_doubling", n)
    assert (doubled.elements == k * array).all()
    assert (doubled.messages == k).all()
    assert (cost("all_gather", "recursive_doubling", n).elements == (n - 1) * BLOCK).all()
    for other in range(n + 1, min(2 * n, 18)):  # not powers of two
        for collective, phases in (("reduce_scatter", 1), ("all_reduce", 2), ("reduce", 2)):
            assert cost(collective, "halving_doubling", other).rounds <= phases * k + 3


@pytest.mark.parametrize("s", [1, 2, 5, 8])
def test_pipelines_take_a_round_more_for_each_segment(s: int) -> None:
    trees = product(("broadcast", "reduce", "all_reduce"), ("chain", "tree"))
    for collective, name in (*trees, ("scan", "linear")):
        for n in (2, 3, 7, 8, 12, 13, 40, 64):
            found = pipelined(collective, name, n, s)
            assert found.rounds == COSTS[collective, name](n)[0] + s - 1
            if (collective, name) == ("all_reduce", "tree"):
                assert found.elements.max() <= 2 * 2 * s * BLOCK


def test_messages_of_exchanges() -> None:
    for n in SIZES:
        for name in ("pairwise", "linear"):
            found = cost("all_to_all", name, n)
            assert (found.messages == n - 1).all()
            assert (found.elements == (n - 1) * BLOCK).all()
        assert (cost("all_to_all", "bruck", n).messages == log2(n)).all()
        # What crosses the end of the result is two messages.
        assert (cost("all_gather", "bruck", n).messages <= 2 * log2(n)).all()
        assert (cost("barrier", "dissemination", n).messages == log2(n)).all()
        assert cost("gather", "binomial", n).messages.sum() == n - 1
        assert cost("broadcast", "binomial", n).messages.sum() == n - 1


IN_ORDER = [each for each in EVERY if each.deterministic and each.collective != "scan"]


@pytest.mark.parametrize("which", [each for each in IN_ORDER if not each.algorithm.shared], ids=str)
def test_the_fixed_order_takes_no_more_than_the_ring(which: Which) -> None:
    phases = 2 if which.collective in ("all_reduce", "reduce") else 1
    # Nodes of one size: the ranks that a larger node has beyond the slices cost more.
    for n in (2, 4, 8, 32) if which.name == "hierarchical" else (2, 3, 4, 7, 8, 13, 32):
        topology = arrange([rank // 4 for rank in range(n)])
        for segment in (whole, 2):
            count = n * BLOCK if which.collective not in BLOCKWISE else BLOCK
            case = which.case(n, count=count, segment=segment, channels=1, topology=topology)
            found = cost_of(case)
            assert found.elements.sum() <= phases * (n - 1) * n * BLOCK
            (part,) = case.parts()
            # Contributions to one segment of a slice, and the slice itself: never n arrays.
            assert part.schedule.scratch <= (n + 1) * min(segment, BLOCK) + n * BLOCK
