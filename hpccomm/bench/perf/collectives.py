"""What each collective moves for a given size, and how it is called.

The sizes are nccl-tests': the size of a case is the larger of what one rank sends and receives in
full, the count is what is passed to the call, and collectives that work on one block a rank round
the block down to a multiple of 16 bytes. Bus bandwidth is size / time times a factor that makes the
figure comparable with the hardware's (nccl-tests, doc/PERFORMANCE.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf.verification import REDUCED, RankSlice
from hpccomm.reductions import Op

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Array = NDArray[Any]
Call = Callable[[], object]
Segments = tuple[RankSlice, ...]

ALIGNMENT = 16
"""Bytes of which a block is a multiple."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What one rank's arrays hold in one case. All numbers are elements, but for `nbytes`.

    Attributes
    ----------
    nbytes : int
        The printed size, in bytes.
    count : int
        The printed count.
    inputs : tuple of RankSlice or None
        What the input array holds; None if this rank has none.
    outputs : tuple of RankSlice or None
        What the output array must hold afterwards; None if this rank has none.
    input_at, output_at : int
        In place: where the input and the output lie in the one array.
    root : int
        The root, or -1.
    send_counts, recv_counts : tuple of int
        Of all_to_all_v.
    """

    nbytes: int
    count: int
    inputs: Segments | None
    outputs: Segments | None
    input_at: int = 0
    output_at: int = 0
    root: int = -1
    send_counts: tuple[int, ...] = ()
    recv_counts: tuple[int, ...] = ()

    @property
    def input_size(self) -> int:
        """Elements of the input array."""
        return sum(segment.count for segment in self.inputs or ())

    @property
    def output_size(self) -> int:
        """Elements of the output array."""
        return sum(segment.count for segment in self.outputs or ())


@dataclass(frozen=True, slots=True)
class Member:
    """Who arranges a case: a rank among ranks, and the root."""

    rank: int
    ranks: int
    root: int

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root


def _block(size: int, itemsize: int, ranks: int) -> int:
    """Return the elements of one rank's block when all blocks together are about `size` bytes."""
    return (size // itemsize // ranks) & ~(ALIGNMENT // itemsize - 1)


def _all_reduce(size: int, itemsize: int, place: Member) -> Layout:
    n = size // itemsize
    return Layout(
        n * itemsize, n, (RankSlice(place.rank, 0, n),), (RankSlice(REDUCED, 0, n),), root=-1
    )


def _reduce(size: int, itemsize: int, place: Member) -> Layout:
    n = size // itemsize
    outputs = (RankSlice(REDUCED, 0, n),) if place.is_root else None
    return Layout(n * itemsize, n, (RankSlice(place.rank, 0, n),), outputs, root=place.root)


def _broadcast(size: int, itemsize: int, place: Member) -> Layout:
    n = size // itemsize
    data = (RankSlice(place.root, 0, n),)
    return Layout(n * itemsize, n, data if place.is_root else None, data, root=place.root)


def _send_recv(size: int, itemsize: int, place: Member) -> Layout:
    n = size // itemsize
    before = (place.rank - 1) % place.ranks
    return Layout(n * itemsize, n, (RankSlice(place.rank, 0, n),), (RankSlice(before, 0, n),))


def _all_gather(size: int, itemsize: int, place: Member) -> Layout:
    n = _block(size, itemsize, place.ranks)
    return Layout(
        n * place.ranks * itemsize,
        n,
        (RankSlice(place.rank, 0, n),),
        tuple(RankSlice(source, 0, n) for source in range(place.ranks)),
        input_at=n * place.rank,
    )


def _gather(size: int, itemsize: int, place: Member) -> Layout:
    n = _block(size, itemsize, place.ranks)
    everything = tuple(RankSlice(source, 0, n) for source in range(place.ranks))
    return Layout(
        n * place.ranks * itemsize,
        n,
        (RankSlice(place.rank, 0, n),),
        everything if place.is_root else None,
        input_at=n * place.rank,
        root=place.root,
    )


def _reduce_scatter(size: int, itemsize: int, place: Member) -> Layout:
    n = _block(size, itemsize, place.ranks)
    return Layout(
        n * place.ranks * itemsize,
        n,
        (RankSlice(place.rank, 0, n * place.ranks),),
        (RankSlice(REDUCED, n * place.rank, n),),
        output_at=n * place.rank,
    )


def _scatter(size: int, itemsize: int, place: Member) -> Layout:
    n = _block(size, itemsize, place.ranks)
    return Layout(
        n * place.ranks * itemsize,
        n,
        (RankSlice(place.rank, 0, n * place.ranks),) if place.is_root else None,
        (RankSlice(place.root, n * place.rank, n),),
        output_at=n * place.rank,
        root=place.root,
    )


def _all_to_all(size: int, itemsize: int, place: Member) -> Layout:
    n = _block(size, itemsize, place.ranks)
    return Layout(
        n * place.ranks * itemsize,
        n,
        (RankSlice(place.rank, 0, n * place.ranks),),
        tuple(RankSlice(source, n * place.rank, n) for source in range(place.ranks)),
    )


def uneven_bytes(total: int, source: int, target: int, ranks: int) -> int:
    """Return the bytes that `source` sends to `target` in all_to_all_v: more to farther ranks.

    It is nccl-tests' generated pattern: in proportion to the distance from source to target,
    rounded down to 16 bytes.
    """
    if ranks == 1:
        return total & ~(ALIGNMENT - 1)
    distance = (target - source) % ranks
    return distance * total // (ranks * (ranks - 1) // 2) & ~(ALIGNMENT - 1)


def _all_to_all_v(size: int, itemsize: int, place: Member) -> Layout:
    ranks = place.ranks
    n = _block(size, itemsize, ranks)
    total = n * ranks * itemsize
    # One row is enough: what a rank sends depends on the distance alone.
    by_distance = [uneven_bytes(total, 0, peer, ranks) // itemsize for peer in range(ranks)]
    send = tuple(by_distance[(peer - place.rank) % ranks] for peer in range(ranks))
    recv = tuple(by_distance[(place.rank - peer) % ranks] for peer in range(ranks))
    outputs = tuple(
        RankSlice(
            source,
            sum(by_distance[(peer - source) % ranks] for peer in range(place.rank)),
            recv[source],
        )
        for source in range(ranks)
    )
    return Layout(
        sum(send) * itemsize,
        n,
        (RankSlice(place.rank, 0, sum(send)),),
        outputs,
        send_counts=send,
        recv_counts=recv,
    )


def _nothing(_size: int, _itemsize: int, _place: Member) -> Layout:
    return Layout(0, 0, None, None)


# --- arguments: x and out are 1-D, None where the rank has none; in place, x is out or part of it --


@dataclass(frozen=True, slots=True)
class Operands:
    """What a rank has for a call."""

    x: Array | None
    out: Array | None
    op: Op | None
    layout: Layout
    place: Member


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call: positional, and by keyword."""


def _with_out(given: Operands) -> Arguments:
    return (given.x,), {"out": given.out}


def _reduced(given: Operands) -> Arguments:
    return (given.x,), {"op": given.op, "out": given.out}


def _reduced_in_place(given: Operands) -> Arguments:
    # In place is what these calls do without `out`.
    in_place = given.out is given.x
    return (given.x,), {"op": given.op, "out": None if in_place else given.out}


def _reduced_to_root(given: Operands) -> Arguments:
    args, keywords = _reduced_in_place(given)
    return args, {"root": given.layout.root, **keywords}


def _to_or_from_root(given: Operands) -> Arguments:
    return (given.x,), {"root": given.layout.root, "out": given.out}


def _broadcast_arguments(given: Operands) -> Arguments:
    return (given.out,), {"root": given.layout.root}


def _uneven(given: Operands) -> Arguments:
    counts = given.layout.send_counts, given.layout.recv_counts
    return (given.x, *counts), {"out": given.out}


def _around(given: Operands) -> Arguments:
    rank, ranks = given.place.rank, given.place.ranks
    return (given.x, (rank + 1) % ranks, given.out, (rank - 1) % ranks), {}


def _none(_given: Operands) -> Arguments:
    return (), {}


def bind(
    comm: "Communicator",
    collective: "Benchmark",
    given: Operands,
    how: dict[str, Any],
    copy: Callable[[Any, Any], None] = np.copyto,
) -> Call:
    """Return the call without arguments; `how` is passed on to it, ``copy(out, x)`` copies an array."""
    args, keywords = collective.arguments(given)
    call: Call = partial(getattr(comm, collective.name), *args, **keywords, **how)
    x, out = given.x, given.out
    if collective.name != "broadcast" or x is None or out is None or x is out:
        return call

    # A broadcast knows no output. Out of place, the root's own copy is part of the work, as it is
    # in NCCL's.
    def copied() -> None:
        copy(out, x)
        call()

    return copied


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One collective, as it is measured.

    Attributes
    ----------
    name : str
        Its name on the communicator.
    arrange : callable
        ``arrange(size, itemsize, place)`` gives the layout of a case.
    arguments : callable
        ``arguments(given)`` gives what the call is made with.
    factor : callable
        ``factor(ranks)`` is bus bandwidth over algorithm bandwidth.
    reduces : bool
        Whether it takes ``-o``.
    names_op : bool
        Whether its lines name the reduction of ``-o`` though nothing is reduced, as those of
        nccl-tests' sendrecv do.
    rooted : bool
        Whether it takes ``-r``.
    moves : bool
        Whether it moves data at all.
    in_place : bool
        Whether it can be called in place.
    algorithms : bool
        Whether it takes ``--algorithm``.
    """

    name: str
    arrange: Callable[[int, int, Member], Layout]
    arguments: Callable[[Operands], Arguments]
    factor: Callable[[int], float]
    reduces: bool = False
    names_op: bool = False
    rooted: bool = False
    moves: bool = True
    in_place: bool = True
    algorithms: bool = True


def _one(_ranks: int) -> float:
    return 1.0


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_all_but_own(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


COLLECTIVES: dict[str, Benchmark] = {
    collective.name: collective
    for collective in (
        Benchmark("all_reduce", _all_reduce, _reduced_in_place, _twice_all_but_own, reduces=True),
        Benchmark("reduce_scatter", _reduce_scatter, _reduced, _all_but_own, reduces=True),
        Benchmark("all_gather", _all_gather, _with_out, _all_but_own),
        Benchmark("broadcast", _broadcast, _broadcast_arguments, _one, rooted=True),
        Benchmark("reduce", _reduce, _reduced_to_root, _one, reduces=True, rooted=True),
        Benchmark("all_to_all", _all_to_all, _with_out, _all_but_own),
        Benchmark("all_to_all_v", _all_to_all_v, _uneven, _all_but_own),
        Benchmark("gather", _gather, _to_or_from_root, _all_but_own, rooted=True),
        Benchmark("scatter", _scatter, _to_or_from_root, _all_but_own, rooted=True),
        Benchmark("send_recv", _send_recv, _around, _one, names_op=True, algorithms=False),
        Benchmark("barrier", _nothing, _none, _one, moves=False, in_place=False),
    )
}
"""Every collective that can be measured, in the order of ``all``."""
