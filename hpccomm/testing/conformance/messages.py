"""Cases: point to point messages, and batches of calls that are issued together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.errors import BufferMismatch
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.inputs import MOVABLE, SHAPES, moved, poison, ranks_for

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

MESSAGES = Behaviours("messages")

PLANNED = (0, 1, 3, 40_000, 150_000)
"""Elements (8 bytes) of planned messages: bound to their arrays, or too large for that."""


@MESSAGES.behaviour(dtype=MOVABLE)
def send_recv_round_a_ring(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Every rank sends to any other, or to itself, and receives at the same time."""
    for step in ranks_for(dtype, comm.size):
        dst, src = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        for shape in SHAPES:
            arrays = moved(comm.size, shape, dtype, seed=step)
            x, out = arrays[comm.rank].copy(), poison(arrays[src])
            result = comm.send_recv(x, dst, out, src)
            assert result is out, "the result is out"
            equal(out, arrays[src], f"step {step}, shape {shape}")
            equal(x, arrays[comm.rank], "x")


@MESSAGES.behaviour(length=(3, 200_000))
def send_recv_in_place(comm: Communicator, length: int) -> None:
    """Out may be x: it is sent before it is overwritten."""
    arrays = moved(comm.size, (length,), np.int32)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = arrays[comm.rank].copy()
    for turn in range(1, comm.size + 1):
        assert comm.send_recv(x, right, x, left) is x, "the result is out"
        equal(x, arrays[(comm.rank - turn) % comm.size], f"turn {turn}")


@MESSAGES.behaviour(min_size=2)
def send_and_recv(comm: Communicator) -> None:
    """One rank sends, another receives into `out` of any shape, which is the result."""
    for src in range(comm.size):
        dst = (src + 1) % comm.size
        for shape in SHAPES:
            source = moved(1, shape, np.float32, seed=src)[0]
            if comm.rank == src:
                x = source.copy()
                assert comm.send(x, dst) is None, "send returns None"
                x[...] = -1
            elif comm.rank == dst:
                out = poison(source, (source.size,))
                assert comm.recv(out, src) is out, "the result is out"
                equal(out.reshape(shape), source, f"from {src}, shape {shape}")


@MESSAGES.behaviour(min_size=2)
def large_messages(comm: Communicator) -> None:
    """A message of 4 MiB arrives whole, and its array may be reused when send returns."""
    source = moved(1, ((1 << 20) + 1,), np.float32)[0]
    if comm.rank == 0:
        x = source.copy()
        comm.send(x, comm.size - 1)
        x[...] = -1
    elif comm.rank == comm.size - 1:
        out = poison(source)
        comm.recv(out, 0)
        equal(out, source)


@MESSAGES.behaviour(min_size=2)
def order_is_kept(comm: Communicator) -> None:
    """Messages of one tag between two ranks arrive in the order in which they were sent."""
    if comm.rank == 0:
        works = [comm.send(np.array([i]), 1, async_op=True) for i in range(20)]
        for work in works:
            work.wait()
    elif comm.rank == 1:
        for i in range(20):
            out = np.array([-1])
            comm.recv(out, 0)
            assert out[0] == i, f"message {out[0]} instead of {i}"


@MESSAGES.behaviour(min_size=2)
def tags_tell_messages_apart(comm: Communicator) -> None:
    """A receive takes the message of its tag, in any order of arrival."""
    tags = (0, 7, 3)
    if comm.rank == 0:
        works = [comm.send(np.array([tag]), 1, tag, async_op=True) for tag in tags]
        for work in works:
            work.wait()
    elif comm.rank == 1:
        for tag in reversed(tags):
            out = np.array([-1])
            comm.recv(out, 0, tag)
            assert out[0] == tag, f"tag {tag} received {out[0]}"


@MESSAGES.behaviour()
def rank_none_does_nothing(comm: Communicator) -> None:
    """None as a rank sends nothing and leaves `out` as it was: the ends of a chain."""
    right = comm.rank + 1 if comm.rank + 1 < comm.size else None
    left = comm.rank - 1 if comm.rank else None
    x, out = np.array([float(comm.rank)]), np.array([-1.0])
    comm.send_recv(x, right, out, left)
    assert out[0] == comm.rank - 1, "received from the left, or as it was"
    comm.send(x, None)
    comm.recv(out, None)
    assert out[0] == comm.rank - 1, "as it was"
    work = comm.recv(out, None, async_op=True)
    work.wait()
    assert work.done(), "done"


@MESSAGES.behaviour()
def messages_from_any_memory(comm: Communicator) -> None:
    """Small and large, plain and registered: they keep their order, and what arrives is right."""
    lengths = (1, 121, 300_000, 0, 2_100_000, 121, 1_048_576, 7, 300_001)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(2):
        works, sent = [], []
        for i, length in enumerate(lengths):
            registered = (i + comm.rank + turn) % 2 == 0
            x = comm.empty(length, np.uint8) if registered else np.empty(length, np.uint8)
            x[:] = moved(comm.size, (length,), np.uint8, seed=i)[comm.rank]
            sent.append(x)
            works.append(comm.send(x, right, tag=turn, async_op=True))
        for i, length in enumerate(lengths):
            out = np.full(length, 255, np.uint8)
            comm.recv(out, left, tag=turn)
            equal(out, moved(comm.size, (length,), np.uint8, seed=i)[left], f"message {i}")
        for work in works:
            work.wait()
    x = comm.empty(400_000, np.uint8)
    x[:] = comm.rank
    comm.send_recv(x, right, x, left)
    equal(x, np.full(400_000, left, np.uint8), "in place")


@MESSAGES.behaviour(
    min_size=2, fails=True, registered=(False, True), length=(121, 300_000, 1 << 21)
)
def a_large_message_of_another_size(comm: Communicator, registered: bool, length: int) -> None:
    """It is refused with both sizes, its sender goes on, and so do the messages after it."""
    if comm.rank == 0:
        x = comm.empty(length, np.uint8) if registered else np.empty(length, np.uint8)
        x[:] = 7
        comm.send(x, 1)
        comm.send(x, 1)
    elif comm.rank == 1:
        with raises(BufferMismatch, str(length), str(length + 8)):
            comm.recv(np.zeros(length + 8, np.uint8), 0)
        out = np.zeros(length, np.uint8)
        comm.recv(out, 0)
        equal(out, np.full(length, 7, np.uint8))


@MESSAGES.behaviour(min_size=2, fails=True, elements=(3, 5))
def a_message_of_another_size(comm: Communicator, elements: int) -> None:
    """The receiver gets `BufferMismatch` that gives both sizes, be it too long or too short."""
    if comm.rank == 0:
        comm.send(np.zeros(4), 1)
    elif comm.rank == 1:
        with raises(BufferMismatch, str(8 * elements), "32"):
            comm.recv(np.zeros(elements), 0)


@MESSAGES.behaviour()
def messages_and_collectives_mix(comm: Communicator) -> None:
    """A collective between a send and its receive does not take the message."""
    dst, src = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.array([-1])
    receiving = comm.recv(out, src, async_op=True)
    sending = comm.send(np.array([comm.rank]), dst, async_op=True)
    x = np.array([1])
    comm.all_reduce(x)
    assert x[0] == comm.size, "all_reduce"
    comm.barrier()
    assert receiving.wait() is out, "the result is out"
    sending.wait()
    assert out[0] == src, "recv"


@MESSAGES.behaviour()
def batch_issues_together(comm: Communicator) -> None:
    """Sends and receives in any order within a batch do not wait for one another."""
    everyone = range(comm.size)
    sources = moved(comm.size, (300, comm.size), np.int64)
    x = [np.ascontiguousarray(sources[comm.rank][:, rank]) for rank in everyone]
    out = [np.full(300, -1, np.int64) for _ in everyone]
    with comm.batch():
        for rank in everyone:
            comm.send(x[rank], rank)
        for rank in everyone:
            comm.recv(out[rank], rank)
    for rank in everyone:
        equal(out[rank], sources[rank][:, comm.rank].copy(), f"from {rank}")


@MESSAGES.behaviour()
def batch_keeps_order(comm: Communicator) -> None:
    """Messages of one tag between two ranks keep their order within a batch too."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(10):
        x = np.arange(20) + 100 * comm.rank
        out = np.full(20, -1)
        with comm.batch():
            for i in range(20):
                comm.recv(out[i : i + 1], left)
            for i in range(20):
                comm.send(x[i : i + 1], right)
        equal(out, np.arange(20) + 100 * left)


@MESSAGES.behaviour(min_size=2)
def batch_of_large_messages(comm: Communicator) -> None:
    """Messages past the eager size cross without deadlock."""
    sources = moved(comm.size, (1 << 19,), np.float32)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = poison(sources[left])
    with comm.batch():
        comm.send(sources[comm.rank], right)
        comm.recv(out, left)
    equal(out, sources[left])


@MESSAGES.behaviour(asynchronous=(False, True))
def batch_of_mixed_calls(comm: Communicator, asynchronous: bool) -> None:
    """Collectives and messages go into one batch; each has its result after it."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = np.full((comm.size, 2), comm.rank, np.int32)
    total, root, gathered = x.copy(), x.copy(), np.full((comm.size, comm.size, 2), -1, np.int32)
    received, exchanged = np.full(2, -1, np.int32), np.full_like(x, -1)
    with comm.batch(async_op=asynchronous) as batch:
        comm.all_reduce(total)
        comm.send(x[0], right)
        comm.recv(received, left)
        comm.all_gather(x, out=gathered)
        comm.broadcast(root, comm.size - 1)
        comm.all_to_all(x, out=exchanged)
    assert (batch.work is not None) == asynchronous, "work, if asynchronous"
    if batch.work is not None:
        batch.work.wait()
        assert batch.work.done(), "done"
    ranks = np.repeat(np.arange(comm.size, dtype=np.int32), 2).reshape(comm.size, 2)
    equal(total, np.full_like(x, sum(range(comm.size))), "all_reduce")
    equal(received, np.full(2, left, np.int32), "recv")
    equal(gathered, np.repeat(ranks[:, np.newaxis], comm.size, 1), "all_gather")
    equal(root, np.full_like(x, comm.size - 1), "broadcast")
    equal(exchanged, ranks, "all_to_all")


@MESSAGES.behaviour()
def batch_whose_body_raises(comm: Communicator) -> None:
    """An exception in the body passes through, and none of its calls is issued."""
    x = np.full(3, float(comm.rank))
    with raises(ZeroDivisionError), comm.batch():
        comm.all_reduce(x)
        raise ZeroDivisionError
    equal(x, np.full(3, float(comm.rank)), "x")
    with raises(ZeroDivisionError), comm.batch():
        if comm.rank == 0:
            comm.broadcast(x)
        raise ZeroDivisionError
    equal(comm.all_reduce(np.ones(2)), np.full(2, float(comm.size)), "a later call")


@MESSAGES.behaviour()
def empty_batch(comm: Communicator) -> None:
    """A batch without calls does nothing, asynchronous or not."""
    with comm.batch():
        pass
    with comm.batch(async_op=True) as batch:
        pass
    assert batch.work is not None, "work, though nothing is to do"
    batch.work.wait()
    comm.barrier()


@MESSAGES.behaviour(length=PLANNED)
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
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y = np.full(length, float(comm.rank))
    turned = comm.plan("send_recv", y, right, y, left)
    for turn in range(1, 4):
        assert turned() is y, "out"
        equal(y, np.full(length, float((comm.rank - turn) % comm.size)), "in place")


@MESSAGES.behaviour(min_size=2)
def messages_of_a_plan_match_their_own(comm: Communicator) -> None:
    """Other messages with the same tag do not take their place, whichever is sent first."""
    plain, planned = np.zeros(2), np.zeros(2)
    if comm.rank == 0:
        plan = comm.plan("send", planned, 1)
    else:
        plan = comm.plan("recv", planned, 0 if comm.rank == 1 else None)
    for turn in range(1, 4):
        if comm.rank == 0:
            planned[:], plain[:] = turn, -turn
            comm.send(plain, 1)
            plan()
        elif comm.rank == 1:
            plan()
            comm.recv(plain, 0)
            equal(planned, np.full(2, float(turn)), "planned")
            equal(plain, np.full(2, -float(turn)), "plain")
