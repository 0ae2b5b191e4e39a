"""Calls whose blocks differ in size: their counts and results."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import CommOptions, Communicator
from hpccomm.errors import BufferMismatch, RankMismatch
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import another, growing

if TYPE_CHECKING:
    from collections.abc import Callable


UNEVEN = Behaviours("uneven")

Counts = tuple[int, ...]


@UNEVEN.behaviour()
def counts_of_any_kind(comm: Communicator) -> None:
    """Counts may be a list, a tuple, a range or an integer array."""
    expected = np.repeat(np.arange(comm.size, dtype=np.int16), range(comm.size))
    mine = np.full(comm.rank, comm.rank, np.int16)
    counts = growing(comm.size)
    for given in (list(counts), counts, range(comm.size), np.array(counts)):
        equal(comm.all_gather_v(mine, given), expected, type(given).__name__)


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
        assert isinstance(told, tuple), f"{what}: counts are {told!r}"
        assert told == counts, f"{what}: counts {told!r}, not {counts}"
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
        lambda: comm.scatter_v(
            wrong[1:] if last else None, comm.size - 1, out=np.ones(2) if last else x.copy()
        ),
    )
    for call in calls:
        with raises(expected):
            call()
    first = [2] + [0] * (comm.size - 1)  # rank 0 gets all rows, and its own out fits
    with raises(BufferMismatch if comm.rank else RankMismatch):
        comm.all_to_all_v(x, first, out=np.ones((2 * comm.size, 3)))
    y = np.ones(1)
    comm.all_reduce(y)
    assert y[0] == comm.size, "a later call"


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
