"""What the algorithms in two levels send between nodes: all ranks take part, as often as either form needs."""

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
        for topology in topologies_of(Which(collective, "hierarchical"), n):
            if topology is not None and topology.num_nodes > 1:
                by_messages = crossings(collective, "build", topology)
                assert any(by_messages)
                assert by_messages == crossings(collective, "direct", topology)


@pytest.mark.parametrize("scattered", [False, True])
def test_each_element_leaves_a_node_by_all_ranks_as_often_as_it_must(scattered: bool) -> None:
    nodes = arrange([rank % 8 if scattered else rank // 4 for rank in range(32)])
    count = 32 * 64
    call = Signature("all_reduce", np.dtype(np.float32), (count,), op=ReduceOp.SUM)
    schedule = messages("all_reduce")(world(32), call, Tuning(16, topology=nodes))
    where = placement(nodes)
    out, senders = np.zeros(nodes.num_nodes, np.int64), set()
    for channel in schedule.channels:
        for each in channel():
            for table in each.sends:
                leaves = where.node[table.rank] != where.node[table.peer]
                rank, peer = table.rank[leaves], table.peer[leaves]
                np.add.at(out, where.node[rank], table.count[leaves])
                senders.update(rank.tolist())
                assert (where.local[rank] == where.local[peer]).all()
    assert (out == 2 * count * 7 // 8).all()
    assert senders == set(range(32))
