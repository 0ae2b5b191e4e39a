"""Gradients over MPI lie in memory that ranks share, where the page of `hpccomm.gradients` says so."""

import numpy as np
import pytest

import hpccomm
from hpccomm.gradients import GradientSync, ShardedOptimizer, adam


@pytest.mark.mpi(min_size=2)
def test_buckets_lie_in_registered_memory(comm: hpccomm.Communicator) -> None:
    for each in (
        GradientSync(comm, {"a": np.zeros((300, 40))}).gradients,
        ShardedOptimizer(comm, {"a": np.zeros((300, 40))}, adam()).gradients,
        ShardedOptimizer(comm, {"a": np.zeros((300, 40))}, adam()).parameters,
    ):
        assert comm.explain("all_reduce", each["a"]).registered
