"""Sort numbers that are spread over the ranks, by a sample of them.

``mpiexec -n 4 python sample_sort.py``
"""

import numpy as np

import hpccomm


def sample_sort(comm: hpccomm.Communicator, x: np.ndarray) -> np.ndarray:
    """Return this rank's part of the sorted numbers: none is larger than one of the next rank.

    Ranks may have any number of them, but not all none.
    """
    x = np.sort(x)
    # Each rank shows some of its numbers. What divides these evenly divides all about evenly.
    sample = np.sort(comm.all_gather_v(x[:: len(x) // (8 * comm.size) + 1].copy()))
    limits = sample[np.arange(1, comm.size) * len(sample) // comm.size]
    ends = np.searchsorted(x, limits)
    counts = np.diff(ends, prepend=0, append=len(x))
    return np.sort(comm.all_to_all_v(x, counts), kind="stable")  # quick on runs that are sorted


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        numbers = np.random.default_rng(comm.rank).exponential(size=100_000)
        part = sample_sort(comm, numbers)
        parts = comm.gather_object((len(part), part.min(initial=np.inf), part.max(initial=0)))
        if comm.rank == 0:
            for rank, (count, least, most) in enumerate(parts):
                print(f"rank {rank}: {count} numbers from {least:.3f} to {most:.3f}")
