"""What a recording adds to the calls of a program, and to a training.

Run it on one rank::

    python benchmarks/recorded.py "all_reduce 8 added" "training ratio"

Turns with a recording to a file and without one follow each other. Times are of the processor, in all threads: a rank
that waits for another one spins, and would hide what its own thread does meanwhile. ``all_reduce 8 added`` is in
microseconds a call, of tens of thousands in a row, so that their packing and writing is in it. ``training ratio`` is
the time of docs/examples/train_digits.py over that without. Figures are medians over the turns.
"""

import argparse
import importlib
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import hpccomm
from contest import figures
from contest.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
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
    sys.path.insert(0, str(EXAMPLES))
    train = importlib.import_module("train_digits").train
    begin = time.process_time()
    train(comm)
    return time.process_time() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures.add_arguments(parser, "all_reduce 8 added")
    parser.add_argument("--turns", type=int, default=15, help="of each (%(default)s)")
    request = parser.parse_args()
    programs: dict[str, Callable[[hpccomm.Communicator], float]] = {
        "all_reduce 8 added": seconds,
        "training ratio": training,
    }
    measured = {}
    with hpccomm.new_comm() as comm, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "t.h5")
        for figure in request.figures:
            run = programs[figure]
            run(comm)
            turns = []
            for turn in range(2 * request.turns):
                with comm.record(file) if turn % 2 else nullcontext():
                    turns.append(run(comm))
            without, recorded = map(statistics.median, (turns[::2], turns[1::2]))
            added = figure.endswith("added")
            value = (recorded - without) * 1e6 if added else recorded / without
            scale, unit = (1e6, "µs") if added else (1e3, "ms")
            measured[figure] = Figure(
                value,
                f"{recorded * scale:.3f} {unit}; {without * scale:.3f} {unit} without",
                None if added else recorded,
            )
    figures.show(measured, request.json)


if __name__ == "__main__":
    main()
