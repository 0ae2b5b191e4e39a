"""Draw tasks of uneven length from a counter that all ranks share.

``mpiexec -n 4 python work_queue.py``
"""

import numpy as np

import hpccomm


def collatz(start: int) -> int:
    """Return the steps from `start` to 1: a task whose length is not known before."""
    steps = 0
    while start != 1:
        start = start // 2 if start % 2 == 0 else 3 * start + 1
        steps += 1
    return steps


def work(comm: hpccomm.Communicator, tasks: int) -> tuple[np.ndarray, int]:
    """Return the results of all tasks on every rank, and the number of tasks of this rank."""
    results = np.zeros(tasks, np.int64)
    done = 0
    with comm.counter() as counter:
        while (task := counter.next()) < tasks:
            results[task] = collatz(task + 1)
            done += 1
    return comm.all_reduce(results), done  # a rank has zeros where others worked


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        results, done = work(comm, 2000)
        shares = comm.gather(done)
        if comm.rank == 0:
            print(f"tasks by rank: {shares}; the longest takes {results.max()} steps")
