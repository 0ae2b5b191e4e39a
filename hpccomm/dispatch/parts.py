"""How a collective on a large array is cut into calls on parts of it, one after the other."""

from dataclasses import replace
from typing import NamedTuple

from hpccomm.contracts.collectives import BLOCKWISE
from hpccomm.contracts.signature import Signature

PART_BYTES = 4 << 20
"""Bytes of a part: large enough that starting a copy or a call costs little of its time."""

ROW_BYTES = 32 << 10
"""Bytes of a rank's block in a part, at least: smaller messages cost more than they carry."""


class Rows(NamedTuple):
    """Bytes of an array: `height` rows of `width` bytes, `pitch` apart, the first one at `offset`."""

    offset: int
    width: int
    height: int = 1
    pitch: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.width * self.height


class Part(NamedTuple):
    """A part of a call.

    Attributes
    ----------
    call : Signature
        A call like the whole one on these elements alone.
    send, recv : Rows or None
        Where they lie in this rank's arrays; None where it has none.
    """

    call: Signature
    send: Rows | None
    recv: Rows | None


def has(call: Signature, rank: int) -> tuple[bool, bool]:
    """Return whether a rank has a `send` and a `recv` in the call, after the table of `Signature`."""
    name, root = call.collective, call.root
    send = name not in ("broadcast", "barrier") and (name != "scatter" or rank == root)
    recv = name != "barrier" and (name not in ("reduce", "gather") or rank == root)
    return send, recv


def parts(call: Signature, rank: int, size: int, nbytes: int = PART_BYTES) -> tuple[Part, ...]:
    """Return the parts of a call, at least one, in their order. The same number on all ranks.

    Blocks of one size are cut across: a part has some elements of each rank's block. Uneven calls
    stay whole, since each rank would have its own number of parts.

    Parameters
    ----------
    call : Signature
        The whole.
    rank, size : int
        This rank, and how many there are.
    nbytes : int
        Bytes of the larger array in a part, about.
    """
    send, recv = has(call, rank)
    itemsize = call.dtype.itemsize
    whole = call.counts[0]
    blocks = size if call.collective in BLOCKWISE else 1
    row = nbytes if blocks == 1 else max(nbytes // blocks, ROW_BYTES)
    step = max(1, row // itemsize)
    if not call.uniform or whole <= step:
        sent, received = _whole(call, rank)
        return (Part(call, sent if send else None, received if recv else None),)
    # Which of the two has a block for each rank.
    many_sent = call.collective in ("reduce_scatter", "all_to_all", "scatter")
    many_received = call.collective in ("all_gather", "all_to_all", "gather")
    cut = []
    for start in range(0, whole, step):
        count = min(step, whole - start)
        one = Rows(start * itemsize, count * itemsize)
        many = one._replace(height=size, pitch=whole * itemsize)
        counts = (count,) * len(call.counts)
        inner = replace(call, counts=counts, recv_counts=counts if call.recv_counts else ())
        sent, received = many if many_sent else one, many if many_received else one
        cut.append(Part(inner, sent if send else None, received if recv else None))
    return tuple(cut)


def _whole(call: Signature, rank: int) -> tuple[Rows, Rows]:
    """Return all bytes of both arrays of a rank, as if it had both."""
    itemsize = call.dtype.itemsize
    total = sum(call.counts) * itemsize
    own = call.counts[rank % len(call.counts)] * itemsize
    sent, received = {
        "all_gather": (own, total),
        "gather": (own, total),
        "reduce_scatter": (total, own),
        "scatter": (total, own),
        "all_to_all": (total, sum(call.recv_counts) * itemsize),
    }.get(call.collective, (total, total))
    return Rows(0, sent), Rows(0, received)
