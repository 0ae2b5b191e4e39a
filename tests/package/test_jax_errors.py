"""Errors in callbacks of JAX, in processes of their own, as JAX raises them again and again."""

import re

import pytest
from alone import python
from conftest import Mpiexec

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


UNCAUGHT = """
import hpccomm, hpccomm.jax, jax, jax.numpy as jnp

comm = hpccomm.new_comm(timeout=20)
step = jax.jit(lambda x: hpccomm.jax.all_reduce(x, comm=comm) + 1)
{block}step(jnp.ones(3 + comm.rank))
"""


@pytest.mark.slow("two jobs that import JAX")
def test_an_uncaught_error_is_told_as_outside_of_jit(mpiexec: Mpiexec) -> None:
    """As a job's single fault is told elsewhere (test_exits.py): no frames of JAX's, and no log of it."""
    for block in ("", "with comm: "):
        job = mpiexec(2, "-c", UNCAUGHT.format(block=block))
        frame = r"Traceback.*\n  File \"<string>\", line 6, in <module>\n(    .*\n)*"
        error = r"hpccomm\.errors\.RankMismatch: all_reduce #1"
        assert re.search(rf"rank \d raised:\n{frame}{error}", job.stderr)
        assert not re.search("Jax|callback", job.stderr), job.stderr
        assert len(job.stderr.splitlines()) <= 15, job.stderr
        assert job.returncode == 1
