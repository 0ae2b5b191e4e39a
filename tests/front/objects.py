"""Python objects of any kind and size."""

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ANY, Communicator
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises

if TYPE_CHECKING:
    from collections.abc import Callable


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
def each_call(comm: Communicator) -> None:
    """Every object arrives as it is, from every root; what others pass does not matter. It is a copy."""
    rank, size, last = comm.rank, comm.size, comm.size - 1
    for number, sample in enumerate(SAMPLES):
        root = number % size
        mine, came = [rank, sample], list[Any]()
        came.append(comm.broadcast_object(mine if rank == root else "ignored", root)[1])
        every = [mine] * size if rank == root else None
        came.append(comm.scatter_object(every, root)[1])
        for gathered in comm.all_gather_object(mine), comm.gather_object(mine, root):
            assert (gathered is None) == (came[2:] != [] and rank != root), "gather_object"
            for place, (theirs, value) in enumerate(gathered or ()):
                assert theirs == place, "the order of the ranks"
                came.append(value)
            for each in gathered or ():
                each.append("changed")
        if rank == 0:
            comm.send_object(("tagged", sample), last, 5)
            comm.send_object(sample, last)
            comm.send(np.arange(4), last)
        if rank == last:
            out = np.empty(4, np.int64)
            equal(comm.recv(out, 0), np.arange(4), "an array between objects")
            came += [comm.recv_object(0), comm.recv_object(0, 5)[1]]
        comm.barrier()
        assert mine == [rank, sample] or isinstance(sample, Exception), "what was sent changed"
        for each in came:
            assert alike(each, sample), f"{each!r} instead of {sample!r}"
    assert comm.all_gather_object("x" * rank) == ["x" * each for each in range(size)]
    items = [("item", each) * each for each in range(size)]
    assert comm.scatter_object(items if rank == last else None, last) == items[rank]
    # Those that wait for what was refused hear of it, and all go on.
    for number in (size + 1, size - 1):
        words = ("values", str(number), str(size)) if rank == 0 else ("0",)
        with raises(CommunicationError if rank else UsageError, *words):
            comm.scatter_object([0] * number if rank == 0 else None)


@OBJECTS.behaviour(min_size=2)
def objects_in_flight(comm: Communicator) -> None:
    """Several objects of one sender and tag are under way at once, small and large, and come in order.

    A receive that was begun first gets the first one, also from any rank, in whatever order they are waited for.
    """
    array = np.arange(200_000.0) + comm.rank
    values = ["small", "x" * 5000, {"array": array}, [comm.rank], b"y" * 3_000_000]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = [comm.recv_object(src, async_op=True) for src in (ANY, left, ANY, left, left)]
    comm.barrier()
    sent = [comm.send_object(value, right, async_op=True) for value in values]
    came = hpccomm.wait_all(received[::-1])[::-1]
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
