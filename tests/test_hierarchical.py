"""Any two families make an algorithm in two levels, on nodes of any sizes."""

from collections.abc import Iterator
from itertools import cycle, product

import numpy as np
import pytest

from hpccomm.algorithms import families
from hpccomm.algorithms.families import Family
from hpccomm.algorithms.hierarchical import DEFAULT, hierarchical
from hpccomm.algorithms.levels import placement
from hpccomm.contracts.schedule import Tuning, whole, world
from hpccomm.contracts.signature import BLOCKWISE, ROOTED, Signature
from hpccomm.reductions import ReduceOp
from hpccomm.testing.proof import Case, case, prove_all
from hpccomm.topology import Topology, arrange

FAMILIES = {name: each for name, each in vars(families).items() if isinstance(each, Family)}
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier")
NODES = [
    arrange([0] * 5),
    arrange(range(5)),
    arrange([0, 0, 1, 1, 2, 2, 3, 3]),
    arrange([0, 1, 2, 0, 1, 2]),
    arrange([0, 1, 1, 1, 1, 0, 1, 1]),
    arrange([2, 0, 1, 0, 0, 2, 1, 2, 1, 1, 0]),
    arrange([0, 0, 0, 1]),
]


def cases(inner: Family, across: Family) -> Iterator[Case]:
    composed = hierarchical(inner, across)
    variants = cycle(product((False, True), (1, 2, whole)))
    for collective, topology in product(COLLECTIVES, NODES):
        n = topology.size
        uneven = [(3 * rank + 1) % 4 for rank in range(n)]
        counts = (uneven, 2) if collective in BLOCKWISE else (3 * n + 2, 1)
        for count, (solo, segment) in zip(counts, variants, strict=False):
            yield case(
                collective,
                getattr(composed, collective),
                n,
                count=0 if collective == "barrier" else count,
                segment=segment,
                root=n - 2 if collective in ROOTED else 0,
                in_place=solo,
                solo=solo,
                topology=topology,
            )


@pytest.mark.parametrize(("inner", "across"), list(product(FAMILIES, FAMILIES)))
def test_any_two_families(inner: str, across: str) -> None:
    prove_all(list(cases(FAMILIES[inner], FAMILIES[across])))


def crossing(nodes: Topology, count: int) -> np.ndarray:
    """Elements that leave each node in an all-reduce."""
    call = Signature("all_reduce", np.dtype(np.float32), (count,), op=ReduceOp.SUM)
    schedule = DEFAULT.all_reduce(world(nodes.size), call, Tuning(16, topology=nodes))
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
    schedule = DEFAULT.all_reduce(world(32), call, Tuning(16, topology=nodes))
    where = placement(nodes)
    sends = [table for channel in schedule.channels for each in channel() for table in each.sends]
    rank = np.concatenate([table.rank for table in sends])
    peer = np.concatenate([table.peer for table in sends])
    across = where.node[rank] != where.node[peer]
    assert set(rank[across].tolist()) == set(range(32))
    assert (where.local[rank[across]] == where.local[peer[across]]).all()
