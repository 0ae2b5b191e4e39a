"""``hpccomm tune``: what measurements say about a machine."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.bench.perf import readers
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.cli import output
from hpccomm.cli.show import add_run, path
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.errors import UsageError
from hpccomm.schedules.cost.network_files import ready

TUNED = tuple(name for name, what in DESCRIPTIONS.items() if not what.peers)
"""Collectives that can be tuned. Where ranks list their peers, no size is known to all of them."""

DESCRIPTION = """\
Measure this machine, and write the table by which algorithm="auto" chooses: for each collective,
which algorithm is the fastest from which size on, the MPI library's own among them. Run it under the
mpiexec and with the settings of the program that is to use it; the table holds for that number of
ranks and nodes, that MPI library and processor. The program reads it from HPCCOMM_TUNING_FILE.

With --fit it measures nothing, but fits the parameters of a cluster's description to the times of a
stored run: latencies, bandwidths, the speeds of folds and copies, and what each call costs beyond
them. Rows of hpccomm's own algorithms are used, whose prices are known in terms of these parameters;
native and auto are not. Measure several collectives and algorithms: one alone does not tell all
parameters apart.
"""

EXAMPLES = """\
examples:
  mpiexec -n 4 hpccomm tune --output tuning.h5
  HPCCOMM_TUNING_FILE=tuning.h5 mpiexec -n 4 python program.py
  mpiexec -n 4 hpccomm tune all_reduce,broadcast -b 1K -e 16M -f 2 --output tuning.h5

  mpiexec -n 4 hpccomm perf all_reduce,all_gather,broadcast -b 8 -e 64M -f 4 \\
      --algorithm ring,recursive_doubling,binomial --output runs.h5
  hpccomm tune --fit runs.h5 --output mine.toml
  hpccomm simulate all_reduce --cluster mine.toml --ranks 4
"""

OUTPUT = Path("tuning.h5")

MEASURING = (
    "collectives",
    "minbytes",
    "maxbytes",
    "stepfactor",
    "blocks",
    "seconds",
    "segments",
    "deterministic",
    "every",
    "unverified",
)
FITTING = ("run", "cluster", "segment", "channels")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--output",
        type=readers.file,
        metavar="FILE",
        help=f"the results file (default: {OUTPUT}; one that holds runs gets one more); with --fit "
        "the description, FILE.toml (default: print it after the report, whose lines are comments in "
        "it)",
    )
    _add_measuring(parser.add_argument_group("measuring"))
    _add_fitting(parser.add_argument_group("fitting a cluster's description"))


def _add_measuring(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "collectives",
        nargs="?",
        type=_collectives,
        metavar="COLLECTIVE",
        help=f"{readers.ALL} (the default), or some with commas between them: {', '.join(TUNED)}",
    )
    group.add_argument(
        "-b", "--minbytes", type=readers.size, metavar="SIZE", help="smallest size (default: 8)"
    )
    group.add_argument(
        "-e", "--maxbytes", type=readers.size, metavar="SIZE", help="largest size (default: 64M)"
    )
    group.add_argument(
        "-f",
        "--stepfactor",
        type=readers.integer(2),
        metavar="N",
        help="each size is so many times the one before (default: 4); where the fastest way changes, "
        "a size between is measured as well",
    )
    group.add_argument(
        "--blocks",
        type=readers.integer(1),
        metavar="N",
        help="how often each way is timed at a size, in turns with the others (default: 11)",
    )
    group.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="about how long each time; a call that takes longer is made once (default: 0.004)",
    )
    group.add_argument(
        "--segments",
        type=_segments,
        metavar="SIZE,...",
        help="bytes that algorithms move at a time, each a way of its own beside that of the built-in "
        "table (default: none)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="measure reductions with deterministic=True as well",
    )
    group.add_argument(
        "--every",
        action="store_true",
        default=None,
        help="try every algorithm that applies, not only those that are known to be good somewhere",
    )
    group.add_argument(
        "--unverified",
        action="store_true",
        default=None,
        help="do not measure auto by the new table in the end",
    )


def _add_fitting(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--fit", type=path, metavar="FILE.h5", help="the results file")
    add_run(group)
    group.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="a description whose ports, and what they share, are the cluster's, and whose "
        f"parameters hold where the run does not tell them: {', '.join(ready())}, or a TOML file "
        "(default: a port for each rank; what is not told costs nothing)",
    )
    group.add_argument(
        "--segment",
        type=readers.size,
        metavar="SIZE",
        help="bytes that the algorithms moved at a time (default: as the run tells)",
    )
    group.add_argument(
        "--channels",
        type=readers.integer(1),
        metavar="N",
        help="pieces of an array that were under way at the same time (default: as the run tells, or "
        "2)",
    )


def _collectives(text: str) -> tuple[str, ...]:
    if text == readers.ALL:
        return TUNED
    for name in readers.listed(text):
        if name not in TUNED:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no collective; give {readers.ALL} or some of {', '.join(TUNED)}"
            )
    return readers.listed(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; give seconds above 0, such as 0.004"
        )
    return value


def _segments(text: str) -> tuple[int, ...]:
    sizes = tuple(map(readers.size, readers.listed(text)))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: nothing would move; give 1 byte or more")
    return sizes


def run(args: argparse.Namespace) -> int:
    """Measure, or fit; return the exit status."""
    _check_together(args)
    return _measure(args) if args.fit is None else _fit(args)


def _check_together(args: argparse.Namespace) -> None:
    """Raise unless the flags that are given belong together.

    Raises
    ------
    UsageError
        If one measures and another fits.
    """
    others = FITTING if args.fit is None else MEASURING
    stray = [name for name in others if getattr(args, name) is not None]
    if stray:
        belongs = "is for --fit" if args.fit is None else "measures, and --fit does not"
        name = stray[0] if stray[0] == "collectives" else f"--{stray[0]}"
        raise UsageError(f"{name} {belongs}; give one or the other")
    if args.fit is not None and args.output is not None:
        try:
            readers.toml_file(str(args.output))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--output: {error}") from None


def _measure(args: argparse.Namespace) -> int:
    """Measure this machine. Collective: every rank of the job runs it."""
    sizes = Sizes(
        8 if args.minbytes is None else args.minbytes,
        64 << 20 if args.maxbytes is None else args.maxbytes,
        args.stepfactor or 4,
        0,
    )
    if sizes.smallest > sizes.largest:
        raise UsageError(
            f"-b/--minbytes {sizes.smallest} is above -e/--maxbytes {sizes.largest}; "
            "give sizes that ascend"
        )
    # Arguments are checked before MPI is started.
    from hpccomm.bench.tune.measuring import Effort
    from hpccomm.bench.tune.table import TuneRequest, tune
    from hpccomm.communicator.creation import new_comm
    from hpccomm.settings import CommOptions

    asked = TuneRequest(
        collectives=args.collectives or TUNED,
        sizes=sizes,
        effort=Effort(args.blocks or 11, args.seconds or 0.004),
        segments=args.segments or (),
        deterministic=bool(args.deterministic),
        every=bool(args.every),
        verify=not args.unverified,
        output=args.output or OUTPUT,
    )
    place = launched()
    with ExitStack() as stack:
        options = CommOptions(tuning_file="")  # what is measured does not depend on an older one
        comm = stack.enter_context(new_comm(name="tune", options=options))
        if comm.size == 1:
            raise UsageError(
                "there is but one rank, and nothing to choose; start several, for example with "
                "mpiexec -n 4 hpccomm tune"
            )
        tune(
            comm,
            asked,
            ("hpccomm", *sys.argv[1:]),
            "none" if place is None else place.launcher,
            sys.stdout,
        )
        if comm.rank == 0:
            output.write(f"# Written to {asked.output}: set HPCCOMM_TUNING_FILE to it\n")
    return 0


def _fit(args: argparse.Namespace) -> int:
    """Fit, report and write."""
    from hpccomm.bench.fit import fit
    from hpccomm.bench.tune import measured, report
    from hpccomm.results import reader, storage
    from hpccomm.schedules.cost.network_files import dump

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
