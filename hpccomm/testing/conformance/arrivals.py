"""Cases: messages from any sender, of any tag and of unknown size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ANY, BufferMismatch, CollectiveTimeout, UsageError
from hpccomm.testing.conformance import capabilities
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, happens, raises
from hpccomm.testing.conformance.inputs import RECORD, moved

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

ARRIVALS = Behaviours("arrivals", (capabilities.ARRIVALS,))

LENGTHS = (3, 0, 20_001, 400_003)
"""Elements of float64: messages that are sent at once, with a note, and with one in registered memory."""


def nothing_is_left(comm: Communicator) -> None:
    """Assert that all messages were received, and wait until all ranks have done so."""
    message = comm.probe(block=False)
    assert message is None, f"{message} is left"
    comm.barrier()


@ARRIVALS.behaviour(min_size=2, registered=(False, True))
def from_any_sender(comm: Communicator, registered: bool) -> None:
    """Each message is received once, in order, in a new array of its size and dtype."""
    if comm.rank:
        for turn, length in enumerate(LENGTHS):
            x = comm.empty(length + comm.rank, np.float64) if registered else None
            x = np.empty(length + comm.rank) if x is None else x
            x[:] = 100 * comm.rank + turn
            comm.send(x, 0, 7)
    turns = [0] * comm.size
    for _ in range((comm.size - 1) * len(LENGTHS) if comm.rank == 0 else 0):
        out = comm.recv(None, ANY, 7)
        src, turn = divmod(int(out[0]), 100)
        equal(out, np.full(LENGTHS[turn] + src, 100.0 * src + turn), f"turn {turn} of {src}")
        assert turn == turns[src], f"message {turn} of rank {src} came after {turns[src]}"
        turns[src] += 1
    nothing_is_left(comm)


@ARRIVALS.behaviour(min_size=3)
def a_message_hides_none_of_another_sender(comm: Communicator) -> None:
    """A probe leaves unwanted messages, and finds other senders' messages in any order."""
    for wanted in ((2, 1), (1, 2)):
        if comm.rank in wanted:
            comm.send(np.full(2, comm.rank), 0, comm.rank)
        comm.barrier()
        for tag in wanted if comm.rank == 0 else ():
            message = comm.probe(ANY, tag)
            assert message is not None, "it blocks"
            assert (message.src, message.tag) == (tag, tag), message
            equal(message.recv(), np.full(2, tag), str(message))
    nothing_is_left(comm)


@ARRIVALS.behaviour(dtype=(np.dtype(np.int16), np.dtype(np.complex128), RECORD))
def what_a_probe_tells(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Sender, tag, size and dtype, unless structured; then the message is received."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    source = moved(comm.size, (3, 50), dtype)
    known = None if dtype == RECORD else dtype
    works = [comm.send(source[comm.rank], right, tag, async_op=True) for tag in (5, 0, 5)]
    for src, tag in ((ANY, 5), (left, ANY), (ANY, ANY)):
        message = comm.probe(src, tag)
        assert message is not None, "it blocks"
        seen = (message.src, message.nbytes, message.dtype, message.is_object)
        assert seen == (left, 150 * dtype.itemsize, known, False), message
        assert message.tag == tag or tag is ANY, message
        if tag is ANY:
            out = np.empty((3, 50), dtype)
            assert message.recv(out) is out, "the result is out"
            equal(out, source[left], str(message))
        else:
            out = message.recv()
            equal(out.view(dtype), source[left].reshape(-1), str(message))
        with raises(UsageError, "received before"):
            message.recv()
    for work in works:
        work.wait()
    nothing_is_left(comm)


@ARRIVALS.behaviour()
def by_tag(comm: Communicator) -> None:
    """A message of another tag, of an object, or for a receive that began before is left for its own call."""
    size, rank = comm.size, comm.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    first = np.empty(2)
    begun = comm.recv(first, left, 3, async_op=True)
    comm.barrier()
    works = [
        comm.send(np.full(2, 10.0 * tag + rank), right, tag, async_op=True) for tag in (1, 2, 3, 3)
    ]
    if size > 1:
        comm.send_object({"from": rank}, right, 2)
    for tag in (2, 3):
        out = np.empty(2)
        assert comm.recv(out, ANY, tag) is out, "the result is out"
        equal(out, np.full(2, 10.0 * tag + left), f"tag {tag}")
    begun.wait()
    equal(first, np.full(2, 30.0 + left), "the receive that began before")
    equal(comm.recv(None, left, 1), np.full(2, 10.0 + left), "of unknown size")
    for work in works:
        work.wait()
    if size > 1:
        assert comm.recv_object(ANY, 2) == {"from": left}, "the object"
    nothing_is_left(comm)


@ARRIVALS.behaviour(min_size=2)
def objects(comm: Communicator) -> None:
    """Objects of any sender come whole, by `recv_object` and by a probe, with arrays between them."""
    big = np.arange(200_000.0)
    if comm.rank:
        comm.send(np.array([comm.rank]), 0, 4)
        comm.send_object(("first", comm.rank), 0, 4)
        comm.send_object([comm.rank, big], 0, 4)
    seen, others = list[Any](), comm.size - 1 if comm.rank == 0 else 0
    for turn in range(3 * others):
        if turn < others:
            seen.append(comm.recv_object(ANY, 4))
            continue
        message = comm.probe(ANY, 4)
        assert message is not None, "it blocks"
        if message.is_object:
            with raises(UsageError, "object", "recv_object"):
                message.recv()
            seen.append(message.recv_object())
            assert message.src in seen[-1][:2], f"{seen[-1][0]} from {message.src}"
        else:
            with raises(UsageError, "array", "recv"):
                message.recv_object()
            equal(message.recv(), np.array([message.src]), "an array between objects")
    firsts = [value[1] for value in seen if value[0] == "first"]
    assert sorted(firsts) == list(range(1, others + 1)), firsts
    for value in seen:
        if value[0] != "first":
            equal(value[1], big, "in an object")
    nothing_is_left(comm)


@ARRIVALS.behaviour(min_size=2)
def large_messages_between_probe_and_receive(comm: Communicator) -> None:
    """Later receives from the same sender and tag get later messages, also while a probed one waits."""
    arrays = [np.full(300_001, value) for value in (1.0, 2.0, 3.0)]
    if comm.rank == 1:
        works = [comm.send(x, 0, async_op=True) for x in arrays]
        for work in works:
            work.wait()
    elif comm.rank == 0:
        message = comm.probe(1, 0)
        assert message is not None, "it blocks"
        equal(comm.recv(np.empty(300_001), 1), arrays[1], "the second message")
        equal(message.recv(), arrays[0], "the first message")
        equal(comm.recv(None, ANY), arrays[2], "the third message")


@ARRIVALS.behaviour(min_size=2)
def messages_of_plans(comm: Communicator) -> None:
    """A message of a plan is for its plan alone, also where it came first."""
    x, out = np.arange(3.0), np.zeros(3)
    if comm.rank == 0:
        comm.plan("send", x, 1)()
        comm.send(-x, 1)
    elif comm.rank == 1:
        plan = comm.plan("recv", out, 0)
        equal(comm.recv(None, ANY), -x, "the other message")
        plan()
        equal(out, x, "the plan's message")
    else:
        comm.plan("send", x, None)()
    nothing_is_left(comm)


@ARRIVALS.behaviour(min_size=2)
def a_late_sender(comm: Communicator) -> None:
    """A probe that does not block returns at once, and one that blocks waits for the message."""
    if comm.rank == 0:
        assert comm.probe(block=False) is None, "nothing was sent"
        comm.barrier()
        equal(comm.recv(None, ANY), np.arange(3), "the late message")
        messages: list[Any] = [None]

        def there() -> bool:
            messages[0] = comm.probe(1, block=False)
            return messages[0] is not None

        happens(there, "a second message")
        equal(messages[0].recv(), np.arange(4), "the second message")
    else:
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.5)
            comm.send(np.arange(3), 0)
            comm.send(np.arange(4), 0)
    comm.barrier()


@ARRIVALS.behaviour(min_size=2)
def an_array_that_does_not_fit(comm: Communicator) -> None:
    """`recv` loses a message that does not fit `out`, as it does from a known sender; a probed one stays."""
    if comm.rank == 1:
        for _ in range(3):
            comm.send(np.arange(4.0), 0)
    elif comm.rank == 0:
        for out, words in (
            (np.empty(3), ("rank 1", "32 bytes", "24 bytes")),
            (np.empty(4, np.int64), ("rank 1", "float64", "int64")),
        ):
            with raises(BufferMismatch, *words):
                comm.recv(out, ANY)
        message = comm.probe()
        assert message is not None, "it blocks"
        with raises(BufferMismatch, "32 bytes", "24 bytes"):
            message.recv(np.empty(3))
        equal(message.recv(np.empty((2, 2))), np.arange(4.0).reshape(2, 2), "afterwards")
    comm.barrier()


@ARRIVALS.behaviour(fails=True)
def a_message_that_does_not_come(comm: Communicator) -> None:
    """Waiting for any message has a deadline, after which the communicator has failed."""
    with raises(CollectiveTimeout, "recv"):
        comm.recv(np.empty(1), ANY, timeout=0.05)
    with raises(hpccomm.CommunicatorAborted):
        comm.probe(block=False)
