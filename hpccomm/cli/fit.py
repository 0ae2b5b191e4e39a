"""Fit the parameters of a cluster's description to the times of a stored run.

The parameters are latencies and bandwidths within nodes and between them, the speeds of reducing
and copying, and a constant time of each call. Only rows of hpccomm's own algorithms are used, since
their prices are known in terms of the parameters. Measure several collectives and algorithms: one
alone cannot separate all parameters.

Examples
--------
  mpiexec -n 4 hpccomm perf all_reduce,broadcast -b 8 -e 64M -f 4 --algorithm ring,binomial --output runs.h5
  hpccomm fit runs.h5 --output mine.toml
  hpccomm simulate all_reduce --cluster mine.toml --ranks 4
"""

import argparse

from hpccomm.bench.fit.report import fitted
from hpccomm.bench.flag import Flag, FlagGroup
from hpccomm.bench.perf import readers
from hpccomm.bench.progress import watched
from hpccomm.cli import output
from hpccomm.cli.shared_flags import RUN
from hpccomm.comparison.statistics import require_scipy
from hpccomm.errors import UsageError
from hpccomm.files.refusals import os_errors_as
from hpccomm.files.regular import check_output
from hpccomm.schedules.cost.network_files import ready

_FIT = (
    Flag(
        "--output FILE.toml",
        readers.file_ending_in(".toml", "is not a name of a description; give one"),
        "write the description to this file (default: print it after the report, whose lines are "
        "comments in it)",
    ),
    Flag(
        "--cluster NAME|FILE",
        str,
        "a description that has the ports of the cluster and what they share, and the parameters that "
        f"the run says nothing of: {', '.join(ready())}, or a TOML file (default: a port for each rank; "
        "parameters that the run says nothing of cost nothing)",
    ),
    Flag(
        "--segment SIZE",
        readers.segment,
        "bytes that the algorithms moved at a time (default: the run's)",
    ),
    Flag(
        "--channels N",
        readers.integer(1),
        "segments that were under way at the same time (default: the run's, or 2)",
    ),
)

FLAGS = (Flag("RUNS.h5", readers.file, "the results file", "file"), RUN, FlagGroup(_FIT, "the fit"))


def run(args: argparse.Namespace) -> int:
    """Fit, report and write; return the exit status."""
    require_scipy("hpccomm fit")
    to = args.output
    if to is not None:
        with os_errors_as(to, "write"):
            check_output(to)
    if to is not None and to.exists() and to.samefile(args.file):
        raise UsageError(f"--output {to} is the results file itself; give another name")
    with watched(f"fitting to {args.file.name}"):
        report, description, damage = fitted(
            args.file, args.run, args.cluster, segment=args.segment, channels=args.channels
        )
    if to is None:
        output.write(report + description)
        return output.damaged(damage, args.file)
    output.write_file(to, description)
    output.write(f"{report}# Written to {to}\n")
    return output.damaged(damage, args.file)
