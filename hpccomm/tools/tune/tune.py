"""Measure this machine, and write the table from which algorithm="auto" chooses.

For each collective and size it holds the fastest algorithm; the MPI library's own is a candidate.
Run it with the mpiexec and the settings of the program that will use it. The table is valid for
this number of ranks and nodes, this MPI library and this processor. The program reads it from
HPCCOMM_TUNING_FILE.

Examples
--------
  mpiexec -n 4 hpccomm tune --output tuning.h5
  HPCCOMM_TUNING_FILE=tuning.h5 mpiexec -n 4 python program.py
  mpiexec -n 4 hpccomm tune all_reduce,broadcast -b 1K -e 16M -f 2 --output tuning.h5
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TextIO

from hpccomm.calls import policy
from hpccomm.calls.tuning_table import CASES, Table
from hpccomm.communicator import Communicator
from hpccomm.communicator.creation import new_comm
from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS
from hpccomm.errors import UsageError
from hpccomm.results import facts as origin
from hpccomm.results.schema import Config
from hpccomm.results.writer import Writer
from hpccomm.settings import CommOptions
from hpccomm.tools import flags, output
from hpccomm.tools.flags import Flag, FlagGroup
from hpccomm.tools.perf import arrays, facts
from hpccomm.tools.perf.facts import on_root
from hpccomm.tools.perf.options import Sizes
from hpccomm.tools.tune import measuring
from hpccomm.tools.tune.measuring import Bench, Confirmation, SizeTimes, TunedCall, TuneRequest

# The run: it prints its measurements, and writes the file that ``auto`` reads. Every rank calls it.


def tune(
    comm: Communicator,
    request: TuneRequest,
    out: TextIO,
    terminal: TextIO | None = None,
) -> list[Confirmation]:
    """Measure, write the table, and check it. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    request : TuneRequest
        What to measure; the same on all ranks.
    out : text stream
        Where rank 0 writes its report.
    terminal : text stream, optional
        Where rank 0 shows its progress.

    Returns
    -------
    list of Confirmation
        The times of `auto` with the table; empty unless `request.verify`.

    Raises
    ------
    UsageError
        On every rank, if there is not enough memory.
    ResultsError
        On every rank, if rank 0 cannot write the file.
    """
    shape = measuring.policy_of(comm).shape
    shared = shape.nodes == 1 and shape.memory != "off"
    request = replace(request, registered=request.registered and shared)
    unit = measuring.DTYPE.itemsize * (comm.size if set(request.collectives) & BLOCKWISE else 1)
    largest = -(-request.sizes.largest // unit) * unit
    needed = (4 + 2 * request.registered) * largest
    need = arrays.Need(comm.node, origin.host(), needed, arrays.available())
    arrays.require(comm.all_gather_object(need), largest)
    sizes = request.sizes
    limits = sizes.smallest, sizes.largest, sizes.factor, 0
    config = Config(*limits, request.blocks, 1, validation=0, average=3)
    info, rest = facts.run_info(comm, config), facts.rested(comm.barrier)
    number = sum(len(request.first_sizes(call)) for call in request.calls())
    progress = output.Progress(terminal, number * (1 + request.verify))
    with ExitStack() as stack, ExitStack() as files:
        stack.callback(progress.close)
        writer = on_root(comm, lambda: files.enter_context(Writer(request.output, info)))

        def say(text: str) -> None:
            if comm.rank == 0:
                with progress.hidden():
                    out.write(text)
                    out.flush()

        def store(call: TunedCall, times: SizeTimes) -> None:
            if writer is not None:
                for row, samples in measuring.stored(comm, call, times):
                    writer.append(row, samples)

        def report(call: TunedCall, times: SizeTimes) -> None:
            on_root(comm, lambda: store(call, times))
            progress.advance()
            progress.show(f"measuring {call.collective}")

        say(f"# {shape}, {shape.cores} cores a node\n")
        fixed = {
            segment: stack.enter_context(_same_ranks(comm, f"tune-{segment}", segment=segment))
            for segment in (0, *request.segments)
        }
        bench = Bench(fixed, request, largest)
        measured: dict[TunedCall, list[SizeTimes]] = {}
        for call in request.calls():
            progress.show(f"measuring {call.collective}")
            first = request.first_sizes(call)
            measured[call] = bench.sweep(call, first, partial(report, call))
            say(title(call) + "".join(map(line, measured[call])))
        rows = {
            (call.collective, case): each
            for call, times in measured.items()
            for case, each in measuring.cases(times, call).items()
        }
        table = Table(shape, datetime.now(UTC).date().isoformat(), rows)

        others = facts.others(comm, rest)

        def add_table() -> None:
            if writer is not None:
                writer.add_entry(policy.ENTRY, table.document())
                others.store(writer)

        on_root(comm, add_table)
        say(shown(table) + others.line)
        confirmations: list[Confirmation] = []
        if request.verify:
            with _same_ranks(comm, "tuned", tuning_file=str(request.output)) as tuned:
                progress.remain(sum(map(len, measured.values())))
                for call, found in measured.items():
                    for times in found:
                        progress.show(f"measuring {call.collective} by the table")
                        confirmations.append(measuring.confirm(bench, tuned, call, times))
                        progress.advance()
            say(confirmed(confirmations))
        on_root(comm, files.close)
    return confirmations


def _same_ranks(
    comm: Communicator, name: str, *, segment: int = 0, tuning_file: str = ""
) -> Communicator:
    """Return a communicator of the same ranks. It uses the table of `tuning_file`, if that is not empty.

    Its algorithms move `segment` bytes at a time; with 0 the table decides.
    """
    options = CommOptions(segment=segment or None, tuning_file=tuning_file, self_check=False)
    return new_comm(comm.backends["host"] or "", mpi_comm=comm.mpi_comm, name=name, options=options)


OTHERS = 3
"""Number of candidates that a line names besides the fastest."""


def title(call: TunedCall) -> str:
    """Return the heading of a call's lines."""
    form = call.difference and f", {call.difference}"
    return f"#\n# {call.collective}{form}\n#{'bytes':>11}  {'fastest':<26}{'us':>10}   others, times as long\n"


def line(times: SizeTimes) -> str:
    """Return the line of a size, with the fastest candidates."""
    took = times.seconds
    best, *others = sorted(took, key=lambda pick: took[pick])
    slower = (
        f"{measuring.spelled(pick)} {took[pick] / took[best]:.2f}" for pick in others[:OTHERS]
    )
    least = took[best] * 1e6
    return (
        f"{times.nbytes:>12}  {measuring.spelled(best):<26}{least:>10.2f}   {', '.join(slower)}\n"
    )


def shown(table: Table) -> str:
    """Return a table as TOML, with the meaning of its cases."""
    cases = "".join(f"#   {case}: {meaning}\n" for case, meaning in CASES.items())
    return f"#\n# The table: rows of [least bytes, algorithm]\n{cases}\n{table.toml()}"


def confirmed(confirmations: Sequence[Confirmation]) -> str:
    """Return the report on `auto` with the table."""
    slow = [each for each in confirmations if each.slower]
    lines = [
        "",
        f"# auto by this table, measured anew: within {measuring.SLOWER - 1:.0%} of the fastest fixed choice at "
        f"{len(confirmations) - len(slow)} of {len(confirmations)} sizes",
    ]
    lines += [
        f"#   slower: {each.call.collective}{each.call.difference and f' ({each.call.difference})'}, "
        f"{each.nbytes} bytes: {measuring.spelled(each.chosen)} {each.seconds * 1e6:.2f} us, {measuring.spelled(each.best)} "
        f"{each.fixed[each.best] * 1e6:.2f} us, {each.ratio:.2f} times as long"
        for each in slow
    ]
    if slow:
        lines.append(
            "#   the machine was busy, or two choices change places there: measure again when it is quiet"
        )
    return "\n".join(lines) + "\n"


TUNED = tuple(name for name, what in DESCRIPTIONS.items() if not what.peers)
"""Collectives that can be tuned. If ranks list their peers, no size is known to all ranks."""


FLAGS = (
    Flag(
        "COLLECTIVE all",
        flags.some_of({name: name for name in TUNED}, "is not a collective"),
        f"{flags.ALL}, or some with commas between them: {', '.join(TUNED)}",
        "collectives",
        values="?",
    ),
    FlagGroup(flags.table(__package__)["measuring"], "measuring"),
)


def run(args: argparse.Namespace) -> int:
    """Measure this machine; return the exit status. Collective: every rank of the job runs it."""
    sizes = Sizes(args.minimum_bytes, args.maximum_bytes, args.stepfactor, 0)
    request = TuneRequest(
        collectives=args.collectives,
        sizes=sizes,
        blocks=args.blocks,
        seconds=args.seconds,
        segments=args.segments or (),
        deterministic=args.deterministic,
        registered=not args.plain,
        every=args.every,
        verify=not args.unverified,
        output=args.output,
    )
    options = CommOptions(tuning_file="")  # an older table must not influence the measurement
    with new_comm(name="tune", options=options) as comm:
        if comm.size == 1:
            raise UsageError(
                "there is but one rank, and nothing to choose; start several, for example with "
                "mpiexec -n 4 hpccomm tune"
            )
        tune(comm, request, sys.stdout, output.terminal())
        if comm.rank == 0:
            output.write(f"# Written to {request.output}: set HPCCOMM_TUNING_FILE to it\n")
    return 0
