"""What a program does beside collectives, beside the same program written with mpi4py.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/messages.py "in flight 512 time" "pipeline 64K time"

A figure is the name of one of `CASES`, with a size within or behind it, and ``time``: the time over mpi4py's. Both programs take turns.
Figures are medians over the rounds, of the slowest rank.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccomm
from contest import program
from contest.program import Ranks
from contest.promises import Figure
from contest.rounds import Call, duration
from hpccomm import Communicator
from hpccomm.units import size

Pair = tuple[Call, Call]
"""The program over hpccomm, and the same over mpi4py."""

Case = Callable[[Communicator, MPI.Intracomm, int], Pair]
"""Makes both programs for messages of so many bytes. Collective."""

Begin = Callable[[np.ndarray], Any]
"""Begins a message."""
Wait = Callable[[Any], object]
"""Waits for one, or for all."""

MICROBATCHES = 8


def _alike(ours: Call, theirs: Call, mine: np.ndarray, other: np.ndarray) -> Pair:
    """Return both programs, which left the same in these arrays when each was called once."""
    ours()
    theirs()
    assert np.array_equal(mine, other)
    return ours, theirs


def _persistent(*phases: list[MPI.Prequest], held: object = None) -> Call:
    """Return a program that starts persistent requests and waits for them, phase by phase; it holds an object."""
    start, wait = MPI.Prequest.Startall, MPI.Request.Waitall

    def program(_: object = held) -> None:
        for requests in phases:
            start(requests)
            wait(requests)

    return program


def _ends(comm: Communicator, nbytes: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the rank that this one exchanges with, as ranks are in pairs, and two arrays of so many bytes."""
    return comm.rank ^ 1, np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)


def in_flight(
    comm: Communicator, bare: MPI.Intracomm, nbytes: int, *, batched: bool = False
) -> Pair:
    """Each rank begins a send and a receive, and waits for both; or does so in one batch."""
    peer, x, out = _ends(comm, nbytes)

    def ours() -> None:
        received = comm.recv(out, peer, async_op=True)
        sent = comm.send(x, peer, async_op=True)
        received.wait()
        sent.wait()

    def batch() -> None:
        with comm.batch():
            comm.recv(out, peer)
            comm.send(x, peer)

    def theirs() -> None:
        MPI.Request.Waitall([bare.Irecv(out, peer), bare.Isend(x, peer)])

    return batch if batched else ours, theirs


def pipeline(comm: Communicator, bare: MPI.Intracomm, nbytes: int) -> Pair:
    """The first rank of a pair sends activations of microbatches forward, and receives their gradients.

    Each stage multiplies the message with a matrix, as a small layer does.
    """
    peer, first = comm.rank ^ 1, comm.rank % 2 == 0
    shape = rows, columns = 64, max(1, nbytes // 4 // 64)
    weights = np.eye(columns, dtype=np.float32)[:, :rows].copy()
    given, got = ([np.zeros(shape, np.float32) for _ in range(MICROBATCHES)] for _ in range(2))

    def program(send: Begin, receive: Begin, wait: Wait, wait_all: Wait) -> Call:
        """Return the program over calls that begin messages to and from the peer, and wait for them."""

        def step() -> None:
            received, sent = [receive(out) for out in got], []
            for x in given if first else ():
                x @ weights
                sent.append(send(x))
            for x, out, request in zip(given, got, received, strict=True):
                wait(request)
                out @ weights
                if not first:
                    sent.append(send(x))
            wait_all(sent)

        return step

    return program(
        lambda x: comm.send(x, peer, async_op=True),
        lambda out: comm.recv(out, peer, async_op=True),
        lambda work: work.wait(),
        lambda works: [work.wait() for work in works],
    ), program(
        lambda x: bare.Isend(x, peer),
        lambda out: bare.Irecv(out, peer),
        MPI.Request.Wait,
        MPI.Request.Waitall,
    )


def halo(comm: Communicator, bare: MPI.Intracomm, nbytes: int, *, along: int = 1) -> Pair:
    """The ghost cells of a periodic square, with its corners, on a grid of ranks along one axis.

    A face has so many bytes. mpi4py's persistent requests have datatypes of the faces, one axis after the other.
    """
    dims = [comm.size if axis == along else 1 for axis in (0, 1)]
    n = nbytes // 8
    cells = np.random.default_rng(comm.rank).random((n + 2, n + 2))
    u, v = cells.copy(), cells.copy()
    ours = comm.grid(dims, periodic=True).halo(u)
    grid = bare.Create_cart(dims, periods=[True, True])
    phases = []
    for axis in (1, 0):
        before, after = grid.Shift(axis, 1)
        face = [n, 1] if axis else [1, n + 2]
        low, first, last, high = (
            [v, 1, MPI.DOUBLE.Create_subarray(list(v.shape), face, begin).Commit()]
            for at in (0, 1, n, n + 1)
            for begin in [(1, at) if axis else (at, 0)]
        )
        into = [grid.Recv_init(low, before, 1), grid.Recv_init(high, after, 0)]
        phases.append([*into, grid.Send_init(first, before, 0), grid.Send_init(last, after, 1)])
    # Else nobody could read what `ours` gets.
    return _alike(ours, _persistent(*phases, held=u), u, v)


def neighbors(comm: Communicator, bare: MPI.Intracomm, nbytes: int) -> Pair:
    """Each rank exchanges a block with both neighbors."""
    peers = [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size]
    x, out = np.zeros((2, nbytes), np.uint8), np.zeros((2, nbytes), np.uint8)
    graph = bare.Create_dist_graph_adjacent(peers, peers)
    return (
        lambda: comm.neighbor_all_to_all(x, peers, out=out),
        lambda: graph.Neighbor_alltoall(x, out),
    )


def planned(
    comm: Communicator, bare: MPI.Intracomm, nbytes: int, *, steps: Sequence[int] = (-1, 1)
) -> Pair:
    """The same planned, beside persistent requests. On two ranks, all neighbors are the other rank."""
    peers = [(comm.rank + step) % comm.size for step in steps]
    x = np.full((len(peers), nbytes), comm.rank, np.uint8)
    out, into = np.zeros_like(x), np.zeros_like(x)
    requests = [bare.Recv_init(each, peer, 7) for each, peer in zip(into, peers, strict=True)]
    requests += [bare.Send_init(each, peer, 7) for each, peer in zip(x, peers, strict=True)]
    ours = comm.plan("neighbor_all_to_all", x, peers, out=out)
    pair = _alike(ours, _persistent(requests), out, into)
    assert (out == np.array(peers)[:, None]).all()
    return pair


def without_counts(comm: Communicator, bare: MPI.Intracomm, nbytes: int) -> Pair:
    """Each rank gets the rows of all: without counts, beside mpi4py's call with counts."""
    x, out = np.zeros(nbytes, np.uint8), np.zeros(nbytes * comm.size, np.uint8)
    counts = [nbytes] * comm.size
    return lambda: comm.all_gather_v(x), lambda: bare.Allgatherv(x, [out, counts])


def reduced(
    comm: Communicator, bare: MPI.Intracomm, nbytes: int, *, theirs: MPI.Op = MPI.SUM, **how: Any
) -> Pair:
    """A reduction of floats, beside mpi4py's, which keeps no order, and whose maximum is not NaN on all ranks."""
    x, out = np.zeros(nbytes // 8), np.zeros(nbytes // 8)
    return lambda: comm.all_reduce(x, out=out, **how), lambda: bare.Allreduce(x, out, theirs)


def _dictionary(nbytes: int) -> dict[str, Any]:
    """Return a dictionary of five items, one of them a text of so many bytes."""
    return {"step": 1, "rate": 2.5, "text": "x" * nbytes, "state": None, "shape": (1, 2)}


def objects(comm: Communicator, bare: MPI.Intracomm, nbytes: int, *, name: str) -> Pair:
    """A dictionary by a collective."""
    value = [_dictionary(nbytes)] * comm.size if name == "scatter" else _dictionary(nbytes)
    ours = getattr(comm, f"{name}_object")
    theirs = getattr(bare, {"broadcast": "bcast", "all_gather": "allgather"}.get(name, name))
    return lambda: ours(value), lambda: theirs(value)


def there_and_back(
    comm: Communicator, bare: MPI.Intracomm, nbytes: int, *, pickled: bool = False
) -> Pair:
    """A message there and back, each received from any rank; or the same dictionary."""
    peer, x, out = _ends(comm, nbytes)

    def program(send: Call, receive: Call) -> Call:
        first, second = (send, receive) if comm.rank < peer else (receive, send)

        def both() -> None:
            first()
            second()

        return both

    if pickled:
        value = _dictionary(nbytes)
        return (
            program(partial(comm.send_object, value, peer), partial(comm.recv_object, peer)),
            program(partial(bare.send, value, peer), partial(bare.recv, source=peer)),
        )
    return (
        program(partial(comm.send, x, peer), partial(comm.recv, out, hpccomm.ANY)),
        program(partial(bare.Send, x, peer), partial(bare.Recv, out, MPI.ANY_SOURCE)),
    )


def counter(comm: Communicator, bare: MPI.Intracomm, nbytes: int) -> Pair:
    """All ranks count up an integer of rank 0, at the same time."""
    window = comm.window(comm.empty(nbytes // 8, np.int64))
    bare_window = MPI.Win.Allocate(nbytes, 8, comm=bare)
    bare_window.Lock_all()
    one, old = np.ones(1, np.int64), np.empty(1, np.int64)

    def theirs() -> None:
        bare_window.Fetch_and_op(one, old, 0, 0, MPI.SUM)
        bare_window.Flush(0)

    return lambda: window.fetch_and_op(1, 0), theirs


def work_queue(comm: Communicator, bare: MPI.Intracomm, tasks: int) -> Pair:
    """So many empty tasks, drawn from a counter, beside a manager that hands them out."""
    numbers, limit = comm.counter(), 0

    def ours() -> None:
        nonlocal limit
        limit += tasks
        while numbers.next() < limit:
            pass
        limit += comm.size  # each rank has drawn one more

    def theirs() -> None:
        if bare.rank == 0:
            status = MPI.Status()
            for task in [*range(tasks), *[None] * (bare.size - 1)]:
                bare.recv(source=MPI.ANY_SOURCE, status=status)
                bare.send(task, status.Get_source())
            return
        task = 0
        while task is not None:
            bare.send(None, 0)
            task = bare.recv(source=0)

    return ours, theirs


def number(comm: Communicator, bare: MPI.Intracomm, _: int) -> Pair:
    """The sum of a number, such as a norm. The size does not matter."""
    return lambda: comm.all_reduce(0.5), lambda: bare.allreduce(0.5)


def transpose(comm: Communicator, bare: MPI.Intracomm, nbytes: int) -> Pair:
    """A planned transposition of a square matrix whose rows are distributed, as of a parallel FFT.

    Each rank has so many bytes. The program over mpi4py packs by hand.
    """
    size, rows = comm.size, max(1, round((nbytes / 8 / comm.size) ** 0.5))
    x = np.random.default_rng(comm.rank).random((rows, rows * size))
    out, expected = np.empty((rows * size, rows)), np.empty((rows * size, rows))
    blocks, sent = x.reshape(rows, size, rows).transpose(1, 0, 2), np.empty((size, rows, rows))
    ours = comm.plan("all_to_all", x, out=out, axis=(1, 0))

    def theirs() -> None:
        sent[...] = blocks
        bare.Alltoall(sent, expected)

    return _alike(ours, theirs, out, expected)


CASES: Mapping[str, Case] = {
    "in flight": in_flight,
    "batch": partial(in_flight, batched=True),
    "from any": there_and_back,
    "pipeline": pipeline,
    "halo columns": halo,
    "halo rows": partial(halo, along=0),
    "neighbors": neighbors,
    "neighbors planned": planned,
    "exchange plan": partial(planned, steps=(1, -1, 2, -2)),
    "without counts": without_counts,
    "maximum": partial(reduced, theirs=MPI.MAX, op=hpccomm.ReduceOp.MAX),
    "number": number,
    "transpose": transpose,
    "in rank order": partial(reduced, deterministic=True),
    "object broadcast": partial(objects, name="broadcast"),
    "object all_gather": partial(objects, name="all_gather"),
    "object gather": partial(objects, name="gather"),
    "object scatter": partial(objects, name="scatter"),
    "object there and back": partial(there_and_back, pickled=True),
    "counter": counter,
    "work queue": work_queue,
}
"""By name. Another case is a function and a line here, and a promise in ``promises.toml``."""


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure cases. Collective."""
    measured = {}
    for name in names:
        *words, _ = name.split()
        nbytes = next(word for word in words if word[0].isdigit())
        case = " ".join(word for word in words if word != nbytes)
        ours, theirs = ranks.compete(
            *CASES[case](ranks.comm, ranks.bare, size(nbytes)), calls=ranks.request.calls
        )
        says = f"{duration(ours.seconds)}; mpi4py {duration(theirs.seconds)}"
        measured[name] = Figure(ours.over(theirs), says, ours.seconds)
    return measured


if __name__ == "__main__":
    program.on_ranks(
        __doc__,
        "in flight 512 time",
        measure,
        rounds=program.turns(101),
        calls=program.CALLS,
    )
