"""Calls without counts: ranks exchange the counts, and with them the rows where these are few.

What a rank sends is a frame: a head of numbers, and room for rows. All frames of a communicator have one size, which
grows to what its calls need. Where the rows of all ranks have room, and the arrays fit, that one exchange is the call.
Otherwise the call follows, with the counts.

Errors in this rank's arguments must be found before the exchange: afterwards the other ranks would wait for it. The
methods with ``_v`` go through it.
"""

from math import prod
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy import frombuffer, may_share_memory, ndarray

from hpccomm.communicator.core import Core
from hpccomm.communicator.counts import (
    Unlisted,
    agree_on_fit,
    alike,
    pairs,
    refuse_exchange,
    rehearse,
    row_count,
)
from hpccomm.communicator.resolving import Lists
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.fingerprint import compared
from hpccomm.errors import UsageError
from hpccomm.memory.views import view
from hpccomm.runtime.callpath import in_turn
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import check_bool
from hpccomm.topology import check_rank

HEAD = Struct("4q")
"""Rows; bytes of the largest block of this rank, or `NEVER`; a code of dtype and shape; bytes of `out`, or
`NEVER`. Of a scatter's root, the rows of x take the place of the last one."""

pack = HEAD.pack_into

How = tuple[bool, float | None, AnyAlgorithm | None, object, bool]
"""The arguments ``async_op``, ``timeout``, ``algorithm``, ``stream`` and ``return_counts``."""

NEVER = -1
"""Stands for rows that do not go into a frame, for an `out` that is not given, and for rows that a root does not
know."""

MOST = 2048
"""Bytes of rows in a frame at most: from there on a second exchange costs less than longer frames."""

IN_ALL = 64 << 10
"""Bytes of all frames at most that a rank receives."""


class CountExchange:
    """Exchanges the counts, and rows, of the calls of one name on a communicator.

    Parameters
    ----------
    core : Core
        The communicator's.
    name : str
        Of the calls.

    Attributes
    ----------
    known : dict
        The code of a checked call, and the bytes of one of its rows, by its arguments.
    room : int
        Bytes of rows that a frame holds. The same on all ranks.
    stride : int
        Bytes of a frame.
    sent, came : memoryview of bytes
        The frames of the last exchange: one for all ranks, or one for each.
    """

    def __init__(self, core: Core, name: str) -> None:
        self._core, self._name, what = core, name, CALLS[name]
        self.rank, self.size, self.what = core.backend.rank, core.backend.size, what
        self.individual, self.scatters = what.individual, what.root_sends
        self.gathers = what.root_receives
        self.known: dict[object, tuple[int, int]] = {}
        self.resize(0)

    def resize(self, room: int) -> None:
        """Have later frames hold that number of bytes, the same on all ranks."""
        self.room, self.stride = room, HEAD.size + room
        sent = np.zeros((self.size if self.individual else 1) * self.stride, np.uint8)
        came = np.zeros((self.size, self.stride), np.uint8)
        way = "all_to_all" if self.individual else "all_gather"
        prepared, _ = self._core.prepared_calls.find(way, sent, came)
        what = {"operation": self._name, "counts": "exchanged", "frame": self.stride}
        label = compared(self._name, what, came.nbytes)
        self._call = prepared.lane.named(prepared, label)
        self._arguments = prepared.arguments(sent, came.reshape(-1))
        self._heads = came[:, : HEAD.size].view(np.int64)
        self.sent, self.came = sent.data, came.reshape(-1).data

    def exchange(self, limit: float) -> list[list[int]]:
        """Exchange the frames; return the heads that came."""
        self._call.issue(self._arguments, self, limit)
        return self._heads.tolist()  # type: ignore[no-any-return]

    def agreed(
        self, heads: list[list[int]], code: int, width: int, root: Any
    ) -> tuple[tuple[int, ...], int, bool]:
        """Return all ranks' counts, the bytes of their largest block, and whether everything fits."""
        numbers, sizes, codes, lasts = zip(*heads, strict=True)
        fits = codes.count(code) == self.size and min(sizes) >= 0
        if not self.scatters:
            whole = NEVER if self.individual else sum(numbers) * width
            return numbers, max(sizes), fits and {NEVER, whole}.issuperset(lasts)
        counts = [*numbers]
        if counts[root] == NEVER:
            counts[root] = lasts[root] - sum(counts) - 1
        fits = fits and min(counts) >= 0 and sum(counts) == lasts[root]
        return tuple(counts), max(sizes), fits

    def joined(self, counts: tuple[int, ...], width: int, root: Any) -> bytearray:
        """Return the rows that this rank gets of the last exchange."""
        came, place = self.came, HEAD.size
        if self.scatters:
            place += root * self.stride + sum(counts[: self.rank]) * width
            return bytearray(came[place : place + counts[self.rank] * width])
        parts = []
        for count in counts:
            parts.append(came[place : place + count * width])
            place += self.stride
        return bytearray().join(parts)


@in_turn
def without_counts(
    core: Core, name: str, x: Any, out: Any, how: How, send_counts: Any = None, root: Any = None
) -> Any:
    """Carry out a call whose counts are exchanged. Parameters are as of the call of that name.

    Raises
    ------
    UsageError
        If an argument does not fit.
    RankMismatch
        If the ranks' arguments do not fit each other.
    """
    async_op, timeout, algorithm, stream, return_counts = how
    frames = core.count_exchanges.get(name)
    if frames is None:
        frames = core.count_exchanges[name] = CountExchange(core, name)
    rank, size, individual, scatters = frames.rank, frames.size, frames.individual, frames.scatters
    if return_counts is not False:
        check_bool("return_counts", return_counts)
    if core.sink.diverted:
        refuse_exchange(core, "recv_counts" if individual else "counts")
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    own = x if not scatters or rank == root else out
    outgoing = pairs(frames.what, size, send_counts, None, None).counts if individual else ()
    key: tuple[object, ...] | None = None
    usual = async_op is False and algorithm is None is stream and root.__hash__ is not None
    if usual and own.__class__ is ndarray and own.flags.carray and own.ndim:
        if not individual or sum(outgoing) == own.shape[0]:
            key = own.dtype, own.shape[1:], root, root.__class__
        if key and out is not None and out is not own:
            plain = out.__class__ is ndarray and out.flags.carray
            plain &= not scatters or out.shape[1:] == own.shape[1:]
            key = (*key, out.dtype) if plain and not may_share_memory(x, out) else None
    known = frames.known.get(key)
    if known is None:
        known = _checked(core, Unlisted(name, x, out, *how[1:4], root), own, outgoing)
        if key:
            frames.known[key] = known
    code, width = known

    # The frames of this rank.
    rows = row_count("x", own) if key is None else own.shape[0]
    last, largest, flat = NEVER, NEVER, None
    if scatters and rank == root:
        rows, last = NEVER if out is None else row_count("out", out), rows
    elif out is not None and (rank == root or not frames.gathers):
        last = out.nbytes if key else view(out, "out").nbytes
    if key:
        largest = max(outgoing) * width if individual else own.nbytes if own is x else 0
    if 0 < largest <= frames.room:
        flat = (own if own.ndim == 1 else own.reshape(-1)).view(np.uint8)
    place = start = 0
    for count in outgoing or (rows,):
        pack(frames.sent, place, count, largest, code, last)
        if flat is not None:
            part = flat[start : start + count * width] if individual else flat
            frames.sent[place + HEAD.size : place + HEAD.size + part.size] = part
            start += part.size
        place += frames.stride

    heads, room = frames.exchange(limit), frames.room
    counts: tuple[int, ...] = (rows,) * size
    alike = NEVER < largest <= room and last in (NEVER, size * largest)
    if scatters or individual or not alike or heads.count([rows, largest, code, last]) != size:
        counts, largest, fits = frames.agreed(heads, code, width, root)
        if not fits or largest > room:
            lists = Lists(outgoing, counts) if individual else Lists(counts)
            if not fits:
                agree_on_fit(core, Unlisted(name, x, out, *how[1:4], root), lists, own)
            if room < largest <= min(MOST, IN_ALL // size):
                frames.resize(max(8, 1 << (largest - 1).bit_length()))
            lists = lists._replace(returned=return_counts)
            return core.within(name, x, out, *how[:4], None, False, root, lists)
    result = None
    if not frames.gathers or rank == root:
        joined, result = frames.joined(counts, width, root), out
        if out is not None:
            memoryview(out.reshape(-1).view(np.uint8))[:] = joined
        else:
            result = frombuffer(joined, own.dtype) if joined else np.empty(0, own.dtype)
            if own.ndim > 1:
                height = counts[rank] if scatters else sum(counts)
                result = result.reshape(height, *own.shape[1:])
    return (result, counts) if return_counts else result


def _checked(core: Core, call: Unlisted, own: Any, outgoing: tuple[int, ...]) -> tuple[int, int]:
    """Raise the errors that any counts of the other ranks would give; return the values of `CountExchange.known`."""
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
    return code, prod(seen.shape[1:]) * seen.dtype.itemsize
