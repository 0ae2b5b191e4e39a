"""Cases: calls whose blocks differ in size: counts are rows of axis 0, one a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import CommOptions, ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.inputs import MOVABLE, OPS, RECORD, ranks_for
from hpccomm.testing.conformance.oracle import FLAT, IN_PLACE, NEW, OUT, SEMANTICS, Spec
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

MOVING = ("all_gather", "gather", "scatter", "all_to_all")

RESTS = ((), (3,), (2, 0))
"""The shape behind axis 0."""


def dtypes_for(counts: Counts, exchanged: bool) -> tuple[np.dtype[Any], ...]:
    """Every dtype, but one for the long arrays, and three where the exchange is in question."""
    if max(counts) > 100:
        return (np.dtype(np.int32),)
    return (np.dtype(np.float32), BFLOAT16, RECORD) if exchanged else MOVABLE


@UNEVEN.behaviour(
    called="{collective}_v", collective=MOVING, of=COUNTS, exchanged=(False, True), rest=RESTS
)
def moved(
    comm: Communicator,
    collective: str,
    of: Callable[[int], Counts],
    exchanged: bool,
    rest: tuple[int, ...],
) -> None:
    """Rows arrive in a new array or in `out`, with counts given or exchanged.

    Where counts of a scatter are exchanged, the rows of each rank's `out` are they.
    """
    counts, meaning = of(comm.size), SEMANTICS[collective]
    rooted = meaning.root_gives or meaning.root_gets
    results: tuple[str, ...] = (NEW, OUT, FLAT)
    if collective == "scatter":  # the rows of `out` count there
        results = (OUT,) if exchanged else (NEW, OUT)
    for dtype in dtypes_for(counts, exchanged):
        for root in ranks_for(dtype, comm.size) if rooted else [0]:
            for result in results:
                how: dict[str, Any] = {"results": (result,), "exchanged": exchanged}
                carry_out(comm, Spec(collective, counts, dtype, root=root, rest=rest, **how))


@UNEVEN.behaviour(op=OPS)
def reduce_scatter_v(comm: Communicator, op: ReduceOp) -> None:
    """Each rank gets its rows of the reduction, in a new array or in `out`."""
    for dtype in dtypes_of(op):
        for result in (NEW, FLAT):
            counts = growing(comm.size)
            spec = Spec("reduce_scatter", counts, dtype, op, results=(result,), rest=(2,))
            carry_out(comm, spec)


@UNEVEN.behaviour(of=COUNTS)
def reduce_scatter_v_of_any_counts(comm: Communicator, of: Callable[[int], Counts]) -> None:
    """Some ranks, or all, may get nothing, and some more than a segment."""
    for dtype in (np.dtype(np.int32), BFLOAT16):
        spec = Spec("reduce_scatter", of(comm.size), dtype, results=(NEW,), rest=(2,))
        carry_out(comm, spec)


@UNEVEN.behaviour(of=COUNTS, asynchronous=(False, True))
def own_blocks(comm: Communicator, of: Callable[[int], Counts], asynchronous: bool) -> None:
    """In place at the own block, at any offset that uneven blocks give it."""
    for collective in ("all_gather", "gather", "reduce_scatter", "scatter"):
        root, counts = comm.size - 1, of(comm.size)
        spec = Spec(collective, counts, root=root, results=(IN_PLACE,), rest=(2,))
        carry_out(comm, spec, FORMS[asynchronous])


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
    """Out may be x if it sends and receives equally many rows, in blocks of any sizes."""
    for exchanged in (False, True):
        how: dict[str, Any] = {"results": (IN_PLACE,), "exchanged": exchanged}
        carry_out(comm, Spec("all_to_all", growing(comm.size), np.dtype("i8"), rest=(3,), **how))
