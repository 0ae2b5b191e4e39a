"""What windows, atomic calls and groups refuse; groups without some ranks, and names of groups."""

from functools import partial
from typing import Any

import numpy as np

from front.misuse import each_is_refused
from hpccomm import Communicator, ReduceOp, WindowOp
from hpccomm.errors import BufferMismatch, RankMismatch, UnsupportedDtype, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import members

WINDOWS = Behaviours("windows", "windows")
GROUPS = Behaviours("groups")


@WINDOWS.behaviour()
def misused_windows(comm: Communicator) -> None:
    """What does not fit is refused where it is, and nothing is written."""
    memory, two = np.full(4, 5.0), np.zeros(2)
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    last = comm.size - 1
    with comm.window(memory) as window:
        fold = partial(window.accumulate, two, last)

        def batched() -> None:
            with comm.batch():
                window.put(two, last)

        rows: list[tuple[Any, ...]] = [
            (BufferMismatch, ("float32", "float64"), window.put, two.astype(np.float32), last),
            (BufferMismatch, ("int64", "float64"), window.put, two.astype(np.int64), last),
            (UsageError, ("contiguous",), window.put, np.zeros((2, 2))[:, 0], last),
            (UsageError, ("read-only",), window.get, frozen, last),
            (UnsupportedDtype, ("AVG", "SUM"), partial(fold, op=ReduceOp.AVG)),
            (UnsupportedDtype, ("band",), partial(fold, op=ReduceOp.BAND)),
            (UsageError, ("index",), window.signal, last, -1),
            (UsageError, ("timeout",), partial(window.put, two, last, timeout=-1.0)),
            (UsageError, ("batch",), batched),
        ]
        for call in (window.put, window.get, window.accumulate):
            for offset in (3, -1, 1 << 40):
                words = ("offset", str(offset), "2 elements", "has 4")
                rows.append((BufferMismatch, words, call, two, last, offset))
        for value in (1.5, "1", None):
            rows.append((UsageError, ("offset",), window.put, two, last, value))
            rows.append((UsageError, ("index",), window.signal, last, value))
        for rank in (comm.size, -1, None):
            rows.append((UsageError, ("dst",), window.put, two, rank))
            rows.append((UsageError, ("src",), window.wait_signal, rank))
        each_is_refused(comm, rows)
        window.put(frozen + 5.0, comm.rank)
        window.fence()
        equal(memory, np.full(4, 5.0))


@WINDOWS.behaviour()
def misused_atomics(comm: Communicator) -> None:
    """What does not fit is refused where it is, and nothing is written."""
    memory, both = np.full(4, 5, np.int16), np.zeros(3, np.int16)
    x, last = np.zeros(2, np.int16), comm.size - 1
    with comm.window(memory) as window:
        fetch, swap, fold = window.fetch_and_op, window.compare_and_swap, window.accumulate
        no_op = partial(fold, x, last, op=WindowOp.NO_OP)
        words = ("WindowOp.REPLACE", "ReduceOp.SUM")
        rows: list[tuple[Any, ...]] = [
            (BufferMismatch, ("x has 2 elements", "one"), swap, x, 1, last),
            (BufferMismatch, ("compare has 2 elements", "one"), swap, 1, x, last),
            (BufferMismatch, ("offset", "has 4"), fetch, x, last, 3),
            (BufferMismatch, ("offset", "has 4"), swap, 1, 1, last, 4),
            (BufferMismatch, ("int16", "int32"), fetch, np.zeros(2, np.int32), last),
            (BufferMismatch, ("int16", "float64"), fetch, np.zeros(2), last),
            (UsageError, ("NO_OP", "fetch_and_op"), no_op),
            (UsageError, words, comm.all_reduce, x, WindowOp.REPLACE),
            (BufferMismatch, ("out has 3",), partial(fetch, x, last, out=both)),
            (UsageError, ("overlap",), partial(fetch, both[:2], last, out=both[1:])),
            (UsageError, ("read-only",), partial(fetch, x, last, out=np.broadcast_to(x[:1], 2))),
        ]
        for number in (1.5, 1 << 15, -(1 << 15) - 1, 1j, np.float64(1.0)):
            rows.append((UsageError, ("x is", "int16"), fetch, number, last))
            rows.append((UsageError, ("compare is", "int16"), swap, 1, number, last))
        for op in (np.hypot, [1], "sum", ReduceOp.AVG):
            error = UnsupportedDtype if op is ReduceOp.AVG else UsageError
            rows += [(error, ("op",), partial(call, x, last, op=op)) for call in (fetch, fold)]
        each_is_refused(comm, rows)
        window.fence()
        equal(memory, np.full(4, 5, np.int16))


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
    if comm.size > 1:  # ranks that list others
        with raises(RankMismatch, "split_ranks", "[0, 1]"):
            comm.split_ranks([0] if comm.rank == comm.size - 1 else [0, 1])
    assert comm.all_gather_object(comm.rank) == everyone, "afterwards"


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
    # Nobody excluded, oneself, or what is no rank.
    mine = comm.rank
    wrong = ([], [mine], [0, mine], [comm.size], [-1], ["0"], [1.5], 1, None)
    each_is_refused(comm, ((UsageError, ("exclude",), comm.shrink, each) for each in wrong))


@GROUPS.behaviour()
def names(comm: Communicator) -> None:
    """A group takes the name given, and has one of its own without."""
    for group in (comm.split(0, name="mine"), comm.split_ranks(range(comm.size), name="mine")):
        assert group is not None
        with group:
            assert "mine" in group.name, group.name
    with comm.dup() as first, comm.dup() as second:
        assert len({comm.name, first.name, second.name}) == 3, "names tell groups apart"
