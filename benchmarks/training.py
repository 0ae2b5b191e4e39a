r"""What each stage of the tutorial on gradients gains, and what compressors gain where the link is slow.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/training.py "small naive step" "small buckets step"
    bash jobs/virtual_cluster.sh --nodes 2 --ranks-per-node 1 --link 1gbit -- \
        python benchmarks/training.py "large naive step" "large overlapped step" "large top_k gain"

A figure is ``MODEL WAY MEASURE``. The models are networks of 30 layers, each with a square weight and a bias, in
float32:

large     25 million parameters, layers of 912 units, batches of 256 samples a rank
small     32,000 parameters, layers of 32 units, batches of 8 samples a rank

The ways are

naive         one all_reduce for each gradient, after the last is computed
buckets       `GradientSync.sync` on views of the buckets
overlapped    `GradientSync.ready` as soon as a gradient is computed, and `GradientSync.wait`
float16, top_k, power_sgd                as overlapped, with a compressor

The measures are

step      milliseconds of a step: forward and backward pass, synchronisation, update
gain      time of ``buckets`` over that of the way, where nothing is computed but gradients that are copied to the buckets;
          the time of the copies alone is taken off both

Contenders take turns. Figures are medians over the rounds, of the slowest rank.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a rank computes on one core
import numpy as np
from numpy.typing import NDArray

import hpccomm
from contest import program
from contest.program import Ranks
from contest.promises import Figure
from contest.rounds import Call
from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import Compressor, MixedPrecision, PowerSGD, TopK

LAYERS = 30
SIZES = {"large": (912, 256), "small": (32, 8)}
"""Units of a layer, and samples of a batch."""
COMPRESSORS: dict[str, Compressor] = {
    "float16": MixedPrecision("float16"),
    "top_k": TopK(0.01),
    "power_sgd": PowerSGD(4),
}
RATE = 1e-4


class Network:
    """Layers of one width, whose outputs are to be the inputs of others.

    Parameters
    ----------
    model : str
        Of `SIZES`.
    rank : int
        Draws the samples; the parameters are the same on all ranks.
    """

    def __init__(self, model: str, rank: int) -> None:
        width, batch = SIZES[model]
        draw = np.random.default_rng(0)
        self.parameters = {}
        for layer in range(LAYERS):
            weight = draw.normal(0, np.sqrt(2 / width), (width, width))
            self.parameters[f"weight{layer}"] = weight.astype(np.float32)
            self.parameters[f"bias{layer}"] = np.zeros(width, np.float32)
        samples = np.random.default_rng([1, rank]).normal(size=(2, batch, width))
        self.inputs, self.targets = samples.astype(np.float32)

    def backward(
        self, into: dict[str, NDArray[np.float32]], done: Callable[[str], None] | None
    ) -> None:
        """Compute the gradients into arrays, from the last layer to the first; call `done` with each name."""
        known, x = [], self.inputs
        for layer in range(LAYERS):
            known.append(x)
            x = np.maximum(x @ self.parameters[f"weight{layer}"], 0)
            x += self.parameters[f"bias{layer}"]
        error = (x - self.targets) / len(x)
        for layer in reversed(range(LAYERS)):
            np.sum(error, axis=0, out=into[f"bias{layer}"])
            np.matmul(known[layer].T, error, out=into[f"weight{layer}"])
            if done is not None:
                done(f"bias{layer}")
                done(f"weight{layer}")
            error = (error @ self.parameters[f"weight{layer}"].T) * (known[layer] > 0)

    def update(self, gradients: dict[str, NDArray[np.float32]]) -> None:
        """Make a step of gradient descent."""
        for name, x in self.parameters.items():
            x -= RATE * gradients[name]


def steps(comm: hpccomm.Communicator, model: str, way: str) -> Call:
    """Return what makes a step of training."""
    network = Network(model, comm.rank)
    sync = GradientSync(comm, network.parameters, compressor=COMPRESSORS.get(way))
    into = dict(sync.gradients)
    if way == "naive":
        into = {name: np.zeros_like(x) for name, x in network.parameters.items()}
    at_once = way not in ("naive", "buckets")

    def step() -> None:
        network.backward(into, sync.ready if at_once else None)
        if at_once:
            sync.wait()
        elif way == "buckets":
            sync.sync()
        else:
            for gradient in into.values():
                comm.all_reduce(gradient, hpccomm.ReduceOp.AVG)
        network.update(into)

    return step


def gains(comm: hpccomm.Communicator, model: str, ways: Sequence[str]) -> list[Call]:
    """Return what copies gradients to buckets, and what reduces them as well, in each way."""
    shapes = Network(model, 0).parameters
    draw = np.random.default_rng(comm.rank)
    given = {name: draw.normal(size=x.shape).astype(np.float32) for name, x in shapes.items()}
    made = {
        way: GradientSync(comm, shapes, compressor=COMPRESSORS.get(way))
        for way in ("buckets", *ways)
    }

    def fill(way: str) -> None:
        for name, view in made[way].gradients.items():
            view[...] = given[name]

    def reduce(way: str) -> None:
        fill(way)
        made[way].sync()

    return [partial(fill, "buckets"), *(partial(reduce, way) for way in made)]


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures, model by model. Collective."""
    found = {}
    for group in program.grouped(names):
        model = group[0].split()[0]
        of = {kind: [n.split()[1] for n in group if n.endswith(kind)] for kind in ("step", "gain")}
        if of["step"]:
            racing = [steps(ranks.comm, model, way) for way in of["step"]]
            for way, times in zip(of["step"], ranks.compete(*racing), strict=True):
                found[f"{model} {way} step"] = Figure(times.seconds * 1e3, "ms a step")
        if of["gain"]:
            copies, plain, *others = ranks.compete(*gains(ranks.comm, model, of["gain"]))
            bare_rounds = plain.rounds - copies.rounds
            for way, times in zip(of["gain"], others, strict=True):
                own = times.rounds - copies.rounds
                says = (
                    f"{np.median(own) * 1e3:.1f} ms; without compression {np.median(bare_rounds) * 1e3:.1f} ms, "
                    f"copies {copies.seconds * 1e3:.1f} ms"
                )
                ratio = float(np.median(bare_rounds / own))
                found[f"{model} {way} gain"] = Figure(ratio, says, float(np.median(own)))
    return found


if __name__ == "__main__":
    program.on_ranks(__doc__, "large top_k gain", measure, rounds=program.turns(5))
