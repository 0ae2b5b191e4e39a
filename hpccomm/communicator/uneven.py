"""Collectives on blocks of different sizes, with counts or without; `Communicator`'s methods call it.

Counts are numbers of rows along axis 0. If they are not given, the ranks exchange them first, and then make the call.
Errors in this rank's arguments must be found before the exchange: after it, the other ranks would wait for this rank.
The exchange also tells all ranks whether their arrays fit each other.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy import may_share_memory, ndarray

from hpccomm.calls.arguments import Lists, check_counts, check_peers, row_shape
from hpccomm.calls.core import Core
from hpccomm.contracts.collectives import CALLS, Collective
from hpccomm.contracts.signature import compared
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.views import check_dtype, check_layout, overlap, view
from hpccomm.runtime.callpath import Kept, all_in_turn
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import check_bool
from hpccomm.topology import check_rank


class Unlisted(NamedTuple):
    """The arguments of a call whose counts are not all given, as far as their exchange needs them."""

    name: str
    x: Any
    out: Any
    timeout: float | None
    algorithm: AnyAlgorithm | None
    stream: object
    root: Any


def listed(
    core: Core, name: str, return_counts: bool, counts: Any, recv_counts: Any = None
) -> Lists:
    """Return the lists of a call whose counts are all given. `counts` is also the argument ``send_counts``.

    Raises
    ------
    UsageError
        If a list does not fit, or is missing.
    """
    if return_counts is not False:
        check_bool("return_counts", return_counts)
    what, size = CALLS[name], core.backend.size
    if what.uneven == "counts":
        lists = Lists(check_counts("counts", counts, size))
    else:
        lists = pairs(what, size, counts, recv_counts, None)
    return lists._replace(returned=True) if return_counts else lists


def listed_peers(
    core: Core,
    x: Any,
    out: Any,
    timeout: float | None,
    algorithm: AnyAlgorithm | None,
    stream: object,
    return_counts: bool,
    send_counts: Any,
    recv_counts: Any,
    peers: Any,
) -> Lists:
    """Return the lists of a `neighbor_all_to_all`. Missing `recv_counts` are exchanged.

    Raises
    ------
    UsageError
        If a list does not fit, or is missing.
    """
    if return_counts is not False:
        check_bool("return_counts", return_counts)
    name = "neighbor_all_to_all"
    lists = pairs(CALLS[name], core.backend.size, send_counts, recv_counts, peers)
    if send_counts is not None and recv_counts is None:
        lists = _incoming(core, Unlisted(name, x, out, timeout, algorithm, stream, None), lists)
    return lists._replace(returned=True) if return_counts else lists


def _incoming(core: Core, call: Unlisted, outgoing: Lists) -> Lists:
    """Return `outgoing` with the rows that arrive for each block, which are exchanged."""
    rehearse(core, call, outgoing._replace(recv_counts=outgoing.counts))
    refuse_exchange(core, "recv_counts")
    mine = np.array(outgoing.counts, np.int64)
    with core.calls.one_call():
        peers = Lists(peers=outgoing.peers)
        arrived = core.within(CALLS[call.name].name, mine, timeout=call.timeout, lists=peers)
    lists = outgoing._replace(recv_counts=tuple(arrived.tolist()))
    with core.calls.one_call():
        agree_on_fit(core, call, lists)
    return lists


def rehearse(core: Core, call: Unlisted, lists: Lists, fits: Any = None) -> None:
    """Raise the errors that the call has whatever the counts of the other ranks are."""
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
    """Raise on every rank if one rank's arrays do not fit the exchanged counts, or the ranks' `own` arrays differ.

    The caller holds the turn.
    """
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
    """Return the facts of an array that must be equal on all ranks: dtype, and a row's extents other than 1."""
    seen = view(array, "x")
    rest = tuple(each for each in seen.shape[1:] if each != 1)
    return {"dtype": str(seen.dtype), "shape": str(rest)}


def refuse_exchange(core: Core, name: str) -> None:
    """Raise in a plan, batch or explanation, whose calls are not issued when they are made."""
    sink = core.sink
    if sink.diverted:
        where = "plan or explain" if sink.batch is None else "batch()"
        raise UsageError(f"{name} is None in {where}, which cannot exchange it; give {name}")


def pairs(what: Collective, size: int, counts: object, recv_counts: object, peers: object) -> Lists:
    """Return the given lists of a call whose lists differ from rank to rank."""
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
    """Return the rows of an array, which must not be None or 0-d."""
    if array is None:
        raise UsageError(f"{name} is None; give an array")
    shape = view(array, name).shape
    row_shape(name, shape)  # raises for an array without rows
    return int(shape[0])


HEAD = Struct("3q")
"""Head of a call, which a rank sends to another: rows; a code of the dtype and shape of a row, or `UNSURE`; and the
bytes of `out`, or `NEVER`. A scatter's root sends the rows of x as the last number."""

How = tuple[bool, float | None, AnyAlgorithm | None, object, bool]
"""The arguments ``async_op``, ``timeout``, ``algorithm``, ``stream`` and ``return_counts``."""

NEVER = -1
"""Stands for the bytes of an `out` that is not given, and for rows that a root does not know."""

UNSURE = -1
"""The code of arrays that overlap or differ in shape, which must be checked again with the counts."""


class CountExchange:
    """The exchange of heads before calls of one name: an all_gather or an all_to_all of a few integers.

    Parameters
    ----------
    core : Core
        The communicator's core.
    name : str
        Name of the calls. The exchange is checked as a call of that name, so that errors name it.

    Attributes
    ----------
    what : Collective
        The description of the calls.
    known : Kept
        The code of a checked call and the bytes of one of its rows, by the call's arguments.
    """

    def __init__(self, core: Core, name: str) -> None:
        self.what = what = CALLS[name]
        size = core.backend.size
        self.known = Kept()
        sent = np.zeros((size if what.individual else 1, 3), np.int64)
        self._sent, self._came = sent.reshape(-1).view(np.uint8).data, np.zeros((size, 3), np.int64)
        way = "all_to_all" if what.individual else "all_gather"
        prepared, _ = core.prepared_calls.find(way, sent, self._came)
        label = compared(name, {"operation": name, "counts": "exchanged"}, self._came.nbytes)
        self._call = replace(prepared, label=label, apart=label, agreed=0)
        self._arguments = prepared.arguments(sent.reshape(-1), self._came.reshape(-1))

    def exchange(
        self, counts: tuple[int, ...], code: int, last: int, limit: float
    ) -> Iterator[tuple[int, ...]]:
        """Exchange the heads; return all ranks' rows, codes and last numbers. The caller holds the turn."""
        for place, count in enumerate(counts):
            HEAD.pack_into(self._sent, place * HEAD.size, count, code, last)
        self._call.issue(self._arguments, self, limit)
        return zip(*self._came.tolist(), strict=True)


@all_in_turn
def without_counts(
    core: Core, name: str, x: Any, out: Any, how: How, send_counts: Any = None, root: Any = None
) -> Any:
    """Carry out a call whose counts are exchanged. The parameters are those of the call `name`.

    Raises
    ------
    UsageError
        If an argument does not fit.
    RankMismatch
        If the ranks' arguments do not fit each other.
    """
    exchange = core.count_exchanges.get(name)
    if exchange is None:
        exchange = core.count_exchanges[name] = CountExchange(core, name)
    rank, size, what = core.backend.rank, core.backend.size, exchange.what
    individual, scatters, gathers = what.individual, what.root_sends, what.root_receives
    async_op, timeout, algorithm, stream, return_counts = how
    if async_op is not False:
        check_bool("async_op", async_op)
    if return_counts is not False:
        check_bool("return_counts", return_counts)
    if core.sink.diverted:
        refuse_exchange(core, "recv_counts" if individual else "counts")
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    own = x if not scatters or rank == root else out
    outgoing = pairs(what, size, send_counts, None, None).counts if individual else ()
    key: object = None
    into = None if out is own else out
    usual = own.__class__ is ndarray and own.ndim and own.flags.carray
    usual = usual and algorithm is None is stream
    if usual and into is not None:
        usual = into.__class__ is ndarray and into.ndim and into.flags.carray
        usual = usual and not may_share_memory(own, into)
    # The check does not depend on the counts of the sent rows, if their sum fits.
    if usual and root.__hash__ is not None and (not outgoing or sum(outgoing) == own.shape[0]):
        key = own.dtype, own.shape[1:], root, root.__class__
        if into is not None:
            key = *key, into.dtype, into.shape[1:]
    known = exchange.known.get(key)
    if known is None:
        call = Unlisted(name, x, out, timeout, algorithm, stream, root)
        known = _checked(core, call, own, outgoing)
        if key is not None:
            exchange.known.keep(key, known)
    code, width = known
    rows, last = row_count("x", own) if key is None else own.shape[0], NEVER
    if scatters and rank == root:
        rows, last = NEVER if out is None else row_count("out", out), rows
    elif out is not None and (rank == root or not gathers):
        last = view(out, "out").nbytes
    numbers, codes, lasts = exchange.exchange(outgoing or (rows,), code, last, limit)

    fits = codes[0] > UNSURE and codes.count(codes[0]) == size
    counts = numbers
    if not scatters:
        whole = NEVER if individual else sum(numbers) * width
        fits = fits and lasts.count(NEVER) + lasts.count(whole) * (whole != NEVER) == size
    else:
        rest_of_root = lasts[root] - sum(numbers) - 1
        counts = tuple(rest_of_root if each == NEVER else each for each in numbers)
        fits = fits and min(counts) >= 0 and sum(counts) == lasts[root]
    lists = Lists(outgoing, counts) if individual else Lists(counts)
    if not fits:
        call = Unlisted(name, x, out, timeout, algorithm, stream, root)
        agree_on_fit(core, call, lists, own)
    elif usual and out is None and (rank == root or not gathers):
        height = counts[rank] if scatters else sum(counts)
        out = core.lanes.host.new_like(own, (height, *own.shape[1:]), own.dtype, None)
    if return_counts:
        lists = lists._replace(returned=True)
    return core.within(name, x, out, *how[:4], None, False, root, lists)


def _checked(core: Core, call: Unlisted, own: Any, outgoing: tuple[int, ...]) -> tuple[int, int]:
    """Check a call before its exchange, and return its entry of `CountExchange.known`.

    Raises the errors that the call has whatever the counts of the other ranks are.
    """
    rank, size = core.backend.rank, core.backend.size
    if own is None and call.name == "scatter_v" and rank != check_rank("root", call.root, size):
        raise UsageError(
            f"{call.name}: counts and out are None on rank {rank}, which is not the root and does not know "
            "how many rows arrive; give out=np.empty((rows, ...), dtype), or give counts on every rank and "
            "an x of the shape and dtype of the root's, which is not read"
        )
    rows = (0,) * rank + (row_count("x", own),) + (0,) * (size - rank - 1)
    lists = Lists(outgoing, outgoing) if outgoing else Lists(rows)
    rehearse(core, call, lists, call.out if own is not call.x else None)
    seen = view(own, "x")
    code = crc32(repr((alike(own), call.root)).encode())
    if own is call.x and call.out is not None:
        into = view(call.out, "out")
        # The exchange has the number of rows of a scatter root's `out`, but not their shape.
        if overlap(seen, into) or (call.root == rank and into.shape[1:] != seen.shape[1:]):
            code = UNSURE
    return code, prod(seen.shape[1:]) * seen.dtype.itemsize
