"""The MPI library's own calls under way keep their memory, without other references. NumPy says what comes."""

import gc

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm

FACTORS = {"broadcast": 0, "all_reduce": 1, "reduce": 1, "scan": 2, "all_to_all": 0}
"""Which of 1, the number of ranks, and those up to this one comes of ones."""


@by_default_on(2)
@pytest.mark.parametrize("name", FACTORS)
def test_a_call_keeps_its_memory(comm: hpccomm.Communicator, name: str) -> None:
    count = 100_000 * comm.size
    results = np.empty((3, count))
    root = {"root": 0} if name in ("broadcast", "reduce") else {}
    here = name != "reduce" or comm.rank == 0
    with comm.dup() as own:  # whose end completes what was not waited for
        for out in results:
            call = getattr(own, name)
            into = out if here else None
            call(np.ones(count), out=into, async_op=True, algorithm="native", **root).done()
            gc.collect()
            np.full(count, -1.0)  # takes memory that is free
    expected = (1, comm.size, comm.rank + 1)[FACTORS[name]]
    assert not here or (results == expected).all()
