"""The steps of a plan, and the check that all ranks' steps fit together. For `sequences`."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

from hpccomm.communicator.call_sink import PlanStep
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.lanes.message import BLOCKS
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.fingerprint import CallFingerprint, joined, written
from hpccomm.contracts.pairing import odd_ones
from hpccomm.contracts.transport import Transport
from hpccomm.errors import UsageError
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.recorder import described
from hpccomm.runtime.verdict import side_by_side

NO_CALL = {"operation": "no call"}

HOST = "host"
"""The kind of memory whose messages are numbered."""


class Sent(NamedTuple):
    """One end of a planned message, as its rank tells of it.

    Attributes
    ----------
    step : int
        Of the plan, from 0.
    name : str
        Of the call.
    peer : int
        The other end.
    tag : int
        The user's.
    nbytes : int
        Its size.
    dtype : str
        Of the array.
    memory : str
        Kind of memory in which the array lies.
    """

    step: int
    name: str
    peer: int
    tag: int
    nbytes: int
    dtype: str
    memory: str


class Announced(NamedTuple):
    """A rank's announcement of its plan.

    Attributes
    ----------
    sites : sequence of str
        The program's line of each step.
    collectives : sequence of (int, mapping)
        The steps with collective calls, and their values that must be equal on all ranks.
    sends, receives : sequence of Sent
        The messages.
    willing : sequence of object
        For each step with collective calls, a true value, equal on all ranks, if they may take the
        plans' route.
    """

    sites: Sequence[str]
    collectives: Sequence[tuple[int, Mapping[str, Any]]]
    sends: Sequence[Sent]
    receives: Sequence[Sent]
    willing: Sequence[object] = ()


def announced(
    steps: Sequence[PlanStep], messages: Sequence[Sequence[Call]], *, async_op: bool
) -> Announced:
    """Return a rank's announcement of its steps, with the messages of each."""
    collectives = []
    willing = []
    sends: list[Sent] = []
    receives: list[Sent] = []
    for number, (step, parts) in enumerate(zip(steps, messages, strict=True)):
        label = _label(step, async_op=async_op)
        if label is not None:
            collectives.append((number, label.values))
            first = step.calls[0]
            willing.append(not step.batched and first.prepared.lane.willing(first))
        for call in parts:
            outward, inward = call.ends
            for peer, array, ended in ((outward, call.send, sends), (inward, call.recv, receives)):
                if peer is not None:
                    ended.append(_told(number, call, peer, array))
    sites = [described(step.site) for step in steps]
    return Announced(sites, collectives, sends, receives, willing)


def read(came: Sequence[Any]) -> Announced:
    """Return another rank's announcement, from JSON."""
    sites, collectives, sends, receives, willing = came
    sent, taken = ([Sent(*each) for each in ended] for ended in (sends, receives))
    return Announced(sites, collectives, sent, taken, willing)


def _label(step: PlanStep, *, async_op: bool) -> CallFingerprint | None:
    """Return the values of a step that must be equal on all ranks; None for messages alone."""
    prepared_calls = [call.prepared for call in step.calls if call.prepared.ordered]
    each = [one.async_label if async_op else one.label for one in prepared_calls]
    if not each:
        return None
    return joined(0, each, False) if step.batched else each[0]


def _told(step: int, call: Call, peer: int, array: Any) -> Sent:
    label = call.prepared.label
    tag: Any = label.values["tag"]
    return Sent(
        step, label.name, peer, tag, array.nbytes, str(array.dtype), call.prepared.lane.memory
    )


# Whether they fit.


def differing(everyone: Sequence[Announced]) -> tuple[str, tuple[int, ...]] | None:
    """Return the mismatch, and the ranks concerned; None without one. The same on all ranks."""
    return _collectives(everyone) or _messages(everyone)


def _collectives(everyone: Sequence[Announced]) -> tuple[str, tuple[int, ...]] | None:
    each_number = zip_longest(*(each.collectives for each in everyone))
    for number, calls in enumerate(each_number, 1):
        came: dict[int, dict[str, Any]] = {rank: {"record": NO_CALL} for rank in range(len(calls))}
        for rank, call in enumerate(calls):
            if call is not None:
                came[rank] = {"record": call[1], "site": everyone[rank].sites[call[0]]}
        odd = {rank: written(facts["record"]) for rank, facts in came.items()}
        if len(set(odd.values())) > 1:
            return (
                f"the ranks plan different collectives as number {number}: {side_by_side(came)}; "
                "plan the same collectives in the same order on all ranks"
            ), odd_ones(odd)
    return None


_Ends = Mapping[tuple[int, int, str], Sequence[Sent]]
"""By sender, receiver and kind of memory."""


def _messages(everyone: Sequence[Announced]) -> tuple[str, tuple[int, ...]] | None:
    sends: dict[tuple[int, int, str], list[Sent]] = defaultdict(list)
    receives: dict[tuple[int, int, str], list[Sent]] = defaultdict(list)
    for rank, each in enumerate(everyone):
        for one in each.sends:
            if one.tag != BLOCKS:
                sends[rank, one.peer, one.memory].append(one)
        for one in each.receives:
            if one.tag != BLOCKS:
                receives[one.peer, rank, one.memory].append(one)
    for pair in sorted(sends.keys() | receives.keys()):
        sent, taken = sends.get(pair, []), receives.get(pair, [])
        # Messages of one tag arrive in their order; others may be received in another one.
        if [*map(_what, _ordered(sent))] != [*map(_what, _ordered(taken))]:
            sender, receiver, _ = pair
            return _odd_message(everyone, sender, receiver, sent, taken), (sender, receiver)
    return None


def _what(one: Sent) -> tuple[int, str, int]:
    return one.tag, one.dtype, one.nbytes


def _ordered(messages: Iterable[Sent]) -> list[Sent]:
    """Return messages between two ranks in an order that both ends know."""
    return sorted(messages, key=attrgetter("tag"))


def _odd_message(
    everyone: Sequence[Announced],
    sender: int,
    receiver: int,
    sent: Sequence[Sent],
    taken: Sequence[Sent],
) -> str:
    """Say which message between two ranks is the first that does not fit."""
    for tag in sorted({one.tag for one in (*sent, *taken)}):
        out, come = ([one for one in each if one.tag == tag] for each in (sent, taken))
        for number, (one, other) in enumerate(zip_longest(out, come), 1):
            if one is None or other is None or _what(one) != _what(other):
                return (
                    f"as message {number} with tag {tag}, rank {sender} sends rank {receiver} "
                    f"{_shown(one, everyone[sender])}, and rank {receiver} receives "
                    f"{_shown(other, everyone[receiver])} from it; let what a rank receives be what the "
                    "other one sends, in the same order"
                )
    return f"what rank {sender} sends rank {receiver} is not what that receives"


def _shown(one: Sent | None, of: Announced) -> str:
    if one is None:
        return "nothing"
    site = of.sites[one.step]
    return f"{one.nbytes} bytes of {one.dtype} in {one.memory} memory ({one.name}{site and f' at {site}'})"


# Numbers of messages.


def most_messages(everyone: Iterable[Announced]) -> int:
    """Return how many messages of host arrays go from one rank to another at most."""
    pairs = Counter(
        (rank, one.peer)
        for rank, each in enumerate(everyone)
        for one in each.sends
        if one.memory == HOST
    )
    return max(pairs.values(), default=0)


def numbers(messages: Sequence[Sent]) -> Iterator[int]:
    """Yield the number of each message of one rank, from 0 for each peer. Both ends find the same."""
    found, before = [0] * len(messages), Counter[int]()
    for place in sorted(range(len(messages)), key=lambda place: messages[place].tag):
        peer = messages[place].peer
        found[place] = before[peer]
        before[peer] += 1
    yield from found


class PlanTags:
    """The tags of one communicator's plans, and the transports on which they are.

    The first plan with messages makes a transport, and so does each that finds too few tags left.

    Parameters
    ----------
    backend : Backend
        Makes the transports.
    calls : CallEngine
        The communicator's.
    """

    def __init__(self, backend: Backend, calls: CallEngine) -> None:
        self._backend = backend
        self._calls = calls
        self._transport: Transport | None = None
        self._next = 0

    def take(self, count: int) -> tuple[Transport, int]:
        """Return a transport and the first of `count` tags on it. Collective, with the same count; blocks.

        Raises
        ------
        UsageError
            If a transport has no tags left.
        """
        transport = self._transport or self._made()
        tags = transport.largest_tag + 1
        if count > tags:
            raise UsageError(
                f"the plan has {count} messages from one rank to another, and the backend has "
                f"{tags} tags; plan fewer, or make larger messages"
            )
        if self._next + count > tags:
            transport = self._made()
        first = self._next
        self._next += count
        return transport, first

    def _made(self) -> Transport:
        """Make a transport, for the plans to come also where this one is refused."""
        with self._calls.beside_watchdog("planning messages", ordered=True):
            transport = self._backend.planned()
        self._transport, self._next = transport, 0
        return transport
