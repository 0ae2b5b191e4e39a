"""Runs a schedule over a transport."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.schedule import RECV, SCRATCH, SEND, Copy, Fold, Schedule, Slice
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request, Transport
from hpccomm.errors import BufferMismatch
from hpccomm.reductions import ReduceOp, fold
from hpccomm.waiting import Steps

SCHEDULE_TAG = 0
"""Schedules share one tag: a pair's messages arrive in order, and all ranks run the same calls."""


def steps(
    schedule: Schedule, call: Signature, transport: Transport, send: Buffer, recv: Buffer
) -> Steps:
    """Run one rank's `schedule`, polled.

    Parameters
    ----------
    schedule : Schedule
        Of this rank.
    call : Signature
        What it carries out.
    transport : Transport
        Moves the slices.
    send, recv : ndarray or None, 1-D of the call's dtype
        This rank's arrays.
    """
    nothing = np.empty(0, call.dtype)
    buffers: dict[str, NDArray[Any]] = {
        SEND: nothing if send is None else send,
        RECV: nothing if recv is None else recv,
        SCRATCH: np.empty(schedule.scratch, call.dtype) if schedule.scratch else nothing,
    }
    for transfers in schedule.rounds:
        requests: list[Request] = [
            transport.irecv(_at(buffers, data), peer, SCHEDULE_TAG)
            for peer, data in transfers.receives
        ]
        requests += [
            transport.isend(_at(buffers, data), peer, SCHEDULE_TAG)
            for peer, data in transfers.sends
        ]
        yield from completed(requests)
        for step in transfers.local:
            if isinstance(step, Copy):
                _copy(_at(buffers, step.source), _at(buffers, step.target))
            else:
                _fold(step, buffers, call, transport.size)


def completed(requests: list[Request]) -> Steps:
    """Wait, polled, until all `requests` are complete.

    Where a message has another size than its array, the others are completed before that is raised:
    one that was left behind would take, or keep from others, the messages to come.
    """
    mismatch: BufferMismatch | None = None
    while requests:
        left = []
        for request in requests:
            try:
                if not request.test():
                    left.append(request)
            except BufferMismatch as error:
                mismatch = mismatch or error
        if left:
            yield len(left) < len(requests)
        requests = left
    if mismatch is not None:
        raise mismatch


def _at(buffers: Mapping[str, NDArray[Any]], where: Slice) -> NDArray[Any]:
    return buffers[where.buffer][where.start : where.start + where.count]


def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    # In place the two are the same memory.
    if source.size and source.__array_interface__["data"] != target.__array_interface__["data"]:
        target[:] = source


def _fold(
    step: Fold, buffers: Mapping[str, NDArray[Any]], call: Signature, contributions: int
) -> None:
    assert call.op is not None
    divide = contributions if call.op is ReduceOp.AVG else 0
    sources = [_at(buffers, source) for source in step.sources]
    fold(call.op, sources, _at(buffers, step.target), average_over=divide)
