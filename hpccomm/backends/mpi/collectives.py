"""The MPI library's own collectives.

Each kind of call is bound once, and offered in two forms: `run` blocks in the library, `start`
begins a polled request. A synchronous call blocks. Measured with Open MPI on two ranks, a blocking
call of 8 bytes saves one to two microseconds. Blocking all_reduce, reduce, reduce_scatter and
all_gather are up to five times as fast as polling the non-blocking ones. If ranks share cores or
nodes, the blocking forms have the better algorithms. `hpccomm.dispatch.host` chooses between these
and hpccomm's algorithms.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccomm.backends.mpi.types import INT_MAX, PIECE_BYTES, Reductions, block, one
from hpccomm.contracts.backend import Blocking, Buffer, Native
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request, Steps
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.waiting import completed, polled
from hpccomm.schedules.algorithms.partition import offsets

IN_PLACE = MPI.IN_PLACE
"""Stands for the array that is sent where the result takes its place."""

Arguments = Callable[[Any, Any], tuple[Any, ...]]
"""``arguments(send, recv)`` gives the arguments of mpi4py's method."""

Layout = tuple[Any, MPI.Datatype]
"""The rest of a buffer's description for MPI: counts, offsets and the datatype."""


def native(comm: Any, call: Signature, reductions: Reductions) -> Native | None:
    """Return MPI's own form of `call`, or None."""
    if call.op is None:
        return _movement(comm, call)
    names = reductions.get((call.op, call.dtype)) if isinstance(call.op, ReduceOp) else None
    return None if names is None else _reduction(comm, call, *names)


def _bound(
    comm: Any,
    method: str,
    arguments: Arguments,
    *,
    begun: Arguments | None = None,
    once: bool = True,
    copied: bool = False,
    held: bool = False,
) -> Native:
    """Bind one of mpi4py's methods, and its non-blocking twin.

    Parameters
    ----------
    comm : MPI communicator
        The one that is called.
    method : str
        Name of the blocking method.
    arguments : callable
        Gives the arguments.
    begun : callable, optional
        Gives those of the twin where they differ.
    once : bool
        Whether they depend only on the addresses of the arrays, so that a plan needs them once.
    copied : bool
        Whether the result goes to a buffer of the arguments instead of `recv`, and is copied.
    held : bool
        Whether mpi4py's request keeps its memory alive. It does not for reductions and listed
        counts.
    """
    begin, run = getattr(comm, f"I{method.lower()}"), getattr(comm, method)
    to_begin = begun or arguments

    def start_held(send: Any, recv: Any) -> Request:
        test: Request = begin(*to_begin(send, recv)).Test
        return test

    def start(send: Any, recv: Any) -> Request:
        args = to_begin(send, recv)
        request = begin(*args)

        def test() -> bool:  # it keeps the arguments, and so their memory
            if not request.Test():
                return False
            if copied:
                np.copyto(recv, args[1][0])
            return True

        return test

    def apart(send: Any, recv: Any) -> None:
        args = arguments(send, recv)
        run(*args)
        np.copyto(recv, args[1][0])

    def anew(send: Any, recv: Any) -> None:
        run(*arguments(send, recv))

    begin_all = start_held if held else start
    if copied:
        return Native(begin_all, Blocking(apart))
    return Native(begin_all, Blocking(run, arguments) if once else Blocking(anew))


# Reductions.


def _reduction(comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op) -> Native | None:
    """Bind a reduction by MPI's names of dtype and operation."""
    in_place, root = call.in_place, call.root

    def to_all(send: Any, recv: Any) -> tuple[Any, ...]:
        return [send, send.size, datatype], [recv, recv.size, datatype], op

    def to_all_in_place(_send: Any, recv: Any) -> tuple[Any, ...]:
        return IN_PLACE, [recv, recv.size, datatype], op

    def to_all_from_copy(_send: Any, recv: Any) -> tuple[Any, ...]:
        return [recv.copy(), recv.size, datatype], [recv, recv.size, datatype], op

    def to_root(send: Any, recv: Any) -> tuple[Any, ...]:
        source = IN_PLACE if in_place else [send, send.size, datatype]
        return source, [recv, recv.size, datatype], op, root

    def from_other(send: Any, _recv: Any) -> tuple[Any, ...]:
        return [send, send.size, datatype], None, op, root

    arguments: Arguments = to_all_in_place if in_place else to_all
    match call.collective:
        case "all_reduce":
            # Of more than 64 KiB on 4 ranks and more, Open MPI's Iallreduce goes by binomial trees on
            # ranks that are in place and by reduce-scatter on the others: where ranks differ it hangs.
            begun = to_all_from_copy if in_place and comm.size >= 4 else None
            whole = _bound(comm, "Allreduce", arguments, begun=begun)
        case "reduce":
            arguments = to_root if comm.rank == root else from_other
            whole = _bound(comm, "Reduce", arguments)
        case "scan":
            whole = _bound(comm, "Exscan" if call.exclusive else "Scan", arguments)
        case "reduce_scatter":
            return _reduce_scatter(comm, call, datatype, op)
        case _:
            return None
    return _cut(call, whole)


def _reduce_scatter(
    comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op
) -> Native | None:
    if sum(call.counts) > INT_MAX:
        return None
    own, counts = call.counts[comm.rank], list(call.counts)
    # MPI's own in-place form puts the result elsewhere, so it goes through a separate block. So
    # does an empty block, which may begin at the address of `send`: MPICH rejects that as aliasing.
    separate = call.in_place or not own

    def arguments(send: Any, recv: Any) -> tuple[Any, ...]:
        target = [np.empty(own, call.dtype) if separate else recv, own, datatype]
        if call.uniform:
            # To mpi4py both counts are that of a block here.
            return [send, own, datatype], target, op
        return [send, send.size, datatype], target, counts, op

    method = "Reduce_scatter_block" if call.uniform else "Reduce_scatter"
    return _bound(comm, method, arguments, copied=call.in_place)


def _cut(call: Signature, whole: Native) -> Native:
    """Carry out a call on a large array piece by piece."""
    total = max(1, -(-call.nbytes // PIECE_BYTES))
    if total == 1:
        return whole
    step = PIECE_BYTES // call.dtype.itemsize

    def piece(buffer: Buffer, index: int) -> Buffer:
        return None if buffer is None else buffer[index * step : (index + 1) * step]

    def start(send: Buffer, recv: Buffer) -> Request:
        def steps() -> Steps:
            for index in range(total):
                yield from completed([whole.start(piece(send, index), piece(recv, index))])

        return polled(steps())

    blocking = whole.run
    if blocking is None:
        return Native(start)

    def run(send: Buffer, recv: Buffer) -> None:
        for index in range(total):
            blocking.call(*blocking.arguments(piece(send, index), piece(recv, index)))

    return Native(start, Blocking(run))


# Collectives that move data.


def _movement(comm: Any, call: Signature) -> Native | None:
    """Bind a collective that does not reduce."""
    at_root, root, in_place = comm.rank == call.root, call.root, call.in_place
    match call.collective:
        case "barrier":
            return _bound(comm, "Barrier", lambda _send, _recv: (), held=True)
        case "broadcast":
            count, datatype = block(call.nbytes)

            def broadcast(_send: Any, recv: Any) -> tuple[Any, ...]:
                return [recv, count, datatype], root

            return _bound(comm, "Bcast", broadcast, held=True)
        case "all_to_all" if not call.uniform:
            return _individual(comm, call)
        case "all_gather" | "all_to_all" | "gather" | "scatter":
            layouts = _layouts(call, comm.rank)
        case _:
            return None
    if layouts is None:
        return None
    own, every = layouts

    def all_gather(send: Any, recv: Any) -> tuple[Any, ...]:
        return IN_PLACE if in_place else [send, *own], [recv, *every]

    def all_to_all(send: Any, recv: Any) -> tuple[Any, ...]:
        # A copy each time: not every library takes its own in place here.
        return [send.copy() if in_place else send, *every], [recv, *every]

    def gather(send: Any, recv: Any) -> tuple[Any, ...]:
        source = IN_PLACE if in_place else [send, *own]
        return source, [recv, *every] if at_root else None, root

    def scatter(send: Any, recv: Any) -> tuple[Any, ...]:
        target = IN_PLACE if in_place else [recv, *own]
        return [send, *every] if at_root else None, target, root

    uneven = "" if call.uniform else "v"
    match call.collective:
        case "all_gather":
            return _bound(comm, f"Allgather{uneven}", all_gather, held=call.uniform)
        case "gather":
            return _bound(comm, f"Gather{uneven}", gather, held=call.uniform)
        case "scatter":
            return _bound(comm, f"Scatter{uneven}", scatter, held=call.uniform)
    return _bound(comm, "Alltoall", all_to_all, once=not in_place, held=True)


def _individual(comm: Any, call: Signature) -> Native | None:
    """Bind an all_to_all with a list of its own on each rank.

    MPI's offsets hold 2 GiB, and a rank does not know whether its peers stay below.
    """
    if call.nbytes > INT_MAX:
        return None
    in_place, outward, inward = (
        call.in_place,
        _listed(call, call.counts),
        _listed(call, call.recv_counts),
    )

    def all_to_all(send: Any, recv: Any) -> tuple[Any, ...]:
        return [send.copy() if in_place else send, *outward], [recv, *inward]

    return replace(_bound(comm, "Alltoallv", all_to_all, once=not in_place), agreed=True)


def _layouts(call: Signature, rank: int) -> tuple[Layout, Layout] | None:
    """Return the layouts of this rank's own block and of the blocks of all ranks.

    None where MPI's interface cannot hold every offset of an uneven call, in bytes.
    """
    if call.uniform:
        nbytes = call.counts[0] * call.dtype.itemsize
        each = (nbytes, MPI.BYTE) if call.nbytes <= INT_MAX else one(nbytes)
        return each, each
    if call.nbytes > INT_MAX:
        return None
    return (call.counts[rank] * call.dtype.itemsize, MPI.BYTE), _listed(call, call.counts)


def _listed(call: Signature, counts: Sequence[int]) -> Layout:
    """Return the layout of equal blocks."""
    sizes = [count * call.dtype.itemsize for count in counts]
    return (sizes, list(offsets(sizes))), MPI.BYTE
