"""perf over MPI: every collective, type and reduction is verified."""

import argparse
import io

import pytest
from one_size import by_default_on

import hpccomm
from hpccomm.bench.flag import add_flags
from hpccomm.bench.perf import flags, sweep
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.bench.perf.sources import source_of


def perf(comm: hpccomm.Communicator, *arguments: str) -> tuple[int, str, str]:
    """Return the wrong elements, what rank 0 printed, and what it complained of."""
    parser = argparse.ArgumentParser()
    add_flags(parser, flags.ARGUMENTS)
    options = flags.options(parser.parse_args(arguments))
    out, err = io.StringIO(), io.StringIO()
    wrong = sweep.run([source_of(comm)], options, out, err)
    return wrong, out.getvalue(), err.getvalue()


@by_default_on(3)
def test_every_type_and_reduction_is_right(
    comm: hpccomm.Communicator, pytestconfig: pytest.Config
) -> None:
    """All types with all reductions, or each by itself without --all."""
    each = [("all", "sum"), ("float,int32", "all")]
    for types, ops in [("all", "all")] if pytestconfig.getoption("--all") else each:
        arguments = ["all", "-b", "1K", "-e", "1K", "-n", "2", "-d", types, "-o", ops]
        wrong, printed, complaints = perf(comm, *arguments)
        assert (wrong, complaints) == (0, "")
        if comm.rank == 0:
            possible = [each for each in COLLECTIVES.values() if not each.possible(comm.size)]
            assert printed.count("Out of bounds values : 0 OK") == len(possible)


@pytest.mark.thorough
def test_every_collective_is_right_on_shared_memory(
    comm: hpccomm.Communicator, pytestconfig: pytest.Config
) -> None:
    """Three ranks or more take one kind of memory each by default; two take both."""
    sizes = ["-b", "64", "-e", "1M", "-f", "128", "-n", "2"]
    both = comm.size < 3 or pytestconfig.getoption("--all")
    for register in ("0", "1") if both else str(comm.size % 2):
        algorithm = ["--algorithm", "all", "-R", register]
        wrong, printed, complaints = perf(comm, "all", *sizes, *algorithm)
        assert (wrong, complaints) == (0, "")
        if comm.rank == 0:
            assert ("# Registered memory" in printed) == (register == "1")
            assert (" algorithm shm\n" in printed) == (comm.size > 1)
