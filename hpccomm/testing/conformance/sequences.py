"""Cases: plans of messages and batches: messages bound to their arrays and sent repeatedly."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.errors import (
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
)
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import SOON, equal, raises, takes

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

SEQUENCES = Behaviours("sequences")

LENGTHS = (0, 1, 3, 40_000, 150_000)
"""Elements (8 bytes) of messages: bound to their arrays, or too large for that."""


def around(comm: Communicator) -> tuple[int, int]:
    """Return the next rank and the one before."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@SEQUENCES.behaviour(length=LENGTHS)
def calls_in_their_order(comm: Communicator, length: int) -> None:
    """A plan does what its calls do, each on what those before it have left, any number of times."""
    right, left = around(comm)
    x, total, a, b, y = (np.zeros(length) for _ in range(5))
    with comm.planning() as plan:
        assert comm.all_reduce(x, out=total) is total, "the result is out"
        with comm.batch():
            comm.send(total, right)
            comm.recv(a, left)
            comm.send(x, left)
            comm.recv(b, right)
        comm.broadcast(b, comm.size - 1)
        comm.send_recv(b, right, y, left)
        equal(total, np.zeros(length), "before the plan is called")
    for turn in range(4):
        x[:] = 10 * turn + comm.rank
        assert plan() is None, "the result of several calls"
        everybody = np.full(length, comm.size * 10.0 * turn + sum(range(comm.size)))
        equal(total, everybody, "total")
        equal(a, everybody, "a")
        equal(b, np.full(length, 10.0 * turn), "b: the last rank received it from rank 0")
        equal(y, b, "y")


@SEQUENCES.behaviour(length=LENGTHS)
def planned_messages(comm: Communicator, length: int) -> None:
    """A send, a receive or a send_recv can be planned alone; ranks without a part give None."""
    x, out = np.zeros(length), np.zeros(length)
    src, dst = 0, comm.size - 1
    if comm.size > 1:
        if comm.rank == src:
            plan = comm.plan("send", x, dst)
        else:
            plan = comm.plan("recv", out, src if comm.rank == dst else None)
        for turn in range(3):
            x[:] = turn + 1
            assert plan() is (None if comm.rank == src else out), "what the call returns"
            if comm.rank == dst:
                equal(out, np.full(length, turn + 1.0), "received")
    right, left = around(comm)
    y = np.full(length, float(comm.rank))
    turned = comm.plan("send_recv", y, right, y, left)
    for turn in range(1, 4):
        assert turned() is y, "out"
        equal(y, np.full(length, float((comm.rank - turn) % comm.size)), "in place")


@SEQUENCES.behaviour(seed=range(4))
def random_neighbours(comm: Communicator, seed: int) -> None:
    """In one batch, messages between any ranks, also to itself, arrive unchanged."""
    random = np.random.default_rng([seed, comm.size])
    edges = random.integers(comm.size, size=(3 * comm.size, 2)).tolist()
    lengths = random.choice(LENGTHS[:4], len(edges)).tolist()
    sent = {n: np.zeros(length, np.int64) for n, length in enumerate(lengths)}
    came = {n: np.full(length, -1) for n, length in enumerate(lengths)}
    with comm.planning() as plan, comm.batch():
        for number, (src, dst) in enumerate(edges):
            if src == comm.rank:
                comm.send(sent[number], dst)
            if dst == comm.rank:
                comm.recv(came[number], src)
    for turn in range(3):
        for number, array in sent.items():
            array[:] = 1000 * turn + number
        plan()
        for number, (_, dst) in enumerate(edges):
            if dst == comm.rank:
                equal(came[number], np.full(lengths[number], 1000 * turn + number), str(number))


@SEQUENCES.behaviour(min_size=2)
def tags_in_any_order(comm: Communicator) -> None:
    """A receive in a batch takes the message of its tag; messages of one tag keep their order."""
    right, left = around(comm)
    kinds = ((2, np.float32), (7, np.float64), (2, np.float64), (2, np.float32))
    sends = [np.full(3, 10 * comm.rank + n, kind) for n, (_, kind) in enumerate(kinds)]
    takes = [np.zeros(3, kind) for _, kind in kinds]
    with comm.planning() as plan, comm.batch():
        for data, (tag, _) in zip(sends, kinds, strict=True):
            comm.send(data, right, tag)
        for n in (1, 0, 2, 3):
            comm.recv(takes[n], left, kinds[n][0])
    for _ in range(2):
        plan()
        for n, (got, (_, kind)) in enumerate(zip(takes, kinds, strict=True)):
            equal(got, np.full(3, 10 * left + n, kind), f"message {n}")


@SEQUENCES.behaviour(min_size=2)
def messages_of_a_plan_match_their_own(comm: Communicator) -> None:
    """Other messages with the same tag do not take their place, whichever is sent first."""
    plain, planned = np.zeros(2), np.zeros(2)
    plan = None
    if comm.rank < 2:
        with comm.planning() as plan:
            if comm.rank == 0:
                comm.send(planned, 1)
            else:
                comm.recv(planned, 0)
    else:
        with comm.planning():
            pass
    for turn in range(1, 4):
        if comm.rank == 0 and plan is not None:
            planned[:], plain[:] = turn, -turn
            comm.send(plain, 1)
            plan()
        elif comm.rank == 1 and plan is not None:
            plan()
            comm.recv(plain, 0)
            equal(planned, np.full(2, float(turn)), "planned")
            equal(plain, np.full(2, -float(turn)), "plain")


@SEQUENCES.behaviour(min_size=2, fails=True)
def a_plan_times_out(comm: Communicator) -> None:
    """The deadline is that of all its calls together. Plans refuse then, and none can be made."""
    deadline, late = 0.5, 0.45
    x = np.zeros(3)
    with comm.planning(timeout=deadline) as plan:
        for _ in range(4):  # far more than the deadline, on a busy machine too
            if comm.rank == 0:
                comm.recv(x, 1)
            elif comm.rank == 1:
                comm.send(x, 0)
    other = comm.plan("send_recv", x, None, x, None)
    beside, begun = comm.dup(), list[int]()

    def hook(_: object) -> None:
        if not begun:
            begun.append(comm.rank)
            if comm.rank == 0:
                beside.send_object(None, 1)
            else:
                beside.recv_object(0)  # so that rank 0 waits for as long as this rank is late
        if comm.rank == 1:
            time.sleep(late)

    if comm.rank < 2:
        comm.register_pre_hook(hook)
    if comm.rank == 0:
        with takes(deadline + SOON, deadline / 2), raises(CollectiveTimeout, "recv"):
            plan()
        for each in (plan, other):
            with raises(CommunicatorAborted, comm.name):
                each()
        with raises(CommunicatorAborted, comm.name), comm.planning():
            pass
    elif comm.rank == 1:
        with suppress(CommunicationError):
            plan()
    beside.finalize()
