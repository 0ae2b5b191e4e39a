"""Calls that are decided once: plans, explanations and batches."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import Call
from hpccomm.contracts.choice import ENDS_JOB, RAISES, WAITS_ON, Choice
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import HpccommError, UsageError

if TYPE_CHECKING:
    from hpccomm.runtime.work import Work


class Plan:
    """A collective call that was checked and decided once. Made by `Communicator.plan`.

    Calling it is collective and does what the call does, on the current contents of the same arrays. It
    blocks, unless it was planned with ``async_op=True`` or its arrays are on a device. Then it is put on
    the stream that is current at that time, or on the stream that was passed to `Communicator.plan`.
    """

    __slots__ = ("_call", "_choice")

    def __init__(self, call: Callable[[], Any], choice: Choice) -> None:
        self._call = call
        self._choice = choice

    def __call__(self) -> Any:
        """Carry the call out, or add it to the open batch.

        Returns
        -------
        object
            What the call returns; the same array each time.
        """
        return self._call()

    def __repr__(self) -> str:
        return f"<hpccomm.Plan: {self._choice}>"


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
        lane = call.recipe.lane
        if self._calls and lane is not self._calls[0].recipe.lane:
            raise UsageError(
                "a batch has calls on host arrays and on device arrays; make one for each kind"
            )
        self._calls.append(lane.admitted(call))

    def __enter__(self) -> "Batch":
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        with self._core.calls.one_call():
            self._core.intake.open(self)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        core = self._core
        core.intake.close()
        if kind is not None or not (self._calls or self._async):
            return
        with core.calls.one_call():
            lane = self._calls[0].recipe.lane if self._calls else core.lanes.host
            self.work = lane.batch(tuple(self._calls), self._async, self._timeout)


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
    recipe = call.recipe
    choice: Choice = recipe.route.choice
    # Under ULFM a call that is blocked in the library can be released.
    blocks = getattr(recipe.route, "run", None) is not None and core.backend.survival is None
    ends = {"abort": ENDS_JOB, "report": WAITS_ON}.get(core.calls.on_timeout)
    return replace(
        choice,
        registered=recipe.lane.registered(call),
        at_deadline=ends or (ENDS_JOB if blocks else RAISES),
    )


def plan(
    core: Core, face: object, collective: object, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Plan:
    """Decide, check and agree a call once. Parameters are those of `explain`."""
    call, error, timeout = None, None, core.calls.timeout
    async_op = bool(keywords.get("async_op", False))
    mine: dict[str, object] = {}
    try:
        timeout = core.limit(keywords.get("timeout"))
        call = _captured(core, face, collective, args, keywords)
        label = call.recipe.apart if async_op else call.recipe.label
        assert label.terms is not None  # it is a collective
        mine = {**label.terms.values, "operation": f"plan of {label.name}"}
    except HpccommError as refused:
        error = refused
    with core.calls.one_call():
        core.agree("plan", mine, error)
        assert call is not None
        assert call.recipe.resolved is not None
        call.recipe.lane.agreed(call, async_op)
        signature = call.recipe.resolved.call
        if signature.individual:
            core.agree_on_pairs("plan", signature)
    return Plan(_planned(core, call, async_op, timeout), call.recipe.route.choice)


def _planned(core: Core, call: Call, async_op: bool, timeout: float) -> Callable[[], Any]:
    """Return what carries a planned call out."""
    lane = call.recipe.lane

    def step_by_step() -> Any:
        with core.calls.one_call():
            return core.issue(call, async_op, timeout)

    lane.prepare_plan(call)
    if async_op:
        return step_by_step
    return lane.plan(call, timeout, core.intake, step_by_step)


def _captured(
    core: Core, face: object, name: object, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Call:
    """Check and decide a call without issuing it. Local."""
    if name not in CALLS:
        raise UsageError(f"collective is {name!r}; give one of {', '.join(map(repr, CALLS))}")
    method = getattr(face, str(name))
    try:
        inspect.signature(method).bind(*args, **keywords)
    except TypeError as error:
        raise UsageError(f"{name}: {error}; give the arguments of {name}") from None
    with ExitStack() as stack:
        with core.calls.one_call():
            capture = stack.enter_context(core.intake.capturing(core.calls.name))
        method(*args, **keywords)
    assert capture.call is not None
    return capture.call
