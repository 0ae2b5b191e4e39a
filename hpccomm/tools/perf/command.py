"""Measure collectives on host or device arrays as nccl-tests does, and verify their results.

Flags and table are nccl-tests', with its meanings and defaults. One table is printed for each
combination of collective, backend and algorithm. The printed time is the time of a block of
repetitions back to back, divided by their number. Results of timed repetitions are verified: out of
place the last one's, in place those of the first and of a random one.

Combinations of `all` or of a list that do not exist, such as avg on bool or an algorithm on a
collective that lacks it, are skipped, and the header lists them. Requested alone, they are an error.

`perf pairs` measures pairs of ranks, `perf memory` a node's memory, and `perf copy` the links of
its GPUs.

The exit status is 0 if everything is right, 1 if a result is wrong (rank, index, expected and
actual value are on standard error) or a table is slower than required (--min-bw, --expect), 4 if it is
slower while other processes kept nodes busy, which decides nothing, and 2 if the command failed: wrong
usage or configuration, a file, a failed communication.

Examples
--------
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 2
  mpiexec -n 4 hpccomm perf all_reduce,all_gather -b 1M -e 16M -i 1M -d double --output runs.h5
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 4 -d float,half -o sum,max
  mpiexec -n 4 hpccomm perf all -b 0 -e 1M -f 4 -o all -d all
  mpiexec -n 2 hpccomm perf send_recv -b 1 -e 4M -f 2 -a 3 -I 1 --csv latency.csv
  mpiexec -n 8 hpccomm perf all_reduce -b 8 -e 8G -f 2 --backend nccl --algorithm ring,tree,native
  mpiexec -n 2 hpccomm perf all_reduce -b 8 -e 1M -f 8 --ci 2% --budget 60s --output isolated.h5
  hpccomm perf all_reduce -b 8 -e 64M -f 8 --launches 10 --launcher "mpiexec -n 4" --output runs.h5
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 8 --interleave ring recursive_doubling
  mpiexec -n 8 hpccomm perf all -b 1M -e 1G -f 4 --backend nccl,mpi --output runs.h5
"""

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import UsageError
from hpccomm.results.comparison import require_scipy
from hpccomm.tools import flags as readers
from hpccomm.tools import output
from hpccomm.tools.flag import Flag
from hpccomm.tools.perf import flags
from hpccomm.tools.perf.options import Options

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.tools.perf.options import Variant
    from hpccomm.tools.perf.sweep import CommSource


def _make_programs(folder: str) -> None:
    """Make the programs of nccl-tests' names, and end: nothing else has to be given."""
    from hpccomm.tools.perf import programs

    if output.speaks():
        output.write("".join(f"{file}\n" for file in programs.make(readers.file(folder))))
    raise SystemExit(0)


FLAGS = (
    *flags.ARGUMENTS,
    Flag(
        "--install-programs DIR",
        _make_programs,
        "measure nothing: make programs with the names of nccl-tests' in this folder, such as all_reduce_perf",
    ),
)


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    options = flags.options(args)
    if options.variants is not None:
        require_scipy("--interleave")
    if args.launches:
        return _launches(args, options.variants)
    # Arguments are checked before MPI is started.
    from hpccomm.tools.perf import sweep
    from hpccomm.tools.progress import terminal

    streams = sys.stdout, sys.stderr, terminal()
    return sweep.run(_sources(options), options, *streams)


def _sources(options: Options) -> list["CommSource"]:
    """Return where the communicator of each variant comes from; without variants, that of each backend."""
    from hpccomm.tools.perf.sweep import CommSource

    names = options.backends
    if options.variants is not None:
        names = tuple(options.of_variant(each).backends[0] for each in options.variants)
    return [
        CommSource(name, partial(_opened, name, options.timeout, options.device)) for name in names
    ]


def _launches(args: argparse.Namespace, variants: "tuple[Variant, Variant] | None") -> int:
    """Start whole launches, one after another."""
    from hpccomm.tools.perf import launches

    place = launched()
    if place is not None and place.size > 1:
        raise UsageError(
            f"--launches starts the ranks itself, and {place.launcher} has started {place.size} already; leave "
            "that launcher out, and give it by --launcher"
        )
    command = launches.launcher(args.launcher, os.environ)
    return launches.run(sys.argv[1:], command, args.launches, args.output, output.write, variants)


def _opened(backend: str, timeout: int, device: int | None) -> "Communicator":
    """Return the communicator over a backend. Collective; blocks."""
    import hpccomm

    place = launched()
    comm = hpccomm.new_comm(backend, device=device, timeout=timeout or None, name=f"perf-{backend}")
    if place is not None and place.size > comm.size and comm.mpi_comm is None:
        comm.abort()
        raise UsageError(
            f"--backend {backend}: its ranks are in one process, and {place.launcher} "
            f"started {place.size}; leave the launcher out, or name another backend"
        )
    return comm
