"""Which calls of different ranks are one collective, and which are the two ends of a message."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.recording import CallSignature, Recording

Indices = NDArray[np.int64]

_NUMBERS = 1 << 40
"""A communicator makes fewer collectives."""


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """The collectives of a recording, by communicator, each communicator's in their order.

    Attributes
    ----------
    calls : ndarray of int64, shape (calls of collectives,)
        Their calls, one collective's after the other's, and in each by rank.
    starts : ndarray of int64, shape (collectives + 1,)
        Where in `calls` each collective begins, and the end of the last one.
    last : ndarray of int64, shape (collectives,)
        The call of the rank that arrived last.
    """

    calls: Indices
    starts: Indices
    last: Indices

    def __len__(self) -> int:
        """Return the number of collectives."""
        return len(self.last)

    @property
    def sizes(self) -> Indices:
        """The number of recorded calls of each."""
        return np.diff(self.starts)

    def of(self, each: NDArray[Any]) -> NDArray[Any]:
        """Return a value of each collective for each of `calls`."""
        return np.repeat(each, self.sizes)


def collectives(recording: Recording) -> MatchedCollectives:
    """Return which calls are one collective: they have one communicator and one number.

    A collective that some ranks have not recorded, since the program was killed, has the calls of the others.
    """
    calls = recording.calls
    numbered = np.flatnonzero(calls["number"] > 0)
    key = recording.of_signature("group")[numbered] * _NUMBERS + calls["number"][numbered]
    order = np.argsort(key, kind="stable")
    key, chosen = key[order], numbered[order]
    firsts = np.flatnonzero(np.diff(key, prepend=-1))
    starts = np.append(firsts, len(key))
    begin = calls["begin"][chosen]
    arrival = np.maximum.reduceat(begin, firsts)
    latest = np.flatnonzero(begin == np.repeat(arrival, np.diff(starts)))
    return MatchedCollectives(chosen, starts, chosen[latest[np.searchsorted(latest, firsts)]])


@dataclass(frozen=True, slots=True)
class MatchedMessages:
    """The calls that are the two ends of a message.

    Attributes
    ----------
    sends, receives : ndarray of int64, shape (messages,)
        The call that sent each message, and the one that received it, by receiver.
    """

    sends: Indices
    receives: Indices


def messages(recording: Recording) -> MatchedMessages:
    """Return which sends and receives are one message.

    The k-th send of a rank to another in one communicator, with one tag, belongs to the k-th such receive (MPI's
    rule of order). A receive from any rank, or of any tag, takes a message that the recording does not name. It is
    matched where only one sender and tag is possible. Else no message to its rank in that communicator is.
    """
    ends = [list(_ends(recording, each)) for each in recording.signatures]
    signature = recording.calls["signature"]
    numbers = np.array([len(each) for each in ends], np.int64)
    first = np.cumsum(numbers) - numbers
    having = np.flatnonzero(numbers[signature] * (recording.calls["failed"] == 0))
    count = numbers[signature[having]]
    call = np.repeat(having, count)
    within = np.arange(len(call)) - np.repeat(np.cumsum(count) - count, count)
    table = np.array([end for each in ends for end in each], np.int64).reshape(-1, 4)
    sends, channel, peer, kind = table[first[signature[call]] + within].T
    own = recording.calls.ranks()[call]
    source, target = np.where(sends, own, peer), np.where(sends, peer, own)
    known = recording.ranks - _UNKNOWN
    inbox = channel * known + target - _UNKNOWN
    for box in np.unique(inbox[(sends == 0) & (peer == _ANY)]):
        here = inbox == box
        possible = np.unique(np.stack([source, kind])[:, here & (sends == 1)], axis=1)
        if possible.shape[1] == 1:
            source[here], kind[here] = possible
        else:
            sends[here] = -1
    key = (inbox * known + source - _UNKNOWN) * (int(kind.max(initial=0)) + 2) + kind + 1
    _, key = np.unique(key, return_inverse=True)
    sent, received = _ordered(key, sends == 1), _ordered(key, sends == 0)
    _, left, right = np.intersect1d(sent[0], received[0], assume_unique=True, return_indices=True)
    return MatchedMessages(call[sent[1][left]], call[received[1][right]])


_ANY, _UNKNOWN = -1, -2


def _ends(recording: Recording, signature: CallSignature) -> Iterator[tuple[int, int, int, int]]:
    """Yield the ends of messages of a call: whether it sends, the communicator, the other rank, and the kind of message."""
    each: Mapping[str, Any]
    for each in signature.values.get("calls", (signature.values,)):
        objects = signature.operation.endswith("_object")
        for way in ("dst", "src"):
            peer = each.get(way)
            if peer is not None:
                ranks = recording.groups[signature.group].ranks
                whom = ranks[peer] if ranks[peer] >= 0 else _UNKNOWN
                yield way == "dst", signature.group, whom, 2 * (each.get("tag") or 0) + objects
    if signature.operation in ("recv", "recv_object") and "src" not in signature.values:
        yield False, signature.group, _ANY, -1


def _ordered(key: Indices, chosen: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return the chosen ends with a number of their own, which is equal for the k-th send and receive of a key."""
    places = np.flatnonzero(chosen)
    places = places[np.argsort(key[places], kind="stable")]
    firsts = np.flatnonzero(np.diff(key[places], prepend=-1))
    order = np.arange(len(places)) - np.repeat(firsts, np.diff(firsts, append=len(places)))
    return key[places] * (len(key) + 1) + order, places
