"""Training over MPI gives the parameters that one process gives; with deterministic=True always the same bits."""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from one_size import by_default_on
from trainings import WITHIN, Case, all_bits, alone, bits, difference, steps

if TYPE_CHECKING:
    import hpccomm


@by_default_on(3)
@pytest.mark.parametrize(
    ("mode", "layout", "dtype"),
    [
        pytest.param("sync", "defaults", np.float32, marks=pytest.mark.thorough),
        ("ready", "small buckets", np.float64),
        pytest.param("accumulate", "as ready", np.float32, marks=pytest.mark.thorough),
        ("weighted", "largest, no bucketing", np.float64),
    ],
)
def test_ranks_train_as_one_process_does(
    comm: "hpccomm.Communicator", mode: str, layout: str, dtype: type
) -> None:
    model = steps(comm, Case(mode, layout, comm.size, dtype, False))
    assert difference(model, alone(dtype)) <= WITHIN[dtype]
    assert len(set(comm.all_gather_object(bits(model)))) == 1


@by_default_on(3)
def test_deterministic_training_has_the_same_bits_in_every_way(
    comm: "hpccomm.Communicator",
) -> None:
    assert len(set.union(*comm.all_gather_object(all_bits(comm)))) == 1
