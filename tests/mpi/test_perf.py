"""perf over MPI: every collective, type and reduction is verified."""

import argparse
import io

import hpccomm
from hpccomm.perf import flags, sweep


def test_every_type_and_reduction_is_right(comm: hpccomm.Communicator) -> None:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    arguments = ["all", "-b", "1K", "-e", "1K", "-n", "2", "-d", "all", "-o", "all"]
    options = flags.options(parser.parse_args(arguments))
    out, err = io.StringIO(), io.StringIO()
    wrong = sweep.run([comm], options, ("hpccomm", "perf"), "mpiexec", out, err)
    assert (wrong, err.getvalue()) == (0, "")
    if comm.rank == 0:
        assert out.getvalue().count("Out of bounds values : 0 OK") == len(options.collectives)
