"""Fit a linear model on any number of ranks."""

import numpy as np

import hpccomm
from hpccomm.gradients import GradientSync


def backward(model, x, y):
    """Give the gradients of the mean squared error, the last parameter's first."""
    error = (x @ model["weight"] + model["bias"] - y) / len(x)
    yield "bias", np.array([2 * error.sum()])
    yield "weight", 2 * x.T @ error


with hpccomm.new_comm() as comm:
    # This rank's samples.
    x = np.sin(np.arange(24.0)).reshape(12, 2)[comm.rank :: comm.size]
    y = x @ [2.0, -1.0] + 0.5

    model = {"weight": np.zeros(2), "bias": np.zeros(1)}
    # All ranks begin as rank 0 does.
    sync = GradientSync(comm, model, initial="broadcast")
    for _ in range(100):
        for name, gradient in backward(model, x, y):
            sync.ready(name, gradient)  # sent while the next one is computed
        sync.wait()
        for name in model:
            model[name] -= 0.2 * sync.gradients[name]
    if comm.rank == 0:
        print("weight", model["weight"].round(3), "bias", model["bias"].round(3))
        print(sync.stats())
