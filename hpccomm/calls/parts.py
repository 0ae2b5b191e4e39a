"""Cuts a collective on a large array into calls on its parts, one after the other.

`staged` moves device arrays part by part.
"""

from typing import NamedTuple

import numpy as np

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


class CallPart(NamedTuple):
    """A part of a call.

    Attributes
    ----------
    call : Signature
        A call like the whole one on these elements alone.
    send, recv : Rows or None
        Their places in this rank's arrays; None without an array.
    """

    call: Signature
    send: Rows | None
    recv: Rows | None


def parts(call: Signature, rank: int, size: int, nbytes: int = PART_BYTES) -> tuple[CallPart, ...]:
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
    what = call.description
    send, recv = what.uses(rank, call.root)
    itemsize = call.dtype.itemsize
    whole = call.counts[0] if call.uniform else 0
    blocks = size if what.blockwise else 1
    row = nbytes if blocks == 1 else max(nbytes // blocks, ROW_BYTES)
    step = max(1, row // itemsize)
    if not call.uniform or whole <= step:
        sent, received = (Rows(0, int(n[0]) * itemsize) for n in call.lengths(np.array([rank])))
        return (CallPart(call, sent if send else None, received if recv else None),)
    cut = []
    for start in range(0, whole, step):
        count = min(step, whole - start)
        one = Rows(start * itemsize, count * itemsize)
        many = one._replace(height=size, pitch=whole * itemsize)
        counts = (count,) * len(call.counts)
        inner = call._replace(counts=counts, recv_counts=counts if call.recv_counts else ())
        sent = many if what.sends == "blocks" else one
        received = many if what.receives == "blocks" else one
        cut.append(CallPart(inner, sent if send else None, received if recv else None))
    return tuple(cut)
