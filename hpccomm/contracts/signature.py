"""A collective call without its memory: sizes, dtype, reduction, root; and the decision for it.

The communicator makes the `Signature` of the arguments; backends, dispatches and algorithms read it. The
dispatches decide (`Choice`); `Communicator.explain`, records, hooks and messages show it. A
`CallFingerprint` holds the values of a call that all ranks must ask for alike.
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS, Collective, Extent
from hpccomm.dtypes import DType
from hpccomm.reductions import Deterministic, Op, PremulSum, ReduceOp, accumulator, code_of, name_of


class Signature(NamedTuple):
    """A collective call without its memory. What a call is decided by, and nothing else.

    Each call has at most two flat arrays on a rank, `send` and `recv`. Their contents follow from
    the collective's description in ``hpccomm.contracts.collectives``: nothing, the whole array, the
    own block, or a block for (or from) each rank. A broadcast has one array, `recv`, on every rank.

    Attributes
    ----------
    collective : str
        One of ``hpccomm.contracts.collectives.COLLECTIVES``.
    dtype : dtype
        Of all arrays.
    counts : tuple of int
        Elements: one number where every rank has the same (all_reduce, broadcast, reduce, scan:
        the whole array), else the block of each rank. Where ranks have numbers of their own
        (all_to_all), the blocks that this rank sends.
    recv_counts : tuple of int
        Where ranks have numbers of their own, the blocks that this rank receives; else empty.
    peers : tuple of int
        For calls with listed peers, the peer of each block, or `NOBODY`; else empty.
    uniform : bool
        Whether all blocks, on all ranks, have one size.
    op : ReduceOp, PremulSum, callable or None
        The reduction.
    root : int
        The root, or -1.
    exclusive : bool
        Of a scan.
    in_place : bool
        Whether `send` and `recv` lie in the same memory on this rank.
    registered : bool
        The kind of memory: whether the arrays of all ranks are in registered memory.
    deterministic : bool or "any ranks"
        Whether contributions are folded in rank order; or summed so that the number of ranks does not matter.
    """

    collective: str
    dtype: DType
    counts: tuple[int, ...]
    recv_counts: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()
    uniform: bool = True
    op: Op | None = None
    root: int = -1
    exclusive: bool = False
    in_place: bool = False
    registered: bool = False
    deterministic: Deterministic = False

    @property
    def description(self) -> Collective:
        """The description of the collective."""
        return DESCRIPTIONS[self.collective]

    @property
    def name(self) -> str:
        """Name of the call."""
        return self.description.calls[0 if self.uniform else -1]

    @property
    def individual(self) -> bool:
        """Whether each rank has counts (and peers) of its own, which others do not know."""
        return self.description.individual and not self.uniform

    @property
    def elements(self) -> int:
        """Elements of the larger array of this rank."""
        return max(sum(self.counts), sum(self.recv_counts))

    @property
    def nbytes(self) -> int:
        """Bytes of the larger array."""
        return self.elements * self.dtype.itemsize

    @property
    def accumulator(self) -> DType:
        """Dtype in which contributions are folded; without a reduction, the arrays' dtype."""
        return self.dtype if self.op is None else accumulator(self.op, self.dtype)

    @property
    def summed(self) -> "Signature":
        """The call that is left once contributions are multiplied by their factor beforehand."""
        if isinstance(self.op, PremulSum):
            return self._replace(op=ReduceOp.SUM, in_place=False, registered=False)
        return self

    def lengths(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the elements of `send` and `recv` on each of `ranks`."""
        what = self.description
        at_root = ranks == self.root
        own = np.array(self.counts, np.int64)[ranks % len(self.counts)] if self.counts else 0

        def elements(extent: Extent, total: int, root_only: bool) -> NDArray[np.int64]:
            count = own if extent == "block" else total
            held = np.ones(len(ranks), np.int64) if not root_only else at_root.astype(np.int64)
            return held * (0 if extent == "nothing" else count)

        sends: Extent = "nothing" if what.in_place == "always" else what.sends
        received = sum(self.recv_counts if what.individual else self.counts)
        return (
            elements(sends, sum(self.counts), what.root_sends),
            elements(what.receives, received, what.root_receives),
        )

    def lengths_of(self, rank: int) -> tuple[int, int]:
        """Return the elements of `send` and `recv` on a rank."""
        # As `lengths`, which takes four times as long for one rank.
        what = self.description
        own = self.counts[rank % len(self.counts)] if self.counts else 0
        sends, receives = what.uses(rank, self.root)
        sent = own if what.sends == "block" else sum(self.counts)
        received = sum(self.recv_counts if what.individual else self.counts)
        return sent * sends, (own if what.receives == "block" else received) * receives


RAISES, ENDS_JOB, WAITS_ON = "raises", "ends the job", "waits on"


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision how a call is carried out. It prints as a sentence.

    Attributes
    ----------
    collective : str
        The call.
    path : str
        ``"host"``; for device arrays ``"cuda"``, or ``"staged"`` through host memory.
    backend : str
        Name of the backend that moves the data.
    algorithm : str
        ``"native"``, or the name of one of hpccomm's own, of another package's, or of the function that
        the call gives.
    segment : int or None
        Bytes that are moved at a time, where the algorithm cuts the array.
    registered : bool
        Whether this rank's arrays lie in memory of ``comm.empty``, which the peers, or the library, know. In a
        plan, whether the arrays of all ranks are registered.
    reason : str
        Why.
    schedule : str
        What tells the schedule of an algorithm that is not hpccomm's own from others: 8 hexadecimal
        digits, equal on all ranks; else empty.
    channels : int
        Pieces under way at the same time, where a table says so; else 0.
    other : object
        What carries the call out, where the name of the algorithm does not say it: an `Algorithm` of another package,
        or a function of hpccomm's; else None.
    at_deadline : str
        What the call does when its deadline passes: ``"raises"`` `CollectiveTimeout`; ``"ends the
        job"``, since it is blocked in a library and cannot be left, or by
        ``CommOptions.on_timeout``; or ``"waits on"``.
    """

    collective: str
    path: str
    backend: str
    algorithm: str
    segment: int | None
    registered: bool
    reason: str
    schedule: str = ""
    at_deadline: str = RAISES
    channels: int = 0
    other: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        cut = f" in segments of {self.segment} bytes" if self.segment is not None else ""
        known = ", in registered memory" if self.registered else ""
        return (
            f"{self.collective} takes the {self.path} path over {self.backend} "
            f"by algorithm {self.algorithm}{cut}{known}: {self.reason}"
        ) + (f"; at its deadline it {self.at_deadline}" if self.at_deadline != RAISES else "")


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
