"""What mpi4py's calls of arrays take on the ranks of a program, measured when its recording starts.

`hpccomm.tools.programs.ear` measures. `hpccomm.tools.programs.mpi_advice` compares these times with those of calls
that pickle arrays, and of messages that do a collective's work.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

SIZES = (1 << 6, 1 << 16, 1 << 20)
"""Bytes of each rank's array."""

REPEATS, LONGEST = 5, 0.2
"""How often each is measured, and the seconds after which each is measured once: on a busy machine."""

SMALL_ONES, SMALL_MESSAGES = 20, 2000
"""Calls of the smallest size that follow each other. Of many messages, the sender waits for the receiver now and then."""

MOST_BYTES = 1 << 26
"""Bytes that are gathered at most on a rank: nodes have many of them."""

NAME = "price of "
"""Before an operation: the name of a fact of the machine."""

AS = {
    "reduce": "all_reduce",
    "scatter": "gather",
    "all_to_all": "all_gather",
    **dict.fromkeys(("send", "recv", "send_recv"), "message"),
    **dict.fromkeys(("send_object", "recv_object", "send_recv_object"), "message_object"),
}
"""For each operation that is not measured, one that is, and that moves as many bytes or more."""


def measured(comm: Any) -> dict[str, str]:
    """Return facts of the machine: the seconds of each operation, by bytes. Collective; takes less than half a second.

    Parameters
    ----------
    comm : Comm
        Of mpi4py, on which no other call is under way.
    """
    x, sums = (np.zeros(SIZES[-1], np.uint8) for _ in range(2))
    every = np.zeros(min(comm.size * SIZES[-1], MOST_BYTES), np.uint8)

    def messages(send: Callable[[int], Any], recv: Callable[[], Any], number: int) -> None:
        # Two ranks do it, and the others wait.
        for _ in range(number if comm.rank < 2 else 0):
            if comm.rank:
                recv()
            else:
                send(1)

    def collectives(call: Callable[[], Any], number: int) -> None:
        for _ in range(number):
            call()

    taken: dict[str, list[str]] = {}
    spent = 0.0
    for n in SIZES if comm.size > 1 else ():
        part, all_parts, floats = x[:n], every[: n * comm.size], x[:n].view(float)
        total = sums[:n].view(float)
        for name, call in {
            "broadcast": partial(collectives, partial(comm.Bcast, part)),
            "all_reduce": partial(collectives, partial(comm.Allreduce, floats, total)),
            "gather": partial(collectives, partial(comm.Gather, part, all_parts)),
            "all_gather": partial(collectives, partial(comm.Allgather, part, all_parts)),
            "message": partial(messages, partial(comm.Send, part), partial(comm.Recv, part)),
            "message_object": partial(messages, partial(comm.send, bytes(n)), comm.recv),
        }.items():
            message = name.startswith("message")
            number = (SMALL_MESSAGES if message else SMALL_ONES) if n == SIZES[0] else 1
            least = inf
            too_much = name.endswith("gather") and n * comm.size > MOST_BYTES
            for repeat in range(0 if too_much else REPEATS):
                if repeat and spent >= LONGEST:
                    break
                begin = perf_counter()
                call(number)
                # All ranks know the same, and go on or stop together.
                last = max(comm.allgather(perf_counter() - begin))
                least, spent = min(least, last), spent + last
            if least < inf:
                taken.setdefault(NAME + name, []).append(f"{n} B {least / number:.3e} s")
    return {name: ", ".join(points) for name, points in taken.items()}


def price(facts: Mapping[str, str], operation: str, nbytes: float) -> float:
    """Return the seconds of a call of arrays; NaN if that was not measured.

    Parameters
    ----------
    facts : mapping of str to str
        The facts of the machine of a recording.
    operation : str
        hpccomm's name of it.
    nbytes : float
        Bytes of each rank's array.
    """
    operation = operation.removesuffix("_v")
    text = facts.get(NAME + AS.get(operation, operation), "")
    points = np.array(re.findall(r"(\S+) B (\S+) s", text), float)
    if not len(points):
        return float("nan")
    sizes, seconds = points.T
    return float(max(np.interp(nbytes, sizes, seconds), seconds[-1] * nbytes / sizes[-1]))
