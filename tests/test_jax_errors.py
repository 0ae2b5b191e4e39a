"""Errors of other callbacks than hpccomm's, in a process of their own, as JAX raises them again and again."""

import pytest
from alone import python

pytest.importorskip("jax")

PROGRAM = """
import hpccomm, hpccomm.jax, jax, jax.numpy as jnp, pytest
from jax.experimental import io_callback

def broken(x):
    raise ZeroDivisionError("of the program")

def step(x):
    x = 0 * jnp.tanh(x @ x @ x @ x @ x)
    io_callback(broken, None, x, ordered=True)
    return x

comm = hpccomm.new_comm("loopback")
x = jnp.ones((1000, 1000))
compiled = jax.jit(step).lower(x).compile()
compiled(x + 1)
with pytest.raises(jax.errors.JaxRuntimeError, match="of the program"):
    hpccomm.jax.all_reduce(jnp.ones(2), comm=comm)
for _ in range(2):  # once is enough
    assert hpccomm.jax.all_reduce(jnp.ones(2), comm=comm).tolist() == [1, 1]
print("all is said", flush=True)
import os
os._exit(0)  # JAX raises it once more at the exit
"""


def test_an_error_of_another_callback_is_not_swallowed() -> None:
    done = python("-c", PROGRAM, timeout=100)
    assert done.stdout.endswith("all is said\n"), done.stderr
