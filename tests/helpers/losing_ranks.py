"""The program of a rank in a job whose ranks are killed at a random moment.

``mpiexec --with-ft ulfm -n 4 python tests/helpers/losing_ranks.py KIND SEED [LOST]`` prints one line of JSON for each
rank that is left: what it caught, how long after the first kill, and when it had reduced rightly again.
With LOST of 2, a second rank is killed soon after the first, while the others may be shrinking.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import hpccomm

LARGE = 1 << 18


def main(kind: str, seed: int, lost: int = 1) -> None:
    comm = hpccomm.new_comm("mpi", timeout=20.0, name="world")
    chance = random.Random(seed)
    victims = chance.sample(range(comm.size), lost)
    delays = [chance.uniform(0.1, 0.4)]
    delays += [delays[0] + chance.uniform(0.0, 0.1) for _ in victims[1:]]
    call = KINDS[kind](comm)
    call()  # what the first call sets up is there
    now = comm.broadcast_object(time.time(), root=0)
    moment = now + delays[0]
    if comm.rank in victims:

        def killed() -> None:
            time.sleep(max(0.0, now + delays[victims.index(comm.rank)] - time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=killed, daemon=True).start()
    caught: Exception | None = None
    while caught is None:
        try:
            call()
        except hpccomm.HpccommError as error:
            caught = error
    noticed = time.time() - moment
    later = ""
    try:
        comm.all_reduce(np.ones(4))
    except hpccomm.HpccommError as error:
        later = f"{type(error).__name__}: {error}"
    shrunk, right = comm, False
    while not right or shrunk.size > comm.size - lost:
        try:
            shrunk = shrunk.shrink()
            summed = shrunk.all_reduce(np.full(1000, shrunk.rank + 1.0))
        except (hpccomm.PeerLost, hpccomm.CommunicatorAborted):
            continue
        right = bool((summed == shrunk.size * (shrunk.size + 1) / 2).all())
    again = time.time() - moment
    told = {
        "rank": comm.rank,
        "victims": victims,
        "error": type(caught).__name__,
        "ranks": list(getattr(caught, "ranks", ())),
        "message": str(caught),
        "later": later,
        "noticed": round(noticed, 4),
        "again": round(again, 4),
        "right": right,
        "name": shrunk.name,
        "size": shrunk.size,
    }
    os.write(1, (json.dumps(told) + "\n").encode())  # at once, so that lines stay whole
    shrunk.finalize()


Kind = Callable[[hpccomm.Communicator], Callable[[], object]]


def _reducing(size: int, **how: object) -> Kind:
    def of(comm: hpccomm.Communicator) -> Callable[[], object]:
        x = np.ones(size)
        return lambda: comm.all_reduce(x, **how)  # type: ignore[arg-type]

    return of


def _asynchronous(comm: hpccomm.Communicator) -> Callable[[], object]:
    x = np.ones(LARGE)

    def call() -> None:
        works = [comm.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    return call


def _ring_of_messages(comm: hpccomm.Communicator) -> Callable[[], object]:
    x, y = np.ones(100), np.ones(100)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def call() -> None:
        sent = comm.send(x, after, async_op=True)
        comm.recv(y, before)
        sent.wait()

    return call


def _split(comm: hpccomm.Communicator) -> Callable[[], object]:
    def call() -> None:
        group = comm.split(None if comm.rank == 0 else 1)
        if group is not None:
            group.finalize()

    return call


def _window(comm: hpccomm.Communicator) -> Callable[[], object]:
    memory, x = np.zeros(1000), np.ones(10)
    window = comm.window(memory)

    def call() -> None:
        window.put(x, (comm.rank + 1) % comm.size, offset=10)
        window.fence()

    return call


KINDS: dict[str, Kind] = {
    "native": _reducing(1000),
    "ring": _reducing(LARGE, algorithm="ring"),
    "shm": _reducing(LARGE, algorithm="shm"),
    "asynchronous": _asynchronous,
    "messages": _ring_of_messages,
    "split": _split,
    "window": _window,
}

if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
