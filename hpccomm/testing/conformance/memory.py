"""Cases of `SharedMemory`: arrays of ``comm.empty``, and calls in which ranks reach each other's memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np

from hpccomm import CommOptions
from hpccomm.communicator import Communicator
from hpccomm.errors import CollectiveTimeout, CommunicationError, RankMismatch
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import Array, Behaviours, equal, happens, raises, takes
from hpccomm.testing.conformance.collectives import BLOCKWISE, FORMS, Place, another, trial
from hpccomm.testing.conformance.oracle import FLOAT32, IN_PLACE, MOVABLE, OUT, SHAPES, Spec
from hpccomm.testing.conformance.survival import SHORT, has_failed

MEMORY = Behaviours("memory")
SHARED_MEMORY = Behaviours("shared_memory", "shared memory")

REACHED = ("auto", "staging")
"""Ways in which peers reach arrays that are not registered: directly if that is possible, or always by a copy."""

COLLECTIVES = tuple(name for name, own in ALGORITHMS.items() if "shm" in own and name != "barrier")
"""The calls that have an algorithm in shared memory."""

SEGMENT = 1 << 10
"""Bytes of a segment, `CommOptions.segment`: 256 elements of float32."""


@MEMORY.behaviour()
def empty(comm: Communicator) -> None:
    """`empty` gives an array of any shape and dtype, which behaves like NumPy's own."""
    for dtype in MOVABLE:
        for shape in SHAPES:
            x = comm.empty(shape, dtype)
            assert isinstance(x, np.ndarray), type(x)
            assert (x.shape, x.dtype) == (shape, dtype), f"{x.shape}, {x.dtype}"
            assert x.flags.carray, "C-contiguous, aligned and writeable"


@MEMORY.behaviour()
def arrays_are_apart(comm: Communicator) -> None:
    """Arrays that live at the same time share no byte; released memory is reused.

    Each rank releases its arrays in another order. A view keeps the memory of its array.
    """
    random = np.random.default_rng(comm.rank)
    arrays: dict[int, Array] = {}
    part = comm.empty(1000, np.int32)[500:]
    part.fill(comm.rank)
    for number in range(200):
        x = comm.empty(int(random.integers(1, 50_000)), np.int64)
        x.fill(number)
        arrays[number] = x
        if len(arrays) > 10:
            del arrays[int(random.choice(list(arrays)))]
            gc.collect(0)
    for number, x in arrays.items():
        assert (x == number).all(), f"array {number} was written to"
        del x
    equal(part, np.full(500, comm.rank, np.int32), "a view of one")
    comm.all_reduce(part)
    equal(part, np.full(500, sum(range(comm.size)), np.int32), "in a call")


@MEMORY.behaviour()
def arrays_outlive_their_communicator(comm: Communicator) -> None:
    """An array may be used after `finalize`, also in other communicators."""
    other = comm.dup()
    x = other.empty((3, 50), np.float32)
    x.fill(1)
    other.finalize()
    equal(x, np.ones((3, 50), np.float32), "after finalize")
    comm.all_reduce(x)
    equal(x, np.full((3, 50), comm.size, np.float32), "in another communicator")


PLACES = ("plain", "registered", "view")
"""Kinds of memory of an array: NumPy's, that of ``comm.empty``, or a view at an odd offset of the latter."""


def memory_in(comm: Communicator, place: str) -> Place:
    """Return a function that allocates the arrays of a rank's call in `place`, which is one of `PLACES`."""

    def array(_name: str, count: int, dtype: np.dtype[Any]) -> Array:
        if place == "view":
            memory: Array = comm.empty(count * dtype.itemsize + 6, np.uint8)
            return memory[3:-3].view(dtype)
        return comm.empty(count, dtype) if place == "registered" else np.empty(count, dtype)

    return array


@contextmanager
def node_of(comm: Communicator, reached: str) -> Iterator[Communicator]:
    """Yield the communicator of this node's ranks, which share memory as `reached` says; collective over `comm`."""
    options = CommOptions(self_check=False, shared_memory=reached, segment=SEGMENT)
    with another(comm, options=options) as other:
        yield other.node_comm


@SHARED_MEMORY.behaviour(collective=COLLECTIVES, reached=REACHED, place=PLACES)
def arrays_lie_anywhere(comm: Communicator, collective: str, reached: str, place: str) -> None:
    """Calls are right in registered memory or not, in place or not, for many segments and for one element."""
    with node_of(comm, reached) as node:
        blocks, forms = collective in BLOCKWISE, cycle(FORMS)
        counts: list[int | tuple[int, ...]] = [1, 700, 3_001]
        if blocks and not ALGORITHMS[collective]["shm"].uniform:
            counts.append(tuple((0, 5, 700)[rank % 3] for rank in range(node.size)))
        for count in counts if node.size > 1 else ():
            for results in ((OUT,), (IN_PLACE, OUT), (IN_PLACE,)):
                spec = Spec(collective, count, root=node.size // 2, results=results)
                made = trial(node, spec, memory_in(node, place))
                made.run(node, next(forms), algorithm="shm")


@SHARED_MEMORY.behaviour(reached=REACHED, min_size=2, fails=True)
def calls_that_differ(comm: Communicator, reached: str) -> None:
    """If calls differ, all ranks of the node raise at once, and no memory is written."""
    with node_of(comm, reached) as shared:
        if shared.size > 1:
            with shared.dup() as node:
                odd = node.rank == node.size - 1
                x = node.empty(1000, np.float32)
                x.fill(node.rank)
                with takes(), raises(RankMismatch, "rank", str(node.size - 1)):
                    node.all_reduce(x[: 1000 - odd], algorithm="shm")
                equal(x, np.full(1000, node.rank, np.float32), "x")
                has_failed(node)
                node.abort()
        comm.barrier()


def meet(comm: Communicator) -> None:
    """Wait until all ranks have come. Collective.

    No rank waits in a blocking call meanwhile. A barrier would be a mismatch while another rank is still in a call that
    waits for this rank, even if only until the deadline of that call.
    """
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    works = [comm.recv(np.empty(1), rank, async_op=True) for rank in others]
    works += [comm.send(np.ones(1), rank, async_op=True) for rank in others]
    happens(lambda: all([work.done() for work in works]), "all ranks come")  # noqa: C419 (each goes on)


@SHARED_MEMORY.behaviour(place=PLACES, min_size=2, fails=True)
def a_rank_that_comes_late(comm: Communicator, place: str) -> None:
    """A rank that begins the call after the other ranks left it does not write to their memory, which may be reused."""
    # `home` stays usable after its duplicate `node` has failed.
    home = comm.node_comm
    node = home.dup()
    late = node.rank == node.size - 1
    x = memory_in(comm, place)("x", 10_000, FLOAT32)
    x.fill(1)
    others: list[Array] = []
    if not late:
        with raises(CollectiveTimeout, "all_reduce"):
            node.all_reduce(x, algorithm="shm", timeout=SHORT)
        del x
        others = [make(10_000, np.float32) for make in (comm.empty, np.empty) for _ in range(4)]
        for other in others:
            other.fill(7)
    meet(home)
    if late and node.size > 1:
        with raises(CommunicationError):
            node.all_reduce(x, algorithm="shm", timeout=SHORT)
    meet(home)
    assert all((other == 7).all() for other in others), "written by the late rank"
