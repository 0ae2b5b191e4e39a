"""Calls that are decided once: plans, explanations and batches."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.sequences import agreed, at_deadline
from hpccomm.communicator.steps import PlanStep
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import HpccommError, UsageError
from hpccomm.runtime.recorder import site_of, user_frame

if TYPE_CHECKING:
    from hpccomm.runtime.work import Work


MESSAGES = ("send", "recv", "send_recv")
"""The calls that are planned and explained besides collectives."""


class Plan:
    """Calls that were checked and decided once. Made by `Communicator.plan` and `Communicator.planning`.

    Calling it does what its calls do, in their order, on the current contents of the same arrays. It is
    collective, as its calls are, and blocks, unless it was planned with ``async_op=True`` or its arrays are
    on a device. Then they are put on the stream that is current at that time, or on the one that was passed.
    Within a batch or `Communicator.planning` the calls are added to that.

    A plan of one call returns what that returns, the same array each time. Others return None.
    """

    # What Python calls where a plan is called is the function itself: a method would be one call more.
    __slots__ = ("__call__", "_steps")

    if TYPE_CHECKING:

        def __call__(self) -> Any:
            """Carry the calls out."""

    def __init__(self, call: Callable[[], Any], steps: tuple[tuple[Choice, ...], ...]) -> None:
        self.become(call, steps)

    def become(self, call: Callable[[], Any], steps: tuple[tuple[Choice, ...], ...]) -> None:
        """Take the function that carries the calls out, and how it does."""
        self.__call__ = call  # type: ignore[method-assign]
        self._steps = steps

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How each call is carried out, in order."""
        return tuple(choice for step in self._steps for choice in step)

    def __repr__(self) -> str:
        if len(self._steps) == 1 and len(self._steps[0]) == 1:
            return f"<hpccomm.Plan: {self._steps[0][0]}>"
        each = (
            "together " * (len(step) > 1) + " and ".join(map(str, step)) for step in self._steps
        )
        told = "; ".join(f"{number}. {step}" for number, step in enumerate(each, 1))
        return f"<hpccomm.Plan of {len(self._steps)} steps{told and f': {told}'}>"


class Batch:
    """Calls that are issued together at the end of a ``with`` block.

    Made by `Communicator.batch`. Point-to-point calls run at the same time, in any order. Collectives on
    host arrays run in the order of the calls. Over NCCL, all calls are one group, which is carried out at
    once: no call may use memory that another one writes.

    Attributes
    ----------
    work : Work or None
        After the block, if it is asynchronous.
    """

    def __init__(self, core: Core, async_op: bool, timeout: float) -> None:
        self._core = core
        self._async = async_op
        self._timeout = timeout
        self._calls: list[Call] = []
        self._entered = False
        self.work: Work | None = None

    def add(self, call: Call) -> None:
        """Take a call.

        Raises
        ------
        UsageError
            If its arrays are in another kind of memory than those of earlier calls.
        """
        lane = call.prepared.lane
        if self._calls and lane is not self._calls[0].prepared.lane:
            raise UsageError(
                "a batch has calls on host arrays and on device arrays; make one for each kind"
            )
        # What is planned goes on the stream that is current when the plan is called.
        planned = self._core.sink.planning is not None
        self._calls.append(call if planned else lane.admitted(call))

    def __enter__(self) -> "Batch":
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        if self._async and self._core.sink.planning is not None:
            raise UsageError("async_op is True within planning(), whose plan blocks; leave it out")
        with self._core.calls.one_call():
            self._core.sink.open(self)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        core = self._core
        core.sink.close()
        if kind is not None or not (self._calls or self._async):
            return
        with core.calls.one_call():
            if core.sink.planning is not None:
                core.sink.planning.add(tuple(self._calls), batched=True)
                return
            lane = self._calls[0].prepared.lane if self._calls else core.lanes.host
            self.work = lane.batch(tuple(self._calls), self._async, self._timeout)


class Planning:
    """Takes the calls of a ``with`` block, and plans them together at its end.

    Made by `Communicator.planning`.
    """

    def __init__(self, core: Core, timeout: float) -> None:
        self._core = core
        self._timeout = timeout
        self._steps: list[PlanStep] = []
        self._plan: Plan | None = None

    def add(self, calls: tuple[Call, ...], *, batched: bool = False) -> None:
        """Take a call, or those of a batch."""
        self._steps.append(PlanStep(calls, batched, self._core.calls.site))

    def __enter__(self) -> Plan:
        if self._plan is not None:
            raise UsageError("this planning() was used before; make another")
        with self._core.calls.one_call():
            self._core.sink.begin_planning(self)
        self._plan = Plan(_unfinished, ())
        return self._plan

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        core, plan = self._core, self._plan
        assert plan is not None
        core.sink.end_planning()
        gone = core.calls.gate.error is not None or core.calls.closed
        if error is not None and (gone or not isinstance(error, Exception)):
            return  # the others cannot be told, or it is Ctrl-C, which is not to wait for them
        # A copy: what goes on is the block's own error.
        own = copy(error) if error is None or isinstance(error, HpccommError) else _left_by(error)
        try:
            made = agreed(core, tuple(self._steps), own, self._timeout)
        except HpccommError as raised:
            if own is not None and raised.args == own.args:  # all ranks know of it
                return
            raise
        plan.become(*made)


def _left_by(error: BaseException) -> HpccommError:
    return UsageError(f"the block of planning() was left by {type(error).__name__}: {error}")


def _unfinished() -> Any:
    raise UsageError(
        "this plan is not made: its block has not ended, or was left by an exception; call it after the block"
    )


def explain(
    core: Core, face: object, collective: object, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Choice:
    """Return how a call would be carried out.

    Parameters
    ----------
    core : Core
        The communicator's.
    face : Communicator
        Has the method that is called.
    collective : str
        Its name.
    args, keywords
        Its arguments.
    """
    call = _captured(core, face, collective, args, keywords)
    prepared = call.prepared
    route = prepared.lane.settled(prepared)
    choice: Choice = route.choice
    registered = prepared.lane.registered(call)
    return replace(choice, registered=registered, at_deadline=at_deadline(core, route))


def plan(
    core: Core, face: object, collective: object, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Plan:
    """Decide, check and agree a call once. Parameters are those of `explain`."""
    if core.sink.planning is not None:
        raise UsageError("plan() within planning(), which plans calls as they are; make the call")
    steps: tuple[PlanStep, ...] = ()
    error, timeout = None, core.calls.timeout
    async_op = bool(keywords.get("async_op", False))
    try:
        timeout = core.limit(keywords.get("timeout"))
        call = _captured(core, face, collective, args, keywords)
        steps = (PlanStep((call,), False, site_of(user_frame())),)
    except HpccommError as refused:
        error = refused
    return Plan(*agreed(core, steps, error, timeout, async_op=async_op))


def _captured(
    core: Core, face: object, name: object, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Call:
    """Check and decide a call without issuing it. Local."""
    if name not in (*CALLS, *MESSAGES):
        names = ", ".join(map(repr, (*CALLS, *MESSAGES)))
        raise UsageError(f"collective is {name!r}; give one of {names}")
    method = getattr(face, str(name))
    try:
        inspect.signature(method).bind(*args, **keywords)
    except TypeError as error:
        raise UsageError(f"{name}: {error}; give the arguments of {name}") from None
    with ExitStack() as stack:
        with core.calls.one_call():
            capture = stack.enter_context(core.sink.capturing(core.calls.name))
        method(*args, **keywords)
    assert capture.call is not None
    return capture.call
