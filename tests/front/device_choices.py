"""The path of a call on device arrays: `explain`, `algorithm` and `deterministic`."""

import os
from functools import reduce

import numpy as np

from front.device_inputs import filled, full, holds, ranks_sum, stream_of
from hpccomm import Communicator
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours, raises

CHOICES = Behaviours("devices.choices")


@CHOICES.behaviour(algorithm=("native", "ring", "tree"))
def pinned(comm: Communicator, algorithm: str) -> None:
    """NCCL's own ring and tree are had by name; the environment is as before."""
    before = os.environ.get("NCCL_ALGO")
    with stream_of(comm):
        for turn in range(2):
            for dtype in (np.float32, np.int64):
                x = filled(comm, dtype=dtype)
                choice = comm.explain("all_reduce", x, algorithm=algorithm)
                assert (choice.backend, choice.algorithm) == ("nccl", algorithm), choice
                comm.all_reduce(x, algorithm=algorithm)
                holds(x, full(ranks_sum(comm), dtype=dtype), f"{dtype}, turn {turn}")
            x = filled(comm)
            work = comm.all_reduce(x, algorithm=algorithm, async_op=True)
            work.wait()
            planned = comm.plan("all_reduce", x, algorithm=algorithm)
            planned()
            holds(x, full(comm.size * ranks_sum(comm)), "plan")
    assert os.environ.get("NCCL_ALGO") == before, "the variable is restored"


@CHOICES.behaviour()
def pinned_in_turns(comm: Communicator) -> None:
    """Groups and algorithms mix, whichever comes first on which rank's group."""
    with stream_of(comm):
        group = comm.split(comm.rank % 2)
        assert group is not None
        with group:
            for algorithm in ("tree", "native", "ring", "tree"):
                for each in (group, comm):
                    x = filled(each)
                    each.all_reduce(x, algorithm=algorithm)
                    holds(x, full(ranks_sum(each)), algorithm)


@CHOICES.behaviour()
def callables(comm: Communicator) -> None:
    """An elementwise function that takes NumPy's arrays reduces device arrays as well, on the host."""
    with stream_of(comm):
        x = filled(comm, dtype=np.float64)
        comm.all_reduce(x, np.maximum)
        holds(x, full(comm.size, dtype=np.float64), "maximum")
        comm.all_reduce(x, lambda a, b: a * b / 2)
        expected = comm.size**comm.size / 2 ** (comm.size - 1)
        holds(x, full(expected, dtype=np.float64), "product")
        ranked = filled(comm, dtype=np.float64)
        comm.all_reduce(ranked, lambda a, b: a * 3 + b, deterministic=True)
        expected = reduce(lambda a, b: a * 3 + b, range(1, comm.size + 1))
        holds(ranked, full(expected, dtype=np.float64), "in rank order")
        with raises(UsageError, "commutative", "deterministic=True"):
            comm.all_reduce(x, lambda a, b: a * 3 + b)
        for out in (None, x):
            with raises(UsageError, "identity"):
                comm.scan(x, lambda a, b: a + b, exclusive=True, out=out)
        for each in (x, np.ones(2)):  # it is called on the host, and so not with CuPy's
            with raises(UsageError, "maximum", "NumPy"):
                comm.all_reduce(each, lambda a, b: cupy().maximum(a, b))
    comm.barrier()


@CHOICES.behaviour()
def facts(comm: Communicator) -> None:
    """A communicator knows its device, and by what device arrays go; groups are like it."""
    assert isinstance(comm.device, int), comm.device
    assert 0 <= comm.device < cupy().cuda.runtime.getDeviceCount(), comm.device
    assert comm.backends["cuda"] in ("nccl", "mpi", "staged"), comm.backends
    with stream_of(comm):
        path = "staged" if comm.backends["cuda"] == "staged" else "cuda"
        choice = comm.explain("all_reduce", filled(comm))
        assert (choice.path, len(set(comm.all_gather_object(str(choice))))) == (path, 1), choice
    group = comm.split(comm.rank % 2)
    assert group is not None
    with group, comm.dup() as twin:
        assert group.backends == twin.backends == comm.backends, "backends"
        assert group.device == twin.device == comm.device, "device"
