"""``hpccomm.cupyx`` takes the calls of ``cupyx.distributed``: on NumPy's arrays here, on CuPy's in tests/cuda."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from cupyx_calls import check_all

import hpccomm
from hpccomm.cupyx import NCCLBackend, init_process_group
from hpccomm.errors import LaunchError, UsageError
from hpccomm.testing import run_ranks


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_call(n: int) -> None:
    run_ranks(n, lambda comm: check_all(init_process_group(n, comm.rank), np))


def test_ranks_may_be_other_ones_than_those_of_mpi() -> None:
    def calls(comm: hpccomm.Communicator) -> None:
        backend = NCCLBackend(3, 2 - comm.rank, "a.host", 1, True)
        assert (backend.rank, backend.comm.rank) == (2 - comm.rank,) * 2
        check_all(backend, np)

    run_ranks(3, calls)


def test_what_does_not_fit_is_said_on_every_rank() -> None:
    def calls(comm: hpccomm.Communicator) -> None:
        for n, rank, error, text in (
            (4, comm.rank, LaunchError, "mpiexec -n 4 python"),
            (2 + comm.rank, comm.rank, LaunchError, "the job has 2 ranks"),
            (2, 0, UsageError, r"\[0, 0\]"),
            (2, comm.rank + 1, UsageError, r"\[1, 2\]"),
            (2, str(comm.rank), UsageError, "each number below 2"),
        ):
            with pytest.raises(error, match=text):
                init_process_group(n, rank)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="nccl"):
            init_process_group(2, comm.rank, backend="mpi")
        backend = NCCLBackend(2, comm.rank)
        x = np.zeros((2, 3))
        for call, text in (
            (lambda: backend.all_reduce(x, x, "mean"), "'min'"),
            (lambda: backend.all_reduce(x[:, ::2], x), "contiguous"),
            (lambda: backend.all_reduce(x, np.zeros((3, 2)).T), "one order"),
            (lambda: backend.broadcast([1.0]), "list"),
            (lambda: backend.reduce_scatter(x, x, 4), "asks for 8"),
            (lambda: backend.all_gather(x, x, 4), "asks for 8"),
            (lambda: backend.all_gather(x, x, True), "give an integer"),
            (lambda: backend.all_to_all(x.T, x.T), "2 rows"),
            (lambda: backend.all_to_all(x[:1], x), "2 rows"),
        ):
            with pytest.raises(UsageError, match=text):
                call()  # type: ignore[no-untyped-call]
        backend.barrier()

    run_ranks(2, calls)


SIGNATURES = """
import importlib, inspect, json, sys
module = importlib.import_module(sys.argv[1])
names = ["__init__", *(each for each in dir(module.NCCLBackend) if not each.startswith("_"))]
functions = {name: getattr(module.NCCLBackend, name) for name in names}
functions["init_process_group"] = module.init_process_group
print(json.dumps({
    name: [(each.name, str(each.kind), repr(each.default)) for each in inspect.signature(function).parameters.values()]
    for name, function in functions.items()
}))
"""


def test_signatures_are_those_of_cupyx() -> None:
    """In processes of their own, as cupyx starts MPI."""
    if find_spec("cupyx") is None:
        pytest.skip("CuPy is not installed: .ci/run makes an environment that has it")
    theirs, mine = (
        json.loads(subprocess.check_output([sys.executable, "-c", SIGNATURES, module], text=True))
        for module in ("cupyx.distributed", "hpccomm.cupyx")
    )
    assert len(theirs) > 10
    assert mine == theirs
