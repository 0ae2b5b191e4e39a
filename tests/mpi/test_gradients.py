"""Gradients over MPI: results, registered memory, and readiness that differs between ranks."""

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from one_size import by_default_on
from random_trainings import random_trainings, train

from hpccomm.gradients import GradientSync, ShardedOptimizer, adam

if TYPE_CHECKING:
    import hpccomm


# All ranks draw the same cases. Where one rank fails, another case on it would confuse the others: nothing is shrunk.
@by_default_on(3)
@settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_training_gives_what_numpy_does(
    comm: "hpccomm.Communicator", data: st.DataObject
) -> None:
    train(comm, data.draw(random_trainings(comm.size)))


@pytest.mark.mpi(min_size=2)
def test_buckets_lie_in_registered_memory(comm: "hpccomm.Communicator") -> None:
    for each in (
        GradientSync(comm, {"a": np.zeros((300, 40))}).gradients,
        ShardedOptimizer(comm, {"a": np.zeros((300, 40))}, adam()).gradients,
        ShardedOptimizer(comm, {"a": np.zeros((300, 40))}, adam()).parameters,
    ):
        assert comm.explain("all_reduce", each["a"]).registered
