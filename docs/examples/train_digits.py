"""Train a network on handwritten digits, on any number of ranks.

``python train_digits.py`` on one rank, ``mpiexec -n 4 python train_digits.py`` on four. It takes scikit-learn.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import digits
import numpy as np

import hpccomm
from hpccomm.gradients import GradientSync, Statistics


@dataclass(frozen=True)
class Outcome:
    """What a training led to on this rank.

    Attributes
    ----------
    model : dict of str to array
        Equal on all ranks.
    loss, accuracy : float
        Of the images that were not trained on.
    seconds : float
        From the first step to the last, with the lines of progress.
    stats : Statistics
        What the gradients cost.
    """

    model: digits.Model
    loss: float
    accuracy: float
    seconds: float
    stats: Statistics


def train(
    comm: hpccomm.Communicator,
    *,
    epochs: int = 20,
    batch: int = 64,
    seed: int = 0,
    rate: float = 0.05,
    hidden: Sequence[int] = (128, 64),
    wait: bool = False,
    compressor: Any = None,
    asarray: Callable[[Any], Any] = np.asarray,
    dtype: Any = np.float32,
    tell: Callable[[str], None] | None = None,
) -> Outcome:
    """Train on all ranks of `comm`. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        Each of its ranks takes its share of each batch.
    epochs : int
        How often all images are seen.
    batch : int
        Images of a step, over all ranks.
    seed : int
        Of the first parameters, of the images to train on, and of their order.
    rate : float
        Learning rate.
    hidden : sequence of int
        Units of the hidden layers.
    wait : bool
        Compute all gradients, and only then send them. By default they are sent while others are computed.
    compressor : object, optional
        What `GradientSync` compresses gradients with.
    asarray : callable
        Makes the arrays that are computed with: ``numpy.asarray``, or ``cupy.asarray``.
    dtype : dtype
        Of the parameters.
    tell : callable, optional
        Gets a line of progress some ten times, on rank 0.
    """
    images = digits.load(seed, dtype=dtype) if comm.rank == 0 else None
    training, others = (digits.on(asarray, each) for each in comm.broadcast_object(images))
    first = digits.initial(hidden, seed, dtype)
    model = {name: asarray(x) for name, x in first.items()}
    compressed = {} if compressor is None else {"compressor": compressor}
    # The sum, as each rank divides its gradients by the size of the whole batch.
    sync = GradientSync(comm, model, op="sum", **compressed)
    sync.broadcast_parameters()
    descent = digits.Momentum(model, rate)
    begun = time.perf_counter()
    for epoch in range(1, epochs + 1):
        for mine, count in digits.shares(len(training), batch, seed + epoch, comm.rank, comm.size):
            gradients = digits.backward(model, training[asarray(mine)], count)
            if wait:
                sync.sync(dict(gradients))
            else:
                for name, gradient in gradients:
                    sync.ready(name, gradient)
                sync.wait()
            descent.update(sync.gradients)
        if comm.rank == 0 and tell and digits.is_told(epoch, epochs):
            tell(digits.line(epoch, *digits.judge(model, others), time.perf_counter() - begun))
    seconds = time.perf_counter() - begun
    return Outcome(model, *digits.judge(model, others), seconds, sync.stats())


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the options of the training examples."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=20, help="default %(default)s")
    parser.add_argument(
        "--batch", type=int, default=64, help="images of a step, over all ranks (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--lr", dest="rate", type=float, default=0.05, help="learning rate (%(default)s)"
    )
    parser.add_argument(
        "--hidden",
        type=int,
        nargs="*",
        default=[128, 64],
        metavar="UNITS",
        help="of each hidden layer (%(default)s)",
    )
    parser.add_argument(
        "--wait", action="store_true", help="send gradients only after all are computed"
    )
    return parser


def main() -> None:
    """Train as the command line says."""
    request = arguments("Train a network on handwritten digits.").parse_args()
    with hpccomm.new_comm() as comm:
        outcome = train(comm, tell=print, **vars(request))
        if comm.rank == 0:
            print(f"{comm.size} ranks; rank 0: {outcome.stats}")


if __name__ == "__main__":
    main()
