"""Compressors over MPI: the same bits on all ranks, near the sum, by sync and by ready and wait, also on two levels."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from one_size import by_default_on

from hpccomm.gradients import GradientSync
from hpccomm.gradients.compression import MixedPrecision, PowerSGD, TopK

if TYPE_CHECKING:
    import hpccomm

COMPRESSORS: list[Any] = [
    # And how far off the mean of 40 equal steps may be.
    (MixedPrecision("bfloat16"), 0.01),
    (MixedPrecision("float8_e4m3", error_feedback=True), 0.01),
    (TopK(0.2), 0.4),
    (PowerSGD(2), 0.3),
]


@by_default_on(2)
@pytest.mark.values
@pytest.mark.parametrize("hierarchical", [False, True])
@pytest.mark.parametrize(("compressor", "within"), COMPRESSORS, ids=str)
def test_the_mean_over_steps_is_the_mean_over_ranks(
    comm: "hpccomm.Communicator", compressor: Any, within: float, hierarchical: bool
) -> None:
    model = {"w": np.zeros((30, 20), "f"), "b": np.zeros(20, "f"), "v": np.zeros((20, 25), "f")}
    sync = GradientSync(
        comm,
        model,
        compressor=compressor,
        hierarchical=hierarchical,
        first_bucket_bytes=2500,
        min_bucket_bytes=0,
    )
    assert len(sync.buckets()) == 2
    grads = [
        {
            name: np.random.default_rng([rank, x.size]).normal(size=x.shape).astype("f")
            for name, x in model.items()
        }
        for rank in range(comm.size)
    ]
    total = {name: np.zeros(x.shape) for name, x in model.items()}
    for step in range(40):
        for name, x in grads[comm.rank].items():
            sync.gradients[name][...] = x
            if step % 2:
                sync.ready(name)
        if step % 2:
            sync.wait()
        else:
            sync.sync()
        for name, view in sync.gradients.items():
            total[name] += view / 40
    for name, mean in total.items():
        right = np.mean([each[name] for each in grads], axis=0)
        assert np.abs(mean - right).max() < within * np.abs(right).max()
    bits = b"".join(view.tobytes() for view in sync.gradients.values())
    assert len(set(comm.all_gather_object(bits))) == 1
    sync.close()
