"""Which ranks share a node, and what the launcher says of a process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import choose
from hpccomm.memory.cuda.streams import user_stream
from hpccomm.topology import Topology, arrange


def test_nodes_are_numbered_by_their_lowest_rank() -> None:
    topology = arrange(["b", "a", "b", "c", "a"])
    assert topology == Topology((0, 1, 0, 2, 1))
    assert (topology.size, topology.num_nodes) == (5, 3)
    assert topology.ranks_of(1) == (1, 4)
    assert topology.neighbors(2) == (0, 2)
    assert [topology.local_rank(rank) for rank in range(5)] == [0, 0, 1, 0, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_a_group_keeps_who_shares_a_node(keys: list[int], data: st.DataObject) -> None:
    ranks = data.draw(st.permutations(range(len(keys))))
    group = ranks[: data.draw(st.integers(1, len(keys)))]
    restricted = arrange(keys).restrict(group)
    assert restricted == arrange([keys[rank] for rank in group])
    for a, first in enumerate(group):
        assert restricted.neighbors(a)[restricted.local_rank(a)] == a
        for b, second in enumerate(group):
            same = restricted.node_of[a] == restricted.node_of[b]
            assert same == (keys[first] == keys[second])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, ("Open MPI", 3, 8)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("MPICH", 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_PROCID": "1"}, ("srun", 1, 2)),  # --mpi=pmi2
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, ("srun", 0, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, None),
    ],
)
def test_launched(environ: dict[str, str], expected: tuple[str, int, int] | None) -> None:
    launch = launched(environ)
    assert (launch is None) == (expected is None)
    if launch and expected:
        assert expected[0] in launch.launcher
        assert (launch.rank, launch.size) == expected[1:]


def test_devices_are_dealt_out_by_local_rank() -> None:
    assert [choose(None, local_rank, 4) for local_rank in range(6)] == [0, 1, 2, 3, 0, 1]
    assert choose(None, 3, 0) is None
    assert choose(2, 0, 4) == 2
    for requested, visible, says in (
        (4, 4, "from 0 to 3"),
        (-1, 2, "from 0 to 1"),
        (0, 0, "there is none"),
        ("0", 2, "device number"),
    ):
        with pytest.raises(UsageError, match=f"device is .*{says}"):
            choose(requested, 0, visible)


def test_what_is_no_stream_is_refused() -> None:
    for stream in (-1, True, 1 << 64, None, 1.0):
        with pytest.raises(UsageError, match=r"stream is .*give a CuPy stream"):
            user_stream(stream)
