r"""How well a network learns with compressed gradients.

Run it on any number of ranks::

    mpiexec -n 2 python benchmarks/accuracy.py

The network of ``docs/examples`` learns scikit-learn's handwritten digits with each compressor, from several seeds. A
line tells the accuracy on images that were not trained on, as the mean over the seeds, how far that is from the mean
without a compressor, and the bytes that a rank sent over those without.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

import hpccomm
from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import (
    Compressor,
    MixedPrecision,
    PowerSGD,
    TopK,
)

sys.path.append(str(Path(__file__).parents[1] / "docs/examples"))
import digits  # type: ignore[import-not-found]

COMPRESSORS: dict[str, Compressor | None] = {
    "none": None,
    "MixedPrecision('float16')": MixedPrecision("float16"),
    "MixedPrecision('bfloat16')": MixedPrecision("bfloat16"),
    "MixedPrecision('float8_e4m3', error_feedback=True)": MixedPrecision("float8_e4m3", True),
    "MixedPrecision('float8_e5m2', error_feedback=True)": MixedPrecision("float8_e5m2", True),
    "TopK(0.01)": TopK(0.01),
    "PowerSGD(2)": PowerSGD(2),
    "PowerSGD(4)": PowerSGD(4),
}
HIDDEN, BATCH, RATE = (128, 64), 64, 0.05


def accuracy(
    comm: hpccomm.Communicator, compressor: Compressor | None, seed: int, epochs: int
) -> tuple[float, int]:
    """Train, and return the accuracy on other images and the bytes that this rank sent. Collective."""
    train, test = digits.load(seed)
    model = digits.initial(HIDDEN, seed)
    sync = GradientSync(comm, model, op="sum", compressor=compressor)
    descent = digits.Momentum(model, RATE)
    for epoch in range(epochs):
        for mine, count in digits.shares(len(train), BATCH, epoch, comm.rank, comm.size):
            for name, gradient in digits.backward(model, train[mine], count):
                sync.ready(name, gradient)
            sync.wait()
            descent.update(sync.gradients)
    return digits.judge(model, test)[1], sync.stats().wire_nbytes


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="how many (%(default)s)")
    request = parser.parse_args()
    plain = (0.0, 1)
    with hpccomm.new_comm() as comm:
        for name, compressor in COMPRESSORS.items():
            runs = [
                accuracy(comm, compressor, seed, request.epochs) for seed in range(request.seeds)
            ]
            mean, sent = float(np.mean([run[0] for run in runs])), runs[0][1]
            if compressor is None:
                plain = mean, sent
            if comm.rank == 0:
                print(
                    f"{name:52} {mean:7.2%} {100 * (mean - plain[0]):+6.2f} points, "
                    f"sent {sent / plain[1]:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
