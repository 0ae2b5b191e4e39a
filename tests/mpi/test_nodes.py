"""Ranks know their nodes: MPI's splitting agrees with host names.

On one machine there is one node; jobs/virtual_cluster.sh makes several.
"""

import socket

import numpy as np
import pytest
from mpi4py import MPI

from hpccomm import Communicator
from hpccomm.errors import UsageError


def test_facts_are_those_of_the_hosts(comm: Communicator, mpi_comm: MPI.Comm) -> None:
    hosts = mpi_comm.allgather(socket.gethostname())
    mine = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    assert comm.num_nodes == len(set(hosts))
    assert comm.node == list(dict.fromkeys(hosts)).index(hosts[comm.rank])
    assert (comm.local_rank, comm.local_size) == (mine.index(comm.rank), len(mine))
    assert comm.node_comm.size == len(mine)


@pytest.mark.mpi(min_size=2)
def test_memory_is_shared_within_hosts_alone(comm: Communicator) -> None:
    x = np.zeros(1000, dtype=np.float32)
    if comm.node_comm.size > 1:
        assert comm.node_comm.explain("all_reduce", x, algorithm="shm").algorithm == "shm"
    if comm.num_nodes > 1:
        with pytest.raises(UsageError, match="shm"):
            comm.explain("all_reduce", x, algorithm="shm")
        assert comm.explain("all_reduce", x).algorithm != "shm"
