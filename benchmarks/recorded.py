"""What a recording adds to the calls of a program, and to a training.

Run it on one rank::

    python benchmarks/recorded.py "all_reduce 8 added" "training ratio"

Turns with a recording to a file and without one follow each other. Times are of the processor, in all threads: a rank
that waits for another one spins, and would hide what its own thread does meanwhile. ``all_reduce 8 added`` is in
microseconds a call, of tens of thousands in a row, so that their packing and writing is in it. ``training ratio`` is
the time of docs/examples/train_digits.py over that without. ``mpi4py Allreduce 8 added`` is of a program that uses mpi4py
alone, in processes of their own, under ``hpccomm record`` and without it. Figures are medians over the turns.
"""

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from subprocess import DEVNULL, check_output

import numpy as np

import hpccomm
from contest import program
from contest.jobs import CHECKOUT
from contest.program import Ranks
from contest.promises import Figure
from contest.rounds import duration

CALLS = 1 << 15
"""Calls of a turn: several blocks of them are packed in it."""


def seconds(comm: hpccomm.Communicator) -> float:
    """Return what a call of few bytes takes in a hot loop."""
    x, call = np.zeros(1), comm.all_reduce
    begin = time.process_time()
    for _ in range(CALLS):
        call(x)
    return (time.process_time() - begin) / CALLS


def training(comm: hpccomm.Communicator) -> float:
    """Return what the example takes."""
    sys.path.insert(0, str(CHECKOUT / "docs" / "examples"))
    train = importlib.import_module("train_digits").train
    begin = time.process_time()
    train(comm)
    return time.process_time() - begin


OF_MPI4PY = f"""
import time, numpy
from mpi4py import MPI
x, y, call = numpy.zeros(1), numpy.zeros(1), MPI.COMM_SELF.Allreduce
begin = time.process_time()
for _ in range({CALLS}):
    call(x, y)
time.sleep(1.5)  # a thread writes the calls every second
print((time.process_time() - begin) / {CALLS})
"""


def mpi4py(file: Path | None) -> float:
    """Return what a call of mpi4py takes in a process of its own, which may be recorded to a file."""
    recorded = ("-m", "hpccomm", "record", "--output", str(file), "--", sys.executable)
    words = (sys.executable, *(recorded if file else ()), "-c", OF_MPI4PY)
    return float(check_output(words, stderr=DEVNULL))


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures."""
    comm, measured = ranks.comm, {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "t.h5")
        for figure in names:
            added = figure.endswith("added")
            run = seconds if added else training
            turns = []
            if figure.startswith("mpi4py"):
                turns = [mpi4py(file if turn % 2 else None) for turn in range(6)]
            else:
                run(comm)
                for turn in range(2 * ranks.request.turns):
                    with comm.record(file) if turn % 2 else nullcontext():
                        turns.append(run(comm))
            without, recorded = map(statistics.median, (turns[::2], turns[1::2]))
            value = (recorded - without) * 1e6 if added else recorded / without
            says = f"{duration(recorded)}; {duration(without)} without"
            measured[figure] = Figure(value, says, None if added else recorded)
    return measured


if __name__ == "__main__":
    program.on_ranks(__doc__, "all_reduce 8 added", measure, turns=program.turns(15))
