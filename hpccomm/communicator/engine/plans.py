"""Calls that are decided once: plans, explanations and batches."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hpccomm.communicator.engine.core import Core
from hpccomm.communicator.lanes import Call
from hpccomm.communicator.planning import Batch, Plan
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import HpccommError, UsageError
from hpccomm.reductions import name_of
from hpccomm.runtime.work import Work
from hpccomm.settings import check_bool


class Planner:
    """Explains and plans collective calls, and carries batches out."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def explain(
        self, face: object, collective: object, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Choice:
        """Return how a call would be carried out.

        Parameters
        ----------
        face : Communicator
            Has the method that is called.
        collective : str
            Its name.
        args, keywords
            Its arguments.
        """
        call = self._captured(face, _checked(collective), args, keywords)
        recipe = call.recipe
        choice: Choice = recipe.route.choice
        return replace(choice, registered=recipe.lane.registered(call))

    def plan(
        self, face: object, collective: object, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Plan:
        """Decide, check and agree a call once. Parameters are those of `explain`."""
        core = self._core
        call, error, timeout = None, None, core.calls.timeout
        async_op = bool(keywords.get("async_op", False))
        deterministic = bool(keywords.get("deterministic", False))
        try:
            timeout = core.limit(keywords.get("timeout"))
            call = self._captured(face, _checked(collective), args, keywords)
        except HpccommError as refused:
            error = refused
        mine = {} if call is None else _terms(call, deterministic, async_op)
        with core.calls.one_call():
            core.agree("plan", mine, error)
            assert call is not None
            assert call.recipe.resolved is not None
            signature = call.recipe.resolved.call
            if signature.individual:
                core.agree_on_pairs("plan", signature)
        return Plan(self._planned(call, async_op, timeout), call.recipe.route.choice)

    def _planned(self, call: Call, async_op: bool, timeout: float) -> Callable[[], Any]:
        """Return what carries a planned call out."""
        core, lane = self._core, call.recipe.lane

        def step_by_step() -> Any:
            with core.calls.one_call():
                return core.issue(call, async_op, timeout)

        lane.make_ready(call)
        if async_op:
            return step_by_step
        return lane.plan(call, timeout, core.intake, step_by_step)

    def _captured(
        self, face: object, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Call:
        """Check and decide a call without issuing it. Local."""
        core, method = self._core, getattr(face, name)
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

    def batch(self, async_op: bool, timeout: float | None) -> Batch:
        """Return a batch that is not open yet."""
        check_bool("async_op", async_op)
        limit = self._core.limit(timeout)
        return Batch(self._begin_batch, self._end_batch, async_op, limit)

    def _begin_batch(self, batch: Batch) -> None:
        """Collect calls from now on."""
        with self._core.calls.one_call():
            self._core.intake.open(batch)

    def _end_batch(self, calls: tuple[Call, ...], async_op: bool, limit: float) -> Work | None:
        """Issue what was collected, if anything."""
        core = self._core
        core.intake.close()
        if not (calls or async_op):
            return None
        with core.calls.one_call():
            lane = calls[0].recipe.lane if calls else core.lanes.host
            return lane.batch(calls, async_op, limit)


def _terms(call: Call, deterministic: bool, async_op: bool) -> dict[str, object]:
    """Return what must be equal on all ranks in a call, as plain data."""
    resolved, choice = call.recipe.resolved, call.recipe.route.choice
    assert resolved is not None
    signature = resolved.call
    counts: tuple[int, ...] = () if signature.individual else signature.counts
    if signature.uniform and counts:
        counts = (counts[0],)
    return {
        "collective": signature.collective,
        "dtype": str(signature.dtype),
        "count" if signature.uniform else "counts": list(counts),
        "op": None if signature.op is None else name_of(signature.op),
        "factor": repr(getattr(signature.op, "factor", None)),
        "root": signature.root,
        "exclusive": signature.exclusive,
        "path": choice.path,
        "algorithm": choice.algorithm,
        "deterministic": deterministic,
        "async_op": async_op,
    }


def _checked(name: object) -> str:
    """Return `name` as that of a call that can be planned.

    Raises
    ------
    UsageError
        If it is none.
    """
    if name not in CALLS:
        raise UsageError(f"collective is {name!r}; give one of {', '.join(map(repr, CALLS))}")
    return str(name)
