"""Plans at work: the ranks agree on the steps, once, and carry them out repeatedly.

`Communicator.plan` and `planning` return such a sequence.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from hpccomm.communicator.call_sink import PlanStep
from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.steps import (
    HOST,
    Announced,
    PlanTags,
    announced,
    differing,
    most_messages,
    numbers,
    read,
)
from hpccomm.contracts.choice import ENDS_JOB, RAISES, WAITS_ON, Choice
from hpccomm.contracts.transport import Transport
from hpccomm.errors import HpccommError, RankMismatch
from hpccomm.runtime.callpath import carrying


def agreed(
    core: Core,
    steps: tuple[PlanStep, ...],
    error: HpccommError | None,
    *,
    async_op: bool = False,
) -> tuple[list[Call], tuple[tuple[Choice, ...], ...]]:
    """Agree on the steps of a plan. Collective; blocks.

    Parameters
    ----------
    core : Core
        The communicator's.
    steps : tuple of PlanStep
        Of this rank.
    error : HpccommError or None
        The failure of this rank's planning.
    async_op : bool
        Whether a call of the plan only starts them. It has one step then.

    Returns
    -------
    list of Call
        The steps as calls, for `carrying_out`.
    tuple of tuple of Choice
        How each call of each step is carried out.

    Raises
    ------
    UsageError
        If calls of a batch do not fit together; or `error`.
    RankMismatch
        On all ranks, if another rank has an error, or their steps do not fit each other.
    """
    try:
        for step in steps:
            if step.parts is None:  # the messages of a halo share no memory
                step.calls[0].prepared.lane.check_step(step.calls, batched=step.batched)
    except HpccommError as refused:
        error = error or refused
    with core.calls.one_call():
        core.agree("plan", {"async_op": async_op}, error)
        parts = [
            each.calls
            if each.batched or async_op
            else each.calls[0].prepared.lane.messages(each.calls)
            for each in steps
        ]
        everyone = _compared(core, announced(steps, parts, async_op=async_op))
        transport: Transport | None = None
        whole = [step.calls[0] for step in steps]
        if not async_op:
            transport, whole = _bound(core, steps, parts, everyone)
        everywhere = map(_alike, zip(*(each.willing for each in everyone), strict=True))
        for number, (step, call) in enumerate(zip(steps, whole, strict=True)):
            lane = call.prepared.lane
            if call.prepared.ordered:
                whole[number] = lane.agreed(call, async_op, willing=next(everywhere))
            for each in step.calls:
                if each.prepared.resolved is not None and each.prepared.resolved.call.individual:
                    core.agree_on_pairs("plan", each.prepared.resolved.call)
            for each in step.calls:
                lane.prepare_plan(each)
    carried = [
        (call,) if step.calls[0].prepared.ordered and not step.batched else step.calls
        for step, call in zip(steps, whole, strict=True)
    ]
    choices = tuple(
        tuple(_choice(core, call, transport, async_op or step.batched) for call in calls)
        for step, calls in zip(steps, carried, strict=True)
    )
    return whole, choices


def _alike(each: Sequence[object]) -> object:
    """Return all ranks' contributions, or False if they differ."""
    return each[0] if each.count(each[0]) == len(each) else False


def at_deadline(core: Core, route: Any, *, polled: bool = False) -> str:
    """Return the action of a call on a route at its deadline."""
    # Under ULFM a call that is blocked in the library can be released.
    blocks = getattr(route, "run", None) is not None and core.backend.survival is None
    told = {"abort": ENDS_JOB, "report": WAITS_ON}.get(core.calls.on_timeout)
    return told or (ENDS_JOB if blocks and not polled else RAISES)


def _choice(core: Core, call: Call, transport: Transport | None, polled: bool) -> Choice:
    """Return the decision of a call; for a message, also its arguments."""
    route = call.prepared.route
    choice: Choice = replace(route.choice, at_deadline=at_deadline(core, route, polled=polled))
    if call.prepared.ordered:
        return choice
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


def _compared(core: Core, mine: Announced) -> list[Announced]:
    """Return all ranks' plans, by rank; raise on all of them for a mismatch."""
    with core.calls.part_of("plan"):
        payloads = core.control.all_gather(json.dumps(mine).encode())
        everyone = [read(json.loads(each)) for each in payloads]
        wrong = differing(everyone)
        if wrong is not None:
            raise RankMismatch(wrong[0], ranks=wrong[1])
    return everyone


def _bound(
    core: Core,
    steps: Sequence[PlanStep],
    parts: Sequence[Sequence[Call]],
    everyone: Sequence[Announced],
) -> tuple[Transport | None, list[Call]]:
    """Return each step as one call, and the transport of messages on host arrays. Collective."""
    most = most_messages(everyone)
    tags = core.plan_tags = core.plan_tags or PlanTags(core.backend, core.calls)
    transport, first = tags.take(most) if most else (None, 0)
    mine = everyone[core.backend.rank]
    sends, receives = (
        numbers([one for one in each if one.memory == HOST]) for each in (mine.sends, mine.receives)
    )
    whole = []
    for step, messages in zip(steps, parts, strict=True):
        lane, calls = step.calls[0].prepared.lane, [*step.calls[: messages is not step.calls]]
        for call in messages:
            to, origin = call.ends if lane.memory == HOST else (None, None)
            outward = None if to is None else first + next(sends)
            inward = None if origin is None else first + next(receives)
            calls.append(replace(call, tags=(outward, inward)))
        whole.append(lane.step(calls, transport, batched=step.batched, parts=step.parts))
    return transport, whole


def carrying_out(
    core: Core,
    steps: tuple[PlanStep, ...],
    whole: Sequence[Call],
    limit: float,
    *,
    async_op: bool = False,
) -> Callable[[], Any]:
    """Return the function that carries an agreed plan out, or starts it, within `limit` seconds each time."""
    calls, sink = core.calls, core.sink
    if async_op:
        return partial(_start, core, whole[0], limit)
    each = [call.prepared.lane.issuing(call) for call in whole]
    carry = partial(each[0], limit) if len(each) == 1 else partial(_in_turn, each, limit)
    result = whole[0].result if len(whole) == 1 else None

    def step_by_step() -> Any:
        with calls.one_call():
            if not sink.takes_plan(steps):
                carry()
            return result

    if len(whole) == 1:
        return whole[0].prepared.lane.plan(whole[0], limit, sink, step_by_step)
    return carrying(core.calls, carry, result, sink, step_by_step)


def _start(core: Core, call: Call, limit: float) -> Any:
    with core.calls.one_call():
        return core.issue(call, True, limit)


def _in_turn(each: Sequence[Callable[[float], None]], limit: float) -> None:
    """Carry steps out one after the other, within a total time."""
    until = perf_counter() + limit
    for issue in each:
        issue(until - perf_counter())
