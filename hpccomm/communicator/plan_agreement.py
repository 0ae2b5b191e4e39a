"""Plans at work: the ranks agree on a call, once, and carry it out repeatedly.

`planning` plans calls by it, and `halo` the messages of a halo. Each rank announces its end of the plan, and all
of them compare the announcements. Messages on host arrays get tags of their own.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.lanes.check import odd_calls
from hpccomm.communicator.lanes.message import BLOCKS, Parts
from hpccomm.contracts.choice import ENDS_JOB, RAISES, WAITS_ON, Choice
from hpccomm.contracts.transport import Transport
from hpccomm.errors import RankMismatch
from hpccomm.runtime.callpath import PreparedCall, carried
from hpccomm.runtime.recorder import described
from hpccomm.runtime.verdict import NO_CALL, side_by_side


class Sent(NamedTuple):
    """One end of a planned message, as its rank announces it.

    Attributes
    ----------
    name : str
        Name of the call.
    peer : int
        The other end.
    tag : int
        The user's.
    nbytes : int
        Its size.
    dtype : str
        The array's dtype.
    memory : str
        Kind of memory in which the array lies.
    """

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
    site : str
        The program's line.
    collective : mapping or None
        The values of a collective call that must be equal on all ranks.
    sends, receives : sequence of Sent
        The messages.
    willing : object
        Of a collective call, a true value, equal on all ranks, if they may take what is for plans alone.
    """

    site: str
    collective: Mapping[str, Any] | None
    sends: Sequence[Sent]
    receives: Sequence[Sent]
    willing: object


def agreed(
    core: Core, calls: Sequence[Call], *, parts: Parts = None, async_op: bool = False
) -> tuple[Call, Transport | None, Sequence[Call]]:
    """Agree on a plan. Collective; blocks. Within a call.

    Parameters
    ----------
    core : Core
        The communicator's.
    calls : sequence of Call
        The call of this rank, or the messages of a halo.
    parts : sequence of HaloPart, optional
        The parts of a halo.
    async_op : bool
        Whether the plan only starts its call.

    Returns
    -------
    Call
        What is planned, as one call, for `carrying_out`.
    Transport or None
        Where its messages on host arrays go, if there are such.
    sequence of Call
        Its messages, with the tags that they have there.

    Raises
    ------
    RankMismatch
        On all ranks, if their plans do not fit each other.
    """
    first = whole = calls[0]
    lane, transport = first.prepared.lane, None
    messages = calls if parts is not None or async_op else lane.messages(first)
    everyone = _compared(core, _announced(core, calls, messages, async_op=async_op))
    if not async_op:
        transport, messages = _tagged(core, messages, everyone)
        whole = lane.planned(first, messages, transport, parts)
    if first.prepared.ordered:
        willing = [each.willing for each in everyone]
        alike = willing[0] if willing.count(willing[0]) == len(willing) else False
        whole = lane.agreed(whole, async_op, willing=alike)
        of = first.prepared.call
        if of is not None and of.individual:
            core.agree_on_pairs("plan", of)
    for each in calls:
        lane.prepare_plan(each)
    return whole, transport, messages


def at_deadline(core: Core, prepared: PreparedCall, *, polled: bool = False) -> str:
    """Return the action of a call at its deadline."""
    # Under ULFM a call that is blocked in the library can be released.
    blocks = prepared.run is not None and core.backend.survival is None
    told = {"abort": ENDS_JOB, "report": WAITS_ON}.get(core.calls.on_timeout)
    return told or (ENDS_JOB if blocks and not polled else RAISES)


def message_choice(choice: Choice, call: Call, transport: Transport | None) -> Choice:
    """Return the decision of a planned message with its arguments."""
    to, origin = call.ends
    both: Any = ("to", to, call.send), ("from", origin, call.recv)
    messages = [(way, peer, array.nbytes) for way, peer, array in both if peer is not None]
    texts = [f"{nbytes} bytes {way} rank {peer}" for way, peer, nbytes in messages]
    what = " and ".join(texts) or "nothing to move"
    persistent = None if transport is None else transport.persistent
    reason = choice.reason
    if persistent and messages and all(persistent.pays(*each[1:]) for each in messages):
        reason = "requests of the library are made once"
    return replace(choice, reason=f"{what}; {reason}")


def carrying_out(
    core: Core, call: Call | None, planned: Call, limit: float, *, async_op: bool = False
) -> Callable[[], Any]:
    """Return the function that carries an agreed plan out, or starts it, within `limit` seconds each time.

    A batch that is open takes `call` instead; None is a halo, which does not go into one.
    """
    if async_op:
        return partial(_start, core, planned, limit)
    lane, sink = planned.prepared.lane, core.sink
    carry = partial(lane.issuing(planned), limit)

    def otherwise() -> Any:
        with core.calls.one_call():
            if call is None:
                sink.refuse_batch("a halo", "; call it before or after")
            elif sink.diverted and sink.takes(call, False):
                return planned.result
            carry()
            return planned.result

    return carried(core.calls, carry, planned.result, sink, otherwise)


def _start(core: Core, call: Call, limit: float) -> Any:
    with core.calls.one_call():
        return core.issue(call, True, limit)


# Whether the plans of all ranks fit each other.


def _announced(
    core: Core, calls: Sequence[Call], messages: Sequence[Call], *, async_op: bool
) -> Announced:
    """Return a rank's announcement of its plan."""
    prepared = calls[0].prepared
    collective: Mapping[str, Any] | None = None
    willing: object = False
    if prepared.ordered:
        lane = prepared.lane
        collective = (lane.async_label(prepared) if async_op else prepared.label).values
        willing = prepared.lane.willing(calls[0])
    sends: list[Sent] = []
    receives: list[Sent] = []
    for call in messages:
        outward, inward = call.ends
        for peer, array, ended in ((outward, call.send, sends), (inward, call.recv, receives)):
            if peer is not None:
                ended.append(_sent(call, peer, array))
    return Announced(described(core.calls.site), collective, sends, receives, willing)


def _sent(call: Call, peer: int, array: Any) -> Sent:
    label = call.prepared.label
    tag: Any = label.values["tag"]
    memory = call.prepared.lane.memory
    return Sent(label.name, peer, tag, array.nbytes, str(array.dtype), memory)


def _compared(core: Core, mine: Announced) -> list[Announced]:
    """Return all ranks' plans, by rank; raise on all of them for a mismatch."""
    with core.calls.part_of("plan"):
        payloads = core.control.all_gather(json.dumps(mine).encode())
        everyone = [_read(*json.loads(each)) for each in payloads]
        wrong = _other_collective(everyone) or _other_message(everyone)  # the same on all ranks
        if wrong is not None:
            raise RankMismatch(wrong[0], ranks=wrong[1])
    return everyone


def _read(site: str, collective: Any, sends: Any, receives: Any, willing: object) -> Announced:
    """Return a rank's announcement, from JSON."""
    sent, taken = ([Sent(*each) for each in ended] for ended in (sends, receives))
    return Announced(site, collective, sent, taken, willing)


def _other_collective(everyone: Sequence[Announced]) -> tuple[str, tuple[int, ...]] | None:
    """Return the mismatch of collectives and the ranks concerned; None without one."""
    came = {
        rank: NO_CALL if each.collective is None else {"record": each.collective, "site": each.site}
        for rank, each in enumerate(everyone)
    }
    odd = odd_calls(came)
    if not odd:
        return None
    calls = side_by_side(came)
    return f"the ranks plan different collectives: {calls}; plan the same one on all ranks", odd


def _other_message(everyone: Sequence[Announced]) -> tuple[str, tuple[int, ...]] | None:
    """Return the first message that its other end does not expect. The ranks compare blocks as lists of their own."""
    sends: dict[tuple[int, int], list[Sent]] = defaultdict(list)
    receives: dict[tuple[int, int], list[Sent]] = defaultdict(list)
    for rank, each in enumerate(everyone):
        for one in each.sends:
            if one.tag != BLOCKS:
                sends[rank, one.peer].append(one)
        for one in each.receives:
            if one.tag != BLOCKS:
                receives[one.peer, rank].append(one)
    for sender, receiver in sorted(sends.keys() | receives.keys()):
        both = sends.get((sender, receiver), []), receives.get((sender, receiver), [])
        for number, (sent, taken) in enumerate(zip_longest(*both), 1):
            if sent is None or taken is None or sent[2:] != taken[2:]:
                return (
                    f"as message {number}, rank {sender} sends rank {receiver} "
                    f"{_shown(sent, everyone[sender])}, and rank {receiver} receives "
                    f"{_shown(taken, everyone[receiver])} from it; let what a rank receives be what the "
                    "other one sends, in the same order"
                ), (sender, receiver)
    return None


def _shown(one: Sent | None, of: Announced) -> str:
    if one is None:
        return "nothing"
    site = of.site and f" at {of.site}"
    return f"{one.nbytes} bytes of {one.dtype} with tag {one.tag} in {one.memory} memory ({one.name}{site})"


# Tags of messages on host arrays.


def _tagged(
    core: Core, messages: Sequence[Call], everyone: Sequence[Announced]
) -> tuple[Transport | None, Sequence[Call]]:
    """Return the transport of messages on host arrays, and this rank's messages with their tags. Collective."""
    pairs = Counter(
        (rank, one.peer)
        for rank, each in enumerate(everyone)
        for one in each.sends
        if one.memory == "host"
    )
    if not pairs:
        return None, messages
    transport, first = core.plan_tags.take(max(pairs.values()))
    # Each end numbers the messages between two ranks in their order.
    sends, receives, tagged = Counter[int](), Counter[int](), []
    for call in messages:
        to, origin = call.ends
        outward = inward = None
        if to is not None:
            outward = first + sends[to]
            sends[to] += 1
        if origin is not None:
            inward = first + receives[origin]
            receives[origin] += 1
        tagged.append(replace(call, tags=(outward, inward)))
    return transport, tagged
