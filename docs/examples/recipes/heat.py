"""Heat in a plate whose edges keep their temperature: blocks on a grid of ranks, with halos.

``mpiexec -n 4 python heat.py``
"""

import numpy as np

import hpccomm


def heat(comm: hpccomm.Communicator, plate: np.ndarray, steps: int) -> np.ndarray:
    """Return the plate after some steps, on every rank. The cells of its edges do not change."""
    grid = comm.grid((0, 0))
    inner = plate[1:-1, 1:-1]
    rows, columns = block = grid.block(inner.shape)
    u = plate[rows.start : rows.stop + 2, columns.start : columns.stop + 2].copy()
    halo = grid.halo(u, corners=False)
    for _ in range(steps):
        halo(u)
        beside = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] += 0.2 * (beside - 4 * u[1:-1, 1:-1])
    changed = np.zeros_like(inner)
    changed[block] = u[1:-1, 1:-1]
    whole = plate.copy()
    whole[1:-1, 1:-1] = comm.all_reduce(changed)
    return whole


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        plate = np.zeros((50, 70))
        plate[0] = 100
        plate = heat(comm, plate, 500)
        if comm.rank == 0:
            print(f"the plate has {plate.mean():.4f} degrees on average")
