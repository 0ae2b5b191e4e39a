"""Plans, batches and explanations: calls that are not issued as they are made.

Used by `Communicator`, and by `halo` for the plan of a halo.
"""

import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccomm.calls.arguments import SCALARS
from hpccomm.calls.core import Core
from hpccomm.calls.lanes import Call
from hpccomm.calls.lanes.check import odd_calls
from hpccomm.calls.lanes.lane import BLOCKS, Parts
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.signature import ENDS_JOB, RAISES, WAITS_ON, Choice
from hpccomm.contracts.transport import Transport
from hpccomm.errors import HpccommError, RankMismatch, UsageError, did_you_mean
from hpccomm.runtime.callpath import PreparedCall, carried, in_turn
from hpccomm.runtime.recorder import described
from hpccomm.runtime.verdict import NO_CALL, side_by_side
from hpccomm.runtime.work import Work
from hpccomm.spelling import of_argument


class Sent(NamedTuple):
    """One end of a planned message, as its rank announces it to the other ranks.

    Attributes
    ----------
    name : str
        Name of the call.
    peer : int
        The rank at the other end.
    tag : int
        The user's tag.
    nbytes : int
        Size of the message in bytes.
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
        The line of the program that makes the plan.
    collective : mapping or None
        The values of a collective call that must be equal on all ranks.
    sends, receives : sequence of Sent
        The messages.
    willing : object
        For a collective call: if this value is true and equal on all ranks, they may use what only plans can use.
    """

    site: str
    collective: Mapping[str, Any] | None
    sends: Sequence[Sent]
    receives: Sequence[Sent]
    willing: object


def agreed(
    core: Core, calls: Sequence[Call], *, parts: Parts = None, async_op: bool = False
) -> tuple[Call, Transport | None, Sequence[Call]]:
    """Agree on a plan. Collective; blocks. The caller holds the turn.

    Parameters
    ----------
    core : Core
        The communicator's core.
    calls : sequence of Call
        The call of this rank, or the messages of a halo.
    parts : sequence of HaloPart, optional
        The parts of a halo.
    async_op : bool
        Whether the plan only starts its call.

    Returns
    -------
    Call
        The plan as one call, for `carrying_out`.
    Transport or None
        The transport of its messages on host arrays; None without such messages.
    sequence of Call
        Its messages, with their tags on that transport.

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
    """Return what a call does at its deadline: `ENDS_JOB`, `WAITS_ON` or `RAISES`."""
    # Under ULFM, a call that is blocked in the library can be released.
    blocks = prepared.run is not None and core.backend.survival is None
    told = {"abort": ENDS_JOB, "report": WAITS_ON}.get(core.calls.on_timeout)
    return told or (ENDS_JOB if blocks and not polled else RAISES)


def message_choice(choice: Choice, call: Call, transport: Transport | None) -> Choice:
    """Return the choice of a planned message, with its ends and sizes in the reason."""
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

    If a batch is open, the function adds `call` to it instead. None stands for a halo, which cannot be part of a batch.
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


# The comparison of all ranks' plans.


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
    """Return all ranks' announcements, by rank. If they do not fit each other, every rank raises."""
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
    """Return the words of a mismatch of collectives, and the ranks concerned; None without a mismatch."""
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
    """Return the words of the first message whose two ends differ, and the two ranks; None without one.

    Blocks of a neighbor exchange are left out: `core.agree_on_pairs` compares them.
    """
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
    # Both ends number the messages between two ranks in the same order, so that their tags agree.
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


MESSAGES = ("send", "recv", "send_recv")
"""The calls besides collectives that can be planned and explained."""


class Plan:
    """A call that was checked and decided once. Made by `Communicator.plan`.

    Calling the plan makes the call on the current contents of the same arrays, and returns what the call returns, the
    same array each time. It is collective, like the call, and blocks, unless it was planned with ``async_op=True``
    or its arrays are on a device. A device call is put on the current stream, or on the stream that was given to
    `plan`. Within a batch the call is added to the batch.

    Attributes
    ----------
    choice : Choice
        How the call is carried out.
    """

    # Calling a plan calls the function itself: a method would be one call more.
    __slots__ = ("__call__", "choice")

    if TYPE_CHECKING:

        def __call__(self) -> Any:
            """Carry the call out."""

    def __init__(self, call: Callable[[], Any], choice: Choice) -> None:
        self.__call__ = call  # type: ignore[method-assign]
        self.choice = choice

    def __repr__(self) -> str:
        return f"<hpccomm.Plan: {self.choice}>"


class Batch:
    """Calls that are issued together at the end of a ``with`` block.

    Made by `Communicator.batch`. Point-to-point calls run at the same time, in any order. Collectives on
    host arrays run in the order of the calls. Over NCCL, all calls are one group and run at the same time:
    no call may use memory that another call of the batch writes.

    Attributes
    ----------
    work : Work or None
        The work of an asynchronous batch, after the block.
    """

    def __init__(self, core: Core, async_op: bool, timeout: float) -> None:
        self._core = core
        self._async = async_op
        self._timeout = timeout
        self._entered = False
        self.work: Work | None = None

    def __enter__(self) -> "Batch":
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        _opened(self._core)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        core = self._core
        calls = core.sink.close_batch()
        if kind is None and (calls or self._async):
            self.work = _issued(core, calls, self._async, self._timeout)


@in_turn
def _opened(core: Core) -> None:
    core.sink.open_batch()


@in_turn
def _issued(core: Core, taken: tuple[Call, ...], async_op: bool, timeout: float) -> Work | None:
    lane = taken[0].prepared.lane if taken else core.lanes.host
    return lane.batch(taken, async_op, timeout)


def explained(
    core: Core, comm: object, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Choice:
    """Return how a call of `comm` would be carried out; see `Communicator.explain`. Local."""
    call = _captured(core, comm, name, args, keywords)
    prepared = call.prepared
    assert prepared.choice is not None
    registered, told = prepared.lane.registered(call), at_deadline(core, prepared)
    return replace(prepared.choice, registered=registered, at_deadline=told)


def planned(
    core: Core, comm: object, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Plan:
    """Return the plan of a call of `comm`; see `Communicator.plan`. Collective; blocks."""
    error, limit = None, core.calls.timeout
    call: Call | None = None
    async_op = bool(keywords.get("async_op", False))
    try:
        limit = core.limit(keywords.get("timeout"))
        call = _captured(core, comm, name, args, keywords)
        if isinstance(args[0] if args else keywords.get("x"), SCALARS):
            raise UsageError("x is a number, and a plan's calls read an array anew; give an array")
        call.prepared.lane.check_plan(call)
    except HpccommError as refused:
        error = refused
    with core.calls.one_call():
        core.agree("plan", {"async_op": async_op}, error)
        assert call is not None
        whole, transport, _ = agreed(core, (call,), async_op=async_op)
    assert whole.prepared.choice is not None
    choice = replace(
        whole.prepared.choice, at_deadline=at_deadline(core, whole.prepared, polled=async_op)
    )
    if not call.prepared.ordered:
        choice = message_choice(choice, call, transport)
    return Plan(carrying_out(core, call, whole, limit, async_op=async_op), choice)


def _captured(
    core: Core, comm: object, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Call:
    """Return a call of `comm`, checked and decided but not issued. Local."""
    if name not in (*CALLS, *MESSAGES):
        known = (*CALLS, *MESSAGES)
        advice = f"give one of {', '.join(map(repr, known))}"
        raise UsageError(f"collective is {name!r}; {did_you_mean(str(name), known, advice)}")
    method = getattr(comm, name)
    try:
        inspect.signature(method).bind(*args, **keywords)
    except TypeError as error:
        hints = "".join(of_argument(each, method) for each in keywords)
        raise UsageError(f"{name}: {error}{hints or f'; give the arguments of {name}'}") from None
    with ExitStack() as stack:
        with core.calls.one_call():
            capture = stack.enter_context(core.sink.capturing())
        method(*args, **keywords)
    assert capture.call is not None
    return capture.call
