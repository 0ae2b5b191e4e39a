"""``hpccomm tune``: what measurements say about a cluster."""

import argparse

from hpccomm.cli import output
from hpccomm.cli.show import add_run, path
from hpccomm.cost.network_files import ready
from hpccomm.errors import UsageError
from hpccomm.perf import readers

DESCRIPTION = """\
Fit the parameters of a cluster's description to the times of a stored run: latencies, bandwidths, the
speeds of folds and copies, and what each call costs beyond them. Rows of hpccomm's own algorithms are
used, whose prices are known in terms of these parameters; native and auto are not. Measure several
collectives and algorithms: one alone does not tell all parameters apart.
"""

EXAMPLES = """\
examples:
  mpiexec -n 4 hpccomm perf all_reduce,all_gather,broadcast -b 8 -e 64M -f 4 \\
      --algorithm ring,recursive_doubling,binomial --output runs.h5
  hpccomm tune --fit runs.h5 --output mine.toml
  hpccomm simulate all_reduce --cluster mine.toml --ranks 4
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--fit", type=path, metavar="FILE.h5", required=True, help="the results file"
    )
    add_run(parser)
    parser.add_argument(
        "--output",
        type=readers.toml_file,
        metavar="FILE.toml",
        help="write the description there (default: print it after the report, whose lines are "
        "comments in it)",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="a description whose ports, and what they share, are the cluster's, and whose "
        f"parameters hold where the run does not tell them: {', '.join(ready())}, or a TOML file "
        "(default: a port for each rank; what is not told costs nothing)",
    )
    parser.add_argument(
        "--segment",
        type=readers.size,
        metavar="SIZE",
        help="bytes that the algorithms moved at a time (default: as the run tells)",
    )
    parser.add_argument(
        "--channels",
        type=readers.integer(1),
        metavar="N",
        help="pieces of an array that were under way at the same time (default: as the run tells, or "
        "2)",
    )


def run(args: argparse.Namespace) -> int:
    """Fit, report and write; return the exit status."""
    from hpccomm.cost.fit import fit
    from hpccomm.cost.network_files import dump
    from hpccomm.results import reader, storage
    from hpccomm.tune import measured, report

    if args.segment is not None:
        readers.check_segment(args.segment)
    chosen = reader.choose(reader.read(args.fit), args.run)
    if args.output is not None and args.output.exists() and args.output.samefile(args.fit):
        raise UsageError(f"--output {args.output} is the results file itself; give another name")
    network = measured.described(chosen, args.cluster)
    rows = measured.usable(chosen, network, segment=args.segment, channels=args.channels)
    found = fit(network, rows.measurements)
    text = report.text(chosen, rows, found)
    description = dump(found.network)
    if args.output is None:
        output.write(text + description)
        return 0
    with storage.reported(args.output, "write"):
        args.output.write_text(description, encoding="utf-8")
    output.write(f"{text}# Written to {args.output}\n")
    return 0
