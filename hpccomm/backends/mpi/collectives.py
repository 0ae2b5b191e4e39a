"""The MPI library's own collectives.

A call is offered in two forms: `run` blocks in the library, and `start` begins a polled request. Synchronous calls
use `run`. Measured with Open MPI on two ranks, a blocking call of 8 bytes saves one to
two microseconds. Blocking all_reduce, reduce, reduce_scatter and all_gather are up to five times as fast as polling
the non-blocking ones. If ranks share cores or nodes, the blocking forms have the better algorithms. `backend` offers
these functions, and `hpccomm.calls.on_host` chooses between them and hpccomm's algorithms.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccomm.backends.mpi.types import INT_MAX, PIECE_BYTES, Reductions, block, one
from hpccomm.contracts.backend import Buffer, Implementation
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms.partition import offsets

IN_PLACE = MPI.IN_PLACE
"""Stands for the sent array if the result overwrites that array."""

Arguments = Callable[[Any, Any], tuple[Any, ...]]
"""``arguments(send, recv)`` returns the arguments of mpi4py's method."""

Layout = tuple[Any, ...]
"""The rest of a buffer's description for MPI: counts and offsets, if it lists them, and the datatype."""


def native(comm: Any, call: Signature, reductions: Reductions) -> Implementation | None:
    """Return MPI's own form of `call`, or None if it has none.

    If all blocks have one size, the functions read the sizes from the arrays, and so serve calls of other sizes.
    """
    if call.op is None:
        own = _movement(comm, call)
    else:
        names = reductions.get((call.op, call.dtype)) if isinstance(call.op, ReduceOp) else None
        own = None if names is None else _reduction(comm, call, *names)
    if own is None or not call.uniform or call.nbytes > PIECE_BYTES:
        return own
    return own._replace(any_size=True)


def _bound(
    comm: Any,
    method: str,
    arguments: Arguments,
    *,
    begun: Arguments | None = None,
    once: bool = True,
    copied: bool = False,
    held: bool = False,
) -> Implementation:
    """Bind one of mpi4py's methods, and its non-blocking twin.

    Parameters
    ----------
    comm : MPI communicator
        The communicator that has the method.
    method : str
        Name of the blocking method.
    arguments : callable
        Returns the arguments of the method.
    begun : callable, optional
        Returns the arguments of the non-blocking twin, if they differ.
    once : bool
        Whether the arguments depend only on the addresses of the arrays, so that a plan needs to make them only once.
    copied : bool
        Whether the result goes to a buffer among the arguments, and is copied to `recv` afterwards.
    held : bool
        Whether mpi4py's request keeps its memory alive. It does not for reductions and listed
        counts.
    """
    begin, run = getattr(comm, f"I{method.lower()}"), getattr(comm, method)
    to_begin = begun or arguments

    # Small calls use these: the returned iterators yield False until the request is complete, without Python code.

    def start_held(send: Any, recv: Any) -> Steps:
        return iter(begin(*to_begin(send, recv)).Test, True)

    def start(send: Any, recv: Any) -> Steps:
        args = to_begin(send, recv)
        request = begin(*args)

        def test() -> bool:  # the closure keeps the arguments, and so their memory
            if not request.Test():
                return False
            if copied:
                np.copyto(recv, args[1][0])
            return True

        return iter(test, True)

    def apart(send: Any, recv: Any) -> None:
        args = arguments(send, recv)
        run(*args)
        np.copyto(recv, args[1][0])

    def anew(send: Any, recv: Any) -> None:
        run(*arguments(send, recv))

    begin_all = start_held if held else start
    if copied or not once:
        return Implementation(begin_all, apart if copied else anew)
    return Implementation(begin_all, run, arguments)


# Reductions.


def _reduction(
    comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op
) -> Implementation | None:
    """Bind a reduction, with MPI's datatype and operation; None if MPI has no such collective."""
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
            # For more than 64 KiB on 4 or more ranks, Open MPI's Iallreduce uses binomial trees on
            # ranks that are in place and reduce-scatter on the others: so it hangs if ranks differ.
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
) -> Implementation | None:
    if sum(call.counts) > INT_MAX:
        return None
    listed = [] if call.uniform else list(call.counts)

    def arguments(send: Any, recv: Any) -> tuple[Any, ...]:
        own = send.size // comm.size if call.uniform else listed[comm.rank]
        # MPI's own in-place form puts the result elsewhere, so a separate block receives it. A separate block
        # also replaces an empty one, which may begin at the address of `send`: MPICH rejects that as aliasing.
        separate = call.in_place or not own
        target = [np.empty(own, call.dtype) if separate else recv, own, datatype]
        if call.uniform:
            # Here mpi4py takes the count of a block for both arrays.
            return [send, own, datatype], target, op
        return [send, send.size, datatype], target, listed, op

    method = "Reduce_scatter_block" if call.uniform else "Reduce_scatter"
    return _bound(comm, method, arguments, copied=call.in_place)


def _cut(call: Signature, whole: Implementation) -> Implementation:
    """Return functions that carry out a call on a large array piece by piece."""
    total = max(1, -(-call.nbytes // PIECE_BYTES))
    if total == 1:
        return whole
    step = PIECE_BYTES // call.dtype.itemsize

    def piece(buffer: Buffer, index: int) -> Buffer:
        return None if buffer is None else buffer[index * step : (index + 1) * step]

    def start(send: Buffer, recv: Buffer) -> Steps:
        for index in range(total):
            yield from whole.start(piece(send, index), piece(recv, index))

    block_in, arguments = whole.run, whole.arguments
    assert block_in is not None

    def run(send: Buffer, recv: Buffer) -> None:
        for index in range(total):
            block_in(*arguments(piece(send, index), piece(recv, index)))

    return Implementation(start, run)


# Collectives that move data.


def _movement(comm: Any, call: Signature) -> Implementation | None:
    """Bind a collective that does not reduce."""
    at_root, root, in_place = comm.rank == call.root, call.root, call.in_place
    match call.collective:
        case "barrier":
            return _bound(comm, "Barrier", lambda _send, _recv: (), held=True)
        case "broadcast":
            whole = (MPI.BYTE,) if call.nbytes <= INT_MAX else block(call.nbytes)

            def broadcast(_send: Any, recv: Any) -> tuple[Any, ...]:
                return [recv, *whole], root

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
        # The array is copied each time, since not every library supports IN_PLACE here.
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


def _individual(comm: Any, call: Signature) -> Implementation | None:
    """Bind an all_to_all in which each rank lists its own counts.

    MPI's offsets hold 2 GiB, and a rank does not know whether its peers stay below that. So ranks must agree.
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

    return _bound(comm, "Alltoallv", all_to_all, once=not in_place)._replace(agreed=True)


def _layouts(call: Signature, rank: int) -> tuple[Layout, Layout] | None:
    """Return the layouts of this rank's own block and of the blocks of all ranks.

    None if MPI's interface cannot hold every offset of an uneven call, in bytes.
    """
    if call.uniform:
        if call.nbytes <= INT_MAX:  # mpi4py divides the bytes of a buffer by the ranks
            return (MPI.BYTE,), (MPI.BYTE,)
        each = one(call.counts[0] * call.dtype.itemsize)
        return each, each
    if call.nbytes > INT_MAX:
        return None
    return (call.counts[rank] * call.dtype.itemsize, MPI.BYTE), _listed(call, call.counts)


def _listed(call: Signature, counts: Sequence[int]) -> Layout:
    """Return the layout of blocks with the given counts, one after the other."""
    sizes = [count * call.dtype.itemsize for count in counts]
    return (sizes, list(offsets(sizes))), MPI.BYTE
