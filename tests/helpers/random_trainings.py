"""Random trainings by `GradientSync` against NumPy, for tests on threads and over MPI.

All values are small multiples of 12, so that sums and means are exact in every dtype, in every order.
"""

from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np

from hpccomm import Communicator
from hpccomm.gradients import Bucket, Exchange, GradientSync

DTYPES = [np.dtype(each) for each in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]

shapes = st.lists(st.integers(0, 5), max_size=2).map(tuple)


class Exact:
    """A compressor that leaves nothing out, so that what it takes part in can be told exactly."""

    memory_bytes = 0

    def __repr__(self) -> str:
        return "Exact()"

    def channel(self, bucket: Bucket) -> "Exact":
        return self

    def reduce(self, x: Any, exchange: Exchange) -> None:
        exchange.sum(x)


@st.composite
def random_trainings(draw: st.DrawFn, ranks: int) -> dict[str, Any]:
    """Models, orders of readiness that differ between ranks, gradients that some lack, and settings."""
    model = draw(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=8))
    names = [f"p{number}" for number in range(len(model))]

    def ready() -> list[str]:
        return [name for name in draw(st.permutations(names)) if draw(st.integers(0, 5))]

    steps = [[ready() for _ in range(ranks)] for _ in range(draw(st.integers(1, 3)))]
    exact: dict[str, Any] = {"compressor": Exact()}
    ways = [{}, {"deterministic": True}, exact, exact | {"hierarchical": True}]
    return {
        "ranks": ranks,
        "model": dict(zip(names, model, strict=True)),
        "steps": steps,
        "whole": draw(st.booleans()),
        "micro": draw(st.integers(1, 2)),
        "settings": {
            "op": draw(st.sampled_from(["average"] * (ranks != 5) + ["sum", "weighted"])),
            "unused": draw(st.sampled_from(["zero", "skip"])),
            "order": draw(st.sampled_from(["reverse", "ready", "largest"])),
            "bucket_bytes": draw(st.integers(1, 600)),
            "first_bucket_bytes": draw(st.integers(1, 300)),
            "min_bucket_bytes": draw(st.integers(0, 100)),
            "bucketing": draw(st.booleans()),
            **draw(st.sampled_from(ways)),
        },
    }


def gradient(case: dict[str, Any], name: str, rank: int, step: int, micro: int) -> Any:
    """Return the gradient of a parameter on a rank: small integers, so that sums are exact."""
    shape, dtype = case["model"][name]
    seed = [int(name[1:]), rank, step, micro]
    return np.asarray(12 * np.random.default_rng(seed).integers(-3, 4, shape)).astype(dtype)


WEIGHTS = [[], [3], [1, 3], [3, 0, 1], [1, 1, 2, 0], [1, 2, 0, 0, 1], [1, 1, 1, 1, 2, 2]]
"""By number of ranks. Their sums make the weighted means exact."""


def expected(case: dict[str, Any], name: str, step: int) -> Any:
    """Return what all ranks have of a parameter after a step."""
    ranks, op = case["ranks"], case["settings"]["op"]
    total = np.zeros(case["model"][name][0])
    for rank in range(ranks):
        if name in case["steps"][step][rank]:
            weight = WEIGHTS[ranks][rank] / sum(WEIGHTS[ranks]) if op == "weighted" else 1
            for micro in range(case["micro"]):
                total += weight * gradient(case, name, rank, step, micro).astype(float)
    return total / ranks if op == "average" else total


def train(comm: Communicator, case: dict[str, Any], *, exact: bool = True) -> bytes:
    """Train, and compare every result with NumPy's, if results are exact; return their bits. Collective."""
    parameters = {name: np.zeros(*of) for name, of in case["model"].items()}
    sync = GradientSync(comm, parameters, accumulate=case["micro"], **case["settings"])
    weight = WEIGHTS[comm.size][comm.rank] if case["settings"]["op"] == "weighted" else None
    for step, present in enumerate(case["steps"]):
        for micro in range(case["micro"]):
            last = micro == case["micro"] - 1
            own = (comm.rank, step, micro)
            grads = {name: gradient(case, name, *own) for name in present[comm.rank]}
            if case["whole"]:
                assert sync.sync(grads, weight=weight if last else None) == last
            else:
                if last and weight is not None:
                    sync.weigh(weight)
                for name, grad in grads.items():
                    sync.ready(name, grad)
                if last and step == 1:
                    sync.wait_for("p0")
                assert sync.wait() == last
        for name in parameters if exact else ():
            result = expected(case, name, step)
            np.testing.assert_array_equal(sync.gradients[name].astype(float), result)
            if case["whole"] and name in grads:
                np.testing.assert_array_equal(grads[name].astype(float), result)
            somewhere = any(name in names for names in present)
            assert sync.has_gradients(name) == (somewhere or case["settings"]["unused"] == "zero")
    bits = b"".join(view.tobytes() for view in sync.gradients.values())
    sync.close()
    return bits
