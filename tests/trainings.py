"""Trainings of a small network in every way to give gradients, and the same training in one process.

The network is that of docs/examples, on images that are drawn here.
"""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from chosen import everything

from hpccomm import Communicator
from hpccomm.gradients import GradientSync

sys.path.append(str(Path(__file__).parents[1] / "docs/examples"))

import digits

STEPS = 200 if everything() else 60

BATCH, RATE = 24, 0.02
WITHIN = {np.float32: 1e-6, np.float64: 1e-12}
MODES = ("sync", "views", "ready", "accumulate", "no_sync", "weighted")
LAYOUTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "small buckets": {"bucket_bytes": 700, "first_bucket_bytes": 100, "min_bucket_bytes": 0},
    "as ready": {"order": "ready", "first_bucket_bytes": 600, "bucket_bytes": 3000},
    "largest, no bucketing": {"order": "largest", "bucketing": False},
}


@dataclass(frozen=True)
class Case:
    mode: str
    layout: str
    ranks: int
    dtype: Any
    deterministic: bool

    def __str__(self) -> str:
        return f"{self.mode}-{self.layout}-{self.ranks}-{self.dtype.__name__}-{self.deterministic}"


@cache
def images(dtype: Any) -> digits.Images:
    random = np.random.default_rng(3)
    kinds = random.integers(0, digits.DIGITS, 5 * BATCH)
    centres = random.random((digits.DIGITS, digits.PIXELS))
    pixels = centres[kinds] + random.normal(0, 0.1, (len(kinds), digits.PIXELS))
    return digits.Images(pixels.astype(dtype), np.eye(digits.DIGITS, dtype=dtype)[kinds])


def batch(step: int, dtype: Any) -> digits.Images:
    start = step * BATCH % len(images(dtype))
    return images(dtype)[start : start + BATCH]


def fresh(dtype: Any, hidden: int = 12) -> digits.Model:
    return digits.initial((hidden,), seed=1, dtype=dtype)


@cache
def alone(dtype: Any) -> digits.Model:
    """Train in one process, without hpccomm."""
    model = fresh(dtype)
    descent = digits.Momentum(model, RATE)
    for step in range(STEPS):
        descent.update(dict(digits.backward(model, batch(step, dtype), BATCH)))
    return model


def shares(case: Case, rank: int, whole: digits.Images) -> Iterator[tuple[digits.Images, int]]:
    """Yield this rank's images of each micro-step, and by which number to divide the gradients."""
    if case.mode == "weighted":  # rank 0 has none, if there are three or more
        first, last = (int(BATCH * (n / case.ranks) ** 4) for n in (rank, rank + 1))
        yield whole[first:last], last - first
        return
    micro = 2 if case.mode in ("accumulate", "no_sync") else 1
    for number in range(micro):
        share = whole[number::micro][rank :: case.ranks]
        yield share, BATCH if case.mode == "accumulate" else micro * len(share)


def steps(comm: Communicator, case: Case, count: int = STEPS, hidden: int = 12) -> digits.Model:
    """Train on all ranks, and return the parameters of this one."""
    model, random = fresh(case.dtype, hidden), np.random.default_rng(comm.rank)
    for x in model.values():
        x += comm.rank  # the root's are broadcast
    sync = GradientSync(
        comm,
        model,
        op={"weighted": "weighted", "accumulate": "sum"}.get(case.mode, "average"),
        accumulate=2 if case.mode == "accumulate" else 1,
        deterministic=case.deterministic,
        initial="ignore",
        **LAYOUTS[case.layout],
    )
    sync.broadcast_parameters()
    descent = digits.Momentum(model, RATE)
    for step in range(count):
        parts = list(shares(case, comm.rank, batch(step, case.dtype)))
        for number, (share, divisor) in enumerate(parts):
            grads = dict(digits.backward(model, share, divisor)) if len(share) else {}
            give(sync, case.mode, grads, random, len(share), last=number == len(parts) - 1)
        descent.update(sync.gradients)
    return model


def give(
    sync: GradientSync, mode: str, grads: dict[str, Any], random: Any, samples: int, last: bool
) -> None:
    """Synchronise the gradients of one micro-step."""
    if mode == "sync":
        sync.sync(grads)
    elif mode == "views":
        for name, grad in grads.items():
            sync.gradients[name][...] = grad
        sync.sync()
    elif mode == "no_sync":
        with nullcontext() if last else sync.no_sync():
            sync.sync(grads)
    else:
        if mode == "weighted":
            sync.weigh(samples)
        names = list(grads)
        random.shuffle(names)  # each rank has an order of its own
        for name in names:
            sync.ready(name, grads[name])
        sync.wait()


def difference(model: digits.Model, right: digits.Model) -> float:
    """Return the largest difference of an element, over the largest element of the same parameter."""
    return max(float(np.abs(model[name] - x).max() / np.abs(x).max()) for name, x in right.items())


def bits(model: digits.Model) -> str:
    return sha256(b"".join(x.tobytes() for x in model.values())).hexdigest()


def all_bits(comm: Communicator) -> set[str]:
    """Return what a few deterministic steps give, in every way to give the same gradients.

    The network is so large that `auto` takes other algorithms for some buckets, which fold in other orders.
    """
    ways = [*product(["sync", "ready"], LAYOUTS), ("views", "defaults"), ("sync", "defaults")]
    cases = [Case(*way, comm.size, np.float32, True) for way in ways]
    return {bits(steps(comm, case, 2, hidden=1600)) for case in cases}
