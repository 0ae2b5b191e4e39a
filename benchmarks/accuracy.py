r"""How well a network learns with compressed gradients.

Run it on any number of ranks::

    mpiexec -n 2 python benchmarks/accuracy.py

The network of ``docs/examples`` learns scikit-learn's handwritten digits with each compressor, from several seeds. A
line tells the accuracy on images that were not trained on, as the mean over the seeds, how far that is from the mean
without a compressor, and the bytes that a rank sent over those without.
"""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

import hpccomm
from contest import jobs, program
from contest.program import Option
from hpccomm.gradients.compression import Compressor, MixedPrecision, PowerSGD, TopK

sys.path.append(str(jobs.CHECKOUT / "docs" / "examples"))
from train_digits import train  # type: ignore[import-not-found]

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


def main() -> None:
    """Train and print."""
    options = {"epochs": Option(20, "of a training"), "seeds": Option(5, "how many")}
    request = program.parser(__doc__, options).parse_args()
    plain = (0.0, 1)
    with hpccomm.new_comm() as comm:
        for name, compressor in COMPRESSORS.items():
            runs = [
                train(comm, epochs=request.epochs, seed=seed, compressor=compressor)
                for seed in range(request.seeds)
            ]
            mean, sent = float(np.mean([r.accuracy for r in runs])), runs[0].stats.wire_nbytes
            if compressor is None:
                plain = mean, sent
            if comm.rank == 0:
                points = 100 * (mean - plain[0])
                print(f"{name:52} {mean:7.2%} {points:+6.2f} points, sent {sent / plain[1]:.3f}")


if __name__ == "__main__":
    main()
