"""Cases of `Transport` and `Arrivals`: schedules, messages, plans of messages, any sender."""

from contextlib import suppress
from typing import Any

import numpy as np

from hpccomm import ANY, CommOptions, wait_all
from hpccomm.communicator import Communicator
from hpccomm.errors import BufferMismatch, UsageError, WaitTimeout
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import another, trial, waits_for
from hpccomm.testing.conformance.oracle import (
    IN_PLACE,
    MOVABLE,
    OUT,
    RECORD,
    SHAPES,
    Spec,
    moved,
    poison,
    ranks_for,
)

TRANSPORT = Behaviours("transport")
ARRIVALS = Behaviours("arrivals", "arrivals")

SCHEDULES = tuple(
    f"{collective}-{name}"
    for collective, known in ALGORITHMS.items()
    for name, algorithm in known.items()
    if not algorithm.shared
)
"""``"<collective>-<algorithm>"`` for each of hpccomm's algorithms that moves data by messages."""

LENGTHS = (3, 0, 121, 20_001, 400_003)
"""Elements of float64: few for messages that are sent at once, many for those that are announced by a note."""


def around(comm: Communicator) -> tuple[int, int]:
    """Return the next rank and the previous rank."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@TRANSPORT.behaviour(schedule=SCHEDULES)
def schedules(comm: Communicator, schedule: str) -> None:
    """Each of hpccomm's algorithms gives the right result, for few elements and for many segments."""
    collective, _, algorithm = schedule.partition("-")
    if collective == "barrier":
        for late in {0, comm.size - 1}:
            waits_for(comm, late, lambda: comm.barrier(algorithm=algorithm))
        return
    with another(comm, options=CommOptions(self_check=False, segment=8)) as small:
        for each, count, results in ((small, 4 * comm.size + 3, IN_PLACE), (comm, 50_003, OUT)):
            spec = Spec(collective, count, root=comm.size // 2, results=(results,))
            trial(each, spec).run(each, algorithm=algorithm)


@TRANSPORT.behaviour(dtype=MOVABLE)
def send_recv_round_a_ring(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """A rank can send to any rank, also itself, and receive at the same time."""
    for step in ranks_for(dtype, comm.size):
        dst, src = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        for shape in SHAPES:
            arrays = moved(comm.size, shape, dtype, seed=step)
            x, out = arrays[comm.rank].copy(), poison(arrays[src])
            assert comm.send_recv(x, dst, out, src) is out, "the result is out"
            equal(out, arrays[src], f"step {step}, shape {shape}")
            equal(x, arrays[comm.rank], "x")
            x[...] = poison(x)  # the caller's again: nothing is sent from it


@TRANSPORT.behaviour(registered=(False, True))
def messages_of_all_sizes(comm: Communicator, registered: bool) -> None:
    """Messages of all sizes keep their order, and arrive whole."""
    right, left = around(comm)
    lengths = (1, 121, 300_000, 0, 2_100_000, 121, 1_048_576, 7, 300_001)
    make: Any = comm.empty if registered else np.empty
    sent = [make(length, np.uint8) for length in lengths]
    for i, x in enumerate(sent):
        x[:] = moved(comm.size, x.shape, np.uint8, seed=i)[comm.rank]
    works = [comm.send(x, right, async_op=True) for x in sent]
    for i, length in enumerate(lengths):
        out = np.full(length, 255, np.uint8)
        comm.recv(out, left)
        equal(out, moved(comm.size, (length,), np.uint8, seed=i)[left], f"message {i}")
    wait_all(works)


@TRANSPORT.behaviour(min_size=2)
def tags_tell_messages_apart(comm: Communicator) -> None:
    """A receive takes the message of its tag, whatever the order of arrival."""
    tags = (0, 7, 3)
    if comm.rank == 0:
        works = [comm.send(np.array([tag]), 1, tag, async_op=True) for tag in tags]
        wait_all(works)
    elif comm.rank == 1:
        for tag in reversed(tags):
            out = np.array([-1])
            comm.recv(out, 0, tag)
            assert out[0] == tag, f"tag {tag} received {out[0]}"


@TRANSPORT.behaviour()
def messages_and_collectives_mix(comm: Communicator) -> None:
    """A collective between a send and its receive does not take the message; nor does a receive on a duplicate."""
    right, left = around(comm)
    out, other = np.array([-1]), np.array([-1])
    with comm.dup() as twin:
        receiving = comm.recv(out, left, async_op=True)
        works = [twin.send(np.array([-1 - comm.rank]), right, async_op=True)]
        with suppress(WaitTimeout):  # of a backend whose small sends wait for their receive
            works[0].wait(0.05)
        works.append(comm.send(np.array([comm.rank]), right, async_op=True))
        assert comm.all_reduce(np.array([1]))[0] == comm.size, "all_reduce"
        twin.recv(other, left)
        wait_all([receiving, *works])
    assert (out[0], other[0]) == (left, -1 - left), "recv"


@TRANSPORT.behaviour(min_size=2, registered=(False, True), length=(121, 300_000, 1 << 21))
def a_message_of_another_size(comm: Communicator, registered: bool, length: int) -> None:
    """A receive of another size raises an error that names both sizes; its sender and later messages go on."""
    if comm.rank == 0:
        x = comm.empty(length, np.uint8) if registered else np.empty(length, np.uint8)
        x[:] = 7
        for _ in range(3):
            comm.send(x, 1)
    elif comm.rank == 1:
        for other in (length + 8, length - 8):
            with raises(BufferMismatch, str(length), str(other)):
                comm.recv(np.zeros(other, np.uint8), 0)
        out = np.zeros(length, np.uint8)
        comm.recv(out, 0)
        equal(out, np.full(length, 7, np.uint8))
    comm.barrier()


@TRANSPORT.behaviour(length=(0, 1, 3, 40_000, 150_000))
def planned_messages(comm: Communicator, length: int) -> None:
    """Messages that are bound to their arrays (`Backend.planned`) do not match plain messages of the same tag."""
    right, left = around(comm)
    x, out, plain = np.zeros(length), np.zeros(length), np.zeros(length)
    planned = comm.plan("send_recv", x, right, out, left)
    for turn in range(3):
        x[:] = 10 * turn + comm.rank
        work = comm.send(-x, right, async_op=True)
        assert planned() is out, "out"
        equal(out, np.full(length, 10.0 * turn + left), "planned")
        comm.recv(plain, left)
        equal(plain, np.full(length, -10.0 * turn - left), "plain")
        work.wait()


def nothing_is_left(comm: Communicator) -> None:
    """Assert that all messages were received, and wait until all ranks have asserted it."""
    message = comm.probe(block=False)
    assert message is None, f"{message} is left"
    comm.barrier()


@ARRIVALS.behaviour(min_size=2, registered=(False, True))
def from_any_sender(comm: Communicator, registered: bool) -> None:
    """Each message is received once, in order, in a new array of its size and dtype."""
    if comm.rank:
        make: Any = comm.empty if registered else np.empty
        for turn, length in enumerate(LENGTHS):
            x = make(length + comm.rank, np.float64)
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


@ARRIVALS.behaviour(min_size=2)
def any_tag_takes_the_first(comm: Communicator) -> None:
    """A receive of any tag takes the message that was sent first, whatever tags came before."""
    right, left = around(comm)
    works = [comm.send(np.array([tag]), right, tag, async_op=True) for tag in (5, 7, 5)]
    wait_all(works)
    comm.barrier()
    assert comm.recv(None, left, 5)[0] == 5
    tags = [int(comm.recv(None, left, ANY)[0]) for _ in range(2)]
    assert tags == [7, 5], f"tags {tags}"
    nothing_is_left(comm)


@ARRIVALS.behaviour(dtype=(np.dtype(np.int16), np.dtype(np.complex128), RECORD))
def what_a_probe_tells(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """A probe tells sender, tag, size and dtype (None if structured); then the message can be received, once."""
    right, left = around(comm)
    source = moved(comm.size, (3, 50), dtype)
    known = None if dtype == RECORD else dtype
    works = [comm.send(source[comm.rank], right, tag, async_op=True) for tag in (5, 0, 5)]
    for src, tag in ((ANY, 5), (left, ANY), (ANY, ANY)):
        message = comm.probe(src, tag)
        assert message is not None, "it blocks"
        seen = (message.src, message.nbytes, message.dtype, message.is_object)
        assert seen == (left, 150 * dtype.itemsize, known, False), message
        assert message.tag == tag or tag is ANY, message
        out = np.empty((3, 50), dtype) if tag is ANY else None
        received = message.recv(out)
        assert out is None or received is out, "the result is out"
        equal(received.view(dtype).reshape(3, 50), source[left], str(message))
        with raises(UsageError, "received before"):
            message.recv()
    wait_all(works)
    nothing_is_left(comm)


@ARRIVALS.behaviour(min_size=2)
def large_messages_between_probe_and_receive(comm: Communicator) -> None:
    """While a probed message waits, receives from the same sender and tag get the later messages."""
    arrays = [np.full(300_001, value) for value in (1.0, 2.0, 3.0)]
    if comm.rank == 1:
        works = [comm.send(x, 0, async_op=True) for x in arrays]
        wait_all(works)
    elif comm.rank == 0:
        message = comm.probe(1, 0)
        assert message is not None, "it blocks"
        equal(comm.recv(np.empty(300_001), 1), arrays[1], "the second message")
        equal(message.recv(), arrays[0], "the first message")
        equal(comm.recv(None, ANY), arrays[2], "the third message")
    comm.barrier()


@ARRIVALS.behaviour()
def of_other_receives(comm: Communicator) -> None:
    """A probe finds nothing without a message. It leaves messages of other tags, and those of earlier receives."""
    right, left = around(comm)
    first, second = np.empty(2), np.empty(2)
    nothing_is_left(comm)
    begun = comm.recv(first, left, 3, async_op=True)
    comm.barrier()
    works = [
        comm.send(np.full(2, 10.0 * tag + comm.rank), right, tag, async_op=True)
        for tag in (1, 2, 3, 3)
    ]
    for tag in (2, 3):
        equal(comm.recv(second, ANY, tag), np.full(2, 10.0 * tag + left), f"tag {tag}")
    begun.wait()
    equal(first, np.full(2, 30.0 + left), "the receive that began before")
    equal(comm.recv(None, left, 1), np.full(2, 10.0 + left), "of unknown size")
    wait_all(works)
    nothing_is_left(comm)
