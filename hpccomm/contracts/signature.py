"""A collective call without its memory: sizes, dtype, reduction, root; and the decision how it is carried out.

`hpccomm.calls` makes the `Signature` from the arguments of a call; backends, dispatches and algorithms read it. The
dispatches make the decision (`Choice`); `Communicator.explain`, records, hooks and messages show it. A
`CallFingerprint` holds the values of a call that must be equal on all ranks.
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
    """A collective call without its memory: the facts by which a call is decided, and no others.

    Each call has at most two flat arrays on a rank, `send` and `recv`. Their contents follow from
    the collective's description in ``hpccomm.contracts.collectives``: nothing, the whole array, the
    own block, or a block for (or from) each rank. A broadcast has one array, `recv`, on every rank.

    Attributes
    ----------
    collective : str
        One of ``hpccomm.contracts.collectives.COLLECTIVES``.
    dtype : dtype
        Type of the elements of all arrays.
    counts : tuple of int
        Numbers of elements. For all_reduce, broadcast, reduce and scan it is one number, that of the whole array; for
        other collectives the numbers of each rank's block. If ranks may give different counts (all_to_all), they are
        those of the blocks that this rank sends.
    recv_counts : tuple of int
        If ranks may give different counts, the elements of the blocks that this rank receives; else empty.
    peers : tuple of int
        For calls with listed peers, the peer of each block, or `NOBODY`; else empty.
    uniform : bool
        Whether all blocks, on all ranks, have one size.
    op : ReduceOp, PremulSum, callable or None
        The reduction.
    root : int
        The root, or -1.
    exclusive : bool
        Whether a scan is exclusive.
    in_place : bool
        Whether `send` and `recv` lie in the same memory on this rank.
    registered : bool
        Whether the arrays of all ranks are in registered memory.
    deterministic : bool or "any ranks"
        Whether contributions are folded in rank order; ``"any ranks"`` sums them so that the result does not depend
        on the number of ranks.
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
        """Whether each rank gives its own counts (and peers), which other ranks do not know."""
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
        # It does the same as `lengths`, which takes four times as long for one rank.
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
        Name of the call.
    path : str
        ``"host"``; for device arrays ``"cuda"``, or ``"staged"`` through host memory.
    backend : str
        Name of the backend that moves the data.
    algorithm : str
        ``"native"``, or the name of an algorithm of hpccomm or of another package, or of the function that
        the call gives.
    segment : int or None
        Bytes that are moved at a time; None if the algorithm does not cut the array.
    registered : bool
        Whether this rank's arrays lie in memory of ``comm.empty``, which the peers or the library know. In a
        plan, whether the arrays of all ranks are registered.
    reason : str
        The reason for the decision, in words.
    schedule : str
        A fingerprint of the schedule of an algorithm that is not hpccomm's own: 8 hexadecimal
        digits, equal on all ranks; else empty.
    channels : int
        Number of pieces under way at the same time, if a table says so; else 0.
    other : object
        The `Algorithm` of another package, or a function of hpccomm, that carries the call out, if the algorithm's
        name is not enough; else None.
    at_deadline : str
        What the call does when its deadline passes. ``"raises"``: it raises `CollectiveTimeout`. ``"ends the job"``:
        it is blocked in a library and cannot be left, or ``CommOptions.on_timeout`` asks for that. ``"waits on"``: it
        goes on waiting.
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
"""Key and values of the kind of memory, among the values of a call. A call without the key is on plain arrays."""

Pair = tuple[int | None, int | None]
"""The receiver and the sender of a message; None for a missing one."""

End = tuple[str, int | None, int]
"""``"dst"`` or ``"src"``, the other rank (None for any), and the channel of a message. Or ``"held"``, the rank that
holds a mutex, and the number of the mutex."""


class CallFingerprint(NamedTuple):
    """The identity of a call: for messages and records, and for the ranks to compare.

    Attributes
    ----------
    name : str
        Name of the call.
    nbytes : int
        Bytes of this rank's larger array.
    values : mapping of str to plain data
        The values that must be equal on all ranks, such as count, dtype, reduction, root and algorithm, for people and
        for JSON; for a message, its sender and receiver. Empty if nothing is compared.
    fingerprint : int
        32 bits of the values. Different values have the same bits with a probability of 2**-32.
    agreed_bytes : int
        Bytes of the call if all ranks know the same number; else 0.
    peers : tuple of int
        For a message, the ranks that it waits for; empty if any rank may end the wait.
    ends : tuple of (str, int, int)
        The messages, or the mutex, that end the call's wait; see `End`. Senders and receivers count the messages.
    ahead : int
        1 for a receive that is counted only once its message has arrived, else 0. With 1, any one of `ends` suffices.
    individual : tuple of Signature
        The parts of the call for which this rank gives its own lists. These must fit the other ranks' lists.
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
    """Return plain data as text. Equal data give equal texts, also after a conversion to JSON and back."""
    return json.dumps(values, sort_keys=True)


def compared(name: str, values: Mapping[str, object], nbytes: int = 0) -> CallFingerprint:
    """Return the fingerprint of a call from the values, plain data, that must be equal on all ranks."""
    return CallFingerprint(name, nbytes, values, crc32(written(values).encode()))


def of_call(call: Signature, algorithm: str, **more: Any) -> CallFingerprint:
    """Return the fingerprint of a collective call.

    Parameters
    ----------
    call : Signature
        The call. Counts that only this rank knows are not compared.
    algorithm : str
        Name of the algorithm.
    **more
        Further values, such as the path and whether the call is asynchronous.
    """
    return of_sizes(call, *of_kind(call, algorithm, **more), {})


def of_kind(call: Signature, algorithm: str, **more: Any) -> tuple[dict[str, object], int]:
    """Return the common values of calls that differ only in their sizes, and 32 bits of these values.

    The count among the values is None. The parameters are those of `of_call`.
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
    """Return the fingerprint of a call from the values and bits of `of_kind`, and further values of its sizes."""
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
    """Return the values of a call for recordings, which include the lists that only this rank knows, in elements."""
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
    """Return the fingerprint of a call, not a collective, that waits for the ranks `peers`."""
    what = hash((peers, ends)) & MASK
    return CallFingerprint(name, nbytes, fingerprint=what, peers=peers, ends=ends, ahead=ahead)


def joined(nbytes: int, each: Sequence[CallFingerprint], async_op: int) -> CallFingerprint:
    """Return the fingerprint of a batch of calls that are carried out together, in that order. Cheap."""
    prints = array("q", [len(each), async_op, *(one.fingerprint for one in each)])
    every = [one.values for one in each]
    values = {"operation": "batch", "calls": every, "async_op": bool(async_op)}
    individual = tuple([call for one in each for call in one.individual])
    agreed, digest = sum(one.agreed_bytes for one in each), crc32(prints.tobytes())
    return CallFingerprint("batch", nbytes, values, digest, agreed, individual=individual)
