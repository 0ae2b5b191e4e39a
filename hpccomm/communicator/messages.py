"""Messages of arrays between two ranks: `send`, `recv` and `send_recv` of `Communicator`.

A call is checked, kept by its arguments for later calls, and handed to its lane, which carries it out. Receives from
any rank, of any tag or of any size are in `arrivals`.
"""

from dataclasses import replace
from typing import Any

from numpy import empty, may_share_memory, ndarray

from hpccomm.calls.core import Core
from hpccomm.calls.lanes import Call, MessageRequest
from hpccomm.communicator.arrivals import received
from hpccomm.communicator.objects import Rank, Tag
from hpccomm.communicator.packing import Packing
from hpccomm.contracts.transport import ANY
from hpccomm.errors import UsageError
from hpccomm.memory.views import View, address, check_dtype, contiguous, overlap, view
from hpccomm.runtime.callpath import in_turn
from hpccomm.settings import check_bool
from hpccomm.topology import check_rank

# A call on plain host arrays that is like an earlier one needs no further check.

_RANKS = (int, type(None))
"""Classes of a rank in a key: True and 1.0 are equal to 1, but are no ranks."""


@in_turn
def send_array(
    core: Core,
    x: Any,
    dst: int | None,
    tag: int,
    synchronous: bool,
    async_op: bool,
    timeout: float | None,
    stream: object,
) -> Any:
    """Send an array; see `Communicator.send`."""
    if synchronous is not False and check_bool("synchronous", synchronous):
        if core.sink.diverted:
            raise UsageError("synchronous is True in a plan, batch or explain; call send itself")
        call = _checked(core, "send", (x, dst, None, None), tag, stream, sync=True)
        return core.issue(call, async_op, core.limit(timeout))
    key = None
    named = tag.__class__ is int and dst.__class__ in _RANKS
    if named and stream is None and x.__class__ is ndarray and x.flags.carray:
        key = "send", x.dtype, x.nbytes, dst, tag
        prepared = core.known.get(key)
        if prepared is not None and not core.sink.diverted:
            arrays = x if x.ndim == 1 else x.reshape(-1), None
            limit = core.calls.timeout if timeout is None else core.limit(timeout)
            if async_op is True:
                return prepared.begin(arrays, arrays, limit, None)
            if async_op is False:
                return prepared.issue(arrays, arrays, limit)
    return _exchange(core, key, "send", (x, dst, None, None), tag, async_op, timeout, stream)


@in_turn
def receive_array(
    core: Core,
    out: Any,
    src: Rank | None,
    tag: Tag,
    async_op: bool,
    timeout: float | None,
    stream: object,
    return_src: bool,
) -> Any:
    """Receive an array; see `Communicator.recv`."""
    if src is None and tag is ANY:
        tag = 0  # as any: nothing is received
    elif src is ANY or tag is ANY or return_src or (out is None and src is not None):
        if stream is not None:
            raise UsageError(
                "stream does not go with recv from any sender, of any tag or of any size, or with return_src; "
                "give out, src and tag"
            )
        return received(core, out, src, tag, async_op, timeout, return_src)  # type: ignore[arg-type]  # checked there
    key = None
    named = tag.__class__ is int and src.__class__ in _RANKS
    if named and stream is None and out.__class__ is ndarray and out.flags.carray:
        key = "recv", out.dtype, out.nbytes, src, tag
        prepared = core.known.get(key)
        if prepared is not None and not core.sink.diverted:
            arrays = None, out if out.ndim == 1 else out.reshape(-1)
            limit = core.calls.timeout if timeout is None else core.limit(timeout)
            if async_op is True:
                return prepared.begin(arrays, arrays, limit, out)
            if async_op is False:
                prepared.issue(arrays, arrays, limit)
                return out
    return _exchange(core, key, "recv", (None, None, out, src), tag, async_op, timeout, stream)


@in_turn
def exchange_arrays(
    core: Core, ends: Any, tag: int, async_op: bool, timeout: float | None, stream: object
) -> Any:
    """Send an array while receiving an array; see `Communicator.send_recv`. `ends` is as in `_exchange`."""
    key, (x, dst, out, src) = None, ends
    named = tag.__class__ is int and dst.__class__ in _RANKS and src.__class__ in _RANKS
    if named and stream is None and x.__class__ is ndarray and out.__class__ is ndarray:
        a, b = x.flags, out.flags
        # Two arrays that own their memory do not overlap.
        apart = (a.owndata and b.owndata and x is not out) or not may_share_memory(x, out)
        if apart and a.carray and b.carray:
            key = "send_recv", x.dtype, x.nbytes, dst, out.dtype, out.nbytes, src, tag
    return _exchange(core, key, "send_recv", ends, tag, async_op, timeout, stream)


def _exchange(
    core: Core,
    key: Any,
    name: str,
    ends: Any,
    tag: Any,
    async_op: Any,
    timeout: Any,
    stream: object,
) -> Any:
    """Carry a call out, and return its result or its `Work`. With a key, the call is kept for later ones like it.

    `ends` holds the sent array, its receiver, the array to receive into, and its sender; each may be None.
    """
    x, dst, out, src = ends
    if key is not None and (prepared := core.known.get(key)) is not None:
        send = x if x is None or x.ndim == 1 else x.reshape(-1)
        recv = out if out is None or out.ndim == 1 else out.reshape(-1)
        limit = core.calls.timeout if timeout is None else core.limit(timeout)
        if async_op is False and not core.sink.diverted:
            prepared.issue((send, recv), (x, out), limit)
            return out
        call = Call(prepared, send, recv, out, (x, out))
        return core.issue(call, async_op, limit)
    if key is None and async_op is False and stream is None and not core.sink.diverted:
        # Strided host arrays: the shortest way.
        given = x if x.__class__ is not ndarray or x.flags.c_contiguous else x.copy()
        plain = out.__class__ is not ndarray or out.flags.c_contiguous or not out.flags.writeable
        into = out if plain else empty(out.shape, out.dtype)
        if given is not x or into is not out:
            if name == "send":
                return send_array.__wrapped__(core, given, dst, tag, False, False, timeout, None)  # type: ignore[attr-defined]
            if name == "recv":
                receive_array.__wrapped__(core, into, src, tag, False, timeout, None, False)  # type: ignore[attr-defined]
            else:
                ends = given, dst, into, src
                exchange_arrays.__wrapped__(core, ends, tag, False, timeout, None)  # type: ignore[attr-defined]
            if into is not out and src is not None:
                out[...] = into
            return out
    call = _checked(core, name, ends, tag, stream)
    if key is not None:
        core.known.keep(key, call.prepared)
    return core.issue(call, async_op, core.limit(timeout))


def _checked(
    core: Core, name: str, ends: Any, tag: Any, stream: object, sync: bool = False
) -> Call:
    """Check a call, and return it. `ends` is as in `_exchange`; `sync` is whether a send is synchronous."""
    x, dst, out, src = ends
    # Ranks are checked first: an array in place of a rank shows that the arguments are in the wrong order.
    to = None if dst is None else check_rank("dst", dst, core.backend.size)
    origin = None if src is None else check_rank("src", src, core.backend.size)
    lane, source, target = core.lanes.views(x, out)
    if not all(each is None or contiguous(each) for each in (source, target)):
        return _strided(core, name, ends, tag, stream, sync)
    if source is not None:
        check_dtype("x", source.dtype)
        source = lane.checked_array(source, "x", False)
    elif name != "recv":
        view(x, "x")  # raises
    if target is not None:
        check_dtype("out", target.dtype)
        target = lane.checked_array(target, "out", True)
    elif name != "send":
        raise UsageError(
            f"out is None; give {name} an array of the message's elements and dtype, "
            "such as out=np.empty(shape, dtype)"
        )
    queue = None if stream is None else lane.queue_of(stream)
    replaced = source is not None and target is not None and _replaced(source, target)
    number = core.tag(tag)
    keep = (x,) if out is None else (out, x)
    what = name, source, to, target, origin, number, replaced, out, keep, queue, sync
    return lane.message(MessageRequest(*what))


def _strided(core: Core, name: str, ends: Any, tag: Any, stream: object, sync: bool) -> Call:
    """Check a call on strided arrays, and return it."""
    x, dst, out, src = ends
    lane, source, target = core.lanes.views(x, out)
    packing = Packing(lane, None if stream is None else lane.queue_of(stream))
    given = None if source is None else packing.taken(x, written=False)
    into = None if target is None else packing.taken(out, written=True)
    if src is None:
        packing.after = []
    call = _checked(core, name, (given, dst, into, src), tag, stream, sync)
    return packing.call(replace(call, result=out), *((x,) if out is None else (out, x)))


def _replaced(source: View, target: View) -> bool:
    """Return whether the array is sent and received in the same memory; other overlaps are refused."""
    if not overlap(source, target):
        return False
    if source.nbytes == target.nbytes and address(source) == address(target):
        return True
    raise UsageError("x and out of send_recv overlap; give out=x, or arrays that share no memory")
