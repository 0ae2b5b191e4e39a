"""What ranks must ask for alike in one call."""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from zlib import crc32

from hpccomm.contracts.signature import Signature
from hpccomm.reductions import code_of, name_of

End = tuple[str, int, int]
"""``"dst"`` or ``"src"``, the other rank, and the channel."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What must be equal on all ranks in one call.

    Attributes
    ----------
    values : mapping of str to plain data
        Such as count, dtype, reduction, root and algorithm, for people and for JSON.
    fingerprint : int
        32 bits, equal for different values with probability 2**-32.
    nbytes : int
        Bytes of the call where all ranks know the same number; else 0.
    peers : tuple of int
        For a message, the ranks that it waits for; empty if that may be any.
    ends : tuple of (str, int, int)
        The ends of messages that their senders and receivers count: ``"dst"`` or ``"src"``, the other rank, and
        the channel.
    ahead : int
        1 for a receive that is counted only when its message is there, else 0.
    individual : tuple of Signature
        The calls with lists of this rank's own. They must fit the other ranks' lists.
    """

    values: Mapping[str, object]
    fingerprint: int
    nbytes: int = 0
    peers: tuple[int, ...] = ()
    ends: tuple[End, ...] = ()
    ahead: int = 0
    individual: tuple[Signature, ...] = ()


def written(values: object) -> str:
    """Return plain data as text: equal for equal data, also after a passage through JSON."""
    return json.dumps(values, sort_keys=True)


def terms(values: Mapping[str, object], nbytes: int = 0) -> Terms:
    """Return terms of these values, which JSON can hold."""
    return Terms(values, crc32(written(values).encode()), nbytes)


def of_call(call: Signature, algorithm: str, deterministic: bool, **more: object) -> Terms:
    """Return the terms of a collective call.

    Parameters
    ----------
    call : Signature
        The call. Counts that only this rank knows are left out.
    algorithm : str
        Its algorithm.
    deterministic : bool
        Whether contributions are folded in rank order.
    **more
        Further terms, such as the path and whether the call is asynchronous.
    """
    what = call.description
    values: dict[str, object] = {"operation": call.name}
    if what.sends != "nothing":
        values["dtype"] = str(call.dtype)
        if not call.individual:
            alike = call.uniform and call.counts
            values["count"] = call.counts[0] if alike else list(call.counts)
    if call.op is not None:
        values["op"] = name_of(call.op)
        code = code_of(call.op)
        if code:
            values["code"] = code
        factor = getattr(call.op, "factor", None)
        if factor is not None:
            values["factor"] = repr(factor)
    if what.rooted:
        values["root"] = call.root
    if what.prefix:
        values["exclusive"] = bool(call.exclusive)
    values |= {"algorithm": algorithm, "deterministic": deterministic, **more}
    if call.individual:
        return replace(terms(values), individual=(call,))
    return terms(values, call.nbytes)


def of_message(
    dst: int | None, src: int | None, tag: int, channel: int | None, ahead: int = 0
) -> Terms:
    """Return the partners of a message, unique to this rank. `channel` is None if not counted."""
    values = {"dst": dst, "src": src, "tag": tag}
    both = [(way, peer) for way, peer in (("dst", dst), ("src", src)) if peer is not None]
    peers = tuple({peer for _, peer in both})
    ends = () if channel is None else tuple([(way, peer, channel) for way, peer in both])
    return Terms(values, hash((dst, src, tag)) & 0xFFFFFFFF, 0, peers, ends, ahead)


@lru_cache(maxsize=1024)
def with_peers(peers: tuple[int, ...]) -> Terms:
    """Return the partners of one rank, in calls that are not collectives."""
    return Terms({}, hash(peers) & 0xFFFFFFFF, 0, peers)


def joined(each: Sequence[Terms], async_op: int) -> Terms:
    """Return the terms of calls that are carried out together, in that order. Cheap."""
    prints = array("q", [len(each), async_op, *(one.fingerprint for one in each)])
    values = {
        "operation": "batch",
        "calls": [one.values for one in each],
        "async_op": bool(async_op),
    }
    individual = tuple([call for one in each for call in one.individual])
    nbytes = sum(one.nbytes for one in each)
    return Terms(values, crc32(prints.tobytes()), nbytes, individual=individual)
