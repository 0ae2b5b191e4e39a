"""Measure the bandwidth of the node's memory: the limit of collectives in shared memory.

memory_copy and memory_add are STREAM's Copy and Add, memory_update writes an array in place. Each
core has a thread, and memory of its own NUMA node or of the named one. The exit status is 1 if a
result is wrong, 2 if it failed.

Examples
--------
  hpccomm perf memory
  mpiexec -n 8 --bind-to core hpccomm perf memory --output memory.h5
"""

import argparse
from functools import partial

from hpccomm.tools import flags, output

FLAGS = flags.table(__package__, file="links.toml")["memory"]


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    from hpccomm.tools.perf import links

    plan = partial(links.memory_rates, nbytes=args.bytes)
    return links.run(plan, min, args.iters, args.output, output.write)
