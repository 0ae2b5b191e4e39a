"""The MPI library's own collectives, each decided once for calls that ask for the same.

Where polling is as fast as the library's blocking call, the call is polled, so that a deadline can
raise: then there is a `start` and no `run`. Measured with Open MPI on two ranks, the blocking calls
of all_reduce, reduce, reduce_scatter and all_gather are up to five times as fast as polling their
non-blocking twins; the others are alike but for half a microsecond.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccomm.backends.mpi.types import INT_MAX, PIECE_BYTES, Reductions, block, one
from hpccomm.contracts.backend import Buffer, Native
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.algorithms.partition import offsets

Maker = Callable[[Any, Signature], Native | None]
Reducer = Callable[[Any, Signature, MPI.Datatype, MPI.Op], Native | None]


class _Request:
    """A non-blocking collective, which keeps its memory."""

    __slots__ = ("_after", "_keep", "_request")

    def __init__(
        self, request: Any, *keep: object, after: Callable[[], None] | None = None
    ) -> None:
        self._request = request
        self._keep = keep
        self._after = after

    def __call__(self) -> bool:
        """Return whether it is complete."""
        if not self._request.Test():
            return False
        if self._after is not None:
            self._after()
            self._after = None
        return True


class _InTurn:
    """Non-blocking collectives that begin one after the other."""

    __slots__ = ("_begin", "_current", "_left", "_total")

    def __init__(self, total: int, begin: Callable[[int], Request]) -> None:
        self._total = total
        self._begin = begin
        self._left = 1
        self._current = begin(0)

    def __call__(self) -> bool:
        """Return whether the last one is complete."""
        while self._current():
            if self._left == self._total:
                return True
            self._current = self._begin(self._left)
            self._left += 1
        return False


def native(comm: Any, call: Signature, reductions: Reductions) -> Native | None:
    """Return MPI's own way to carry out `call`, or None."""
    if call.op is None:
        maker = _MAKERS.get(call.collective)
        return None if maker is None else maker(comm, call)
    if not isinstance(call.op, ReduceOp):
        return None
    names = reductions.get((call.op, call.dtype))
    reducer = _REDUCERS.get(call.collective)
    return None if names is None or reducer is None else reducer(comm, call, *names)


def _pieces(call: Signature) -> int:
    """Into how many pieces the array of a reduction is cut."""
    return max(1, -(-call.nbytes // PIECE_BYTES))


def _piece(buffer: Buffer, index: int, call: Signature) -> Buffer:
    step = PIECE_BYTES // call.dtype.itemsize
    return None if buffer is None else buffer[index * step : (index + 1) * step]


def _cut(call: Signature, whole: Native) -> Native:
    """Carry out a call on a large array piece by piece."""
    total = _pieces(call)
    if total == 1:
        return whole

    def start(send: Buffer, recv: Buffer) -> Request:
        return _InTurn(total, lambda i: whole.start(_piece(send, i, call), _piece(recv, i, call)))

    if whole.run is None:
        return Native(start)
    blocking = whole.run

    def run(send: Buffer, recv: Buffer) -> None:
        for index in range(total):
            blocking(_piece(send, index, call), _piece(recv, index, call))

    return Native(start, run)


def _all_reduce(comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op) -> Native | None:
    blocking, nonblocking, in_place = comm.Allreduce, comm.Iallreduce, MPI.IN_PLACE

    def arguments(send: Any, recv: Any) -> tuple[Any, ...]:
        return [send, send.size, datatype], [recv, recv.size, datatype], op

    def run(send: Any, recv: Any) -> None:
        blocking(*arguments(send, recv))

    # The commonest call of all is spared what it does not need.
    def run_in_place(_send: Any, recv: Any) -> None:
        blocking(in_place, [recv, recv.size, datatype], op)

    def start(send: Any, recv: Any) -> Request:
        source, target, _ = arguments(send, recv)
        request = nonblocking(in_place if call.in_place else source, target, op)
        return _Request(request, send, recv)

    return _cut(call, Native(start, run_in_place if call.in_place else run))


def _reduce(comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op) -> Native | None:
    root = call.root

    def arguments(send: Any, recv: Any) -> tuple[Any, ...]:
        source = [send, send.size, datatype]
        if comm.rank != root:
            return source, None, op, root
        target = [recv, recv.size, datatype]
        return (MPI.IN_PLACE if call.in_place else source), target, op, root

    return _cut(
        call,
        Native(
            lambda send, recv: _Request(comm.Ireduce(*arguments(send, recv)), send, recv),
            lambda send, recv: comm.Reduce(*arguments(send, recv)),
        ),
    )


def _scan(comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op) -> Native | None:
    nonblocking = comm.Iexscan if call.exclusive else comm.Iscan

    def start(send: Any, recv: Any) -> Request:
        source = MPI.IN_PLACE if call.in_place else [send, send.size, datatype]
        return _Request(nonblocking(source, [recv, recv.size, datatype], op), send, recv)

    return _cut(call, Native(start))


def _reduce_scatter(
    comm: Any, call: Signature, datatype: MPI.Datatype, op: MPI.Op
) -> Native | None:
    if sum(call.counts) > INT_MAX:
        return None
    own = call.counts[comm.rank]
    # MPI's own in place puts the result elsewhere; here it goes by way of a block apart. So does an
    # empty one, which may begin where `send` does: MPICH takes that for aliasing.
    apart = call.in_place or not own

    def spec(buffer: Any) -> list[Any]:
        return [buffer, buffer.size, datatype]

    def begin(block_call: Any, each_call: Any, send: Any, target: Any) -> Any:
        if call.uniform:
            # To mpi4py both counts are that of a block here.
            return block_call([send, own, datatype], spec(target), op)
        return each_call(spec(send), spec(target), list(call.counts), op)

    def run(send: Any, recv: Any) -> None:
        target = np.empty(own, call.dtype) if apart else recv
        begin(comm.Reduce_scatter_block, comm.Reduce_scatter, send, target)
        if call.in_place:
            recv[:] = target

    def start(send: Any, recv: Any) -> Request:
        target = np.empty(own, call.dtype) if apart else recv
        request = begin(comm.Ireduce_scatter_block, comm.Ireduce_scatter, send, target)

        def land() -> None:
            recv[:] = target

        return _Request(request, send, target, recv, after=land if call.in_place else None)

    return Native(start, run)


def _broadcast(comm: Any, call: Signature) -> Native:
    count, datatype = block(call.nbytes)
    return Native(
        lambda _send, recv: _Request(comm.Ibcast([recv, count, datatype], call.root), recv)
    )


def _fits(call: Signature) -> bool:
    """Whether every offset of an uneven call, in bytes, is one that MPI's interface holds."""
    return call.nbytes <= INT_MAX


def _each(call: Signature) -> tuple[int, Any]:
    """Return count and datatype of one block of a uniform call."""
    nbytes = call.counts[0] * call.dtype.itemsize
    return (nbytes, MPI.BYTE) if call.nbytes <= INT_MAX else one(nbytes)


def _uneven(buffer: Any, counts: tuple[int, ...], itemsize: int) -> list[Any]:
    nbytes = [count * itemsize for count in counts]
    return [buffer, (nbytes, list(offsets(nbytes))), MPI.BYTE]


def _all_gather(comm: Any, call: Signature) -> Native | None:
    if call.uniform:
        count, datatype = _each(call)

        def arguments(send: Any, recv: Any) -> tuple[Any, ...]:
            source = MPI.IN_PLACE if call.in_place else [send, count, datatype]
            return source, [recv, count, datatype]

        blocking, nonblocking = comm.Allgather, comm.Iallgather
    elif _fits(call):
        own = call.counts[comm.rank] * call.dtype.itemsize

        def arguments(send: Any, recv: Any) -> tuple[Any, ...]:
            source = MPI.IN_PLACE if call.in_place else [send, own, MPI.BYTE]
            return source, _uneven(recv, call.counts, call.dtype.itemsize)

        blocking, nonblocking = comm.Allgatherv, comm.Iallgatherv
    else:
        return None
    return Native(
        lambda send, recv: _Request(nonblocking(*arguments(send, recv)), send, recv),
        lambda send, recv: blocking(*arguments(send, recv)),
    )


def _all_to_all(comm: Any, call: Signature) -> Native | None:
    if not call.uniform:
        # MPI's offsets hold 2 GiB, and a rank does not know whether its peers stay below.
        return None
    count, datatype = _each(call)

    def start(send: Any, recv: Any) -> Request:
        source = send.copy() if call.in_place else send
        request = comm.Ialltoall([source, count, datatype], [recv, count, datatype])
        return _Request(request, source, recv)

    return Native(start)


def _gather(comm: Any, call: Signature) -> Native | None:
    if not call.uniform and not _fits(call):
        return None
    root, itemsize = call.root, call.dtype.itemsize

    def start(send: Any, recv: Any) -> Request:
        if call.uniform:
            count, datatype = _each(call)
            source = MPI.IN_PLACE if call.in_place else [send, count, datatype]
            target = [recv, count, datatype] if comm.rank == root else None
            return _Request(comm.Igather(source, target, root), send, recv)
        nbytes = call.counts[comm.rank] * itemsize
        source = MPI.IN_PLACE if call.in_place else [send, nbytes, MPI.BYTE]
        target = _uneven(recv, call.counts, itemsize) if comm.rank == root else None
        return _Request(comm.Igatherv(source, target, root), send, recv, target)

    return Native(start)


def _scatter(comm: Any, call: Signature) -> Native | None:
    if not call.uniform and not _fits(call):
        return None
    root, itemsize = call.root, call.dtype.itemsize

    def start(send: Any, recv: Any) -> Request:
        if call.uniform:
            count, datatype = _each(call)
            source = [send, count, datatype] if comm.rank == root else None
            target = MPI.IN_PLACE if call.in_place else [recv, count, datatype]
            return _Request(comm.Iscatter(source, target, root), send, recv)
        nbytes = call.counts[comm.rank] * itemsize
        source = _uneven(send, call.counts, itemsize) if comm.rank == root else None
        target = MPI.IN_PLACE if call.in_place else [recv, nbytes, MPI.BYTE]
        return _Request(comm.Iscatterv(source, target, root), send, recv, source)

    return Native(start)


def _barrier(comm: Any, _call: Signature) -> Native:
    return Native(lambda _send, _recv: _Request(comm.Ibarrier()))


_MAKERS: dict[str, Maker] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
}
_REDUCERS: dict[str, Reducer] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scan": _scan,
}
