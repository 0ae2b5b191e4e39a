"""Train a network whose layers are split over ``tp`` and whose data are split over ``dp``, in NumPy alone.

``mpiexec -n 4 python train_mesh.py`` trains on a mesh of 2 x 2. On any mesh it finds what one rank finds.
"""

import numpy as np

import hpccomm

WIDTH, HIDDEN, SAMPLES, RATE = 12, 24, 48, 0.02


def train(comm: hpccomm.Communicator, shape: tuple[int, int], steps: int = 20) -> list[float]:
    """Return the loss before each step. Collective over `comm`; blocks."""
    with comm.mesh(shape, ("dp", "tp")) as mesh:
        dp, tp = mesh["dp"], mesh["tp"]  # on all ranks, in this order
        random = np.random.default_rng(0)
        # Each rank draws everything and keeps its part. The first matrix of a block is split by columns and the
        # second one by rows, so that nothing is sent between them (Shoeybi et al., Megatron-LM, 2019).
        mine = np.split(np.arange(HIDDEN), tp.size)[tp.rank]
        blocks = [
            (
                random.normal(0, 0.3, (WIDTH, HIDDEN))[:, mine],
                random.normal(0, 0.3, (HIDDEN, WIDTH))[mine],
            )
            for _ in range(2)
        ]
        x, y = (
            np.split(each, dp.size)[dp.rank] for each in random.normal(size=(2, SAMPLES, WIDTH))
        )

        losses = []
        for _ in range(steps):
            inputs, hidden = [x], []
            for into, out_of in blocks:
                hidden.append(np.tanh(inputs[-1] @ into))
                inputs.append(inputs[-1] + tp.all_reduce(hidden[-1] @ out_of))
            error = inputs.pop() - y
            losses.append(float(dp.all_reduce(np.array((error**2).sum() / SAMPLES))))

            slope = 2 * error / SAMPLES
            for number in reversed(range(len(blocks))):
                into, out_of = blocks[number]
                inner = slope @ out_of.T * (1 - hidden[number] ** 2)
                changes = inputs[number].T @ inner, hidden[number].T @ slope
                slope = slope + tp.all_reduce(inner @ into.T)
                for weight, change in zip((into, out_of), changes, strict=True):
                    weight -= RATE * dp.all_reduce(change)
        return losses


if __name__ == "__main__":
    with hpccomm.new_comm() as world:
        found = train(world, (-1, 2 if world.size % 2 == 0 else 1))
        if world.rank == 0:
            print(
                f"{world.size} ranks: loss {found[0]:.6f}, after {len(found) - 1} steps {found[-1]:.6f}"
            )
