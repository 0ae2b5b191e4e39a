r"""What it costs to synchronise gradients, beside one all-reduce of the same bytes and PyTorch's DDP.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/gradients.py "large sync time" "large ready ddp" "small sync added"
    bash jobs/virtual_cluster.sh --nodes 2 --ranks-per-node 1 --link 1gbit -- \
        python benchmarks/gradients.py "overlap sleep hidden" "large top_k gain"

A figure is ``MODEL WAY MEASURE``. The models have float32 gradients that lie in their buckets:

large     25 million parameters in 60 arrays, 30 layers of weight and bias
small     8 KiB in 8 arrays

The ways are ``sync`` (`GradientSync.sync`) and ``ready`` (`GradientSync.ready` in a random order, another one on
each rank, and `GradientSync.wait`). The measures are

time      time over that of one all_reduce of the average of as many bytes in an array of comm.empty
ddp       time over what DistributedDataParallel of PyTorch adds to a backward pass that computes nothing, over Gloo
added     microseconds over those of the all_reduce

``overlap sleep hidden`` is how much of the communication disappears behind a computation that is as long: 1 less the
overlapped time beyond the computation's, over that of the communication alone. The gradients are 32 MiB in 32
arrays, and buckets have at most 2 MiB. The computation between two gradients is a sleep, which leaves the core to the
communication, as where a node has cores to spare.

``large top_k gain`` is what a compressor gains, ``float16``, ``top_k`` or ``power_sgd``: the time of ``sync`` without one
over that with it. Gradients are copied to the buckets in each step; the time of the copies alone is taken off both.

Contenders take turns. Figures are medians over the rounds, of the slowest rank.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a rank computes on one core
import numpy as np

import hpccomm
from contest import program
from contest.program import Ranks
from contest.promises import Figure
from contest.rounds import Call, Times, duration
from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import Compressor, MixedPrecision, PowerSGD, TopK

Shapes = Sequence[tuple[int, ...]]
MODELS: dict[str, Shapes] = {
    "large": [shape for _ in range(30) for shape in ((912, 912), (912,))],
    "small": [(256,)] * 8,
}
OVERLAPPED: Shapes = [(256, 1024)] * 32
COMPRESSORS: dict[str, Compressor] = {
    "float16": MixedPrecision("float16"),
    "top_k": TopK(0.01),
    "power_sgd": PowerSGD(4),
}


def buckets(comm: hpccomm.Communicator, shapes: Shapes, **how: Any) -> GradientSync:
    """Return gradients of float32 that lie in their buckets. Collective."""
    model = {f"p{number}": np.zeros(shape, np.float32) for number, shape in enumerate(shapes)}
    return GradientSync(comm, model, **how)


def made(comm: hpccomm.Communicator, shapes: Shapes, bucket_bytes: int = 25 << 20) -> GradientSync:
    """Return gradients that lie in their buckets, after a step that was checked. Collective."""
    sync = buckets(comm, shapes, bucket_bytes=bucket_bytes)
    for overlapped in (False, True):
        for name, view in sync.gradients.items():
            view[...] = comm.rank
            if overlapped:
                sync.ready(name)
        if overlapped:
            sync.wait()
        else:
            sync.sync()
        mean = (comm.size - 1) / 2
        if not all((view == mean).all() for view in sync.gradients.values()):
            raise ArithmeticError("the gradients are not the mean over the ranks")
    sync.zero()
    return sync


def readily(sync: GradientSync, rank: int) -> Call:
    """Return a step by ``ready`` in random orders, and ``wait``."""
    random = np.random.default_rng(rank)
    orders = cycle([list(random.permutation(list(sync.gradients))) for _ in range(50)])

    def step() -> None:
        for name in next(orders):
            sync.ready(name)
        sync.wait()

    return step


def synchronisation(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures of one model. Collective."""
    comm = ranks.comm
    wanted = {name: tuple(name.split()[1:]) for name in names}
    shapes = MODELS[names[0].split()[0]]
    sync = made(comm, shapes)
    x = comm.empty(sum(math.prod(shape) for shape in shapes), np.float32)
    x[:] = 0
    calls: dict[str, Call] = {
        "sync": sync.sync,
        "ready": readily(sync, comm.rank),
        "all_reduce": lambda: comm.all_reduce(x, hpccomm.ReduceOp.AVG),
    }
    with ExitStack() as stack:
        if any(measure == "ddp" for _, measure in wanted.values()):
            from contest.ddp import ddp
            from contest.gloo import gloo

            stack.enter_context(gloo(ranks.bare, "lo"))
            calls["ddp"], calls["alone"] = ddp(shapes)
        raced = ranks.compete(*calls.values())
    times = dict(zip(calls, raced, strict=True))
    return {name: _figure(times, way, measure) for name, (way, measure) in wanted.items()}


def _figure(times: dict[str, Times], way: str, measure: str) -> Figure:
    ours, plain = times[way], times["all_reduce"]
    beside = f"all_reduce {duration(plain.seconds)}"
    value = ours.beyond(plain) * 1e6 if measure == "added" else ours.over(plain)
    if measure == "ddp":
        added = times["ddp"].rounds - times["alone"].rounds
        value = float(np.median(ours.rounds / added))
        beside = f"DDP adds {duration(float(np.median(added)))}"
    return Figure(value, f"{duration(ours.seconds)}; {beside}", ours.seconds)


def overlap(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure how much of the communication is hidden: one figure. Collective."""
    sync = made(ranks.comm, OVERLAPPED, bucket_bytes=2 << 20)

    def communicate(pause: float = 0.0) -> None:
        for name in sync.gradients:  # in the order of the buckets
            if pause:
                time.sleep(pause)
            sync.ready(name)
        sync.wait()

    (first,) = ranks.compete(communicate, turns=3)
    each = first.seconds / len(sync.gradients)

    def compute() -> None:
        for _ in sync.gradients:
            time.sleep(each)

    communication, computation, overlapped = ranks.compete(
        communicate, compute, partial(communicate, each), calls=1
    )
    left = (overlapped.rounds - computation.rounds) / communication.rounds
    alone, slept = duration(communication.seconds), duration(computation.seconds)
    says = f"{duration(overlapped.seconds)}; communication {alone}, sleep {slept}"
    return dict.fromkeys(names, Figure(1 - float(np.median(left)), says))


def gains(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure what compressors gain on one model. Collective."""
    shapes = MODELS[names[0].split()[0]]
    draw = np.random.default_rng(ranks.comm.rank)
    given = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
    ways = ["", *(name.split()[1] for name in names)]
    syncs = [buckets(ranks.comm, shapes, compressor=COMPRESSORS.get(way)) for way in ways]

    def fill(sync: GradientSync) -> None:
        for view, gradient in zip(sync.gradients.values(), given, strict=True):
            view[...] = gradient

    def reduce(sync: GradientSync) -> None:
        fill(sync)
        sync.sync()

    racing = [partial(fill, syncs[0]), *(partial(reduce, sync) for sync in syncs)]
    copies, *others = ranks.compete(*racing)
    plain, *compressed = (each.rounds - copies.rounds for each in others)
    beside = f"without {np.median(plain) * 1e3:.1f} ms, copies {copies.seconds * 1e3:.1f} ms"
    found = {}
    for name, own in zip(names, compressed, strict=True):
        seconds = float(np.median(own))
        says = f"{seconds * 1e3:.1f} ms; {beside}"
        found[name] = Figure(float(np.median(plain / own)), says, seconds)
    return found


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures, model by model. Collective."""

    def by(name: str) -> tuple[str, Callable[[Sequence[str], Ranks], dict[str, Figure]]]:
        model, *_, measure = name.split()
        return model, {"hidden": overlap, "gain": gains}.get(measure, synchronisation)

    measured: dict[str, Figure] = {}
    for key in dict.fromkeys(map(by, names)):
        measured |= key[1]([name for name in names if by(name) == key], ranks)
    return measured


if __name__ == "__main__":
    if any(word.endswith(" ddp") for word in sys.argv):
        program.needs_pytorch()
    program.on_ranks(__doc__, "large sync time", measure, rounds=program.turns(15))
