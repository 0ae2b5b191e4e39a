"""Messages in flight, receives of unknown messages among them, and waits for several works."""

import gc
from collections import Counter
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from front.forms import made
from hpccomm import ANY, Communicator, Received, ReduceOp, Work, wait_all, wait_any, wait_some
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.runtime.inquiry import ASK_SECONDS
from hpccomm.testing.conformance.case import SOON, Behaviours, equal, happens, raises, takes
from hpccomm.testing.conformance.collectives import BLOCKWISE, trial
from hpccomm.testing.conformance.oracle import NEW, WITH_DATA, Spec, reduced, reduction

if TYPE_CHECKING:
    from collections.abc import Callable

IN_FLIGHT = Behaviours("in_flight", "arrivals")

SIZES = (1, 700, 40_000, 300_000)
"""Elements of float64: within an envelope, small, of several packets, and with a note before them."""


def neighbors(comm: Communicator) -> tuple[int, int]:
    """Return the next rank and the one before."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@IN_FLIGHT.behaviour(min_size=2)
def a_synchronous_send_is_complete_once_it_is_received(comm: Communicator) -> None:
    """As MPI says of MPI_Ssend: its receive has begun. Small messages, large ones, registered and strided ones."""
    for size in SIZES:
        for x in (np.full(size, 7.0), comm.empty(size, np.float64), np.ones((size, 2))[:, 1]):
            x[...] = size
            out, nothing = np.zeros(size), np.zeros(1)
            if comm.rank == 0:
                work = comm.send(x, 1, 1, synchronous=True, async_op=True)
                comm.send_recv(nothing, 1, nothing, 1, 2)  # the receiver has not begun then
                assert not any(work.done() for _ in range(100)), "it waits"
                comm.send(nothing, 1, 3)
                work.wait()
                comm.send(x, 1, 1, synchronous=True)
                comm.send(x, 1, 1, synchronous=False)
                comm.send(x, None, synchronous=True)
            elif comm.rank == 1:
                comm.send_recv(nothing, 0, nothing, 0, 2)
                comm.recv(nothing, 0, 3)
                for _ in range(3):
                    out[:] = 0
                    equal(comm.recv(out, 0, 1), np.full(size, float(size)), f"{size}")
    with raises(UsageError, "synchronous is 1", "True or False"):
        comm.send(np.zeros(1), 0, synchronous=1)  # type: ignore[arg-type]
    with (
        comm.batch(),
        raises(UsageError, "synchronous is True in a plan, batch", "call send itself"),
    ):
        comm.send(np.zeros(1), 0, synchronous=True)


@IN_FLIGHT.behaviour(min_size=2, form=("call", "asynchronous", "batch", "object"))
def arrays_may_change_once_they_are_sent(comm: Communicator, form: str) -> None:
    """What arrives is what the array held in the call, as MPI says of a send that is complete."""
    x, out = np.empty(600), np.empty(600)
    for turn in range(8):
        if comm.rank == 0:
            x[:] = turn
            comm.send_object(x, 1) if form == "object" else made(comm, form, "send", x, 1)
            x[:] = -1
        elif comm.rank == 1:
            out = comm.recv_object(0) if form == "object" else comm.recv(out, 0)
            equal(out, np.full(600, float(turn)), f"turn {turn}")


@IN_FLIGHT.behaviour()
def unknown_messages_in_flight(comm: Communicator) -> None:
    """A receive from any rank, of any tag or size gives the array, its sender and its tag at its end."""
    right, left = neighbors(comm)
    out = np.zeros(3)
    works = [
        comm.recv(out, ANY, 1, async_op=True, return_src=True),
        comm.recv(None, left, ANY, async_op=True, return_src=True),
        comm.recv(None, left, 3, async_op=True),
        comm.recv(np.zeros(2), left, 4, async_op=True, return_src=True),
    ]
    assert not works[0].done()
    comm.barrier()
    for tag in (1, 2, 3, 4):
        comm.send(np.full((3, 5, 7, 2)[tag - 1], 10.0 * comm.rank + tag), right, tag)
    first, second, third, fourth = wait_all(works)
    assert isinstance(first, Received)
    assert first.array is out
    assert (first.src, first.tag) == (left, 1)
    array, source, tag = second
    assert (source, tag) == (left, 2)
    for each, size, what in ((out, 3, 1), (array, 5, 2), (third, 7, 3), (fourth.array, 2, 4)):
        equal(each, np.full(size, 10.0 * left + what), f"tag {what}")


@IN_FLIGHT.behaviour(size=SIZES)
def later_receives_take_nothing_before(comm: Communicator, size: int) -> None:
    """A message belongs to the earliest receive that it fits, as MPI has it, whichever is waited for first."""
    right, left = neighbors(comm)
    outs = [np.zeros(size) for _ in range(4)]
    works = [
        comm.recv(outs[0], left, 5, async_op=True),
        comm.recv(outs[1], ANY, 5, async_op=True),
        comm.recv(outs[2], left, 5, async_op=True),
        comm.recv(None, ANY, 6, async_op=True),  # which no other of these waits for
    ]
    comm.barrier()
    sent = [comm.send(np.full(size, float(at)), right, 5, async_op=True) for at in range(5)]
    last = comm.recv(None, ANY, 5)  # behind three that have not been waited for
    comm.recv(outs[3], left, 5)
    comm.send(np.full(2, 6.0), right, 6)
    assert wait_all(works[::-1])[0].tolist() == [6.0, 6.0]
    for number, out in enumerate((*outs[:3], last, outs[3])):
        equal(out, np.full(size, float(number)), f"message {number}")
    wait_all(sent)


@IN_FLIGHT.behaviour()
def unknown_messages_that_do_not_fit(comm: Communicator) -> None:
    """A message of another size or dtype is lost, and the communicator goes on."""
    right, left = neighbors(comm)
    for sent, says in ((np.zeros(3), "24 bytes"), (np.zeros(2, np.int64), "int64")):
        work = comm.recv(np.zeros(2), ANY, async_op=True)
        comm.send(sent, right)
        with raises(BufferMismatch, f"rank {left}", says):
            work.wait()
        comm.barrier()  # messages of different dtypes have no order
    comm.send(np.ones(2), right)
    assert comm.recv(np.zeros(2), ANY, return_src=True).src == left


@IN_FLIGHT.behaviour()
def all_of_several(comm: Communicator) -> None:
    """The results come in the order of the works, of messages, collectives and batches alike."""
    right, left = neighbors(comm)
    x, out, total = np.full(3, comm.rank + 1.0), np.zeros(3), np.zeros(3)
    with comm.batch(async_op=True) as batch:
        comm.send(x, right)
        comm.recv(out, left)
    summed = comm.all_reduce(x, out=total, async_op=True)
    results = wait_all([summed, None, batch.work, comm.barrier(async_op=True)])
    assert results[0] is total
    assert results[1:] == [None] * 3
    equal(out, np.full(3, left + 1.0), "the batch's message")
    assert wait_all([]) == []
    with raises(UsageError, "works[1] is 5", "async_op=True"):
        wait_all([None, 5])  # type: ignore[list-item]  # misuse


@IN_FLIGHT.behaviour()
def a_failure_among_several(comm: Communicator) -> None:
    """The others are over when it is raised, and a note says which work it is of."""
    right, left = neighbors(comm)
    outs = [np.zeros(2), np.zeros(9), np.zeros(2)]
    works = [comm.recv(out, left, async_op=True) for out in outs]
    comm.barrier()
    for number in range(3):
        comm.send(np.full(2, number + 1.0), right)
    with raises(BufferMismatch, "16 bytes") as caught:
        wait_all(works)
    assert caught[0].__notes__ == ["It is the failure of works[1], of 3."]
    assert [float(out[0]) for out in outs] == [1.0, 0.0, 3.0]
    with raises(BufferMismatch, "16 bytes") as caught:
        wait_any([None, works[1], works[2]])
    assert caught[0].__notes__[-1] == "It is the failure of works[1], of 3."


@IN_FLIGHT.behaviour()
def each_of_several_as_it_comes(comm: Communicator) -> None:
    """`wait_any` gives the first that is over; None in the place of a work is passed over."""
    right, left = neighbors(comm)
    works: list[hpccomm.Work | None] = [
        comm.recv(np.zeros(1), left, tag, async_op=True) for tag in range(3)
    ]
    places = []
    for tag in (2, 0, 1):
        comm.barrier()
        comm.send(np.full(1, float(tag)), right, tag)
        place, result = wait_any(works)
        assert place is not None
        assert result.tolist() == [float(place)]
        places.append(place)
        works[place] = None
    assert places == [2, 0, 1]
    assert wait_any(works) == (None, None)
    assert wait_some(works) == []
    works = [comm.recv(np.zeros(1), left, tag, async_op=True) for tag in range(3)]
    came: Counter[int] = Counter()
    for tags in ((1,), (0, 2)):  # `wait_some` gives all that are over, at least one
        comm.barrier()
        for tag in tags:
            comm.send(np.zeros(1), right, tag)
        while any(came[tag] == 0 for tag in tags):
            for place, _ in wait_some(works):
                came[place] += 1
                works[place] = None
    assert came == {0: 1, 1: 1, 2: 1}


@IN_FLIGHT.behaviour()
def deadlines_of_several(comm: Communicator) -> None:
    """A timeout ends the wait alone, as in `concurrent.futures`: the works go on, and a later wait succeeds."""
    right, left = neighbors(comm)
    works = [comm.recv(np.zeros(1), left, tag, async_op=True) for tag in range(3)]
    waits: tuple[Callable[..., Any], ...] = (wait_any, wait_some, wait_all)
    for wait in waits:
        for timeout in (0.05, 0):
            with raises(TimeoutError, f"{timeout:g} s", "recv", comm.name, "2 other works"):
                wait(works, timeout=timeout)
    # Ranks that ask who is stuck are not taken for stuck ones.
    for timeout in (3 * ASK_SECONDS, 0.0):
        with takes(timeout + SOON), raises(TimeoutError, "recv", comm.name, "8 bytes", "going on"):
            works[0].wait(timeout=timeout)
    assert not any(work.done() for work in works), "they go on"
    comm.barrier()
    comm.send(np.full(1, 1.0), right, 1)
    place, result = wait_any(works, timeout=60)
    assert (place, result.tolist()) == (1, [1.0])
    assert [place for place, _ in wait_some(works, timeout=0)] == [1]
    with raises(TimeoutError, "recv", "1 other work;"):
        wait_all(works, timeout=0.05)
    comm.barrier()
    for tag in (2, 0):
        comm.send(np.full(1, float(tag)), right, tag)
    assert [result.tolist() for result in wait_all(works, timeout=60)] == [[0.0], [1.0], [2.0]]
    assert wait_all(works, timeout=0)[2].tolist() == [2.0]


@IN_FLIGHT.behaviour()
def callbacks(comm: Communicator) -> None:
    """Functions are called once each, in their order, when a call is over, or at once if it is; an abort ends it."""
    right, left = neighbors(comm)
    called: list[str] = []
    work = comm.recv(np.zeros(2), left, async_op=True)
    work.add_done_callback(lambda: called.append("first"))
    work.add_done_callback(lambda: called.append("second"))
    assert called == []
    comm.barrier()
    comm.send(np.ones(2), right)
    work.wait()
    happens(lambda: called == ["first", "second"], "they are called")
    work.add_done_callback(lambda: called.append("late"))
    assert called == ["first", "second", "late"]
    with comm.dup() as own:
        lost = own.recv(None, ANY, async_op=True)
        lost.add_done_callback(lambda: called.append("lost"))
        own.abort()
        if not own.background:
            lost.done()
        happens(lambda: called[3:] == ["lost"], "also at a failure")
        with raises(hpccomm.CommunicatorAborted, "abort"):
            wait_any([lost])
        assert lost.done(), "it is over"


@IN_FLIGHT.behaviour(min_size=2)
def objects_between_arrays(comm: Communicator) -> None:
    """Objects of any sender come whole, by `recv_object` and by a probe, with arrays between them."""
    big = np.arange(200_000.0)
    if comm.rank:
        comm.send(np.array([comm.rank]), 0, 4)
        comm.send_object(("first", comm.rank), 0, 4)
        comm.send_object([comm.rank, big], 0, 4)
    seen, others = list[Any](), comm.size - 1 if comm.rank == 0 else 0
    for turn in range(3 * others):
        message = None if turn < others else comm.probe(ANY, 4)
        if message is None:
            seen.append(comm.recv_object(ANY, 4))
        elif message.is_object:
            seen.append(message.recv_object())
        else:
            assert 1 <= message.recv()[0] < comm.size, "an array between objects"
    firsts = [value[1] for value in seen if value[0] == "first"]
    assert sorted(firsts) == list(range(1, others + 1)), firsts
    for value in seen:
        if value[0] != "first":
            equal(value[1], big, "in an object")
    assert comm.probe(ANY, 4, block=False) is None, "nothing is left"
    comm.barrier()


WORKS = Behaviours("works")

CALLS = (*product(WITH_DATA, (False,)), *product(BLOCKWISE, (True,)))
"""Collectives, and whether their blocks differ in size."""


@WORKS.behaviour()
def arrays_are_kept_alive(comm: Communicator) -> None:
    """Nobody else need hold the arrays, nor the Work itself."""
    arrays = reduced(ReduceOp.SUM, comm.size, (20_000,), np.float64)
    out = np.empty(20_000)
    work = comm.all_reduce(arrays[comm.rank].copy(), async_op=True)
    comm.all_reduce(arrays[comm.rank].copy(), ReduceOp.MIN, out=out, async_op=True).done()
    gc.collect()
    equal(work.wait(), reduction(ReduceOp.SUM, arrays), "the one waited for")
    expected = reduction(ReduceOp.MIN, arrays)
    # Every rank must call as often as the others, so that they agree when to stop.
    happens(
        lambda: comm.all_reduce(np.array(np.array_equal(out, expected)), ReduceOp.MIN),
        "the dropped call wrote its result",
    )


@WORKS.behaviour()
def many_in_flight(comm: Communicator) -> None:
    """Calls of all kinds are under way at once and waited for in any order.

    `done` becomes True by itself, and `wait` returns what the synchronous call would, again when asked again.
    """
    works: list[tuple[Work, Callable[[Any], None]]] = []
    kinds = ((10, np.int32), (10, np.int32), (10_000, np.int64))
    for (seed, (length, dtype)), (name, uneven) in product(enumerate(kinds), CALLS):
        count = (1,) * comm.size if uneven else 1
        attempt = trial(comm, Spec(name, count, np.dtype(dtype), results=(NEW,), rest=(length,)))
        attempt.fill(seed)
        work = getattr(comm, attempt.part.spec.call)(**attempt.arguments, async_op=True)
        works.append((work, partial(attempt.check, what=name, seed=seed)))
    for index in np.random.default_rng(comm.rank).permutation(len(works)):
        work, check = works[index]
        happens(work.done, f"call {index} is done by itself")
        outcome = work.wait()
        check(outcome)
        assert work.exception() is None, "no exception"
        assert work.wait() is outcome, "the same result again"
