"""Cases: blocks exchanged with listed peers: their receivers, and blocks without a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.errors import RankMismatch
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import raises
from hpccomm.testing.conformance.inputs import MOVABLE
from hpccomm.testing.conformance.oracle import IN_PLACE, NEW, OUT, Spec, circle
from hpccomm.testing.conformance.trials import FORMS, carry_out, trial

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.oracle import Graph

NEIGHBORS = Behaviours("neighbors")


def line(rank: int, size: int) -> list[int | None]:
    """The ranks beside it; None beyond the ends."""
    return [rank - 1 if rank else None, rank + 1 if rank + 1 < size else None]


def grid(rank: int, size: int) -> list[int | None]:
    """Left, right, up and down on a grid two ranks wide; None beyond the border."""
    beside = rank ^ 1
    up, down = rank - 2, rank + 2
    return [
        beside if rank % 2 else None,
        beside if rank % 2 == 0 and beside < size else None,
        up if up >= 0 else None,
        down if down < size else None,
    ]


def star(rank: int, size: int) -> list[int | None]:
    """All others at rank 0, which is the only peer of those; most lists have another length."""
    return list(range(1, size)) if rank == 0 else [0]


def double(_rank: int, size: int) -> list[int | None]:
    """Each rank twice, also the own one, and None between."""
    return [*range(size), None, *range(size)]


def alone(_rank: int, _size: int) -> list[int | None]:
    """No peers."""
    return []


GRAPHS = (line, circle, grid, star, double, alone)


def spec(graph: Graph, count: int | tuple[int, ...], **how: Any) -> Spec:
    """Return an exchange with the peers that a graph lists."""
    return Spec("neighbor_all_to_all", count, graph=graph, **how)


@NEIGHBORS.behaviour(graph=GRAPHS)
def equal_blocks(comm: Communicator, graph: Graph) -> None:
    """Block j goes to peers[j], and block j comes from it; others stay as in out."""
    for number, rest in ((1, ()), (3, (2,)), (0, ()), (20_001, ())):
        for form in FORMS[:2]:
            trial(comm, spec(graph, number, rest=rest)).run(comm, form)


@NEIGHBORS.behaviour(graph=GRAPHS)
def listed_rows(comm: Communicator, graph: Graph) -> None:
    """Blocks may differ in their rows, which are exchanged unless both ends list them.

    In exchanged counts, a block without a peer has zero rows.
    """
    counts = tuple(rank % 3 for rank in range(comm.size))
    carry_out(comm, spec(graph, counts, rest=(2,)))
    carry_out(comm, spec(graph, counts, rest=(2,), results=(NEW,), exchanged=True))


@NEIGHBORS.behaviour(dtype=MOVABLE)
def every_dtype(comm: Communicator, dtype: Any) -> None:
    """Elements arrive as they are."""
    carry_out(comm, spec(circle, 2, dtype=np.dtype(dtype), results=(NEW,)))


@NEIGHBORS.behaviour(graph=(line, circle, grid, double))
def in_place(comm: Communicator, graph: Graph) -> None:
    """In place, a block of x without a peer keeps its values; ranks may differ in that."""
    for results in ((IN_PLACE,), (IN_PLACE, OUT)):
        carry_out(comm, spec(graph, 2, results=results))


@NEIGHBORS.behaviour()
def new_results_begin_with_zeros(comm: Communicator) -> None:
    """A block without a peer is zero in an array that the call makes."""
    carry_out(comm, spec(line, 1, results=(NEW,), rest=(3,)))


@NEIGHBORS.behaviour(graph=(line, double))
def plans_and_batches(comm: Communicator, graph: Graph) -> None:
    """A plan exchanges what lies in its arrays whenever it is called; a batch takes the call."""
    call = trial(comm, spec(graph, 2))
    call.run(comm, "plan")
    call.fill()
    with comm.batch():
        comm.neighbor_all_to_all(**call.arguments)
    call.check(call.target, "batch")
    peers = graph(comm.rank, comm.size)
    choice = comm.explain("neighbor_all_to_all", call.arguments["x"], peers)
    assert choice.collective == "neighbor_all_to_all", choice


@NEIGHBORS.behaviour(min_size=2)
def plans_find_what_does_not_fit(comm: Communicator) -> None:
    """Asymmetric lists, and unexpected rows, raise on every rank."""
    crooked = [1] if comm.rank == 0 else []
    with raises(RankMismatch, "rank 0", "rank 1", "1 times", "0 times"):
        comm.plan("neighbor_all_to_all", np.zeros(len(crooked)), crooked)
    pair = {0: [1], 1: [0]}.get(comm.rank, [])
    counts = [2] * len(pair) if comm.rank == 0 else [1] * len(pair)
    with raises(RankMismatch, "sends", "expects"):
        comm.plan("neighbor_all_to_all", np.zeros(sum(counts)), pair, counts, counts)
    comm.barrier()
