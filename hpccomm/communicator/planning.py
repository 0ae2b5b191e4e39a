"""Methods for calls that are decided once: plans, explanations and batches."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpccomm.communicator.call_sink import PlanStep
from hpccomm.communicator.core import NUMBERS, Core, HasCore
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.sequences import agreed, at_deadline, carrying_out
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import HpccommError, UsageError, did_you_mean
from hpccomm.runtime.callpath import in_turn
from hpccomm.runtime.recorder import user_site
from hpccomm.settings import check_bool

if TYPE_CHECKING:
    from hpccomm.runtime.work import Work


MESSAGES = ("send", "recv", "send_recv")
"""The calls that are planned and explained besides collectives."""


class Plan:
    """Calls that were checked and decided once. Made by `Communicator.plan` and `Communicator.planning`.

    Calling it makes its calls, in order, on the current contents of the same arrays. It is
    collective, like its calls, and blocks, unless it was planned with ``async_op=True`` or its
    arrays are on a device. Device calls are put on the current stream, or on the one that was
    passed. Within a batch or `Communicator.planning` the calls are added to that.

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
        self._entered = False
        self.work: Work | None = None

    def __enter__(self) -> "Batch":
        sink = self._core.sink
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        if self._async and sink.planned is not None:
            raise UsageError("async_op is True within planning(), whose plan blocks; leave it out")
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
    core.sink.open("batch()")


@in_turn
def _issued(core: Core, taken: tuple[Call, ...], async_op: bool, timeout: float) -> "Work | None":
    if core.sink.planned is not None:
        core.sink.add_batch(taken)
        return None
    lane = taken[0].prepared.lane if taken else core.lanes.host
    return lane.batch(taken, async_op, timeout)


class Planning:
    """Takes the calls of a ``with`` block, and plans them together at its end.

    Made by `Communicator.planning`.
    """

    def __init__(self, core: Core, timeout: float) -> None:
        self._core = core
        self._timeout = timeout
        self._plan: Plan | None = None

    def __enter__(self) -> Plan:
        if self._plan is not None:
            raise UsageError("this planning() was used before; make another")
        with self._core.calls.one_call():
            self._core.sink.open("planning()")
        self._plan = Plan(_unfinished, ())
        return self._plan

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        core, plan = self._core, self._plan
        assert plan is not None
        steps = core.sink.close_planning()
        gone = core.calls.gate.error is not None or core.calls.closed
        if error is not None and (gone or not isinstance(error, Exception)):
            return  # the others cannot be reached, or it is Ctrl-C, which must not wait for them
        # A copy: what goes on is the block's own error.
        own = copy(error) if isinstance(error, HpccommError) else None
        if error is not None and own is None:
            left = f"the block of planning() was left by {type(error).__name__}: {error}"
            own = UsageError(left)
        try:
            whole, choices = agreed(core, steps, own)
        except HpccommError as raised:
            if own is not None and raised.args == own.args:  # all ranks know of it
                return
            raise
        plan.become(carrying_out(core, steps, whole, self._timeout), choices)


def _unfinished() -> Any:
    raise UsageError(
        "this plan is not made: its block has not ended, or was left by an exception; call it after the block"
    )


def explain(self: HasCore, collective: str, *args: Any, **keywords: Any) -> Choice:
    """Return how a call would be carried out, and why. Local: nothing is sent.

    Parameters
    ----------
    collective : str
        Name of a collective call, ``"send"``, ``"recv"`` or ``"send_recv"``.
    *args, **keywords
        Its arguments.

    Returns
    -------
    Choice
        Prints as a sentence.

    Raises
    ------
    UsageError
        If the call would raise it.
    """
    call = _captured(self, collective, args, keywords)
    prepared = call.prepared
    route = prepared.lane.settled(prepared)
    choice: Choice = route.choice
    registered = prepared.lane.registered(call)
    return replace(choice, registered=registered, at_deadline=at_deadline(self._core, route))


def plan(self: HasCore, collective: str, *args: Any, **keywords: Any) -> Plan:
    """Check a call and decide how to carry it out, once, to make it many times. Collective; blocks.

    Parameters
    ----------
    collective : str
        Name of a collective call, ``"send"``, ``"recv"`` or ``"send_recv"``. For a message, each
        rank plans its own end, and ranks without a part plan a send or receive with rank None.
    *args, **keywords
        Its arguments. Counts must not be None. The arrays are kept alive.

    Returns
    -------
    Plan
        Called without arguments, on any stream. If the plan makes a new result in device memory, it
        waits for the current stream first, within the deadline of the communicator.

    Raises
    ------
    UsageError
        If this rank's arguments do not fit.
    RankMismatch
        On the other ranks in that case, and on all ranks if they plan different calls, or messages that
        do not fit each other.
    """
    core = self._core
    if core.sink.planned is not None:
        raise UsageError("plan() within planning(), which plans calls as they are; make the call")
    steps: tuple[PlanStep, ...] = ()
    error, limit = None, core.calls.timeout
    async_op = bool(keywords.get("async_op", False))
    try:
        limit = core.limit(keywords.get("timeout"))
        call = _captured(self, collective, args, keywords)
        if (args[0] if args else keywords.get("x")).__class__ in NUMBERS:
            raise UsageError("x is a number, and a plan's calls read an array anew; give an array")
        steps = (PlanStep((call,), False, user_site()),)
    except HpccommError as refused:
        error = refused
    whole, choices = agreed(core, steps, error, async_op=async_op)
    return Plan(carrying_out(core, steps, whole, limit, async_op=async_op), choices)


def planning(self: HasCore, timeout: float | None = None) -> Planning:
    """Return a context manager that plans the calls of its block, to make all of them many times.

    Nothing is sent within the block. At its end, which is collective and blocks, the ranks compare
    their calls: collectives must be the same, in the same order, and each sent message must match a
    receive. The plan is called after the block, without arguments. It carries out one call after
    the other, and the calls of a `batch` together.

    Messages of plans on host arrays match those of the same plan alone. Where the MPI library moves them,
    their requests are persistent: made once, and only started by the plan.

    Parameters
    ----------
    timeout : float, optional
        Deadline of one call of the plan in seconds, for all that it does; None is the communicator's.
        Calls in the block take no timeout, and no ``async_op=True``.

    Returns
    -------
    Planning
        For a ``with`` statement, whose target is the `Plan`.

    Raises
    ------
    UsageError
        If the block is within another one, or within a batch. At its end, if calls of a batch write memory
        that another one uses. What the block raises on this rank, it raises.
    RankMismatch
        At its end, on the other ranks in these cases; and on all ranks, if the calls do not fit each other.
    """
    return Planning(self._core, self._core.limit(timeout))


def batch(self: HasCore, async_op: bool = False, timeout: float | None = None) -> Batch:
    """Return a context manager whose calls are issued together at its end.

    All ranks that take part in its collectives must make the same batch. Inside the batch, calls
    return what they always return, but the arrays are filled only after its end. If its body
    raises, nothing is issued.

    Parameters
    ----------
    async_op : bool
        Do not wait at the end; ``batch.work`` is the `Work`.
    timeout : float, optional
        Deadline of the whole batch in seconds; None is the communicator's. Calls inside it take no
        timeout.

    Returns
    -------
    Batch
        For a ``with`` statement.
    """
    check_bool("async_op", async_op)
    core = self._core
    return Batch(core, async_op, core.limit(timeout))


def _captured(self: HasCore, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
    """Check and decide a call without issuing it. Local."""
    if name not in (*CALLS, *MESSAGES):
        known = (*CALLS, *MESSAGES)
        advice = f"give one of {', '.join(map(repr, known))}"
        raise UsageError(f"collective is {name!r}; {did_you_mean(str(name), known, advice)}")
    method, core = getattr(self, name), self._core
    try:
        inspect.signature(method).bind(*args, **keywords)
    except TypeError as error:
        raise UsageError(f"{name}: {error}; give the arguments of {name}") from None
    with ExitStack() as stack:
        with core.calls.one_call():
            capture = stack.enter_context(core.sink.capturing())
        method(*args, **keywords)
    assert capture.call is not None
    return capture.call
