"""Python objects of any kind and size."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ANY
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

OBJECTS = Behaviours("objects")

SAMPLES: tuple[Any, ...] = (
    None,
    True,
    -(10**30),
    3.5,
    "ß→é",
    b"\0\xff",
    (1, [2, {3: {4}}]),
    {"nested": {"key": ("value",)}},
    ValueError("an exception"),
)


def alike(a: object, b: object) -> bool:
    """Whether two of `SAMPLES` are the same after a copy."""
    if isinstance(a, Exception):
        return type(a) is type(b) and a.args == b.args
    return type(a) is type(b) and a == b


@OBJECTS.behaviour()
def broadcast_object(comm: Communicator) -> None:
    """Every rank gets the root's object; what the others pass does not matter."""
    for root in range(comm.size):
        for sample in SAMPLES:
            given = sample if comm.rank == root else "ignored"
            result = comm.broadcast_object(given, root)
            assert alike(result, sample), f"{result!r} instead of {sample!r} from {root}"


@OBJECTS.behaviour()
def all_gather_object(comm: Communicator) -> None:
    """Every rank gets the list of all ranks' objects, of different sizes."""
    result = comm.all_gather_object("x" * comm.rank)
    assert result == ["x" * rank for rank in range(comm.size)], result
    for sample in SAMPLES:
        for item in comm.all_gather_object(sample):
            assert alike(item, sample), f"{item!r} instead of {sample!r}"


@OBJECTS.behaviour()
def gather_object(comm: Communicator) -> None:
    """The root gets the list, the others None."""
    for root in range(comm.size):
        result = comm.gather_object({"rank": comm.rank}, root)
        expected = [{"rank": rank} for rank in range(comm.size)] if comm.rank == root else None
        assert result == expected, result


@OBJECTS.behaviour()
def scatter_object(comm: Communicator) -> None:
    """Rank r gets item r of the root's sequence."""
    for root in range(comm.size):
        items = [("item", rank) * rank for rank in range(comm.size)]
        result = comm.scatter_object(items if comm.rank == root else None, root)
        assert result == items[comm.rank], result


@OBJECTS.behaviour(min_size=2)
def send_and_recv_object(comm: Communicator) -> None:
    """Objects arrive in order, and by tag."""
    if comm.rank == 0:
        for sample in SAMPLES:
            comm.send_object(sample, comm.size - 1)
        comm.send_object("tagged", comm.size - 1, 5)
    elif comm.rank == comm.size - 1:
        for sample in SAMPLES:
            result = comm.recv_object(0)
            assert alike(result, sample), f"{result!r} instead of {sample!r}"
        assert comm.recv_object(0, 5) == "tagged"


@OBJECTS.behaviour(min_size=2)
def objects_in_flight(comm: Communicator) -> None:
    """Several objects of one sender and tag are under way at once, small and large, and come in order."""
    array = np.arange(200_000.0) + comm.rank
    values = ["small", "x" * 5000, {"array": array}, [comm.rank], b"y" * 3_000_000]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = [comm.recv_object(left, async_op=True) for _ in values]
    sent = [comm.send_object(value, right, async_op=True) for value in values]
    came = hpccomm.wait_all(received)
    assert hpccomm.wait_all(sent) == [None] * len(values), "of a send"
    equal(came[2].pop("array"), np.arange(200_000.0) + left, "the array")
    assert came == ["small", "x" * 5000, {}, [left], b"y" * 3_000_000], "the objects"
    from_any = comm.recv_object(ANY, ANY, async_op=True)
    comm.send_object(("tagged", comm.rank), right, 3, async_op=True).wait()
    assert from_any.wait() == ("tagged", left), "from any rank"
    broken = comm.send_object(threading.Lock(), right, async_op=True)
    with raises(UsageError, "pickle", "lock"):
        broken.wait()
    with raises(CommunicationError, "pickle", "lock", str(left)):
        comm.recv_object(left, async_op=True).wait()


@OBJECTS.behaviour(min_size=2)
def objects_and_arrays_keep_apart(comm: Communicator) -> None:
    """An array and an object under way between the same ranks are not confused."""
    if comm.rank == 0:
        comm.send_object("object", 1)
        comm.send(np.arange(4), 1)
    elif comm.rank == 1:
        out = np.empty(4, np.arange(4).dtype)
        assert comm.recv_object(0) == "object"
        equal(comm.recv(out, 0), np.arange(4))


@OBJECTS.behaviour()
def arrays_within_objects(comm: Communicator) -> None:
    """Arrays inside an object arrive whole and writable, whatever their size and layout."""
    sizes = (0, 3, 200_000)
    for root in range(min(comm.size, 2)):
        arrays: list[Any] = [np.arange(n, dtype=np.float64) + comm.rank for n in sizes]
        arrays.append(np.arange(12).reshape(3, 4)[:, ::2])
        everyone = comm.all_gather_object({"arrays": arrays})
        for rank, item in enumerate(everyone):
            for n, array in zip(sizes, item["arrays"], strict=False):
                equal(array, np.arange(n, dtype=np.float64) + rank, f"{n} from {rank}")
            equal(item["arrays"][-1], np.arange(12).reshape(3, 4)[:, ::2], "a strided one")
        result = comm.broadcast_object(arrays, root)
        equal(result[2], np.arange(sizes[2], dtype=np.float64) + root, f"from {root}")
        everyone[comm.rank]["arrays"][2][:] = -1
        if comm.rank != root:
            result[2][:] = -1
        equal(arrays[2], np.arange(sizes[2], dtype=np.float64) + comm.rank, "what was given")


@OBJECTS.behaviour()
def what_is_received_is_a_copy(comm: Communicator) -> None:
    """Changing what arrived changes no other rank's object, in one process either."""
    mine = [comm.rank]
    everyone = comm.all_gather_object(mine)
    for item in everyone:
        item.append("changed")
    comm.barrier()
    assert mine == [comm.rank], "what was sent changed"


@OBJECTS.behaviour()
def an_object_that_does_not_pickle(comm: Communicator) -> None:
    """Its own rank gets `UsageError`, those that wait for it `CommunicationError`; all go on."""
    culprit = comm.size - 1
    here = comm.rank == culprit
    value = threading.Lock() if here else "fine"
    calls: list[tuple[Callable[[], object], bool]] = [
        (lambda: comm.broadcast_object(value, culprit), True),
        (lambda: comm.all_gather_object([value]), True),
        (lambda: comm.gather_object({"key": value}, 0), comm.rank == 0),
        (lambda: comm.scatter_object([value] * comm.size if here else None, culprit), True),
    ]
    for call, told in calls:
        if here:
            with raises(UsageError, "pickle", "lock"):
                call()
        elif told:
            with raises(CommunicationError, "pickle", "lock", str(culprit)):
                call()
        else:
            call()
        assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "afterwards"
    if here:
        with raises(UsageError, "pickle", "lock"):
            comm.send_object(value, 0)
        if comm.size > 1:  # MPI need not buffer what a rank sends to itself
            comm.send_object("the next one", 0)
    elif comm.rank == 0:
        with raises(CommunicationError, "pickle", "lock", str(culprit)):
            comm.recv_object(culprit)
        assert comm.recv_object(culprit) == "the next one"
    assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "afterwards"


@OBJECTS.behaviour()
def a_wrong_number_of_objects(comm: Communicator) -> None:
    """The rank that gave them gets `UsageError`, the others `CommunicationError`; all go on."""
    for number in (comm.size + 1, comm.size - 1):
        if comm.rank == 0:
            with raises(UsageError, "values", str(number), str(comm.size)):
                comm.scatter_object([0] * number)
        else:
            with raises(CommunicationError, "0"):
                comm.scatter_object(None)
    assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "afterwards"
