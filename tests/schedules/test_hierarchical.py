"""What the algorithms in two levels send between nodes: all ranks take part, as often as either form needs."""

from itertools import product

import numpy as np
import pytest
from proofs import Which, topologies_of

from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms.hierarchical import messages
from hpccomm.schedules.algorithms.levels import placement
from hpccomm.schedules.proof.case import Form
from hpccomm.schedules.schedule import Tuning, world
from hpccomm.topology import Topology, arrange

MOVING = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")


def crossings(collective: str, form: Form, topology: Topology) -> list[object]:
    """For each channel what each rank sends to other nodes, and receives from there, in order."""
    which = Which(collective, "hierarchical", form=form)
    given = which.case(topology.size, segment=2, channels=3, topology=topology)
    node = np.array(topology.node_of)
    found: list[object] = []
    for channel in (channel for part in given.parts() for channel in part.schedule.channels):
        rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for each in channel():
            for way, table in (*product("s", each.sends), *product("r", each.receives)):
                for rank, *what in np.stack([table.rank, table.peer, table.count], 1).tolist():
                    if node[rank] != node[what[0]]:
                        rows.setdefault((way, rank), []).append(tuple(what))
        found.append(rows)
    return found


@pytest.mark.parametrize("collective", MOVING)
def test_each_node_may_take_either_form(collective: str) -> None:
    for n in (4, 7, 12):
        for topology in topologies_of(Which(collective, "hierarchical"), n):
            if topology is not None and topology.num_nodes > 1:
                by_messages = crossings(collective, "build", topology)
                assert any(by_messages)
                assert by_messages == crossings(collective, "direct", topology)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("nodes", "each"), [(2, 2), (4, 3), (8, 4)])
def test_each_element_leaves_a_node_by_all_ranks_as_often_as_it_must(
    nodes: int, each: int, scattered: bool
) -> None:
    ranks = nodes * each
    topology = arrange([rank % nodes if scattered else rank // each for rank in range(ranks)])
    count = ranks * 64
    call = Signature("all_reduce", np.dtype(np.float32), (count,), op=ReduceOp.SUM)
    schedule = messages("all_reduce")(world(ranks), call, Tuning(16, topology=topology))
    where = placement(topology)
    out, senders = np.zeros(nodes, np.int64), set()
    rounds = (one for channel in schedule.channels for one in channel())
    for table in (table for one in rounds for table in one.sends):
        leaves = where.node[table.rank] != where.node[table.peer]
        rank, peer = table.rank[leaves], table.peer[leaves]
        np.add.at(out, where.node[rank], table.count[leaves])
        senders.update(rank.tolist())
        assert (where.local[rank] == where.local[peer]).all()
    assert (out == 2 * count * (nodes - 1) // nodes).all()  # as few as a ring's
    assert senders == set(range(ranks))
