"""The identity of a call, with the values that ranks must ask for alike in it."""

import json
from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

from hpccomm.contracts.signature import Signature
from hpccomm.reductions import code_of, name_of

MASK = 0xFFFFFFFF

MEMORY, PLAIN, REGISTERED = "memory", "plain", "registered"
"""The kind of memory of a call's arrays among its values. A call without one is on plain arrays."""

Pair = tuple[int | None, int | None]
"""The receiver and the sender of a message; None for a missing one."""

End = tuple[str, int | None, int]
"""``"dst"`` or ``"src"``, the other rank, and the channel; None for any rank. Or ``"held"``, the rank that holds a mutex, and
the mutex."""


class CallFingerprint(NamedTuple):
    """The identity of a call: for messages and records, and for the ranks to compare.

    Attributes
    ----------
    name : str
        Name of the call.
    nbytes : int
        Bytes of this rank's larger array.
    values : mapping of str to plain data
        What must be equal on all ranks, such as count, dtype, reduction, root and algorithm, for people and for
        JSON; of a message, who sends and receives. Empty where nothing is compared.
    fingerprint : int
        32 bits of the values: equal for different ones with a probability of 2**-32.
    agreed_bytes : int
        Bytes of the call where all ranks know the same number; else 0.
    peers : tuple of int
        For a message, the ranks that it waits for; empty if that may be any.
    ends : tuple of (str, int, int)
        What its wait ends by. Senders and receivers count the messages.
    ahead : int
        1 for a receive that is counted only when its message is there, else 0. Any of its ends will do then.
    individual : tuple of Signature
        The calls with lists of this rank's own. They must fit the other ranks' lists.
    """

    name: str
    nbytes: int
    values: Mapping[str, object] = MappingProxyType({})
    fingerprint: int = 0
    agreed_bytes: int = 0
    peers: tuple[int, ...] = ()
    ends: tuple[End, ...] = ()
    ahead: int = 0
    individual: tuple[Signature, ...] = ()


def written(values: object) -> str:
    """Return plain data as text: equal for equal data, also after a passage through JSON."""
    return json.dumps(values, sort_keys=True)


def compared(name: str, values: Mapping[str, object], nbytes: int = 0) -> CallFingerprint:
    """Return the fingerprint of a call by values, as for JSON, that must be equal on all ranks."""
    return CallFingerprint(name, nbytes, values, crc32(written(values).encode()))


def of_call(call: Signature, algorithm: str, **more: Any) -> CallFingerprint:
    """Return the fingerprint of a collective call.

    Parameters
    ----------
    call : Signature
        What it asks for. Counts that only this rank knows are not compared.
    algorithm : str
        Its algorithm.
    **more
        Further values, such as the path and whether the call is asynchronous.
    """
    return of_sizes(call, *of_kind(call, algorithm, **more), {})


def of_kind(call: Signature, algorithm: str, **more: Any) -> tuple[dict[str, object], int]:
    """Return the values of calls that differ in their sizes alone, and 32 bits of these. The count among them is None.

    Parameters are as of `of_call`.
    """
    what = call.description
    values: dict[str, object] = {"operation": call.name}
    if what.sends != "nothing":
        values["dtype"] = str(call.dtype)
        if not call.individual:
            values["count"] = None
    if call.op is not None:
        values["op"] = name_of(call.op)
        if code := code_of(call.op):
            values["code"] = code
        if (factor := getattr(call.op, "factor", None)) is not None:
            values["factor"] = repr(factor)
    if what.rooted:
        values["root"] = call.root
    if what.prefix:
        values["exclusive"] = bool(call.exclusive)
    if call.registered:
        values[MEMORY] = REGISTERED
    values |= {"algorithm": algorithm, "deterministic": call.deterministic, **more}
    return values, crc32(written(values).encode())


def of_sizes(
    call: Signature, values: Mapping[str, object], code: int, sizes: dict[str, object]
) -> CallFingerprint:
    """Return the fingerprint of a call from what `of_kind` has returned, and values that go with its sizes."""
    nbytes = call.nbytes
    own: tuple[Signature, ...] = (call,) if call.individual else ()
    if not own and "count" in values:
        alike = call.uniform and call.counts
        sizes["count"] = call.counts[0] if alike else list(call.counts)
    code = crc32(repr(sizes).encode(), code)
    name, agreed = str(values["operation"]), 0 if own else nbytes
    return CallFingerprint(name, nbytes, {**values, **sizes}, code, agreed, individual=own)


def of_message(
    name: str, nbytes: int, pair: Pair, tag: int, channel: int | None, ahead: int = 0
) -> CallFingerprint:
    """Return the fingerprint of a message. `channel` is None if it is not counted."""
    values = {"dst": pair[0], "src": pair[1], "tag": tag}
    both = [(way, peer) for way, peer in zip(("dst", "src"), pair, strict=True) if peer is not None]
    peers = tuple({peer for _, peer in both})
    ends = () if channel is None else tuple([(way, peer, channel) for way, peer in both])
    return CallFingerprint(name, nbytes, values, hash((pair, tag)) & MASK, 0, peers, ends, ahead)


def recorded(label: CallFingerprint) -> dict[str, Any]:
    """Return the values of a call as recordings keep them: with the lists of this rank's own, in elements."""
    individual = iter(label.individual)

    def whole(values: Mapping[str, Any]) -> dict[str, Any]:
        listed = "algorithm" in values and "dtype" in values and "count" not in values
        call = next(individual, None) if listed else None
        if call is None:
            return dict(values)
        lists = {"counts": call.counts, "recv_counts": call.recv_counts, "peers": call.peers}
        return {**values, **{name: list(each) for name, each in lists.items()}}

    values = whole(label.values)
    if "calls" in values:
        values["calls"] = [whole(each) for each in values["calls"]]
    return values


def with_peers(
    name: str, nbytes: int, peers: tuple[int, ...], ends: tuple[End, ...] = (), ahead: int = 0
) -> CallFingerprint:
    """Return the fingerprint of a call with these ranks that is not a collective."""
    what = hash((peers, ends)) & MASK
    return CallFingerprint(name, nbytes, fingerprint=what, peers=peers, ends=ends, ahead=ahead)


def joined(nbytes: int, each: Sequence[CallFingerprint], async_op: int) -> CallFingerprint:
    """Return the fingerprint of calls that are carried out together, in that order. Cheap."""
    prints = array("q", [len(each), async_op, *(one.fingerprint for one in each)])
    every = [one.values for one in each]
    values = {"operation": "batch", "calls": every, "async_op": bool(async_op)}
    individual = tuple([call for one in each for call in one.individual])
    agreed, digest = sum(one.agreed_bytes for one in each), crc32(prints.tobytes())
    return CallFingerprint("batch", nbytes, values, digest, agreed, individual=individual)
