"""``hpccomm perf memory``."""

import argparse
from functools import partial

from hpccomm.bench.perf import readers
from hpccomm.cli import output

DESCRIPTION = """\
Measure the bandwidth of the node's memory: the limit of collectives in shared memory.

memory_copy and memory_add are STREAM's Copy and Add, memory_update writes an array in place. Each core has a thread, and
memory of its own NUMA node or of the one that is named. The exit status is 1 if a result is wrong, 2 if it failed.
"""

EXAMPLES = """\
examples:
  hpccomm perf memory
  mpiexec -n 8 --bind-to core hpccomm perf memory --output memory.h5
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    size = "each of three arrays, over all cores of a rank (default: four times their caches)"
    parser.add_argument("-b", "--bytes", type=readers.segment, metavar="SIZE", help=size)
    add_common(parser, "10")


def add_common(parser: argparse.ArgumentParser, times: str) -> None:
    """Add what `perf copy` takes as well."""
    add, count = parser.add_argument, readers.integer(1, 100_000)
    told = f"repetitions of each (default {times})"
    add("-n", "--iters", type=count, default=times, metavar="COUNT", help=told)
    add("--output", type=readers.file, metavar="FILE.h5", help="add the run to this file")


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    from hpccomm.bench.links import measuring, memory

    plan = partial(memory.plan, nbytes=args.bytes)
    return measuring.run(plan, min, args.iters, args.output, output.write)
