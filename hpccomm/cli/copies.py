"""``hpccomm perf copy``."""

import argparse
from functools import partial
from statistics import median

from hpccomm.bench.perf import readers
from hpccomm.cli import output
from hpccomm.cli.memory import add_common
from hpccomm.memory.cuda.library import cupy

DESCRIPTION = """\
Measure copies from the host to each GPU and back, within each GPU, and between each two GPUs of the node.

Both ways, the figure is of one direction. A line names the path of the copy and how much of its peak it reaches, both from
NVML (pip install nvidia-ml-py). Start one process a node. The exit status is 1 if a byte is wrong, 2 if it failed.
"""

EXAMPLES = """\
examples:
  hpccomm perf copy -b 64K,1M,16M,1G --output links.h5
  srun --ntasks-per-node=1 hpccomm perf copy
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    sizes = lambda text: tuple(map(readers.segment, readers.listed(text)))  # noqa: E731
    told = "sizes that are copied (default 256M)"
    parser.add_argument(
        "-b", "--bytes", type=sizes, default="256M", metavar="SIZE[,SIZE]", help=told
    )
    add_common(parser, "16")


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    from hpccomm.bench.links import copies, measuring

    cupy()  # without a GPU nothing is started
    plan = partial(copies.plan, sizes=args.bytes)
    return measuring.run(plan, median, args.iters, args.output, output.write)
