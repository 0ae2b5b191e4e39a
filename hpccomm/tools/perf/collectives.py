"""The collectives that can be measured, with their calls, and the contents of each rank's arrays for a given size.

The calls follow from the descriptions of collectives (`hpccomm.contracts.collectives`).
Bus bandwidth is size / time times a factor that makes the figure comparable with the hardware's
(nccl-tests, doc/PERFORMANCE.md).

Sizes are those of nccl-tests. The size of a case is the larger of the bytes that a rank sends in full and receives in
full. The count is the one passed to the call. Collectives with a block for each rank round the block down to a multiple
of 16 bytes.

Flags, tables and measurements of perf read this list, and so do the importers of logs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS, MEASURED, Collective, counterpart, ring
from hpccomm.reductions import Op
from hpccomm.tools.perf.patterns import REDUCED, RankSlice

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


Segments = tuple[RankSlice, ...]

ALIGNMENT = 16
"""A block is a multiple of this number of bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The contents of one rank's arrays in one case. Numbers are elements, except `nbytes`.

    Attributes
    ----------
    nbytes : int
        The printed size, in bytes.
    count : int
        The printed count.
    inputs : tuple of RankSlice or None
        Contents of the input array; None without an input.
    outputs : tuple of RankSlice or None
        Expected contents of the output array after the call; None without an output.
    input_at, output_at : int
        Offsets of input and output in their common array, if the call is in place.
    send_counts, recv_counts : tuple of int
        The counts of all_to_all_v; empty for other collectives.
    """

    nbytes: int
    count: int
    inputs: Segments | None
    outputs: Segments | None
    input_at: int = 0
    output_at: int = 0
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


class Member(NamedTuple):
    """A rank among the ranks of a case, and the root of the case."""

    rank: int
    ranks: int
    root: int


def layout(collective: Collective, size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of a collective's arrays on one rank.

    Parameters
    ----------
    collective : Collective
        The collective; all its blocks have one size.
    size : int
        Bytes.
    itemsize : int
        Bytes of an element.
    member : Member
        The rank.
    """
    rank, ranks, root = member
    if not collective.moves:
        return Layout(0, 0, None, None)
    peers = ring(rank, ranks) if collective.peers else range(ranks)
    blocks = len(peers) if collective.blockwise else 1
    n = _block(size, itemsize, blocks) if collective.blockwise else size // itemsize

    def received(block: int) -> int:
        """Return where a rank's block is in the input of the peer that sends it."""
        if collective.sends != "blocks":
            return 0
        if not collective.peers:
            return n * rank
        return n * counterpart(rank, block, lambda each: ring(each, ranks))

    inputs = (RankSlice(rank, 0, n * blocks if collective.sends == "blocks" else n),)
    if collective.receives == "blocks":
        outputs = tuple(RankSlice(peer, received(block), n) for block, peer in enumerate(peers))
    else:
        outputs = (RankSlice(REDUCED if collective.reduces else root, received(0), n),)
    own_block = collective.in_place == "own block"
    return Layout(
        n * blocks * itemsize,
        n,
        None if collective.root_sends and rank != root else inputs,
        None if collective.root_receives and rank != root else outputs,
        input_at=n * rank if own_block and collective.sends == "block" else 0,
        output_at=n * rank if own_block and collective.receives == "block" else 0,
    )


def _block(size: int, itemsize: int, blocks: int) -> int:
    """Return the elements of one of `blocks` blocks that together are about `size` bytes."""
    return (size // itemsize // blocks) & ~(ALIGNMENT // itemsize - 1)


def ring_shift(size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of send_recv: each rank sends to the next one."""
    n = size // itemsize
    before = (member.rank - 1) % member.ranks
    return Layout(n * itemsize, n, (RankSlice(member.rank, 0, n),), (RankSlice(before, 0, n),))


def uneven_exchange(size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of all_to_all_v: each rank sends `uneven_bytes` to each rank."""
    rank, ranks, _ = member
    n = _block(size, itemsize, ranks)
    total = n * ranks * itemsize
    # One row of the table of counts is enough: a count depends only on the distance of the two ranks.
    by_distance = [uneven_bytes(total, 0, peer, ranks) // itemsize for peer in range(ranks)]
    send = tuple(by_distance[(peer - rank) % ranks] for peer in range(ranks))
    recv = tuple(by_distance[(rank - peer) % ranks] for peer in range(ranks))
    outputs = tuple(
        RankSlice(
            source, sum(by_distance[(peer - source) % ranks] for peer in range(rank)), recv[source]
        )
        for source in range(ranks)
    )
    inputs = (RankSlice(rank, 0, sum(send)),)
    return Layout(sum(send) * itemsize, n, inputs, outputs, send_counts=send, recv_counts=recv)


def uneven_bytes(total: int, source: int, target: int, ranks: int) -> int:
    """Return the bytes that `source` sends to `target` in all_to_all_v: more to farther ranks.

    It is nccl-tests' generated pattern: in proportion to the distance from source to target,
    rounded down to 16 bytes.
    """
    if ranks == 1:
        return total & ~(ALIGNMENT - 1)
    distance = (target - source) % ranks
    return distance * total // (ranks * (ranks - 1) // 2) & ~(ALIGNMENT - 1)


Array = NDArray[Any]
Call = Callable[[], object]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call: positional, and by keyword."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A rank's arguments for a call.

    Attributes
    ----------
    x, out : array, 1-D, or None
        Input and output; None if the rank has no such array. In place, `x` is `out` or part of it.
    op : ReduceOp, PremulSum or None
        The reduction.
    layout : Layout
        Contents of the arrays.
    member : Member
        The rank.
    in_place : bool
        Whether input and output are in the same memory.
    """

    x: Array | None
    out: Array | None
    op: Op | None
    layout: Layout
    member: Member
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A collective, as it is measured.

    Attributes
    ----------
    name : str
        Name of its method of the communicator.
    what : Collective
        The description of the collective.
    arrange : callable
        ``arrange(size, itemsize, member)`` returns the layout of a case.
    arguments : callable
        ``arguments(operands)`` returns the arguments of the call.
    names_op : bool
        Whether its lines name the reduction of ``-o`` although nothing is reduced, like nccl-tests'
        sendrecv.
    algorithms : bool
        Whether it takes ``--algorithm``.
    steps : callable or None
        ``steps(comm, operands)`` runs an operation that takes several calls of the communicator.
    carried : callable
        ``carried(ranks)`` returns the fraction of the size that counts in algorithm bandwidth.
    possible : callable
        ``possible(ranks)`` returns the reason why it cannot run on this number of ranks; empty if it
        can.
    """

    name: str
    what: Collective
    arrange: Callable[[int, int, Member], Layout]
    arguments: Callable[[Operands], Arguments]
    names_op: bool = False
    algorithms: bool = True
    steps: Callable[["Communicator", Operands], None] | None = None
    carried: Callable[[int], float] = lambda _ranks: 1.0
    possible: Callable[[int], str] = lambda _ranks: ""

    @property
    def in_place(self) -> bool:
        """Whether it can be called in place."""
        return self.what.in_place != "never"


def benchmark(what: Collective) -> Benchmark:
    """Return the benchmark of a collective on blocks of one size."""
    return Benchmark(what.name, what, partial(layout, what), partial(_arguments, what))


def _arguments(what: Collective, operands: Operands) -> Arguments:
    if not what.moves:
        return (), {}
    keywords: dict[str, Any] = {"root": operands.member.root} if what.rooted else {}
    if what.in_place == "always":  # one array, and no output beside it
        return (operands.out,), keywords
    if what.reduces:
        keywords["op"] = operands.op
    peers = (ring(operands.member.rank, operands.member.ranks),) if what.peers else ()
    by_default = what.in_place == "by default" and operands.out is operands.x
    return (operands.x, *peers), {**keywords, "out": None if by_default else operands.out}


def _uneven_arguments(operands: Operands) -> Arguments:
    counts = operands.layout.send_counts, operands.layout.recv_counts
    return (operands.x, *counts), {"out": operands.out}


def _ring_arguments(operands: Operands) -> Arguments:
    rank, ranks = operands.member.rank, operands.member.ranks
    return (operands.x, (rank + 1) % ranks, operands.out, (rank - 1) % ranks), {}


def _across_the_cube(comm: "Communicator", operands: Operands) -> None:
    """Gather from all ranks by exchanges with the neighbors on a hypercube, as nccl-tests' hypercube does.

    In step k, a rank sends its ``2**k`` blocks so far to the rank that has another bit k in its number.
    """
    out, rank, ranks = operands.out, operands.member.rank, operands.member.ranks
    assert out is not None
    count = len(out) // ranks
    step = 1
    while step < ranks:
        own = rank & ~(step - 1)
        others = own ^ step
        sent = out[own * count : (own + step) * count]
        received = out[others * count : (others + step) * count]
        comm.send_recv(sent, rank ^ step, received, rank ^ step)
        step *= 2


def _not_on_a_cube(ranks: int) -> str:
    even = ranks & (ranks - 1) == 0
    return "" if even else f"hypercube takes 2, 4, 8, ... ranks, and there are {ranks}"


_HYPERCUBE = replace(DESCRIPTIONS["all_gather"], name="hypercube", bus_factor=lambda _ranks: 1.0)

_SEND_RECV = Collective("send_recv", "whole", "whole", lambda _ranks: 1.0, "on request")

_UNCOMMON = {
    "all_to_all_v": Benchmark(
        "all_to_all_v", DESCRIPTIONS["all_to_all"], uneven_exchange, _uneven_arguments
    ),
    "send_recv": Benchmark(
        "send_recv",
        _SEND_RECV,
        ring_shift,
        _ring_arguments,
        names_op=True,
        algorithms=False,
    ),
    "hypercube": replace(
        benchmark(_HYPERCUBE),
        algorithms=False,
        steps=_across_the_cube,
        carried=lambda ranks: (ranks - 1) / ranks,
        possible=_not_on_a_cube,
    ),
}
"""Benchmarks whose sizes or arguments do not follow from a description."""

COLLECTIVES = {name: _UNCOMMON.get(name) or benchmark(DESCRIPTIONS[name]) for name in MEASURED}
"""Every collective that can be measured, in the order of ``all``."""


def bind(
    comm: "Communicator",
    collective: Benchmark,
    operands: Operands,
    named: dict[str, Any],
    copy: Callable[[Any, Any], None],
    *,
    planned: bool,
) -> Call:
    """Return the call as a function without arguments.

    `named` holds the name of the algorithm, as an argument of calls that take one. ``copy(out, x)`` copies an array.

    With `planned`, the call is a plan, if the collective has plans; the ranks agree on it here.
    """
    if collective.steps is not None:
        call: Call = partial(collective.steps, comm, operands)
    else:
        args, keywords = collective.arguments(operands)
        call = partial(getattr(comm, collective.name), *args, **keywords, **named)
        if planned:
            call = comm.plan(collective.name, *args, **keywords, **named)
    place = _copied_to(collective, operands)
    if place is None:
        return call

    def copied() -> None:
        copy(place, operands.x)
        call()

    return copied


def _copied_to(collective: Benchmark, operands: Operands) -> Array | None:
    """Return the array to which a rank's input is copied as part of the measured work; None if it is not copied.

    A broadcast has no output: out of place, the root copies its input, as in NCCL. A gathering in several calls begins
    with a copy of the rank's own block, which in place is there already.
    """
    x, out = operands.x, operands.out
    if x is None or out is None or x is out:
        return None
    if collective.steps is None:
        return out if collective.what.in_place == "always" else None
    first = operands.member.rank * len(x)
    return None if operands.in_place else out[first : first + len(x)]
