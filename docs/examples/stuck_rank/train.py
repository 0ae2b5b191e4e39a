"""A training loop in which one rank falls silent: its data stop coming.

Start it on four ranks: ``mpiexec -n 4 python train.py``. Each rank reads its samples from a pipe.
After some steps nothing more is written into that of rank 3, and nobody closes it: it reads for
ever, as from a file server that hangs. The page "A hang, diagnosed" shows what becomes of it.
"""

import os
import sys

import numpy as np

import hpccomm

SAMPLES = 1206
"""Samples that rank 3 gets."""

LENGTH = 64
"""Numbers in a sample."""


class Samples:
    """Samples that come through a pipe."""

    def __init__(self, available: int) -> None:
        self._source, self._sink = os.pipe()
        self._left = available

    def request(self) -> int:
        """Ask for a sample; it can be read from the returned descriptor."""
        if self._left:
            self._left -= 1
            os.write(self._sink, np.ones(LENGTH).tobytes())
        return self._source


def step(comm: hpccomm.Communicator, samples: Samples, weights: np.ndarray) -> None:
    """Compute a gradient from a sample, average it over the ranks and apply it."""
    source = samples.request()
    # Here rank 3 waits for ever.
    sample = np.frombuffer(os.read(source, 8 * LENGTH))
    gradient = weights - sample
    comm.all_reduce(gradient, op=hpccomm.ReduceOp.AVG)
    weights -= 0.1 * gradient


def main() -> None:
    """Train."""
    with hpccomm.new_comm(name="world", timeout=5.0) as comm:
        samples = Samples(SAMPLES if comm.rank == 3 else sys.maxsize)
        weights = np.zeros(LENGTH)
        while True:
            step(comm, samples, weights)


if __name__ == "__main__":
    main()
