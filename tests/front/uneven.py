"""Calls whose blocks differ in size: their counts and results."""

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from front.forms import ALL_FORMS, made
from hpccomm import Communicator
from hpccomm.errors import BufferMismatch, RankMismatch
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import growing

if TYPE_CHECKING:
    from collections.abc import Callable


UNEVEN = Behaviours("uneven")

Counts = tuple[int, ...]


@UNEVEN.behaviour()
def counts_are_returned(comm: Communicator) -> None:
    """`return_counts=True` gives a pair of the result and the counts, in each form of a call.

    Counts may be a list, a tuple, a range or an integer array.
    """
    rank, size, root = comm.rank, comm.size, comm.size - 1
    rows, sent = growing(size), (rank,) * size
    mine, every = np.full(rank, rank), np.repeat(np.arange(size), rows)
    at_root = every if rank == root else None
    blocks, arrived = np.repeat(np.arange(size), sent), np.full(sum(rows), rank)

    def holds(outcome: Any, expected: Any, counts: Counts, what: str) -> None:
        result, told = outcome
        assert isinstance(told, tuple), f"{what}: counts are {told!r}"
        assert told == counts, f"{what}: counts {told!r}, not {counts}"
        if expected is None:
            assert result is None, f"{what}: {result!r} instead of None"
        else:
            equal(result, expected, what)

    # The name of the call, its arguments without counts and with all, and what comes.
    scattered = {"x": at_root, "root": root, "out": np.empty_like(mine)}
    exchanged = {"x": blocks, "send_counts": sent}
    calls: tuple[tuple[str, dict[str, Any], dict[str, Any], Any], ...] = (
        ("all_gather_v", {"x": mine}, {"counts": list(rows)}, every),
        ("gather_v", {"x": mine, "root": root}, {"counts": np.array(rows)}, at_root),
        ("scatter_v", scattered, {"counts": range(size)}, mine),
        ("all_to_all_v", exchanged, {"recv_counts": rows}, arrived),
    )
    for name, arguments, listed, expected in calls:
        forms = (("call", {}), ("asynchronous", {}), *product(ALL_FORMS, (listed,)))
        for form, given in forms:
            outcome = made(comm, form, name, **arguments, **given, return_counts=True)
            holds(outcome, expected, rows, f"{name}, {form}, {given}")
        # Who asks for the counts is told, and the others are not.
        result = getattr(comm, name)(**arguments, return_counts=bool(rank % 2))
        assert isinstance(result, tuple) == bool(rank % 2), f"{name}, on some ranks: {result!r}"
    told = comm.reduce_scatter_v(np.full((sum(rows), 2), 1), rows, return_counts=True)
    holds(told, np.full((rank, 2), size), rows, "reduce_scatter_v")
    peers = ((rank - 1) % size, (rank + 1) % size)
    call = partial(comm.neighbor_all_to_all, peers=peers, return_counts=True)
    told = call(np.full(2 * rank, rank), send_counts=[rank, rank])
    holds(told, np.repeat(peers, peers), peers, "neighbor_all_to_all")
    told = call(np.full(6, rank))
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
