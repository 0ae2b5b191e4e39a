"""Calls with listed counts. Ranks first exchange counts that the user left out.

Errors in this rank's arguments must be found before the exchange: afterwards the other ranks would
wait for it. The methods with ``_v``, and those with neighbours, go through it.
"""

from typing import Any, NamedTuple

import numpy as np

from hpccomm.communicator.core import Core
from hpccomm.communicator.resolving import NO_LISTS, Lists, check_counts, check_peers, row_shape
from hpccomm.contracts.collectives import CALLS, Collective
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.views import check_dtype, check_layout, view
from hpccomm.runtime.recorder import user_site
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import check_bool
from hpccomm.topology import check_rank


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
    root: Any = None,
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
        complete = counts is not None or what.reduces
        lists = Lists(check_counts("counts", counts, size)) if complete else NO_LISTS
    else:
        lists = _pairs(what, size, counts, recv_counts, peers)
        complete = counts is None or recv_counts is not None
    if not complete:
        lists = _completed(core, Unlisted(name, x, out, timeout, algorithm, stream, root), lists)
    return lists._replace(returned=True) if return_counts else lists


def _completed(core: Core, call: Unlisted, lists: Lists) -> Lists:
    """Return the lists of a call, completed by an exchange."""
    what = CALLS[call.name]
    if what.individual:
        known = _incoming(core, call, lists)
    elif what.sends == "blocks":
        known = _wanted(core, call)
    else:
        rows = _row_count("x", call.x)
        _rehearse(core, call, Lists((rows,) * core.backend.size))
        known = Lists(tuple(_exchanged(core, call, rows)))
    _agree_on_fit(core, call, known)
    return known


def _incoming(core: Core, call: Unlisted, outgoing: Lists) -> Lists:
    """Return `outgoing` with the rows that come for each block."""
    _rehearse(core, call, outgoing._replace(recv_counts=outgoing.counts))
    _refuse_exchange(core, "recv_counts")
    mine = np.array(outgoing.counts, np.int64)
    arrived = core.collective(
        CALLS[call.name].name,
        mine,
        timeout=call.timeout,
        lists=Lists(peers=outgoing.peers),
        site=user_site(),
    )
    return outgoing._replace(recv_counts=tuple(arrived.tolist()))


def _wanted(core: Core, call: Unlisted) -> Lists:
    """Return the rows of each rank's out; a root without one gets the rest."""
    rank, size, out = core.backend.rank, core.backend.size, call.out
    at_root = rank == check_rank("root", call.root, size)
    if out is None and not at_root:
        raise UsageError(
            f"{call.name}: counts and out are None on rank {rank}, which is not the root and does not know "
            "how many rows arrive; give out=np.empty((rows, ...), dtype), or give counts on every rank and "
            "an x of the shape and dtype of the root's, which is not read"
        )
    available = _row_count("x", call.x) if at_root else 0
    rows = available if out is None else _row_count("out", out)
    rest = available - rows if at_root else 0
    if rest < 0:
        raise BufferMismatch(f"out has {rows} rows and x has {available}; x has those of all ranks")
    pretended = [0] * size
    pretended[rank - 1] = rest  # some other rank's, if there is one
    pretended[rank] = rows
    _rehearse(core, call._replace(out=None) if at_root else call, Lists(tuple(pretended)))
    wanted = _exchanged(core, call, -1 if out is None else rows)
    if wanted[call.root] == -1:
        left = np.array([available - sum(wanted) - 1], np.int64)
        core.collective("broadcast", left, root=call.root, timeout=call.timeout, site=user_site())
        wanted[call.root] = int(left[0])
    return Lists(tuple(wanted))


def _rehearse(core: Core, call: Unlisted, lists: Lists) -> None:
    """Raise the errors of the call that any counts of the other ranks would give."""
    name, x, out, timeout, algorithm, stream, root = call
    core.limit(timeout)
    fits = out if name == "scatter_v" else None  # elsewhere its size is not known yet
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


def _agree_on_fit(core: Core, call: Unlisted, lists: Lists) -> None:
    """Raise on every rank if the arrays of one do not fit what was exchanged."""
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
    with core.calls.one_call():
        core.agree(call.name, {}, error)


def _exchanged(core: Core, call: Unlisted, number: int) -> list[int]:
    """Return every rank's number."""
    _refuse_exchange(core, "counts")
    mine = np.array([number], np.int64)
    everyone = core.collective("all_gather", mine, timeout=call.timeout, site=user_site())
    return [int(each) for each in everyone.ravel()]


def _refuse_exchange(core: Core, name: str) -> None:
    """Raise where calls are not issued when they are made."""
    sink = core.sink
    if sink.diverted:
        where = sink.within or "plan or explain"
        raise UsageError(f"{name} is None in {where}, which cannot exchange it; give {name}")


def _pairs(
    what: Collective, size: int, counts: object, recv_counts: object, peers: object
) -> Lists:
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


def _row_count(name: str, array: Any) -> int:
    if array is None:
        raise UsageError(f"{name} is None; give an array")
    shape = view(array, name).shape
    row_shape(name, shape)  # which refuses an array without rows
    return int(shape[0])
