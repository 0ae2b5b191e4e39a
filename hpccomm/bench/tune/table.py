"""``hpccomm tune``: a table of this machine, from the first measurement to the last check."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from hpccomm.bench.perf import facts, memory_use
from hpccomm.bench.perf.root import on_root
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.bench.tune import calls, listing, measuring
from hpccomm.bench.tune.measuring import Bench, Effort, Finding
from hpccomm.bench.tune.verifying import Verdict, verify
from hpccomm.communicator import Communicator
from hpccomm.communicator.creation import new_comm
from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS, REDUCTIONS
from hpccomm.dispatch.policy import Table, stored
from hpccomm.results.schema import Config
from hpccomm.results.writer import Writer
from hpccomm.settings import CommOptions


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What is measured.

    Attributes
    ----------
    collectives : tuple of str
        Which.
    sizes : Sizes
        Bytes of the larger array of a rank.
    effort : Effort
        How long each time.
    segments : tuple of int
        Bytes that algorithms move at a time, tried beside those of the built-in table.
    deterministic : bool
        Whether reductions are measured with contributions in rank order as well.
    every : bool
        Whether each algorithm is tried.
    verify : bool
        Whether `auto` is measured by the new table.
    output : Path
        The results file.
    """

    collectives: tuple[str, ...]
    sizes: Sizes
    effort: Effort
    segments: tuple[int, ...]
    deterministic: bool
    every: bool
    verify: bool
    output: Path

    def cases(self) -> list[tuple[str, bool]]:
        """Return the collectives, and whether contributions are in rank order."""
        ordered = [(name, True) for name in self.collectives if name in REDUCTIONS]
        return [(name, False) for name in self.collectives] + ordered * self.deterministic


def tune(
    comm: Communicator,
    asked: TuneRequest,
    arguments: tuple[str, ...],
    launcher: str,
    out: TextIO,
) -> list[Verdict]:
    """Measure, write the table, and check it. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    asked : TuneRequest
        What is measured; the same on all ranks.
    arguments : tuple of str
        The command line, for the record.
    launcher : str
        What started the ranks, for the record.
    out : text stream
        Rank 0 writes its report there.

    Returns
    -------
    list of Verdict
        How `auto` does by the table; empty if that was not to be measured.

    Raises
    ------
    UsageError
        On every rank, if there is not enough memory.
    ResultsError
        On every rank, if rank 0 cannot write the file.
    """
    unit = calls.DTYPE.itemsize * (comm.size if set(asked.collectives) & BLOCKWISE else 1)
    largest = -(-asked.sizes.largest // unit) * unit
    need = memory_use.Need(comm.node, facts.host(), 4 * largest, memory_use.available())
    memory_use.require(comm.all_gather_object(need), largest)
    config = Config(
        minimum_bytes=asked.sizes.smallest,
        maximum_bytes=asked.sizes.largest,
        step_factor=asked.sizes.factor,
        step_bytes=0,
        iterations=asked.effort.blocks,
        warmup_iters=1,
        validation=0,
        average=3,
    )
    info = facts.run_info(comm, config, (), arguments, launcher)
    with ExitStack() as stack:
        writer = on_root(comm, lambda: stack.enter_context(Writer(asked.output, info)))

        def say(text: str) -> None:
            if comm.rank == 0:
                out.write(text)
                out.flush()

        say(listing.heading(comm.policy.shape))
        fixed = {
            segment: stack.enter_context(_same_ranks(comm, f"tune-{segment}", segment=segment))
            for segment in (0, *asked.segments)
        }
        bench = Bench(fixed, calls.arrays(largest), asked.effort, every=asked.every)
        found = {
            case: _sweep(bench, *case, asked=asked, writer=writer, say=say)
            for case in asked.cases()
        }
        rows = {
            (collective, case): each
            for (collective, ordered), findings in found.items()
            for case, each in measuring.cases(findings, ordered).items()
        }
        table = Table(comm.policy.shape, datetime.now(UTC).date().isoformat(), rows)

        def add_table() -> None:
            if writer is not None:
                writer.add_group(stored.GROUP, lambda to: stored.write(to, table))

        on_root(comm, add_table)
        say(listing.of(table))
        verdicts: list[Verdict] = []
        if asked.verify:
            tuned = _same_ranks(comm, "tuned", tuning_file=str(asked.output))
            stack.enter_context(tuned)
            for (collective, ordered), findings in found.items():
                verdicts += verify(bench, tuned, collective, findings, deterministic=ordered)
            say(listing.verdict(verdicts))
        on_root(comm, stack.close)
    return verdicts


def _same_ranks(
    comm: Communicator, name: str, *, segment: int = 0, tuning_file: str = ""
) -> Communicator:
    """Return a communicator of the same ranks that goes by the table of a file, if one is named.

    Its algorithms move `segment` bytes at a time; with 0 they move what the table says.
    """
    options = CommOptions(segment=segment or None, tuning_file=tuning_file, self_check=False)
    return new_comm(comm.backends["host"] or "", mpi_comm=comm.mpi_comm, name=name, options=options)


def _sweep(
    bench: Bench,
    collective: str,
    deterministic: bool,
    *,
    asked: TuneRequest,
    writer: Writer | None,
    say: Callable[[str], None],
) -> list[Finding]:
    """Measure a collective, and write down what was found as it is found."""
    say(listing.title(collective, deterministic=deterministic))

    def tell(finding: Finding) -> None:
        def add() -> None:
            if writer is not None:
                for row, samples in measuring.stored(
                    bench.comm, collective, finding, deterministic=deterministic
                ):
                    writer.append(row, samples)

        on_root(bench.comm, add)
        say(listing.line(finding))

    moves = DESCRIPTIONS[collective].sends != "nothing"
    sizes = list(asked.sizes.measured(calls.DTYPE.itemsize)) if moves else [0]
    return bench.sweep(collective, sizes, deterministic=deterministic, tell=tell)
