"""The algorithms in two levels, on nodes of any sizes, by messages and in memory."""

from collections.abc import Iterator, Sequence
from itertools import cycle, product

import numpy as np
import pytest

from hpccomm.contracts.collectives import BLOCKWISE, ROOTED
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms import Algorithm, hierarchical
from hpccomm.schedules.algorithms.hierarchical import messages
from hpccomm.schedules.algorithms.levels import placement
from hpccomm.schedules.proof import ProofCase, case, prove_all
from hpccomm.schedules.schedule import Tuning, whole, world
from hpccomm.topology import Topology, arrange

MOVING = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVES = (*MOVING[:-1], "barrier")
NODES = [
    arrange([0] * 5),
    arrange(range(5)),
    arrange([0, 0, 1, 1, 2, 2, 3, 3]),
    arrange([0, 1, 2, 0, 1, 2]),
    arrange([0, 1, 1, 1, 1, 0, 1, 1]),
    arrange([2, 0, 1, 0, 0, 2, 1, 2, 1, 1, 0]),
    arrange([0, 0, 0, 1]),
]


def cases(collective: str) -> Iterator[ProofCase]:
    variants = cycle(product((False, True), (1, 2, whole)))
    for topology in NODES:
        n = topology.size
        uneven = [(3 * rank + 1) % 4 for rank in range(n)]
        counts = (uneven, 2) if collective in BLOCKWISE else (3 * n + 2, 1)
        for count in counts:
            solo, segment = next(variants)
            yield case(
                collective,
                messages(collective),
                n,
                count=0 if collective == "barrier" else count,
                segment=segment,
                root=n - 2 if collective in ROOTED else 0,
                in_place=solo,
                solo=solo,
                topology=topology,
            )


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_by_messages_on_any_nodes(collective: str) -> None:
    prove_all(list(cases(collective)))


def direct(collective: str) -> Algorithm:
    """The form in which ranks of a node reach each other's arrays."""
    return Algorithm(hierarchical.direct(collective), shared=True)


def placements(n: int) -> list[Topology]:
    """Nodes of one size and of several; ranks that share a node follow each other, or do not."""
    wanted = [
        [rank // 2 for rank in range(n)],
        [rank // 4 for rank in range(n)],
        [rank % 3 for rank in range(n)],
        [rank * rank % 5 for rank in range(n)],
        [0] + [1] * (n - 1),
        [0] * n,
    ]
    return list({each.node_of: each for each in map(arrange, wanted)}.values())


def counts_of(collective: str, n: int) -> list[object]:
    if collective == "all_to_all":
        return [5, 1, [[i * j % 3 for j in range(n)] for i in range(n)]]
    if collective in BLOCKWISE:
        return [5, [(3 * rank + 1) % 4 for rank in range(n)]]
    return [3 * n + 2, 1]


def direct_cases(n: int) -> Iterator[ProofCase]:
    some = [rank % 2 == 0 for rank in range(n)]
    variants = cycle(product((False, True, some), (2, whole), (2, 1, 3)))
    for collective, topology in product(MOVING, placements(n)):
        for count, (in_place, segment, channels) in zip(
            counts_of(collective, n), variants, strict=False
        ):
            yield case(
                collective,
                direct(collective),
                n,
                count=count,
                segment=segment,
                channels=channels,
                root=7 * n // 5 % n if collective in ROOTED else 0,
                in_place=in_place,
                solo=n < 8,
                topology=topology,
            )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the numbers of ranks for which this run proves the form in memory."""
    if "sizes" in metafunc.fixturenames:
        every = [range(1, 9), (12, 13, 16), (31, 33), (64,)]
        chosen = [(1, 2, 3, 6, 8), (13, 17)]
        sizes = every if metafunc.config.getoption("--all") else chosen
        metafunc.parametrize("sizes", sizes, ids=str)


def test_in_memory_on_any_nodes(sizes: Sequence[int]) -> None:
    prove_all([each for n in sizes for each in direct_cases(n)])


def crossings(collective: str, build: str, n: int, topology: Topology) -> list[object]:
    """For each channel what each rank sends to other nodes, and receives from there, in order."""
    given = case(
        collective,
        messages(collective) if build == "messages" else hierarchical.direct(collective),
        n,
        segment=2,
        channels=3,
        topology=topology,
    )
    node = np.array(topology.node_of)
    found: list[object] = []
    for _, _, schedule in given.parts():
        for channel in schedule.channels:
            rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
            for each in channel():
                for way, tables in (("send", each.sends), ("receive", each.receives)):
                    for table in tables:
                        for rank, peer, count in zip(
                            table.rank.tolist(),
                            table.peer.tolist(),
                            table.count.tolist(),
                            strict=True,
                        ):
                            if node[rank] != node[peer]:
                                rows.setdefault((way, rank), []).append((peer, count))
            found.append(rows)
    return found


@pytest.mark.parametrize("collective", MOVING)
def test_each_node_may_take_either_form(collective: str) -> None:
    for n in (4, 7, 12):
        for topology in placements(n):
            if topology.num_nodes > 1:
                of_both = [
                    crossings(collective, how, n, topology) for how in ("messages", "memory")
                ]
                assert any(of_both[0])
                assert of_both[0] == of_both[1]


def crossing(nodes: Topology, count: int) -> np.ndarray:
    """Elements that leave each node in an all-reduce."""
    call = Signature("all_reduce", np.dtype(np.float32), (count,), op=ReduceOp.SUM)
    schedule = messages("all_reduce")(world(nodes.size), call, Tuning(16, topology=nodes))
    node = np.array(nodes.node_of)
    out = np.zeros(nodes.num_nodes, np.int64)
    for channel in schedule.channels:
        for each in channel():
            for table in each.sends:
                leaves = node[table.rank] != node[table.peer]
                np.add.at(out, node[table.rank[leaves]], table.count[leaves])
    return out


@pytest.mark.parametrize("scattered", [False, True])
def test_an_element_leaves_a_node_as_often_as_across_asks_for(scattered: bool) -> None:
    nodes = arrange([rank % 8 if scattered else rank // 4 for rank in range(32)])
    assert (crossing(nodes, 32 * 64) == 2 * 32 * 64 * 7 // 8).all()


def test_all_ranks_of_a_node_take_part() -> None:
    nodes = arrange([rank // 4 for rank in range(32)])
    call = Signature("all_reduce", np.dtype(np.float32), (64,), op=ReduceOp.SUM)
    schedule = messages("all_reduce")(world(32), call, Tuning(16, topology=nodes))
    where = placement(nodes)
    sends = [table for channel in schedule.channels for each in channel() for table in each.sends]
    rank = np.concatenate([table.rank for table in sends])
    peer = np.concatenate([table.peer for table in sends])
    across = where.node[rank] != where.node[peer]
    assert set(rank[across].tolist()) == set(range(32))
    assert (where.local[rank[across]] == where.local[peer[across]]).all()
