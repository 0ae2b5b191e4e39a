"""Train a network in JAX on any number of ranks: ``mpiexec -n 4 python train_jax.py``. It finds what one rank finds."""

import jax
import jax.numpy as jnp
import numpy as np

import hpccomm
import hpccomm.jax

WIDTH, HIDDEN, SAMPLES, RATE = 8, 16, 48, 0.05


def train(comm: hpccomm.Communicator, steps: int = 20) -> list[float]:
    """Return the loss before each step. Collective over `comm`; blocks."""
    random = np.random.default_rng(0)
    first, last = (random.normal(0, 0.3, shape) for shape in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    model = {"first": jnp.asarray(first), "last": jnp.asarray(last)}
    x, y = random.normal(size=(2, SAMPLES, WIDTH))
    mine = slice(comm.rank, None, comm.size)  # this rank's samples

    def loss(model: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        # All ranks have the same model, and use it on different samples: so its gradient is summed over them.
        model = {name: hpccomm.jax.replicated(each, comm=comm) for name, each in model.items()}
        found = jnp.tanh(x @ model["first"]) @ model["last"]
        return hpccomm.jax.all_reduce(((found - y) ** 2).sum() / SAMPLES, comm=comm)

    @hpccomm.jax.original_errors()
    @jax.jit
    def step(
        model: dict[str, jax.Array], x: jax.Array, y: jax.Array
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        value, slopes = jax.value_and_grad(loss)(model, x, y)
        return jax.tree.map(lambda each, slope: each - RATE * slope, model, slopes), value

    losses = []
    for _ in range(steps):
        model, value = step(model, jnp.asarray(x[mine]), jnp.asarray(y[mine]))
        losses.append(float(value))
    return losses


if __name__ == "__main__":
    with hpccomm.new_comm() as world:
        losses = train(world)
        if world.rank == 0:
            print(
                f"{world.size} ranks: loss {losses[0]:.5f}, after {len(losses) - 1} steps {losses[-1]:.5f}"
            )
