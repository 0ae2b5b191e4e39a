"""Compute the time of a collective on a cluster that need not exist.

The description of a network gives the cost of a message, and the links that messages share. The
schedule of an algorithm gives the messages.

The model `events` runs the schedule in virtual time: every rank has its clock, and messages queue in
front of the ports and links that they share. The model `cost` follows the rounds of the schedule: it
agrees with `events`, and says less. The model `terms` adds up an algorithm's latency, bandwidth and
reduction: an estimate, at once for any number of ranks. One table is printed for each collective and
algorithm, as perf prints it; then the algorithms side by side, where one overtakes the other, and
what bounds each at the largest size.

With --like, the network is that of a stored run: its latencies and bandwidths, the speeds of reducing and
copying, and what each call takes beyond them are fitted to the times of the run, and printed with their
errors. Only rows of hpccomm's own algorithms are used, since their prices are known. --cluster then gives the
ports, and what the run says nothing of.

With --trace, a program that hpccomm record has recorded is predicted there: its computation as it was, its
calls at the prices of the network, and its ranks or more, each with as much to do. The network, --ranks and
one --algorithm are for it.

Examples
--------
  hpccomm simulate all_reduce --cluster ib400x32 --algorithm ring,tree -b 8 -e 1G -f 4
  hpccomm simulate all_reduce --cluster ib400x32 --ranks 4096 --algorithm ring -b 1G -e 1G
  hpccomm simulate broadcast,all_gather --cluster mine.toml -b 1K -e 64M -f 4 --model cost
  hpccomm simulate all_to_all --cluster lab1g --algorithm all -b 1M -e 1M --skew 1e-3 --output s.h5
  hpccomm simulate all_reduce --like runs.h5 --ranks 4096 -b 8 -e 1G -f 4
  hpccomm simulate --trace t.h5 --cluster ib400x32 --ranks 256
"""

import argparse
import sys

from hpccomm.errors import UsageError
from hpccomm.results.comparison import require_scipy
from hpccomm.results.schema import SIMULATED_BACKEND, Config
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Network, load, ready
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.tools import flags as readers
from hpccomm.tools import output
from hpccomm.tools.flag import Flag, FlagGroup
from hpccomm.tools.perf import flags
from hpccomm.tools.perf.options import Options
from hpccomm.tools.perf.tables import MAXIMUM
from hpccomm.tools.progress import terminal, watched
from hpccomm.tools.simulate import runs
from hpccomm.tools.simulate.runs import EVENTS, MODELS, SIMULATED, SimulationRequest
from hpccomm.units import seconds

MOST_RANKS = 1 << 20
"""Each takes memory and a line of the results file, with any model."""

_SIMULATION = (
    Flag(
        "--trace FILE.h5", readers.file, "predict the program of this recording, instead of calls"
    ),
    Flag(
        "--cluster NAME|FILE",
        str,
        f"one of {', '.join(ready())}, or a TOML file that describes one",
    ),
    Flag(
        "--like RUNS.h5",
        readers.file,
        "fit the network to a run of this results file (--cluster: its ports, and what the run says nothing of)",
    ),
    Flag(
        "--run NAME|INDEX",
        str,
        "the run of --like, by name, or by number: 1 is the first, -1 the last (default: the last)",
    ),
    Flag(
        "--ranks N",
        readers.integer(1),
        "ranks, on the nodes that they need (default: all of the description, or those of the run or recording)",
    ),
    Flag(
        "--algorithm NAME[,NAME...]",
        readers.algorithms(
            sorted({name for named in ALGORITHMS.values() for name in named}), "cannot be simulated"
        ),
        f"one table for each of these, or {readers.ALL} that the collective has (default: those that "
        "are estimated to be the fastest at the smallest and the largest size)",
    ),
    readers.choice("--model", MODELS, "model", "what to time with", EVENTS),
    Flag(
        f"--segment SIZE {DEFAULT_SEGMENT >> 10}K",
        readers.segment,
        "bytes of a segment; arrays are moved in segments",
    ),
    Flag("--channels N 2", readers.integer(1), "segments that may be under way at the same time"),
    Flag("--skew SECONDS 0", seconds, "time within which the ranks enter a call, each at random"),
    Flag("--seed N 0", readers.integer(0), "seed of these random times"),
    Flag(
        "--output FILE.h5",
        readers.file,
        "add the run to this results file, which hpccomm plot --runs draws",
    ),
)


FLAGS = (
    Flag(
        "COLLECTIVE[,COLLECTIVE...]",
        readers.some_of(SIMULATED, "cannot be simulated"),
        f"{readers.ALL}, or some of {', '.join(SIMULATED)}",
        "collectives",
        values="?",
    ),
    FlagGroup(_SIMULATION, "the simulation"),
    *(FlagGroup(flags.FLAGS[heading], heading) for heading in ("sizes", "operations")),
)


def run(args: argparse.Namespace) -> int:
    """Simulate; return the exit status."""
    if (args.trace is None) == (args.collectives is None):
        raise UsageError(
            "give collectives, such as all_reduce, or --trace FILE.h5 for the calls of a recorded program"
        )
    if args.trace is not None:
        return _predict(args)
    network, status = _network(args, args.ranks)
    request = _request(args, network)
    groups = runs.run(request, sys.stdout, sys.stderr, terminal())
    for title, curves in groups.items():
        output.write(runs.comparison(title, curves))
    return status


def _predict(args: argparse.Namespace) -> int:
    from hpccomm.tools.programs.elsewhere import elsewhere

    if len(args.algorithm or ()) > 1 or args.output or args.skew:
        raise UsageError("--trace takes one --algorithm, and no --output or --skew")
    recording, status = output.read_recording(args.trace)
    known = {name: 0 for each in recording.operations() for name in ALGORITHMS.get(each, ())}
    for name in set(args.algorithm or ()).difference(known):
        raise UsageError(f"no call has --algorithm {name}; give one of {', '.join(known)}, or none")
    network, unread = _network(args, args.ranks or recording.ranks)
    output.write(elsewhere(recording, network, *(args.algorithm or ())))
    return max(status, unread)


def _network(args: argparse.Namespace, ranks: int | None) -> tuple[Network, int]:
    """Return the network, with other ranks if they are given, and the status of what was read for it."""
    if args.cluster is None and args.like is None:
        raise UsageError(
            f"give the network: --cluster with a file or one of {', '.join(ready())}; or --like RUNS.h5"
        )
    if args.run is not None and args.like is None:
        raise UsageError("--run chooses among the runs of --like RUNS.h5; give both, or neither")
    described, status = None if args.cluster is None else load(args.cluster), 0
    if args.like is not None:
        from hpccomm.results.run import choose
        from hpccomm.tools.simulate.like import like

        require_scipy("--like")
        examined, status = output.read_file(args.like)
        with watched(f"fitting to {args.like.name}"):
            network, report, damage = like(choose(examined.runs, args.run), described, ranks)
        output.write(report)
        status = max(status, output.damaged(damage, args.like))
    else:
        assert described is not None
        network = described if ranks is None else described.resized(ranks)
    if network.ranks > MOST_RANKS:
        raise UsageError(
            f"{network.name} has {network.ranks} ranks, and at most {MOST_RANKS} are simulated; give "
            "fewer --ranks"
        )
    return network, status


def _request(args: argparse.Namespace, network: Network) -> SimulationRequest:
    sizes = flags.sizes(args)
    if args.skew and args.model != EVENTS:
        raise UsageError(
            f"--skew {args.skew:g}: --model {args.model} has all ranks start at once; "
            f"leave it out, or give --model {EVENTS}"
        )
    swept = sizes.smallest, sizes.largest, sizes.factor, sizes.step
    config = Config(*swept, iterations=1, warmup_iters=0, validation=0, average=MAXIMUM)
    options = Options(
        collectives=args.collectives,
        backends=(SIMULATED_BACKEND,),
        algorithms=args.algorithm,
        types=args.types,
        ops=args.ops,
        root=args.root,
        sizes=sizes,
        config=config,
        output=args.output,
    )
    return SimulationRequest(
        options, network, args.model, args.segment, args.channels, args.skew, args.seed
    )
