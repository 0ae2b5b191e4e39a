"""What the lanes of host and device memory have in common."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.communicator.lanes.call import Call, PointToPoint, PreparedCall
from hpccomm.communicator.lanes.check import Check
from hpccomm.communicator.lanes.planned import Numbered
from hpccomm.communicator.resolving import Resolved
from hpccomm.contracts.backend import both
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.device import DeviceDispatch, DeviceRoute
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.terms import of_call
from hpccomm.contracts.transport import DTYPES, Transport, dtype_code
from hpccomm.dispatch.host import HostDispatch
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View, view
from hpccomm.reductions import LOCATING, ReduceOp
from hpccomm.runtime.callpath import Diversion, carrying
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.operation import Label, Operation, as_one
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.work import Work
from hpccomm.schedules.algorithms import AnyAlgorithm

logger = logging.getLogger("hpccomm")

# Arrays and objects share the transport; one bit of the tag keeps them apart.
ARRAYS, OBJECTS = 0, 1

SELF_CHECK = Signature("all_reduce", np.dtype(np.float64), (4,), op=ReduceOp.SUM, in_place=True)
"""What is tried on each way when a communicator is made."""


def wire_tag(tag: int, kind: int, dtype: DType | None = None) -> int:
    """Return the transport's tag for the user's `tag`, a kind of message and its dtype, if it has one."""
    return (2 * tag + kind) * DTYPES + (0 if dtype is None else dtype_code(dtype))


class Lane(ABC):
    """Carries out the calls of one communicator on arrays in one kind of memory.

    Attributes
    ----------
    name : str
        The way that data takes, as in ``comm.backends``.
    memory : str
        The kind of memory, for messages.
    dispatch : HostDispatch or DeviceDispatch
        Decides how calls are carried out.
    """

    name: str
    memory: str
    dispatch: HostDispatch | DeviceDispatch

    def __init__(self, calls: CallEngine, check: Check) -> None:
        self._calls = calls
        self._check = check
        self._logged_ordinary = False

    # What a call is made of.

    def decide(
        self, name: str, resolved: Resolved, algorithm: AnyAlgorithm | None, deterministic: bool
    ) -> PreparedCall[Any]:
        """Decide how the calls of that name and meaning are carried out. Local; the same on all ranks.

        Raises
        ------
        UsageError
            If `algorithm` does not apply, or the reduction takes arrays in host memory only.
        """
        op = resolved.call.op
        if self.memory != "host" and isinstance(op, ReduceOp) and op in LOCATING:
            raise UnsupportedDtype(
                f"op is {op!r}, which takes host arrays only; reduce the values and indices on the host"
            )
        call, route = resolved.call, self.dispatch.decide(resolved.call, algorithm, deterministic)
        choice = route.choice

        def label(async_op: bool) -> Label:
            more: dict[str, object] = {"path": choice.path, "async_op": async_op}
            more |= _shape(resolved)
            if choice.schedule:
                more["schedule"] = choice.schedule
            terms = of_call(call, choice.algorithm, deterministic, **more)
            # Hosts that wait for each other would cost more than time.
            if isinstance(route, DeviceRoute) and route.launch is not None:
                terms = replace(terms, nbytes=0)
            return Label(name, call.nbytes, terms)

        return self._prepare(label(False), label(True), route, resolved)

    def _prepare(
        self,
        label: Label,
        async_label: Label,
        route: Any,
        resolved: Resolved | None = None,
        *,
        ordered: bool = True,
    ) -> PreparedCall[Any]:
        tally = self._calls.reports.stats.tally(label.name, label.nbytes)
        bare = self._carrying(label, tally, route, ordered)
        arguments = self._arguments(route)
        prepared = PreparedCall(
            self, route, label, tally, bare, async_label, resolved, ordered, arguments
        )
        if resolved is not None and resolved.recv != "new":
            prepared.direct = _direct(resolved, arguments)
            prepared.returns_x, prepared.returns_out = resolved.recv == "x", resolved.recv == "out"
        if not ordered:
            return prepared
        check = self._check

        def agreeing() -> Callable[..., None]:
            return self._carrying(label, tally, self._agreeing(route, label), ordered)

        def first(*arguments: Any) -> None:
            if not check.known(label) or check.always(label):
                agreeing()(*arguments)
            else:  # what the ranks have agreed on since this call was prepared counts
                bare(*arguments)
            if check.known(label):
                prepared.issue = bare

        if check.always(label):
            prepared.issue = agreeing()
        elif not check.known(label):
            prepared.issue = first
        return prepared

    @abstractmethod
    def _carrying(
        self, label: Label, tally: Tally, route: Any, ordered: bool
    ) -> Callable[..., None]:
        """Return what carries out the calls of a route."""

    def settled(self, prepared: PreparedCall[Any]) -> Any:
        """Return the route that the next call takes, as far as that is known. Local."""
        return prepared.route

    def _arguments(self, route: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
        """Return what gives the arguments with which the calls of a route on host arrays are issued."""
        return both

    @abstractmethod
    def _agreeing(self, route: Any, label: Label) -> Any:
        """Return the route on which the ranks agree on the call before anything moves."""

    def willing(self, call: Call) -> object:
        """Return whether this rank may take the way that plans take where all ranks may. Local.

        What is true, and the same on all ranks, in JSON. It takes part in no comparison if it is false.
        """
        return False

    def agreed(self, call: Call, async_op: bool, *, willing: object) -> Call:
        """Return a call of a plan on which the ranks have agreed, and note that they have.

        `willing` is what all of them are, or false. Collective; it may block.
        """
        prepared, check = call.prepared, self._check
        label = prepared.async_label if async_op else prepared.label
        check.learn(label)
        if not async_op and check.known(label) and not check.always(label):
            prepared.issue = self._carrying(label, prepared.tally, prepared.route, prepared.ordered)
        return call

    def bind(
        self,
        prepared: PreparedCall[Any],
        x: Any,
        out: Any,
        a: View | None,
        b: View | None,
        stream: object,
    ) -> Call:
        """Return a call on the user's arrays `x` and `out`, which are seen as `a` and `b`.

        Raises
        ------
        UsageError
            If the memory does not fit.
        """
        queue = None if stream is None else self.queue_of(stream)
        send, recv, result = self._memory(prepared, x, out, a, b, queue)
        return Call(prepared, send, recv, result, (x, result), queue)

    def _memory(
        self,
        prepared: PreparedCall[Any],
        x: Any,
        out: Any,
        a: View | None,
        b: View | None,
        queue: Queue | None,
    ) -> tuple[Any, Any, Any]:
        """Return what is sent, what takes what is received, and what the call returns."""
        resolved = prepared.resolved
        assert resolved is not None
        send = a
        if a is not None and (resolved.send == "x" or resolved.recv == "x"):
            send = self.checked_array(a, "x", resolved.written)
        recv: View | None
        if resolved.recv == "x":
            result, recv = x, send
        elif resolved.recv is None:
            result = recv = None
        else:
            if resolved.recv == "new":
                result = self.new_like(x, resolved.shape, resolved.call.dtype, queue)
                b = result if result.__class__ is np.ndarray else view(result, "out")
                if resolved.zeroed:
                    self.clear(b, x, queue)
            else:
                result = out
            assert b is not None
            recv = self.checked_array(b, "out", True)
        if resolved.send != "x":
            send = None
        return send, recv, result

    def carry_out(
        self,
        prepared: PreparedCall[Any],
        x: Any,
        out: Any,
        a: View | None,
        b: View | None,
        stream: object,
        limit: float,
    ) -> Any:
        """Carry a call out, and return its result: `bind` and `run` in one."""
        return self.run(self.bind(prepared, x, out, a, b, stream), limit)

    @abstractmethod
    def message(self, message: PointToPoint) -> Call:
        """Return a point-to-point call.

        Raises
        ------
        UsageError
            If the tag does not apply.
        """

    @abstractmethod
    def checked_array(self, array: Any, name: str, written: bool) -> Any:
        """Return an array as calls take it.

        Raises
        ------
        UsageError
            If its layout does not fit.
        """

    @abstractmethod
    def queue_of(self, stream: object) -> Queue:
        """Return what the user gave as `stream`.

        Raises
        ------
        UsageError
            If it is no stream, or these arrays have none.
        """

    @abstractmethod
    def new_like(self, x: Any, shape: tuple[int, ...], dtype: DType, queue: Queue | None) -> Any:
        """Return a new array of the kind of `x`, for a result that is filled on a stream."""

    @abstractmethod
    def clear(self, new: Any, x: Any, queue: Queue | None) -> None:
        """Fill a new array that `new_like` made with zeros, on the same stream."""

    # Carrying calls out.

    @abstractmethod
    def run(self, call: Call, limit: float) -> Any:
        """Carry a call out, within so many seconds, and return its result."""

    @abstractmethod
    def start(self, call: Call, limit: float) -> Work:
        """Start a call that goes on by itself."""

    def plan(
        self, call: Call, limit: float, sink: Diversion, otherwise: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return the shortest way to carry a call out again and again.

        Nothing is looked up that can be known before.

        Parameters
        ----------
        call : Call
            The call, which each time is one of its own.
        limit : float
            Seconds each time.
        sink : Diversion
            Where calls go.
        otherwise : callable
            Does the same, step by step: for when calls are taken elsewhere, or refused.
        """
        carry = partial(self.issuing(call), limit)
        return carrying(self._calls, carry, call.result, sink, otherwise)

    @abstractmethod
    def issuing(self, call: Call) -> Callable[[float], None]:
        """Return what carries a planned call out, within so many seconds, again and again."""

    @abstractmethod
    def prepare_plan(self, call: Call) -> None:
        """Make what a planned call needs. Collective; blocks."""

    @abstractmethod
    def check_step(self, calls: tuple[Call, ...], *, batched: bool) -> None:
        """Raise unless calls can be a step of a plan. Local.

        Parameters
        ----------
        calls : tuple of Call
            One call, or those of a batch.
        batched : bool
            Whether they are a batch.

        Raises
        ------
        UsageError
            If they do not fit together.
        """

    @abstractmethod
    def step(
        self, calls: Sequence[Numbered], transport: Transport | None, *, batched: bool
    ) -> Call:
        """Return a step of a plan as one call, to be carried out again and again. Local.

        Parameters
        ----------
        calls : sequence of Numbered
            One call, or those of a batch; checked and agreed.
        transport : Transport or None
            Has the messages of host arrays; None where there are none.
        batched : bool
            Whether they are a batch.
        """

    def admitted(self, call: Call) -> Call:
        """Return a call as a batch takes it, which carries it out later."""
        return call

    @abstractmethod
    def batch(self, calls: tuple[Call, ...], async_op: bool, limit: float) -> Work | None:
        """Carry calls out together."""

    # Memory, and the end.

    @abstractmethod
    def registered(self, call: Call) -> bool:
        """Tell whether a call's arrays on this rank, all that have elements, are registered. Local."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return an array in registered memory, where there is such."""

    @abstractmethod
    def tried(self, given: NDArray[Any], control: Control) -> Iterator[tuple[Choice, NDArray[Any]]]:
        """Carry `SELF_CHECK` out on copies of `given`, on each way that there is. Collective; blocks.

        Yields
        ------
        Choice and ndarray
            The way, and what came of it.
        """

    def _together(
        self, operations: Iterable[Operation], async_op: bool, limit: float
    ) -> Work | None:
        """Carry out what is polled, at the same time."""
        whole = self._check.operation(as_one(tuple(operations), async_op))
        if async_op:
            return self._calls.start(whole, limit, None)
        self._calls.run_operation(whole, limit)
        return None

    def _log_ordinary(self, why: str) -> None:
        """Log, once, why `empty` returns ordinary arrays."""
        if not self._logged_ordinary:
            self._logged_ordinary = True
            logger.info("communicator %r: %s", self._calls.name, why)


def _shape(resolved: Resolved) -> dict[str, object]:
    """Return what shapes must have in common on all ranks, as a term; empty where ranks do not know it.

    Elements meet in the order of memory. Extents of 1 do not change that, so they do not count.
    """
    call, shape = resolved.call, resolved.shape
    what = call.description
    known = what.in_place == "always" or not what.root_sends
    if what.sends == "nothing" or what.peers or not known:
        return {}
    # Ranks have rows of their own; a result of blocks begins with their number.
    extents = shape if call.uniform and what.sends != "block" else shape[1:]
    return {"shape": str(tuple(each for each in extents if each != 1))}


def _direct(
    resolved: Resolved, arguments: Callable[[Any, Any], tuple[Any, ...]]
) -> Callable[[Any, Any], tuple[Any, ...]]:
    """Return what gives the arguments of a call for x and `out`."""
    match resolved.send, resolved.recv:
        case "x", "out":
            return arguments
        case "x", "x":
            return lambda x, _out: arguments(x, x)
        case "x", None:
            return lambda x, _out: arguments(x, None)
        case None, "x":
            return lambda x, _out: arguments(None, x)
        case None, "out":
            return lambda _x, out: arguments(None, out)
    return lambda _x, _out: arguments(None, None)
