"""Calls with listed counts. Neighbors first exchange what the user left out; `frames` does so for all ranks.

Errors in this rank's arguments must be found before the exchange: afterwards the other ranks would
wait for it. The methods with ``_v``, and those with neighbors, go through it.
"""

from typing import Any, NamedTuple

import numpy as np

from hpccomm.communicator.core import Core
from hpccomm.communicator.resolving import Lists, check_counts, check_peers, row_shape
from hpccomm.contracts.collectives import CALLS, Collective
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.views import check_dtype, check_layout, view
from hpccomm.runtime.recorder import user_site
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import check_bool


class Unlisted(NamedTuple):
    """The arguments of a call whose counts are not all listed, as far as its exchange needs them."""

    name: str
    x: Any
    out: Any
    timeout: float | None
    algorithm: AnyAlgorithm | None
    stream: object
    root: Any


def listed(
    core: Core,
    name: str,
    x: Any,
    out: Any,
    timeout: float | None,
    algorithm: AnyAlgorithm | None,
    stream: object,
    return_counts: bool,
    counts: Any,
    recv_counts: Any = None,
    peers: Any = None,
) -> Lists:
    """Return the lists of one call. Parameters are as of the call of that name.

    `counts` is what some calls name ``send_counts``.

    Raises
    ------
    UsageError
        If a list does not fit, or must be there and is not.
    """
    if return_counts is not False:
        check_bool("return_counts", return_counts)
    what, size = CALLS[name], core.backend.size
    if what.uneven == "counts":
        lists = Lists(check_counts("counts", counts, size))
    else:
        lists = pairs(what, size, counts, recv_counts, peers)
        if counts is not None and recv_counts is None:
            lists = _incoming(core, Unlisted(name, x, out, timeout, algorithm, stream, None), lists)
    return lists._replace(returned=True) if return_counts else lists


def _incoming(core: Core, call: Unlisted, outgoing: Lists) -> Lists:
    """Return `outgoing` with the rows that come for each block."""
    rehearse(core, call, outgoing._replace(recv_counts=outgoing.counts))
    refuse_exchange(core, "recv_counts")
    mine = np.array(outgoing.counts, np.int64)
    arrived = core.collective(
        CALLS[call.name].name,
        mine,
        timeout=call.timeout,
        lists=Lists(peers=outgoing.peers),
        site=user_site(),
    )
    lists = outgoing._replace(recv_counts=tuple(arrived.tolist()))
    with core.calls.one_call():
        agree_on_fit(core, call, lists)
    return lists


def rehearse(core: Core, call: Unlisted, lists: Lists, fits: Any = None) -> None:
    """Raise the errors of the call that any counts of the other ranks would give."""
    name, x, out, timeout, algorithm, stream, root = call
    core.limit(timeout)
    _, (_, _, array, _) = core.prepared_calls.find(
        name, x, fits, None, root, lists, False, algorithm
    )
    if stream is not None:
        core.lanes.views(x if out is None else None, out)[0].queue_of(stream)
    for which, argument in (("x", x), ("out", out)):
        if argument is not None:
            seen = view(argument, which)
            check_dtype(which, seen.dtype)
            check_layout(seen, which, written=which == "out")
            if array is not None and seen.dtype != array.dtype:
                raise BufferMismatch(f"out has dtype {seen.dtype}; give dtype {array.dtype}")


def agree_on_fit(core: Core, call: Unlisted, lists: Lists, own: Any = None) -> None:
    """Raise on every rank if the arrays of one do not fit what was exchanged, or the `own` ones differ. Within a call."""
    error: UsageError | None = None
    least = min(lists.counts, default=0)
    try:
        if least < 0:
            raise BufferMismatch(
                f"x has {-least} rows less on the root than the other ranks' out arrays "
                "take; give an x with more rows"
            )
        core.prepared_calls.find(call.name, call.x, call.out, None, call.root, lists)
    except UsageError as refused:
        error = refused
    core.agree(call.name, {} if own is None else alike(own), error)


def alike(array: Any) -> dict[str, object]:
    """Return what the arrays of all ranks have in common: extents of 1 do not count."""
    seen = view(array, "x")
    rest = tuple(each for each in seen.shape[1:] if each != 1)
    return {"dtype": str(seen.dtype), "shape": str(rest)}


def refuse_exchange(core: Core, name: str) -> None:
    """Raise where calls are not issued when they are made."""
    sink = core.sink
    if sink.diverted:
        where = "plan or explain" if sink.batch is None else "batch()"
        raise UsageError(f"{name} is None in {where}, which cannot exchange it; give {name}")


def pairs(what: Collective, size: int, counts: object, recv_counts: object, peers: object) -> Lists:
    """Return the given lists of a call with lists of each rank's own."""
    ranks: tuple[int, ...] = ()
    number, whose = size, "rank"
    if what.peers:
        ranks = check_peers(peers, size)
        number, whose = len(ranks), "peer"
        if counts is None and recv_counts is None:
            return Lists(peers=ranks)
        if counts is None:
            raise UsageError("recv_counts is given and send_counts is not; give both, or none")
    sent = check_counts("send_counts", counts, number, whose)
    if recv_counts is None:
        return Lists(sent, (), ranks)
    return Lists(sent, check_counts("recv_counts", recv_counts, number, whose), ranks)


def row_count(name: str, array: Any) -> int:
    """Return the rows of an array, which must be there and have some axis."""
    if array is None:
        raise UsageError(f"{name} is None; give an array")
    shape = view(array, name).shape
    row_shape(name, shape)  # which refuses an array without rows
    return int(shape[0])
