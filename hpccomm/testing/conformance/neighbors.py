"""Blocks that are exchanged with listed peers: who gets which, and what nobody writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import BufferMismatch, HpccommError, RankMismatch, UsageError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.inputs import MOVABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

NEIGHBORS = Behaviours("neighbors")

Peers = list["int | None"]

KEPT = -1
"""What lies where nobody's block will be."""


def line(rank: int, size: int) -> Peers:
    """The ranks beside it; nobody beyond the ends."""
    return [rank - 1 if rank else None, rank + 1 if rank + 1 < size else None]


def circle(rank: int, size: int) -> Peers:
    """The ranks beside it; on one or two ranks one of them twice."""
    return [(rank - 1) % size, (rank + 1) % size]


def grid(rank: int, size: int) -> Peers:
    """Left, right, up and down on a grid two ranks wide; nobody beyond the border."""
    beside = rank ^ 1
    up, down = rank - 2, rank + 2
    return [
        beside if rank % 2 else None,
        beside if rank % 2 == 0 and beside < size else None,
        up if up >= 0 else None,
        down if down < size else None,
    ]


def star(rank: int, size: int) -> Peers:
    """All others at rank 0, which is the only peer of those; most lists have another length."""
    return list(range(1, size)) if rank == 0 else [0]


def double(_rank: int, size: int) -> Peers:
    """Everybody twice, the rank itself among them, and nobody between."""
    return [*range(size), None, *range(size)]


def alone(_rank: int, _size: int) -> Peers:
    """No peers."""
    return []


GRAPHS = (line, circle, grid, star, double, alone)


def rows(source: int, block: int, number: int) -> list[int]:
    """Return the rows that `source` sends in a block: their values tell where they are from."""
    return [1000 * source + 10 * block + row for row in range(number)]


def places(graph: Callable[[int, int], Peers], rank: int, size: int) -> list[int]:
    """Return which of its peer's blocks each block of a rank comes from; 0 where it has no peer."""
    mine, found, seen = graph(rank, size), [], dict[int, int]()
    for peer in mine:
        if peer is None:
            found.append(0)
            continue
        theirs = [block for block, other in enumerate(graph(peer, size)) if other == rank]
        found.append(theirs[seen.get(peer, 0)])
        seen[peer] = seen.get(peer, 0) + 1
    return found


def filled(numbers: Sequence[list[int]], dtype: Any, rest: tuple[int, ...]) -> Array:
    """Return an array whose rows are these numbers, block after block."""
    flat = [number % 120 for block in numbers for number in block]
    array = np.empty((len(flat), *rest), dtype)
    array[...] = np.array(flat).reshape(-1, *(1 for _ in rest)).astype(dtype)
    return array


def always(number: int) -> Callable[[int, int], int]:
    """Return a function that gives each block as many rows."""
    return lambda _source, _block: number


def exchange(
    graph: Callable[[int, int], Peers],
    comm: Communicator,
    number: Callable[[int, int], int],
    dtype: Any = np.float32,
    rest: tuple[int, ...] = (),
) -> tuple[Array, Array, list[int], list[int]]:
    """Return x, the result over `KEPT` rows, and the rows that are sent and received.

    ``number(source, block)`` is how many rows a rank sends in a block.
    """
    rank, size = comm.rank, comm.size
    peers, blocks = graph(rank, size), places(graph, rank, size)
    sent = [rows(rank, block, number(rank, block)) for block in range(len(peers))]
    received = [
        [KEPT] * number(rank, block)
        if peer is None
        else rows(peer, blocks[block], number(peer, blocks[block]))
        for block, peer in enumerate(peers)
    ]
    return (
        filled(sent, dtype, rest),
        filled(received, dtype, rest),
        [len(block) for block in sent],
        [len(block) for block in received],
    )


def kept(like: Array) -> Array:
    """Return an array of `KEPT` rows."""
    return filled([[KEPT] * len(like)], like.dtype, like.shape[1:])


@NEIGHBORS.behaviour(graph=GRAPHS)
def equal_blocks(comm: Communicator, graph: Callable[[int, int], Peers]) -> None:
    """Block j goes to peers[j] and block j comes from it; nobody's block stays as it was in out."""
    peers = graph(comm.rank, comm.size)
    for number, rest in ((1, ()), (3, (2,)), (0, ()), (20_001, ())):
        x, wanted, _, _ = exchange(graph, comm, always(number), rest=rest)
        x.flags.writeable = False
        out = kept(wanted)
        assert comm.neighbor_all_to_all(x, peers, out=out) is out
        equal(out, wanted, f"{number} rows of {rest}")
        work = comm.neighbor_all_to_all(x, peers, out=kept(wanted), async_op=True)
        equal(work.wait(), wanted, "asynchronous")


@NEIGHBORS.behaviour(graph=GRAPHS)
def listed_rows(comm: Communicator, graph: Callable[[int, int], Peers]) -> None:
    """Blocks may differ in their rows, which are exchanged unless both ends list them."""
    peers = graph(comm.rank, comm.size)
    step = 0 if graph is double else 1
    x, wanted, sent, received = exchange(
        graph, comm, lambda source, block: (source + step * block) % 3, rest=(2,)
    )
    out = kept(wanted)
    assert comm.neighbor_all_to_all(x, peers, sent, received, out=out) is out
    equal(out, wanted, "both lists")
    nobody = [peer is None for peer in peers]
    without = np.repeat([not absent for absent in nobody], received).astype(bool)
    got = comm.neighbor_all_to_all(x, peers, sent)
    equal(got, wanted[without], "counts exchanged")


@NEIGHBORS.behaviour(dtype=MOVABLE)
def every_dtype(comm: Communicator, dtype: Any) -> None:
    """Elements arrive as they are."""
    if np.dtype(dtype).kind == "V" and np.dtype(dtype) != BFLOAT16:
        x = np.zeros(2, dtype)
        equal(comm.neighbor_all_to_all(x, circle(comm.rank, comm.size)), x)
        return
    x, wanted, _, _ = exchange(circle, comm, always(2), dtype=dtype)
    equal(comm.neighbor_all_to_all(x, circle(comm.rank, comm.size)), wanted)


@NEIGHBORS.behaviour(graph=(line, circle, grid, double))
def in_place(comm: Communicator, graph: Callable[[int, int], Peers]) -> None:
    """Without another array, nobody's block of x stays what it is; some ranks may be so."""
    peers = graph(comm.rank, comm.size)
    for those in (1, 2):
        x, wanted, _, _ = exchange(graph, comm, always(2))
        absent = np.repeat([peer is None for peer in peers], 2)
        if comm.rank % those == 0:
            wanted[absent] = x[absent]
            out = x
        else:
            out = kept(wanted)
        assert comm.neighbor_all_to_all(x, peers, out=out) is out
        equal(out, wanted, f"every {those}")


@NEIGHBORS.behaviour()
def new_results_begin_with_zeros(comm: Communicator) -> None:
    """Nobody's block of an array that the call makes is zero."""
    peers = line(comm.rank, comm.size)
    got = comm.neighbor_all_to_all(np.full((2, 3), comm.rank + 1, np.float32), peers)
    wanted = np.array([[0.0 if peer is None else peer + 1.0] * 3 for peer in peers], np.float32)
    equal(got, wanted)


@NEIGHBORS.behaviour(graph=(line, double))
def plans_and_batches(comm: Communicator, graph: Callable[[int, int], Peers]) -> None:
    """A plan exchanges what lies in its arrays whenever it is called; a batch takes the call."""
    peers = graph(comm.rank, comm.size)
    x, wanted, _, _ = exchange(graph, comm, always(2))
    out = kept(wanted)
    planned = comm.plan("neighbor_all_to_all", x, peers, out=out)
    for _ in range(2):
        out[...] = kept(wanted)
        planned()
        equal(out, wanted, "plan")
    out[...] = kept(wanted)
    with comm.batch():
        comm.neighbor_all_to_all(x, peers, out=out)
    equal(out, wanted, "batch")
    choice = comm.explain("neighbor_all_to_all", x, peers)
    assert choice.collective == "neighbor_all_to_all", choice


@NEIGHBORS.behaviour(min_size=2)
def plans_find_what_does_not_fit(comm: Communicator) -> None:
    """Lists that are not symmetric, and rows that nobody expects, are told on every rank."""
    crooked = [1] if comm.rank == 0 else []
    with raises(RankMismatch, "rank 0", "rank 1", "1 times", "0 times"):
        comm.plan("neighbor_all_to_all", np.zeros(len(crooked)), crooked)
    pair = {0: [1], 1: [0]}.get(comm.rank, [])
    counts = [2] * len(pair) if comm.rank == 0 else [1] * len(pair)
    with raises(RankMismatch, "sends", "expects"):
        comm.plan("neighbor_all_to_all", np.zeros(sum(counts)), pair, counts, counts)
    comm.barrier()


@NEIGHBORS.behaviour()
def misuse(comm: Communicator) -> None:
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
