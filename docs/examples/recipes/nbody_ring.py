"""Sum the gravity of all bodies. They travel around the ring of ranks while the sums are made.

``mpiexec -n 4 python nbody_ring.py``
"""

import numpy as np

import hpccomm


def pull(places: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    """Return the acceleration at `places` by `bodies`: x, y, z and mass in each row."""
    distances = bodies[None, :, :3] - places[:, None, :3]
    squares = (distances**2).sum(axis=2) + 1e-4  # softened: no division by 0
    return np.einsum("ij,ijk->ik", bodies[:, 3] * squares**-1.5, distances)


def accelerations(comm: hpccomm.Communicator, own: np.ndarray) -> np.ndarray:
    """Return the acceleration of this rank's bodies. All ranks have equally many."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    total = np.zeros((len(own), 3))
    guests, coming = own.copy(), np.empty_like(own)
    for step in range(comm.size):
        last = step == comm.size - 1
        moving = None if last else comm.send_recv(guests, right, coming, left, async_op=True)
        total += pull(own, guests)  # while the guests travel on
        if moving:
            moving.wait()
        guests, coming = coming, guests
    return total


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        own = np.random.default_rng(comm.rank).uniform(size=(500, 4))
        forces = accelerations(comm, own) * own[:, 3:]
        total = comm.all_reduce(forces.sum(axis=0))
        if comm.rank == 0:
            print(f"the sum of all forces, which is 0: {abs(total).max():.1e}")
