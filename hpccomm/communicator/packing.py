"""Calls on strided arrays and on blocks along any axis, by copies to and from contiguous arrays.

A call makes the contiguous arrays anew; a plan keeps them. On a device, the copies are on the stream of the call.
Used by `messages`, and by `communicator` for collectives with an ``axis`` and broadcasts with an ``out``.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpccomm.calls.arguments import (
    NO_LISTS,
    NUMBERS,
    SCALARS,
    Lists,
    Shape,
    check_out,
    plain,
    row_shape,
)
from hpccomm.calls.core import Core
from hpccomm.calls.lanes import Call, Lane
from hpccomm.calls.on_host import with_pre_and_post
from hpccomm.calls.prepared_calls import NEW, is_in_place
from hpccomm.contracts.backend import Implementation
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.device import Begun, DeviceImplementation
from hpccomm.contracts.transport import Steps
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.cuda.arrays import CUPY, DLPACK, TORCH, Queue, kind_of, on_device
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.streams import used_for
from hpccomm.memory.views import check_layout, contiguous, overlap, view
from hpccomm.runtime.callpath import all_in_turn
from hpccomm.schedules.algorithms.partition import array_split, offsets
from hpccomm.settings import check_int
from hpccomm.topology import check_rank

Pair = tuple[Any, Any]

How = tuple[bool, float | None, Any, object, Any, bool, Any]
"""A call's arguments async_op, timeout, algorithm, stream, op, deterministic and root."""


class Packing:
    """The copies before and after a call.

    Parameters
    ----------
    lane : Lane
        Lane of the call's arrays.
    queue : tuple of int and object, or None
        The user's stream.

    Attributes
    ----------
    before, after : list of tuple of two arrays
        The target and the source of each copy.
    """

    def __init__(self, lane: Lane, queue: Queue | None) -> None:
        self.lane, self.queue = lane, queue
        self.before, self.after = list[Pair](), list[Pair]()

    def taken(self, x: Any, array: Any = None, *, written: bool, copied: bool = False) -> Any:
        """Return the array that is communicated for a user's array: the same one, or a contiguous buffer.

        Parameters
        ----------
        x : object
            The user's array.
        array : array, optional
            A view of x with the elements in the order in which they are communicated; None is x itself.
        written : bool
            Whether the call writes it.
        copied : bool
            Whether it is copied even if it is contiguous.
        """
        array = as_it_is(x) if array is None else array
        seen: Any = view(array, "x")
        if contiguous(seen) and not copied:
            return x
        if written and not (seen.writable if on_device(x) else seen.flags.writeable):
            check_layout(seen, "out", written=True)  # raises
        buffer = self.lane.new_like(array, seen.shape, seen.dtype, self.queue)
        if written:
            self.after = [(array, buffer)]
        else:
            self.before = [(buffer, array)]
        return buffer

    def as_it_lies(self, call: Call) -> Call:
        """Return the call on the user's arrays, without the copies."""
        send = self.before[0][1] if self.before else call.send
        return replace(call, send=send, recv=self.after[0][0] if self.after else call.recv)

    def call(self, call: Call, *keep: Any) -> Call:
        """Return a call with the copies."""
        of, lane = call.prepared, self.lane
        call = replace(call, keep=(*keep, call.keep), packing=self)
        if not (self.before or self.after):
            return call
        assert of.choice is not None
        return replace(call, prepared=lane.carried_by(of, of.choice, self.around(of.more)))

    def copy(self, pairs: list[Pair], stream: int = 0) -> None:
        """Copy the sources to the targets; on a device, on the given stream."""
        device = getattr(self.lane, "device", None)
        for target, source in pairs:
            with nullcontext() if device is None else used_for(target, stream, device):
                target[...] = source

    def around(self, found: Any) -> Any:
        """Return an implementation that makes the copies around `found`."""

        def before(send: Any, stream: int = 0) -> Any:
            self.copy(self.before, stream)
            return send

        def after(_recv: Any, stream: int = 0) -> None:
            self.copy(self.after, stream)

        if isinstance(found, Implementation):
            return with_pre_and_post(found, before, after)
        first = found.begin

        def begin(send: int, recv: int, stream: int) -> Begun:
            before(send, stream)
            begun = first(send, recv, stream) if first else Begun(send, recv)
            return begun._replace(end=lambda: after(recv, stream))

        def start(send: int, recv: int, stream: int) -> Steps:
            yield from found.start(before(send, stream), recv, stream)
            after(recv, stream)

        if found.launch is None:
            return DeviceImplementation(start=start)
        return replace(found, begin=begin, registered=None)


def as_it_is(x: Any) -> Any:
    """Return a user's array as an array of NumPy, CuPy or PyTorch over the same memory."""
    if not on_device(x):
        return view(x, "x")
    if kind_of(x) in (CUPY, TORCH):
        return x
    return cupy().from_dlpack(x) if kind_of(x) == DLPACK else cupy().asarray(x)


def along(core: Core, axis: Any) -> Callable[..., Any]:
    """Return a function for collectives on blocks along an axis, with the parameters of `Core.collective`."""
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
    if isinstance(x, SCALARS):
        x = np.asarray(x)
    lane, a, b = core.lanes.views(x, out)
    if a is None and b is None:
        raise UsageError("x is None; give an array")
    seen: Any = b if a is None else a
    stacked, blocks = what.sends == "block", what.sends == "blocks"
    result = shape = tuple(seen.shape)
    if not stacked:
        row_shape("out" if a is None else "x", shape)  # raises if there is no axis
    both = name == "all_to_all" and isinstance(axis, tuple) and len(axis) == 2
    axes = tuple([_axis(each, len(shape) + stacked) for each in (axis if both else (axis, axis))])
    split, joined = axes
    packing = Packing(lane, None if stream is None else lane.queue_of(stream))
    given = into = lengths = None
    how = async_op, timeout, algorithm, stream, op, deterministic, root
    if name == "all_to_all" and a is not None:
        lengths = _lengths(core, shape, None if b is None else tuple(b.shape), axes, timeout)
    if lengths is not None:
        into, out, lists = _uneven(core, packing, as_it_is(x), out, axes, lengths)
        return _carried(core, packing, "all_to_all_v", into, x, out, lists, how)
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
            packing.before = []
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
    return _carried(core, packing, name, (given, into), x, out, lists, how)


def _carried(
    core: Core, packing: Packing, name: str, ends: Pair, x: Any, out: Any, lists: Lists, how: How
) -> Any:
    """Carry out a call on the communicated arrays `ends`, with the copies, and return its result or its `Work`."""
    (given, into), (async_op, timeout, algorithm, stream, op, deterministic, root) = ends, how
    lane = packing.lane
    if async_op is False and lane is core.lanes.host and not core.sink.diverted:
        packing.copy(packing.before)
        core.within(name, given, into, *how, lists)
        packing.copy(packing.after)
        return out
    prepared, each = core.prepared_calls.find(
        name, given, into, op, root, lists, False, algorithm, deterministic
    )
    call = replace(lane.bind(prepared, each, stream), result=out)
    return core.issue(packing.call(call, x, out), async_op, core.limit(timeout))


def _lengths(
    core: Core, shape: Shape, into: Shape | None, axes: Shape, timeout: float | None
) -> Shape | None:
    """Return the extents of all ranks' x along the joined axis; None if all blocks have the same shape.

    A rank's shape does not tell whether other ranks have one row more, so the ranks exchange their shapes. In a plan or
    batch they cannot: there x must be this rank's part, by `numpy.array_split`, of the length of `out`.
    """
    (split, joined), size, rank = axes, core.backend.size, core.backend.rank
    cut = array_split(shape[split], size)
    if split == joined:
        lengths = (cut[rank],) * size
    elif core.sink.diverted:
        known = into is not None and len(into) == len(shape)
        lengths = array_split(into[joined], size) if into and known else (-1,) * size
        if lengths[rank] != shape[joined]:
            if cut[0] == cut[-1]:
                return None
            raise UsageError(
                f"x has shape {shape} and out {into}, in a plan, batch or explain; give the parts of numpy.array_split, "
                f"and an out of this rank's part along axis {split} and of the whole along axis {joined}"
            )
    else:
        every = core.within("all_gather", np.array(shape, np.int64), timeout=timeout)
        lengths = tuple(every[:, joined].tolist())
        if (np.delete(every, joined, 1) != np.delete(every[0], joined)).any():
            others = str((*shape[:joined], ..., *shape[joined + 1 :]))
            core.agree("all_to_all", {"shape": others}, None)
    return None if cut[0] == cut[-1] and len(set(lengths)) == 1 else lengths


def _uneven(
    core: Core, packing: Packing, x: Any, out: Any, axes: Shape, lengths: Shape
) -> tuple[Pair, Any, Lists]:
    """Return the communicated arrays for x and the result, the result, and the number of elements of each block.

    A block is sent with the joined axis first. So the blocks that arrive, one after the other, make one array.
    """
    (split, joined), shape, dtype = axes, tuple(x.shape), view(x, "x").dtype
    cut, sent = array_split(shape[split], core.backend.size), [0]
    first = (split,) if split == joined else (joined, split)
    given = packing.lane.new_like(x, (math.prod(shape),), dtype, packing.queue)
    for start, count in zip(offsets(cut), cut, strict=True):
        where = [slice(None)] * len(shape)
        where[split] = slice(start, start + count)
        block = _first(x[tuple(where)], *first)
        sent.append(sent[-1] + math.prod(block.shape))
        packing.before.append((given[sent[-2] : sent[-1]].reshape(block.shape), block))
    ours = {split: cut[core.backend.rank]} | {joined: sum(lengths)}
    result = tuple([ours.get(each, extent) for each, extent in enumerate(shape)])
    out = packing.lane.new_like(x, result, dtype, packing.queue) if out is None else out
    into = packing.taken(_first(_shaped(as_it_is(out), result), *first), written=True)
    layer = math.prod(result) // max(sum(lengths), 1)
    lists = Lists(tuple(np.diff(sent).tolist()), tuple(n * layer for n in lengths), axis=axes)
    return (given, into), out, lists


@all_in_turn
def broadcast_to_out(core: Core, x: Any, out: Any, how: How) -> Any:
    """Carry out a broadcast into `out`: the root copies x to it, and broadcasts the copy."""
    new, x = out.__class__ is str and out == NEW, plain(x)
    if x.__class__ in NUMBERS:
        return core.within("broadcast", x, out, *how)
    *_, stream, _, _, root = how
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
        packing.before = [(into, as_it_is(x))]
    return _carried(core, packing, "broadcast", (into, None), x, out, NO_LISTS, how)


def _axis(axis: Any, dimensions: int) -> int:
    number = check_int("axis", axis)
    if not -dimensions <= number < dimensions:
        raise UsageError(
            f"axis is {axis!r}; give an integer from {-dimensions} to {dimensions - 1}"
        )
    return number % dimensions


def _shaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of the given shape over the same memory."""
    if tuple(array.shape) == shape:
        return array
    if np.prod(array.shape) != np.prod(shape) or not contiguous(view(array, "out")):
        raise BufferMismatch(f"out has shape {tuple(array.shape)}; give shape {shape}")
    return array.reshape(shape)


def _split(array: Any, axis: int, size: int) -> Any:
    """Return a view of an array, cut into blocks along an axis, with the blocks as axis 0."""
    shape = tuple(array.shape)
    return _first(
        array.reshape((*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])), axis
    )


def _first(array: Any, *axes: int) -> Any:
    """Return a view of an array with the given axes in front of the others."""
    others = (each for each in range(len(array.shape)) if each not in axes)
    return (array.permute if kind_of(array) == TORCH else array.transpose)((*axes, *others))
