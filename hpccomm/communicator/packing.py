"""Arrays as they are: strided ones, and blocks along any axis.

They are copied to and from arrays that communication takes, by a call or by a plan, which keeps those. On a
device, the copies are on the stream of the call. Messages come here, collectives with an ``axis``, and broadcasts
with an ``out``.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import Call, Lane
from hpccomm.communicator.numbers import NUMBERS, OF_NUMBERS, plain
from hpccomm.communicator.prepared_calls import NEW, is_in_place
from hpccomm.communicator.resolving import NO_LISTS, check_out, row_shape
from hpccomm.contracts.backend import Implementation
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.device import Begun, DeviceImplementation, Grouped
from hpccomm.contracts.transport import Steps
from hpccomm.dispatch.host import with_pre_and_post
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.cuda.arrays import CUPY, DLPACK, TORCH, Queue, kind_of, on_device
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.streams import used_for
from hpccomm.memory.views import check_dtype, check_layout, contiguous, overlap, view
from hpccomm.runtime.callpath import all_in_turn
from hpccomm.settings import check_int
from hpccomm.topology import check_rank

Pair = tuple[Any, Any]


class Packing:
    """Copies before and after a call.

    Parameters
    ----------
    lane : Lane
        Of its arrays.
    queue : tuple of int and object, or None
        The user's stream.

    Attributes
    ----------
    before, after : tuple of two arrays, or None
        Target and source.
    """

    def __init__(self, lane: Lane, queue: Queue | None) -> None:
        self._lane, self.queue = lane, queue
        self.before: Pair | None = None
        self.after: Pair | None = None

    def taken(self, x: Any, array: Any = None, *, written: bool, copied: bool = False) -> Any:
        """Return what communication takes in place of a user's array: itself, or a copy.

        Parameters
        ----------
        x : object
            The user's array.
        array : array, optional
            What is meant, of its kind, with the elements in the order in which they travel.
        written : bool
            Whether the call writes it.
        copied : bool
            Whether it is copied in any case.
        """
        array = as_it_is(x) if array is None else array
        seen: Any = view(array, "x")
        if contiguous(seen) and not copied:
            return x
        if written and not (seen.writable if on_device(x) else seen.flags.writeable):
            check_layout(seen, "out", written=True)  # which raises
        buffer = self._lane.new_like(array, seen.shape, seen.dtype, self.queue)
        if written:
            self.after = array, buffer
        else:
            self.before = buffer, array
        return buffer

    def as_it_lies(self, call: Call) -> Call:
        """Return the call without the copies."""
        send = call.send if self.before is None else self.before[1]
        return replace(call, send=send, recv=call.recv if self.after is None else self.after[0])

    def call(self, call: Call, *keep: Any) -> Call:
        """Return a call with the copies."""
        of, lane = call.prepared, self._lane
        call = replace(call, keep=(*keep, call.keep), packing=self)
        if self.before is None and self.after is None:
            return call
        assert of.choice is not None
        return replace(call, prepared=lane.carried_by(of, of.choice, self.around(of.more)))

    def copy(self, pair: Pair | None, stream: int = 0) -> None:
        """Copy the source to the target; on a device, on a stream."""
        device = getattr(self._lane, "device", None)
        if pair is not None:
            with nullcontext() if device is None else used_for(pair[0], stream, device):
                pair[0][...] = pair[1]

    def around(self, found: Any) -> Any:
        """Return an implementation with the copies."""

        def before(send: Any, stream: int = 0) -> Any:
            self.copy(self.before, stream)
            return send

        def after(_recv: Any, stream: int = 0) -> None:
            self.copy(self.after, stream)

        if isinstance(found, Implementation):
            return with_pre_and_post(found, before, after)
        grouped = found.grouped

        def launch(send: int, recv: int, stream: int) -> None:
            found.launch(before(send, stream), recv, stream)
            after(recv, stream)

        def start(send: int, recv: int, stream: int) -> Steps:
            yield from found.start(before(send, stream), recv, stream)
            after(recv, stream)

        def begin(send: int, recv: int, stream: int) -> Begun:
            before(send, stream)
            begun = grouped.begin(send, recv, stream) if grouped.begin else Begun(send, recv)
            return begun._replace(end=lambda: after(recv, stream))

        return DeviceImplementation(
            found.launch and launch,
            found.start and start,
            found.needs,
            grouped and Grouped(grouped.launch, begin),
        )


def as_it_is(x: Any) -> Any:
    """Return a user's array as NumPy's, CuPy's or PyTorch's, over the same memory."""
    if not on_device(x):
        return view(x, "x")
    if kind_of(x) in (CUPY, TORCH):
        return x
    return cupy().from_dlpack(x) if kind_of(x) == DLPACK else cupy().asarray(x)


def along(core: Core, axis: Any) -> Callable[..., Any]:
    """Return what carries out collectives on blocks along an axis. It is called as `Core.collective`."""
    return partial(_along, core, axis)


@all_in_turn
def _along(
    core: Core,
    axis: Any,
    name: str,
    x: Any,
    out: Any,
    async_op: bool,
    timeout: float | None,
    algorithm: Any,
    stream: object,
    op: Any = None,
    deterministic: bool = False,
    root: Any = None,
) -> Any:
    size, what, at_root = core.backend.size, CALLS[name], root in (None, core.backend.rank)
    x = plain(x)
    if x.__class__ in NUMBERS and name in OF_NUMBERS:
        x = np.asarray(x)
    lane, a, b = core.lanes.views(x, out)
    if a is None and b is None:
        raise UsageError("x is None; give an array")
    for which, given in (("x", a), ("out", b)):
        if given is not None:
            check_dtype(which, given.dtype)
    seen: Any = b if a is None else a
    stacked, blocks = what.sends == "block", what.sends == "blocks"
    result = shape = tuple(seen.shape)
    if not stacked:
        row_shape("out" if a is None else "x", shape)  # which raises if there is no axis
    both = name == "all_to_all" and isinstance(axis, tuple) and len(axis) == 2
    axes = tuple([_axis(each, len(shape) + stacked) for each in (axis if both else (axis, axis))])
    split, joined = axes
    packing = Packing(lane, None if stream is None else lane.queue_of(stream))
    given = into = None
    if a is not None:
        if blocks and shape[split] % size:
            raise UsageError(
                f"x has shape {shape}; axis {split} must be divisible by the {size} ranks"
            )
        if blocks:
            result = (*shape[:split], shape[split] // size, *shape[split + 1 :])
        array = _split(as_it_is(x), split, size) if blocks else None
        copied = (blocks and split > 0) or (b is not None and overlap(a, b))
        given = packing.taken(x, array, written=False, copied=copied)
        if what.root_sends and not at_root:
            packing.before = None
    if what.receives == "blocks":
        length = size if stacked else size * result[joined]
        result = (*result[:joined], length, *result[joined + (not stacked) :])
    if what.root_receives and not at_root:
        out = None
    else:
        if b is None:
            out = lane.new_like(x, result, seen.dtype, packing.queue)
        array = _shaped(as_it_is(out), result)
        spread = what.receives == "blocks"
        array = _split(array, joined, size) if spread else array
        into = packing.taken(out, array, written=True, copied=spread and joined > 0)
    lists = NO_LISTS._replace(axis=axes) if any(axes) else NO_LISTS
    if async_op is False and lane is core.lanes.host and not core.sink.diverted:
        packing.copy(packing.before)
        how = False, timeout, algorithm, stream, op, deterministic, root, lists
        core.within(name, given, into, *how)
        packing.copy(packing.after)
        return out
    prepared, each = core.prepared_calls.find(
        name, given, into, op, root, lists, False, algorithm, deterministic
    )
    call = replace(lane.bind(prepared, each, stream), result=out)
    return core.issue(packing.call(call, x, out), async_op, core.limit(timeout))


@all_in_turn
def broadcast_to_out(
    core: Core,
    x: Any,
    out: Any,
    async_op: bool,
    timeout: float | None,
    algorithm: Any,
    stream: object,
    root: Any,
) -> Any:
    """Carry out a broadcast into another array than x: the root copies x there, and broadcasts the copy."""
    new, x = out.__class__ is str and out == NEW, plain(x)
    if x.__class__ in NUMBERS:
        if new:  # a number is a new one in any case
            return core.within(
                "broadcast", x, None, async_op, timeout, algorithm, stream, None, False, root
            )
        x = np.asarray(x)
    lane, a, b = core.lanes.views(x, None if new else out)
    if a is None:
        raise UsageError("x is None; give an array of the root's shape and dtype")
    shape: tuple[int, ...] = tuple(a.shape)
    packing = Packing(lane, None if stream is None else lane.queue_of(stream))
    if b is None:
        out = lane.new_like(x, shape, a.dtype, packing.queue)
    else:
        check_out(b.dtype, tuple(b.shape), a.dtype, shape)
        lane.checked_array(b, "out", True)  # before the root fills it
    into = _shaped(as_it_is(out), shape)
    at_root = check_rank("root", root, core.backend.size) == core.backend.rank
    if at_root and not (
        b is not None and overlap(a, b) and is_in_place("broadcast", a, b, core.backend.rank, root)
    ):
        packing.before = into, as_it_is(x)
    if async_op is False and lane is core.lanes.host and not core.sink.diverted:
        packing.copy(packing.before)
        core.within("broadcast", into, None, False, timeout, algorithm, stream, None, False, root)
        return out
    prepared, each = core.prepared_calls.find(
        "broadcast", into, None, root=root, algorithm=algorithm
    )
    call = replace(lane.bind(prepared, each, stream), result=out)
    return core.issue(packing.call(call, x, out), async_op, core.limit(timeout))


def _axis(axis: Any, dimensions: int) -> int:
    number = check_int("axis", axis)
    if not -dimensions <= number < dimensions:
        raise UsageError(
            f"axis is {axis!r}; give an integer from {-dimensions} to {dimensions - 1}"
        )
    return number % dimensions


def _shaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array in a shape, over the same memory."""
    if tuple(array.shape) == shape:
        return array
    if np.prod(array.shape) != np.prod(shape) or not contiguous(view(array, "out")):
        raise BufferMismatch(f"out has shape {tuple(array.shape)}; give shape {shape}")
    return array.reshape(shape)


def _split(array: Any, axis: int, size: int) -> Any:
    """Return an array of blocks along an axis, with the axis of the blocks first, over the same memory."""
    shape = tuple(array.shape)
    parts = array.reshape((*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :]))
    others = (each for each in range(len(shape) + 1) if each != axis)
    return (parts.permute if kind_of(array) == TORCH else parts.transpose)((axis, *others))
