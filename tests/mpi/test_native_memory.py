"""The MPI library's own calls under way keep their memory, without other references."""

import gc
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
from one_size import by_default_on

from hpccomm.backends.mpi.collectives import native
from hpccomm.backends.mpi.types import agreed, tried
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp

FLOAT = np.dtype(np.float64)
ROOT = 0
BLOCKS = ("all_gather", "gather", "scatter", "all_to_all", "reduce_scatter")
REDUCING = ("all_reduce", "reduce", "scan", "reduce_scatter")
CALLS = [
    (name, uniform, in_place)
    for name in ("broadcast", "all_reduce", "reduce", "scan", *BLOCKS)
    for uniform in ((True, False) if name in BLOCKS and name != "all_to_all" else (True,))
    for in_place in ((False, True) if name in ("all_reduce", "all_to_all") else (False,))
]


@cache
def reductions() -> Any:
    """Return what the library reduces on all ranks. Collective at first: to try it all takes long."""
    from mpi4py import MPI

    return agreed(MPI.COMM_WORLD.allgather(tried()))


@by_default_on(2)
@pytest.mark.parametrize(("name", "uniform", "in_place"), CALLS)
def test_a_request_keeps_its_memory(
    mpi_comm: Any, name: str, uniform: bool, in_place: bool
) -> None:
    size = mpi_comm.size
    counts = (4,) * size if name in BLOCKS else (4,)
    op = ReduceOp.SUM if name in REDUCING else None
    call = Signature(
        name, FLOAT, counts, uniform=uniform, op=op, root=ROOT, exclusive=False, in_place=in_place
    )
    found = native(mpi_comm, call, reductions())
    assert found is not None
    whole, send, recv = np.ones(4 * size), np.ones(4), np.zeros(4)
    arrays = {
        "broadcast": (None, whole[:4].copy()),
        "all_gather": (send, whole.copy()),
        "gather": (send, whole.copy()),
        "scatter": (whole.copy(), recv),
        "all_to_all": (whole.copy(), whole.copy()),
        "reduce_scatter": (whole.copy(), recv),
    }
    pair = arrays.get(name, (send, recv))
    steps = found.start(*pair)
    used = [each for each in pair if each is not None]
    at_root = mpi_comm.rank == ROOT
    if in_place:
        used = used[1:]  # all_reduce sends nothing else, all_to_all a copy
    elif not at_root and name in ("gather", "reduce"):
        used = used[:1]
    elif not at_root and name == "scatter":
        used = used[1:]
    living = [weakref.ref(each) for each in used]
    del pair, arrays, send, recv, used
    gc.collect()
    assert all(each() is not None for each in living)
    assert not any(steps)
