"""Measure latency and bandwidth of every pair of ranks, and name slow nodes, ranks and pairs.

Pairs that share no link are measured at the same time: in a round each node meets one other. Slow
pairs are measured again. With many ranks the rounds end when --budget is used up, and at the
earliest after the first. The measured pairs then cover all nodes evenly.

The exit status is 0 if nothing is slow, 1 if something is, 4 if nothing else is and other processes keep
nodes busy, of which nothing is decided then, and 2 if the command failed. A line "# DRAIN host" names
each host of a slow node, whose pairs are mostly slow, and a line "# UNDECIDED host" each busy one.

Examples
--------
  mpiexec -n 8 hpccomm perf pairs
  srun --ntasks-per-node=1 hpccomm perf pairs --expect latency=5us,bandwidth=10G --json verdict.json
  mpiexec -n 64 hpccomm perf pairs --threshold 90% --budget 30s --output pairs.h5
  hpccomm plot --pairs pairs.h5
"""

import argparse
import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from hpccomm.errors import ResultsError, UsageError
from hpccomm.runtime.lifetime import Status
from hpccomm.tools import output
from hpccomm.tools.perf.names import DEVICE
from hpccomm.tools.perf.pairs.flags import FLAGS as FLAGS

if TYPE_CHECKING:
    from hpccomm.results.schema import RunInfo


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    from hpccomm.results import pairs, pairs_text
    from hpccomm.results.pairs import Thresholds, locate_slow
    from hpccomm.results.schema import Config
    from hpccomm.tools.perf import facts
    from hpccomm.tools.perf.facts import on_root
    from hpccomm.tools.perf.pairs import measuring
    from hpccomm.tools.progress import Progress, terminal

    options = measuring.PairOptions(
        large=args.bytes,
        iterations=args.iters,
        streams=args.streams,
        budget=args.budget,
        device=args.arrays == DEVICE,
    )
    thresholds = Thresholds(args.threshold, args.latency_threshold, **(args.expect or {}))
    import hpccomm

    with hpccomm.new_comm(args.backend, timeout=args.timeout, name="perf-pairs") as comm:
        if comm.size < 2:
            raise UsageError(
                "perf pairs needs 2 ranks or more, and there is 1; start it with mpiexec -n"
            )
        sizes = options.large, options.large, 0, 0
        info = facts.run_info(comm, Config(*sizes, options.iterations, 0, validation=0))
        with ExitStack() as opened:
            writer = on_root(comm, lambda: _writer(args, info, opened))
            with closing(Progress(terminal() if comm.rank == 0 else None)) as progress:
                measured = measuring.measure(comm, options, thresholds, progress.show)

            def report() -> int:
                assert measured is not None
                verdict = locate_slow(measured, thresholds)
                if writer is not None:
                    writer.add_entry(pairs.ENTRY, pairs.entry(measured, thresholds))
                    measured.others.store(writer)
                if args.json is not None:
                    output.write_file(args.json, pairs_text.as_json(measured, verdict))
                opened.close()  # here, so that a file that cannot be completed is an error on every rank
                output.write(pairs_text.text(measured, verdict))
                return 1 if verdict.findings else Status.UNDECIDED if verdict.undecided else 0

            return int(comm.broadcast_object(on_root(comm, report)))


def _writer(args: argparse.Namespace, info: "RunInfo", opened: ExitStack) -> Any:
    """Return the writer of the results file, if named. An unwritable one is refused early."""
    for file in filter(None, (args.json, args.output)):
        folder = file.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ResultsError(
                f"cannot write {file}: {folder} is not a folder that can be written to; name another"
            )
        if file.is_dir():
            raise ResultsError(f"cannot write {file}: it is a folder; name a file in it")
    if args.output is None:
        return None
    from hpccomm.results.writer import Writer  # h5py takes long to import

    # Last, as the run that it holds is not taken out again if another file is refused.
    return opened.enter_context(Writer(args.output, info, expected_rows=0, expected_repetitions=0))
