"""``hpccomm perf pairs``."""

import argparse
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from hpccomm import units
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.bench.perf import readers
from hpccomm.bench.perf.memory_kind import DEVICE, HOST
from hpccomm.cli import output
from hpccomm.cli.show import path
from hpccomm.errors import ResultsError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hpccomm.bench.pairs.measuring import PairOptions
    from hpccomm.communicator import Communicator
    from hpccomm.results.pairs import Measured, Thresholds, Verdict
    from hpccomm.results.schema import RunInfo

DESCRIPTION = """\
Measure latency and bandwidth of every pair of ranks, and name the node, rank or pair that is slow.

Pairs are measured at once as far as they share no link: in a round each node meets one other. What seems slow
is measured again. With many ranks the rounds end when --budget is used up, and at the earliest after the
first; those that were measured by then cover all nodes evenly.

The exit status is 0 if nothing is slow, 1 if something is, and 2 if the command failed. A line
"# DRAIN host" names each host that most of its pairs are slow of.
"""

EXAMPLES = """\
examples:
  mpiexec -n 8 hpccomm perf pairs
  srun --ntasks-per-node=1 hpccomm perf pairs --expect latency=5us,bandwidth=10G --json verdict.json
  mpiexec -n 64 hpccomm perf pairs --threshold 90% --budget 30s --output pairs.h5
  hpccomm plot --pairs pairs.h5
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add(
        "-b",
        "--bytes",
        type=readers.segment,
        default="1M",
        metavar="SIZE",
        help="message for bandwidth (default 1M)",
    )
    add(
        "-n",
        "--iters",
        type=readers.integer(1, 100_000),
        default="20",
        metavar="N",
        help="messages for latency (default 20)",
    )
    add(
        "--streams",
        type=readers.integer(1, 100_000),
        default="5",
        metavar="N",
        help="messages for bandwidth, in each direction (default 5)",
    )
    add(
        "--budget",
        type=readers.duration,
        default="60s",
        metavar="SECONDS",
        help="time after which no further round begins, except to measure again what seems slow, which may take "
        "as long once more (default 60s)",
    )
    add(
        "--threshold",
        type=readers.percentage,
        default="80%",
        metavar="PERCENT",
        help="bandwidth below which a pair is slow, of what it should be (default 80%%)",
    )
    add(
        "--latency-threshold",
        type=readers.percentage,
        default="50%",
        metavar="PERCENT",
        help="likewise of the inverse of latency: 50%% is twice the time (default 50%%)",
    )
    add(
        "--expect",
        type=expected,
        default={},
        metavar="latency=TIME,bandwidth=SIZE",
        help="what pairs of different nodes should have, such as latency=5us,bandwidth=10G (bytes a second, G is 1e9); by default what the best quarter of the pairs has",
    )
    add("--backend", default="auto", metavar="NAME", help="as in perf (default auto)")
    add(
        "--arrays",
        type=readers.one_of((HOST, DEVICE), "kind of memory"),
        default=HOST,
        metavar=f"{{{HOST},{DEVICE}}}",
        help=f"memory of the messages (default {HOST})",
    )
    add(
        "-T",
        "--timeout",
        type=readers.integer(1),
        default="60",
        metavar="SECONDS",
        help="deadline of each message (default 60)",
    )
    add("--output", type=readers.file, metavar="FILE.h5", help="add the run to this file")
    add(
        "--json",
        type=path,
        metavar="FILE.json",
        help="write what was measured and found, for programs",
    )


def expected(text: str) -> dict[str, float]:
    """Read what pairs should have: seconds and bytes a second."""
    read = {"latency": units.seconds, "bandwidth": units.rate}
    parts = [part.partition("=") for part in text.split(",")]
    try:
        found = {f"expected_{name}": read[name](value) for name, _, value in parts}
    except (KeyError, ValueError):
        found = {}
    unitless = any(name == "latency" and not value.endswith("s") for name, _, value in parts)
    if unitless or not found or not all(found.values()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no expectation; give latency=5us,bandwidth=10G or one of the two"
        )
    return found


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    from hpccomm.bench.pairs import measuring
    from hpccomm.bench.perf.root import on_root
    from hpccomm.bench.progress import Progress, terminal
    from hpccomm.results import pairs_text
    from hpccomm.results.pairs import Thresholds, blame

    options = measuring.PairOptions(
        large=args.bytes,
        iterations=args.iters,
        streams=args.streams,
        budget=args.budget,
        device=args.arrays == DEVICE,
    )
    thresholds = Thresholds(args.threshold, args.latency_threshold, **args.expect)
    import hpccomm

    with hpccomm.new_comm(args.backend, timeout=args.timeout, name="perf-pairs") as comm:
        if comm.size < 2:
            raise UsageError(
                "perf pairs needs 2 ranks or more, and there is 1; start it with mpiexec -n"
            )
        info = _info(comm, options)
        with ExitStack() as opened:
            files = on_root(comm, lambda: opened.enter_context(_Files(args, info)))
            progress = Progress(terminal() if comm.rank == 0 else None, None)
            try:
                measured = measuring.measure(comm, options, thresholds, progress.show)
            finally:
                progress.close()
            slow = False

            def report() -> None:
                nonlocal slow
                assert files is not None
                assert measured is not None
                verdict = blame(measured, thresholds)
                slow = bool(verdict.findings)
                files.write(measured, thresholds, verdict)
                opened.close()  # here, so that a file that cannot be completed is an error on every rank
                output.write(pairs_text.text(measured, verdict))

            on_root(comm, report)
            return int(comm.broadcast_object(slow))


def _info(comm: "Communicator", options: "PairOptions") -> "RunInfo":
    """Return the facts of the run. Collective."""
    from hpccomm.bench.perf import facts
    from hpccomm.results.schema import Config

    place = launched()
    config = Config(
        minimum_bytes=options.large,
        maximum_bytes=options.large,
        step_factor=0,
        step_bytes=0,
        iterations=options.iterations,
        warmup_iters=0,
        validation=0,
    )
    launcher = "none" if place is None else place.launcher
    return facts.run_info(comm, config, (), ("hpccomm", *sys.argv[1:]), launcher)


class _Files:
    """What rank 0 writes. Files that cannot be written are refused before anything is measured."""

    def __init__(self, args: argparse.Namespace, info: "RunInfo") -> None:
        self._json: Path | None = args.json
        self._output: Path | None = args.output
        for file in filter(None, (self._json, self._output)):
            folder = file.parent
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise ResultsError(
                    f"cannot write {file}: {folder} is no folder that can be written to; name another"
                )
            if file.is_dir():
                raise ResultsError(f"cannot write {file}: it is a folder; name a file in it")
        self._writer: Any = None
        if self._output is not None:
            from hpccomm.results.writer import Writer  # h5py takes long to import

            # Last, as the run that it holds is not taken out again if another file is refused.
            self._writer = Writer(self._output, info, expected_rows=0, expected_repetitions=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._writer is not None:
            self._writer.__exit__(*error)

    def write(self, measured: "Measured", thresholds: "Thresholds", verdict: "Verdict") -> None:
        """Store what was measured and found."""
        from hpccomm.results import pairs, pairs_text

        if self._writer is not None:
            self._writer.add_group(
                pairs.GROUP, lambda group: pairs.write(group, measured, thresholds)
            )
        if self._json is not None:
            output.write_file(self._json, pairs_text.as_json(measured, verdict))
