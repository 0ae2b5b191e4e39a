"""Measure copies from the host to each GPU and back, within each GPU, and between the GPUs of the node.

For copies both ways at once, the figure is that of one direction. A line names the path of the copy
and the reached part of its peak, both from NVML (pip install nvidia-ml-py). Start one process a
node. The exit status is 1 if a byte is wrong, 2 if it failed.

Examples
--------
  hpccomm perf copy -b 64K,1M,16M,1G --output links.h5
  srun --ntasks-per-node=1 hpccomm perf copy
"""

import argparse
from functools import partial
from statistics import median

from hpccomm.memory.cuda.library import cupy
from hpccomm.tools import flags, output

FLAGS = flags.table(__package__, file="links.toml")["copy"]


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    from hpccomm.tools.perf import links

    cupy()  # without a GPU nothing is started
    plan = partial(links.copy_rates, sizes=args.bytes)
    return links.run(plan, median, args.iters, args.output, output.write)
