"""What windows, atomic calls, receives from any sender, groups and others refuse, and the names of groups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import ANY, ReduceOp, WindowOp
from hpccomm.errors import (
    BackendUnavailable,
    BufferMismatch,
    HpccommError,
    RankMismatch,
    UnsupportedDtype,
    UsageError,
)
from hpccomm.testing.conformance import capabilities
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.groups import members

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

WINDOWS = Behaviours("windows", capabilities.WINDOWS)
ATOMICS = Behaviours("atomics", capabilities.WINDOWS)
ARRIVALS = Behaviours("arrivals", capabilities.ARRIVALS)
NEIGHBORS = Behaviours("neighbors")
GROUPS = Behaviours("groups")
REGISTERED = Behaviours("registered")


def each_is_refused(*rows: tuple[Any, ...]) -> None:
    """Assert of each row that its call raises its error: the error, words of it in a tuple, the call, and arguments."""
    for error, words, call, *arguments in rows:
        with raises(error, *words):
            call(*arguments)


@WINDOWS.behaviour()
def misused_windows(comm: Communicator) -> None:
    """What does not fit is refused where it is, and nothing is written."""
    memory = np.full(4, 5.0)
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with comm.window(memory) as window:
        last = comm.size - 1
        for offset in (3, -1, 1 << 40):
            for call in (window.put, window.get, window.accumulate):
                with raises(BufferMismatch, "offset", str(offset), "2 elements", "has 4"):
                    call(np.zeros(2), last, offset)
        for value in (1.5, "1", None):
            with raises(UsageError, "offset"):
                window.put(np.zeros(2), last, value)  # type: ignore[arg-type]  # misuse
            with raises(UsageError, "index"):
                window.signal(last, value)  # type: ignore[arg-type]  # misuse
        for rank in (comm.size, -1, None):
            with raises(UsageError, "dst"):
                window.put(np.zeros(2), rank)  # type: ignore[arg-type]  # misuse
            with raises(UsageError, "src"):
                window.wait_signal(rank)  # type: ignore[arg-type]  # misuse
        two = np.zeros(2)
        fold = partial(window.accumulate, two, last)
        each_is_refused(
            (BufferMismatch, ("float32", "float64"), window.put, two.astype(np.float32), last),
            (UsageError, ("contiguous",), window.put, np.zeros((2, 2))[:, 0], last),
            (UsageError, ("read-only",), window.get, frozen, last),
            (UnsupportedDtype, ("AVG", "SUM"), partial(fold, op=ReduceOp.AVG)),
            (UnsupportedDtype, ("band",), partial(fold, op=ReduceOp.BAND)),
            (UsageError, ("index",), window.signal, last, -1),
            (UsageError, ("timeout",), partial(window.put, two, last, timeout=-1.0)),
        )
        window.put(frozen + 5.0, comm.rank)
        with comm.batch(), raises(UsageError, "batch"):
            window.put(np.zeros(2), last)
        window.fence()
        equal(memory, np.full(4, 5.0))


@ATOMICS.behaviour()
def misused_atomics(comm: Communicator) -> None:
    """What does not fit is refused where it is, and nothing is written."""
    memory = np.full(4, 5, np.int16)
    x = np.zeros(2, np.int16)
    last = comm.size - 1
    with comm.window(memory) as window:
        fetch, swap = window.fetch_and_op, window.compare_and_swap
        for number in (1.5, 1 << 15, -(1 << 15) - 1, 1j, np.float64(1.0)):
            with raises(UsageError, "x is", "int16"):
                fetch(number, last)
            with raises(UsageError, "compare is", "int16"):
                swap(1, number, last)
        for array in (np.zeros(2, np.int32), np.zeros(2)):
            with raises(BufferMismatch, "int16", str(array.dtype)):
                fetch(array, last)
        each_is_refused(
            (BufferMismatch, ("x has 2 elements", "one"), swap, x, 1, last),
            (BufferMismatch, ("compare has 2 elements", "one"), swap, 1, x, last),
            (BufferMismatch, ("offset", "has 4"), fetch, x, last, 3),
            (BufferMismatch, ("offset", "has 4"), swap, 1, 1, last, 4),
        )
        for op, error in (
            (ReduceOp.AVG, UnsupportedDtype),
            (np.hypot, UsageError),
            ([1], UsageError),
            ("sum", UsageError),
        ):
            with raises(error, "op"):
                fetch(x, last, op=op)  # type: ignore[arg-type]  # misuse
            with raises(error, "op"):
                window.accumulate(x, last, op=op)  # type: ignore[arg-type]  # misuse
        both, no_op = np.zeros(3, np.int16), WindowOp.NO_OP
        words = ("WindowOp.REPLACE", "ReduceOp.SUM")
        each_is_refused(
            (UsageError, ("NO_OP", "fetch_and_op"), partial(window.accumulate, x, last, op=no_op)),
            (UsageError, words, comm.all_reduce, x, WindowOp.REPLACE),
            (BufferMismatch, ("out has 3",), partial(fetch, x, last, out=both)),
            (UsageError, ("overlap",), partial(fetch, both[:2], last, out=both[1:])),
        )
        window.fence()
        equal(memory, np.full(4, 5, np.int16))


@ARRIVALS.behaviour()
def misused_arrivals(comm: Communicator) -> None:
    """What does not fit is refused where it is."""
    out = np.empty(2)
    for value in (comm.size, -1, "any", None):
        with raises(UsageError, "src"):
            comm.probe(value)  # type: ignore[arg-type]  # misuse
    for tag in (-1, 1.5, None):
        with raises(UsageError, "tag"):
            comm.probe(ANY, tag)  # type: ignore[arg-type]  # misuse
        with raises(UsageError, "tag"):
            comm.recv(out, ANY, tag)  # type: ignore[arg-type]  # misuse
    each_is_refused(
        (UsageError, ("block",), partial(comm.probe, block=1)),
        (UsageError, ("dst", "ANY"), comm.send, out, ANY),
        (UsageError, ("src", "ANY"), comm.send_recv, out, 0, np.empty(2), ANY),
        (UsageError, ("async_op is 2",), partial(comm.recv, out, ANY, async_op=2)),
        (UsageError, ("stream", "give out, src and tag"), partial(comm.recv, out, ANY, stream=1)),
        (UsageError, ("contiguous",), comm.recv, np.empty((2, 2))[:, 0], ANY),
    )
    for call in (partial(comm.recv, out, ANY), comm.probe):
        with comm.batch(), raises(UsageError, "batch"):
            call()
    comm.barrier()


@NEIGHBORS.behaviour()
def misused_neighbors(comm: Communicator) -> None:
    """Arguments that do not fit are refused before anything is sent; the communicator goes on."""
    x, rank, size = np.zeros(4), comm.rank, comm.size
    refused: tuple[tuple[type[HpccommError], tuple[str, ...], tuple[Any, ...]], ...] = (
        (UsageError, ("peers", "sequence"), (x, 3)),
        (UsageError, ("peers[1]", str(size)), (x, [rank, size])),
        (UsageError, ("peers[0]",), (x, [0.5])),
        (UsageError, ("divisible", "3 peers"), (x, [rank] * 3)),
        (UsageError, ("0-d",), (np.zeros(()), [rank])),
        (UsageError, ("x", "peers"), (x, [])),
        (UsageError, ("send_counts", "2"), (x, [rank] * 2, [1])),
        (UsageError, ("recv_counts", "send_counts"), (x, [rank], None, [1])),
        (BufferMismatch, ("send_counts", "5"), (x, [rank], [5], [5])),
        (UsageError, ("send_counts[0]", "itself"), (x, [rank], [4], [2])),
    )
    for error, words, arguments in refused:
        with raises(error, *words):
            comm.neighbor_all_to_all(*arguments)
    with raises(BufferMismatch, "out"):
        comm.neighbor_all_to_all(x, [rank], out=np.zeros(3))
    with raises(UsageError, "overlap"):
        comm.neighbor_all_to_all(x[:2], [rank], out=x[1:3])
    equal(comm.neighbor_all_to_all(x, [rank]), x)


@GROUPS.behaviour()
def split_misuse(comm: Communicator) -> None:
    """A rank whose arguments do not fit gets `UsageError`, the others `RankMismatch`; all go on."""
    everyone = list(range(comm.size))
    by_ranks, by_color = (comm.split_ranks, everyone), (comm.split, 0)
    wrong: tuple[tuple[tuple[Any, ...], str, str, tuple[Any, ...]], ...] = (
        (by_color, "color", "1.5", (1.5,)),
        (by_color, "key", "'a'", (0, "a")),
        (by_ranks, "ranks", str(comm.size), ([comm.size],)),
        (by_ranks, "ranks", "[0, 0]", ([0, 0],)),
        (by_ranks, "ranks", "[]", ([],)),
        (by_ranks, "ranks", "3", (3,)),
    )
    for (call, fits), name, value, arguments in wrong:
        if comm.rank == comm.size - 1:
            with raises(UsageError, name, value):
                call(*arguments)
        else:
            with raises(RankMismatch, "split", str(comm.size - 1)):
                call(fits)
    assert comm.all_gather_object(comm.rank) == everyone, "afterwards"


@GROUPS.behaviour(min_size=2)
def split_ranks_that_differ(comm: Communicator) -> None:
    """Ranks that list others get the error, on all ranks."""
    with raises(RankMismatch, "split_ranks", "[0, 1]"):
        comm.split_ranks([0] if comm.rank == comm.size - 1 else [0, 1])
    comm.barrier()


@GROUPS.behaviour(min_size=2)
def shrink(comm: Communicator) -> None:
    """The remaining ranks make a communicator, in their order, which can shrink too; the others do nothing."""
    everyone = range(comm.size)
    for excluded in ([0], (comm.size - 1,), {*everyone} - {0}, everyone[1::2]):
        # A parent whose ranks no longer count the same groups makes no more of them.
        with comm.dup() as parent:
            if comm.rank not in excluded:
                stay = [rank for rank in everyone if rank not in excluded]
                with parent.shrink(excluded) as group:
                    assert members(group, comm) == stay, f"without {excluded}"
                    if group.rank:
                        with group.shrink([0], name="twice") as fewer:
                            assert fewer.name == "twice", fewer.name
                            assert members(fewer, comm) == stay[1:], "shrunk again"


@GROUPS.behaviour(min_size=2)
def shrink_misuse(comm: Communicator) -> None:
    """Nobody excluded, oneself, or what is no rank is refused. Local."""
    other = (comm.rank + 1) % comm.size
    for excluded in ([], [comm.rank], [other, comm.rank], [comm.size], [-1], ["0"], [1.5], 1, None):
        with raises(UsageError, "exclude"):
            comm.shrink(excluded)  # type: ignore[arg-type]
    comm.barrier()


@GROUPS.behaviour()
def names(comm: Communicator) -> None:
    """A group takes the name given, and has one of its own without."""
    for group in (comm.split(0, name="mine"), comm.split_ranks(range(comm.size), name="mine")):
        assert group is not None
        with group:
            assert "mine" in group.name, group.name
    with comm.dup() as first, comm.dup() as second:
        assert len({comm.name, first.name, second.name}) == 3, "names tell groups apart"


@REGISTERED.behaviour()
def empty_misused(comm: Communicator) -> None:
    """What is no shape or no dtype, or cannot be had, is refused. Local."""
    if comm.rank == comm.size - 1:
        for shape in (-1, (2, -1), 1.5, "3", None):
            with raises(UsageError, "shape", repr(shape)):
                comm.empty(shape, np.float32)  # type: ignore[arg-type]
        wrong: tuple[Any, ...] = (object, "no_such", np.dtype([("a", object)]), None)
        for dtype in wrong:
            with raises(UsageError, "dtype"):
                comm.empty(3, dtype)
        with raises(UsageError, "native byte order"):
            comm.empty(3, np.dtype(np.float32).newbyteorder())
        if comm.backends["cuda"] is None:
            with raises(BackendUnavailable, "device"):
                comm.empty(3, np.float32, device=0)
    comm.barrier()
