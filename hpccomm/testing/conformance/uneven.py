"""Calls whose blocks differ in size: counts are rows of axis 0, one a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import CommOptions, ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import BufferMismatch, RankMismatch, UsageError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.inputs import MOVABLE, OPS, RECORD, ranks_for
from hpccomm.testing.conformance.oracle import FLAT, IN_PLACE, MEANINGS, NEW, OUT, Ask
from hpccomm.testing.conformance.reductions import dtypes_of
from hpccomm.testing.conformance.trials import FORMS, carry_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

UNEVEN = Behaviours("uneven")

Counts = tuple[int, ...]


def growing(size: int) -> Counts:
    """0, 1, 2, ... rows."""
    return tuple(range(size))


def only_the_last(size: int) -> Counts:
    """All rows on one rank."""
    return (*[0] * (size - 1), 4)


def none(size: int) -> Counts:
    """No rows at all."""
    return (0,) * size


def long(size: int) -> Counts:
    """Rows for more than one segment, on every other rank."""
    return tuple(20_001 * (rank % 2) + 1 for rank in range(size))


COUNTS = (growing, only_the_last, none, long)

RESTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "all_gather": ((), (3,), (2, 0)),
    "gather": ((2,),),
    "scatter": ((2,),),
    "all_to_all": ((), (3,), (2, 0)),
}
"""The calls that move data, and what follows axis 0."""


def dtypes_for(counts: Counts, exchanged: bool) -> tuple[np.dtype[Any], ...]:
    """Every dtype, but one for the long arrays, and three where the exchange is in question."""
    if max(counts) > 100:
        return (np.dtype(np.int32),)
    return (np.dtype(np.float32), BFLOAT16, RECORD) if exchanged else MOVABLE


@UNEVEN.behaviour(
    called="{collective}_v", collective=tuple(RESTS), of=COUNTS, exchanged=(False, True)
)
def moved(
    comm: Communicator, collective: str, of: Callable[[int], Counts], exchanged: bool
) -> None:
    """Rows arrive in a new array or in `out`, with counts given or exchanged.

    Where counts of a scatter are exchanged, the rows of each rank's `out` are they.
    """
    counts, meaning = of(comm.size), MEANINGS[collective]
    rooted = meaning.root_gives or meaning.root_gets
    results: tuple[str, ...] = (NEW, OUT, FLAT)
    if collective == "scatter":  # the rows of `out` count there
        results = (OUT,) if exchanged else (NEW, OUT)
    for dtype in dtypes_for(counts, exchanged):
        for root in ranks_for(dtype, comm.size) if rooted else [0]:
            for rest in RESTS[collective]:
                for result in results:
                    how: dict[str, Any] = {"results": (result,), "exchanged": exchanged}
                    carry_out(comm, Ask(collective, counts, dtype, root=root, rest=rest, **how))


@UNEVEN.behaviour(op=OPS)
def reduce_scatter_v(comm: Communicator, op: ReduceOp) -> None:
    """Each rank gets its rows of the reduction, in a new array or in `out`."""
    for dtype in dtypes_of(op):
        for result in (NEW, FLAT):
            counts = growing(comm.size)
            ask = Ask("reduce_scatter", counts, dtype, op, results=(result,), rest=(2,))
            carry_out(comm, ask)


@UNEVEN.behaviour(of=COUNTS)
def reduce_scatter_v_of_any_counts(comm: Communicator, of: Callable[[int], Counts]) -> None:
    """Some ranks, or all, may get nothing, and some more than a segment."""
    for dtype in (np.dtype(np.int32), BFLOAT16):
        ask = Ask("reduce_scatter", of(comm.size), dtype, results=(NEW,), rest=(2,))
        carry_out(comm, ask)


@UNEVEN.behaviour()
def reduce_scatter_v_by_premultiplied_sum(comm: Communicator) -> None:
    """`premul_sum` goes with uneven blocks too."""
    op = hpccomm.premul_sum(0.5)
    carry_out(comm, Ask("reduce_scatter", growing(comm.size), op=op, results=(NEW,)))


@UNEVEN.behaviour(of=COUNTS, asynchronous=(False, True))
def own_blocks(comm: Communicator, of: Callable[[int], Counts], asynchronous: bool) -> None:
    """In place at the own block, wherever uneven blocks put it."""
    for collective in ("all_gather", "gather", "reduce_scatter", "scatter"):
        root, counts = comm.size - 1, of(comm.size)
        ask = Ask(collective, counts, root=root, results=(IN_PLACE,), rest=(2,))
        carry_out(comm, ask, FORMS[asynchronous])


@UNEVEN.behaviour(min_size=3)
def ranks_with_little_and_with_much(comm: Communicator) -> None:
    """Ranks take the same way in all_to_all_v, however many elements each of them has."""
    size = comm.size
    table = np.ones((size, size), np.int64)
    table[0, 1] = table[1, 0] = 1000
    send, recv = (tuple(map(int, each)) for each in (table[comm.rank], table[:, comm.rank]))
    x = np.repeat(np.arange(size, dtype=np.float32), send) + 100 * comm.rank
    expected = np.repeat(100 * np.arange(size, dtype=np.float32), recv) + comm.rank
    with another(comm, options=CommOptions(self_check=False, segment=64)) as small:
        equal(small.all_to_all_v(x, send, recv), expected, "call")
        equal(small.plan("all_to_all_v", x, send, recv)(), expected, "plan")


@UNEVEN.behaviour()
def all_to_all_v_in_place(comm: Communicator) -> None:
    """Out may be x where as many rows come as go, even if in blocks of other sizes."""
    for exchanged in (False, True):
        how: dict[str, Any] = {"results": (IN_PLACE,), "exchanged": exchanged}
        carry_out(comm, Ask("all_to_all", growing(comm.size), np.dtype(np.int64), rest=(3,), **how))


@UNEVEN.behaviour()
def counts_of_any_kind(comm: Communicator) -> None:
    """Counts may be a list, a tuple, a range or an integer array."""
    expected = np.repeat(np.arange(comm.size, dtype=np.int16), range(comm.size))
    mine = np.full(comm.rank, comm.rank, np.int16)
    counts = growing(comm.size)
    for given in (list(counts), counts, range(comm.size), np.array(counts)):
        equal(comm.all_gather_v(mine, given), expected, type(given).__name__)


@UNEVEN.behaviour()
def uneven_calls_may_be_asynchronous(comm: Communicator) -> None:
    """`async_op=True` with exchanged counts as well, while others are under way."""
    x = np.full(comm.rank, comm.rank)
    works = [comm.all_gather_v(x, given, async_op=True) for given in (None, growing(comm.size))]
    send = [comm.rank] * comm.size
    works.append(comm.all_to_all_v(np.repeat(x, comm.size), send, async_op=True))
    for work in works:
        equal(work.wait(), np.repeat(np.arange(comm.size), range(comm.size)))


@UNEVEN.behaviour()
def counts_are_returned(comm: Communicator) -> None:
    """`return_counts=True` gives a pair of the result and the counts, in each form of a call."""
    rank, size = comm.rank, comm.size
    rows = growing(size)
    mine, gathered = np.full(rank, rank), np.repeat(np.arange(size), rows)
    root = size - 1
    at_root = rank == root
    sent = (rank,) * size
    blocks = np.repeat(np.arange(size), sent)
    arrived = np.full(sum(rows), rank)

    def holds(outcome: Any, expected: Any, counts: Counts, what: str) -> None:
        result, told = outcome
        assert told == counts and isinstance(told, tuple), f"{what}: counts {told!r}, not {counts}"
        if expected is None:
            assert result is None, f"{what}: {result!r} instead of None"
        else:
            equal(result, expected, what)

    def out() -> Any:
        return np.empty(rank, np.int64)

    # The name of the call, its arguments without counts and with all, and what comes.
    calls: tuple[tuple[str, dict[str, Any], dict[str, Any], Any, Counts], ...] = (
        ("all_gather_v", {"x": mine}, {"counts": rows}, gathered, rows),
        (
            "gather_v",
            {"x": mine, "root": root},
            {"counts": rows},
            gathered if at_root else None,
            rows,
        ),
        (
            "scatter_v",
            {"x": gathered if at_root else None, "root": root, "out": out()},
            {"counts": rows},
            mine,
            rows,
        ),
        ("all_to_all_v", {"x": blocks, "send_counts": sent}, {"recv_counts": rows}, arrived, rows),
    )
    for name, arguments, listed, expected, counts in calls:
        call = getattr(comm, name)
        arguments["return_counts"] = True
        holds(call(**arguments), expected, counts, f"{name}, exchanged")
        holds(call(**arguments, **listed), expected, counts, f"{name}, given")
        holds(call(**arguments, async_op=True).wait(), expected, counts, f"{name}, asynchronous")
        planned = comm.plan(name, **arguments, **listed)
        for _ in range(2):
            holds(planned(), expected, counts, f"{name}, planned")
        into = None if expected is None else np.empty_like(expected)
        with comm.batch():
            outcome = call(**{**arguments, **listed, "out": into})
        holds(outcome, expected, counts, f"{name}, in a batch")
        # Who asks for the counts is told, and the others are not.
        result = call(**{**arguments, "return_counts": bool(rank % 2)})
        assert isinstance(result, tuple) == bool(rank % 2), f"{name}, on some ranks: {result!r}"
    x = np.full((sum(rows), 2), 1)
    holds(
        comm.reduce_scatter_v(x, rows, return_counts=True),
        np.full((rank, 2), size),
        rows,
        "reduce_scatter_v",
    )
    peers = [(rank - 1) % size, (rank + 1) % size]
    arguments = {"x": np.full(2 * rank, rank), "peers": peers, "return_counts": True}
    expected = np.repeat(peers, peers)
    told = comm.neighbor_all_to_all(send_counts=[rank, rank], **arguments)
    holds(told, expected, tuple(peers), "neighbor_all_to_all")
    told = comm.neighbor_all_to_all(np.full(6, rank), peers, return_counts=True)
    holds(told, np.repeat(peers, 3), (3, 3), "neighbor_all_to_all, blocks of one size")
    with raises(UsageError, "return_counts", "True"):
        comm.all_gather_v(mine, return_counts=1)  # type: ignore[arg-type]
    comm.barrier()


@UNEVEN.behaviour(min_size=2)
def an_out_that_does_not_fit_what_comes(comm: Communicator) -> None:
    """It shows only once counts were exchanged: that rank is told which, and all others too."""
    last = comm.rank == comm.size - 1
    x = np.ones((2, 3))
    wrong = np.ones((2 * comm.size + 1, 3))
    expected = BufferMismatch if last else RankMismatch
    calls: tuple[Callable[[], object], ...] = (
        lambda: comm.all_gather_v(x, out=wrong if last else None),
        lambda: comm.gather_v(x, comm.size - 1, out=wrong if last else None),
        lambda: comm.all_to_all_v(
            np.ones((2 * comm.size, 3)), [2] * comm.size, out=wrong if last else None
        ),
        lambda: comm.scatter_v(wrong if last else None, comm.size - 1, out=x.copy()),
    )
    for call in calls:
        with raises(expected):
            call()
    y = np.ones(1)
    comm.all_reduce(y)
    assert y[0] == comm.size, "a later call"
