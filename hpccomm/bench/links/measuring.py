"""Measures bandwidths on all ranks at once, stores each as a row, and prints the table.

`hpccomm.cli.memory` and `hpccomm.cli.copies` call it with their rates.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hpccomm
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.bench.perf import facts
from hpccomm.bench.perf.root import on_root
from hpccomm.bench.progress import Progress, terminal
from hpccomm.bench.rows import figures
from hpccomm.results.rates import COUNTED, text
from hpccomm.results.schema import Config, Row
from hpccomm.results.writer import Writer

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Repeated = tuple[NDArray[np.float64], int]
"""Seconds of each repetition on this rank, and how many elements are wrong."""


class Rate(NamedTuple):
    """One bandwidth that is measured; every rank has its part in it.

    Attributes
    ----------
    what : str
        A name of `hpccomm.results.rates.COUNTED`.
    where : str
        The cores, memory or devices that it belongs to.
    nbytes : int
        Size of this rank's arrays.
    repeat : callable
        Measures the given number of repetitions.
    """

    what: str
    where: str
    nbytes: int
    repeat: Callable[[int], Repeated]


def run(
    plan: "Callable[[Communicator], tuple[Sequence[Rate], Mapping[str, str]]]",
    pick: Callable[[NDArray[np.float64]], Any],
    iterations: int,
    output: Path | None,
    write: Callable[[str], None],
) -> int:
    """Measure, store and print. Collective; blocks.

    Parameters
    ----------
    plan : callable
        Returns the rates to measure, the same on all ranks, and facts of this node for the record.
    pick : callable
        Which of the times of the repetitions counts. Each is that of the slowest rank.
    iterations : int
        Repetitions of each.
    output : Path or None
        A results file that gets the run.
    write : callable
        Prints, on rank 0.

    Returns
    -------
    int
        The exit status: 1 if anything was wrong.
    """
    place, rows, samples = launched(), list[Row](), list[NDArray[np.float64]]()
    backend = "loopback" if place is None or place.size == 1 else "mpi"  # one process needs no MPI
    with hpccomm.new_comm(backend, name="perf-links") as comm, ExitStack() as opened:
        rates, machine = plan(comm)
        sizes = [rate.nbytes for rate in rates]
        config = Config(min(sizes), max(sizes), 0, 0, iterations, 1)
        info = facts.run_info(comm, config, machine=machine)
        rest, writer = facts.rested(comm.barrier), None
        if output is not None:
            opening = partial(Writer, output, info, expected_rows=len(rates))
            writer = on_root(comm, lambda: opened.enter_context(opening()))
        progress = Progress(terminal(), len(rates))
        opened.callback(progress.close)
        for rate in rates:
            progress.show(f"{rate.what}: {rate.where}")
            of_ranks = comm.gather_object((rate.nbytes, *rate.repeat(iterations)))
            if of_ranks is not None:
                samples.append(np.stack([seconds for _, seconds, _ in of_ranks], axis=1))
                seconds = float(pick(samples[-1].max(axis=1)))
                nbytes = sum(size for size, *_ in of_ranks) // comm.num_nodes
                wrong = sum(wrong for *_, wrong in of_ranks)
                rows.append(_row(rate, nbytes, seconds, wrong, iterations))
            on_root(comm, lambda: writer and writer.append(rows[-1], samples[-1]))
            progress.advance()

        others = facts.others(comm, rest)

        def end() -> None:
            others.store(writer)
            opened.close()  # here, so that a file that cannot be completed is an error on every rank
            write(text(info, rows, samples.__getitem__) + others.line)

        on_root(comm, end)
        return int(comm.broadcast_object(any(row.wrong for row in rows)))


def _row(rate: Rate, nbytes: int, seconds: float, wrong: int, iterations: int) -> Row:
    """Return a row; its bytes are a node's."""
    host = rate.what.startswith("memory")
    backend, dtype, itemsize = ("numpy", "double", 8) if host else ("cupy", "uint8", 1)
    case = rate.what, backend, rate.where, dtype, "none", -1, nbytes, nbytes // itemsize, False
    times = figures(nbytes, seconds, COUNTED[rate.what])
    return Row(*case, *times, wrong, iterations, time.time())
