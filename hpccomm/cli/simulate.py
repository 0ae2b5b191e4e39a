"""``hpccomm simulate``: collectives on a described cluster, in virtual time."""

import argparse
import math
import sys

from hpccomm.bench.perf import flags, readers
from hpccomm.bench.perf.lines import MAXIMUM
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.report import Report, terminal
from hpccomm.bench.simulated import comparison, picture
from hpccomm.bench.simulated import runs as simulation
from hpccomm.cli import output
from hpccomm.cli.show import path
from hpccomm.errors import UsageError
from hpccomm.results.schema import Config
from hpccomm.schedules.cost.network_files import load, ready
from hpccomm.schedules.draw import drawing
from hpccomm.settings import DEFAULT_SEGMENT

DESCRIPTION = """\
Time a collective on a cluster that need not exist. A description of its network says what a message
costs and what messages share; an algorithm's schedule says who sends what to whom.

The model `events` runs the schedule in virtual time: every rank has its clock, and messages queue in
front of the ports and links that they share. The model `cost` follows the rounds of the schedule: it
agrees with `events`, and says less. The model `terms` adds up an algorithm's latency, bandwidth and
reduction: an estimate, at once for any number of ranks. One table is printed for each collective and
algorithm, as perf prints it; then the algorithms side by side, where one overtakes the other, and
what bounds each at the largest size.
"""

EXAMPLES = """\
examples:
  hpccomm simulate all_reduce --cluster ib400x32 --algorithm ring,tree -b 8 -e 1G -f 4
  hpccomm simulate all_reduce --cluster ib400x32 --ranks 4096 --algorithm ring -b 1G -e 1G
  hpccomm simulate broadcast,all_gather --cluster mine.toml -b 1K -e 64M -f 4 --model cost
  hpccomm simulate all_to_all --cluster lab1g --algorithm all -b 1M -e 1M --skew 1e-3 --output s.h5
"""

MOST_RANKS = 1 << 20
"""Each takes memory and a line of the results file, whatever the model."""

_SECONDS = "seconds, 0 or more, such as 1e-4"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument(
        "collectives",
        metavar="COLLECTIVE[,COLLECTIVE...]",
        type=_collectives,
        help=f"{readers.ALL}, or some of {', '.join(simulation.SIMULATED)}",
    )
    own = parser.add_argument_group("the simulation")
    own.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        required=True,
        help=f"one of {', '.join(ready())}, or a TOML file that describes one",
    )
    own.add_argument(
        "--ranks",
        metavar="N",
        type=readers.integer(1),
        help="ranks, on as many nodes as they need (default: those of the description)",
    )
    own.add_argument(
        "--algorithm",
        metavar="NAME[,NAME...]",
        type=readers.listed,
        help=f"one table for each of these; {readers.ALL} is every one that there is (default: "
        "those that auto takes for small and for large arrays)",
    )
    own.add_argument(
        "--model",
        choices=simulation.MODELS,
        default=simulation.EVENTS,
        help=f"what to time with (default {simulation.EVENTS})",
    )
    own.add_argument(
        "--segment",
        metavar="SIZE",
        type=readers.size,
        default=DEFAULT_SEGMENT,
        help=f"bytes that are moved at a time (default {DEFAULT_SEGMENT >> 10}K)",
    )
    own.add_argument(
        "--channels",
        metavar="N",
        type=readers.integer(1),
        default=2,
        help="pieces of an array that may be under way at the same time (default 2)",
    )
    own.add_argument(
        "--skew",
        metavar="SECONDS",
        type=_seconds,
        default=0.0,
        help="ranks enter a call at random within this time (default 0)",
    )
    own.add_argument(
        "--seed",
        metavar="N",
        type=readers.integer(0),
        default=0,
        help="by which these times are drawn (default 0)",
    )
    own.add_argument(
        "--output", metavar="FILE.h5", type=path, help="add the run to this results file"
    )
    own.add_argument(
        "--plot",
        metavar="FILE",
        type=path,
        help="draw time and bus bandwidth against size, FILE.svg or FILE.png",
    )
    for heading in ("sizes", "operations"):
        flags.add_flags(parser, heading, flags.FLAGS[heading])


def run(args: argparse.Namespace) -> int:
    """Simulate; return the exit status."""
    asked = _asked(args)
    tables, skipped = simulation.tables(asked)
    if args.plot is not None:
        # Before the work.
        drawing.check_place(args.plot)
        if args.output is not None and args.plot.resolve() == args.output.resolve():
            raise UsageError(
                f"--output and --plot are both {args.plot}, and one would overwrite the other; give "
                "two paths"
            )
        if not any(table.collective.moves for table in tables):
            raise UsageError(
                "--plot draws times against sizes, and a barrier has none; leave it out"
            )
        drawing.new_figure(1.0, 1.0)
    groups: dict[str, dict[str, list[comparison.Point]]] = {}
    info = simulation.run_info(asked, skipped, ("hpccomm", *sys.argv[1:]))
    lines = sum(table.lines(asked) for table in tables)
    with Report(info, asked.options, lines, sys.stdout, sys.stderr, terminal()) as report:
        for table in tables:
            name = table.collective.name
            report.begin(name, simulation.BACKEND, table.algorithm)
            for case in table.cases(asked):
                report.progress(f"{table.algorithm} {name} {case.layout.nbytes} B")
                row, samples, point = simulation.found(asked, table, case)
                report.add([(row, samples)], ())
                title = _title(asked.network.name, asked.network.ranks, case)
                groups.setdefault(title, {}).setdefault(table.algorithm, []).append(point)
            report.finish(name)
    for title, curves in groups.items():
        output.write(comparison.text(title, curves))
    if args.plot is not None:
        drawing.save(picture.draw(groups), args.plot)
        output.write(f"# Drawn in {args.plot}\n")
    return 0


def _title(cluster: str, ranks: int, case: simulation.SimulatedCall) -> str:
    words = [case.collective.name]
    if case.collective.moves:
        words.append(case.type_name)
    if case.collective.reduces:
        words.append(case.op_name)
    if case.layout.root >= 0:
        words.append(f"root {case.layout.root}")
    return f"{' '.join(words)} on {cluster}, {ranks} ranks"


def _asked(args: argparse.Namespace) -> simulation.SimulationRequest:
    sizes = flags.sizes(args)
    readers.check_segment(args.segment)
    if args.skew and args.model != simulation.EVENTS:
        raise UsageError(
            f"--skew {args.skew:g}: --model {args.model} has all ranks start at once; "
            f"leave it out, or give --model {simulation.EVENTS}"
        )
    network = load(args.cluster)
    if args.ranks is not None:
        network = network.resized(args.ranks)
    if network.ranks > MOST_RANKS:
        raise UsageError(
            f"{network.name} has {network.ranks} ranks, and at most {MOST_RANKS} are simulated; give "
            "fewer --ranks"
        )
    config = Config(
        minimum_bytes=args.minimum_bytes,
        maximum_bytes=args.maximum_bytes,
        step_factor=sizes.factor,
        step_bytes=sizes.step,
        iterations=1,
        warmup_iters=0,
        validation=0,
        average=MAXIMUM,
    )
    options = Options(
        collectives=args.collectives,
        backends=(simulation.BACKEND,),
        algorithms=args.algorithm,
        types=args.types,
        ops=args.ops,
        root=args.root,
        sizes=sizes,
        config=config,
        timeout=0,
        memory=False,
        json=None,
        csv=None,
        output=args.output,
    )
    return simulation.SimulationRequest(
        options, network, args.model, args.segment, args.channels, args.skew, args.seed
    )


def _collectives(text: str) -> tuple[str, ...]:
    known = tuple(simulation.SIMULATED)
    names = known if text == readers.ALL else readers.listed(text)
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{name!r} cannot be simulated; give {readers.ALL} or some of {', '.join(known)}"
            )
    return names


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give {_SECONDS}") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give {_SECONDS}")
    return value
