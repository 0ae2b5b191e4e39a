"""Methods for calls that are not issued as they are made: plans, explanations and batches."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpccomm.communicator.core import Core, HasCore
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.numbers import SCALARS
from hpccomm.communicator.plan_agreement import agreed, at_deadline, carrying_out, message_choice
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import HpccommError, UsageError, did_you_mean
from hpccomm.foreign_names import of_argument
from hpccomm.runtime.callpath import in_turn
from hpccomm.runtime.work import Work
from hpccomm.settings import check_bool

MESSAGES = ("send", "recv", "send_recv")
"""The calls that are planned and explained besides collectives."""


class Plan:
    """A call that was checked and decided once. Made by `Communicator.plan`.

    Calling it makes the call on the current contents of the same arrays, and returns what the call returns, the
    same array each time. It is collective, like the call, and blocks, unless it was planned with ``async_op=True``
    or its arrays are on a device. A device call is put on the current stream, or on the one that was passed.
    Within a batch the call is added to that.

    Attributes
    ----------
    choice : Choice
        How the call is carried out.
    """

    # What Python calls where a plan is called is the function itself: a method would be one call more.
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
    assert prepared.choice is not None
    registered, told = prepared.lane.registered(call), at_deadline(self._core, prepared)
    return replace(prepared.choice, registered=registered, at_deadline=told)


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
    core, error, limit = self._core, None, self._core.calls.timeout
    call: Call | None = None
    async_op = bool(keywords.get("async_op", False))
    try:
        limit = core.limit(keywords.get("timeout"))
        call = _captured(self, collective, args, keywords)
        if isinstance(args[0] if args else keywords.get("x"), SCALARS):
            raise UsageError("x is a number, and a plan's calls read an array anew; give an array")
        call.prepared.lane.check_plan(call)
    except HpccommError as refused:
        error = refused
    with core.calls.one_call():
        core.agree("plan", {"async_op": async_op}, error)
        assert call is not None
        planned, transport, _ = agreed(core, (call,), async_op=async_op)
    assert planned.prepared.choice is not None
    choice = replace(
        planned.prepared.choice, at_deadline=at_deadline(core, planned.prepared, polled=async_op)
    )
    if not call.prepared.ordered:
        choice = message_choice(choice, call, transport)
    return Plan(carrying_out(core, call, planned, limit, async_op=async_op), choice)


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
        hints = "".join(of_argument(each, method) for each in keywords)
        raise UsageError(f"{name}: {error}{hints or f'; give the arguments of {name}'}") from None
    with ExitStack() as stack:
        with core.calls.one_call():
            capture = stack.enter_context(core.sink.capturing())
        method(*args, **keywords)
    assert capture.call is not None
    return capture.call
