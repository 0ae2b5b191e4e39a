"""The common part of both lanes: calls, and how they are prepared."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.communicator.lanes.check import Check
from hpccomm.communicator.lanes.message import MessageRequest, Parts
from hpccomm.communicator.resolving import CallRequest, Resolved
from hpccomm.contracts.backend import both
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.device import DeviceDispatch
from hpccomm.contracts.fingerprint import CallFingerprint, of_call
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import BoundSet, Transport
from hpccomm.dispatch.host import HostDispatch
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View, view
from hpccomm.reductions import ANY_RANKS, LOCATING, ReduceOp, identity
from hpccomm.runtime.callpath import Diversion, carried
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.operation import Operation, as_one
from hpccomm.runtime.reports import Tally
from hpccomm.runtime.traffic import Repeated
from hpccomm.runtime.work import Work

logger = logging.getLogger("hpccomm")

Arrays = tuple[Any, Any, View | None, View | None]
"""The user's x and `out`, and these as communication sees them."""

SELF_CHECK = Signature("all_reduce", np.dtype(np.float64), (4,), op=ReduceOp.SUM, in_place=True)
"""The operations of the self-check, on each path of a new communicator."""


@dataclass(slots=True, eq=False)
class PreparedCall:
    """The decision for all calls with the same arguments on any memory.

    Attributes
    ----------
    lane : Lane
        The lane of their arrays.
    label, async_label : CallFingerprint
        Their identity; and what asynchronous ones are, which do not fit others.
    route : Route or DeviceRoute
        How they are carried out.
    ordered : bool
        Whether they are collectives, which all ranks issue in one order.
    tally : Tally
        Where they are counted.
    resolved : Resolved or None
        What the arguments mean; None for messages.
    arguments : callable
        ``arguments(send, recv)`` gives what `issue` is called with for arrays in host memory.
    direct : callable or None
        ``direct(x, out)`` gives the same for the user's arrays, flattened, where these fit; None where there is
        more to do.
    exchange : tuple of sequence and Repeated, or None
        The messages of a plan: one `BoundSet` after the other.
    issue : callable
        Carries one out: the lane calls it with the values of the single call. The first call
        replaces it, once it is agreed.
    begin : callable or None
        Begins an asynchronous one, for messages of arrays in host memory.
    returns_x, returns_out : bool
        Whether the call returns x, or `out`.
    """

    lane: "Lane"
    label: CallFingerprint
    async_label: CallFingerprint
    route: Any
    ordered: bool
    tally: Tally
    resolved: Resolved | None = None
    arguments: Callable[[Any, Any], tuple[Any, ...]] = both
    direct: Callable[[Any, Any], tuple[Any, ...]] | None = None
    exchange: tuple[Sequence[BoundSet], Repeated] | None = None
    issue: Callable[..., None] = field(init=False)
    begin: Any = None
    returns_x: bool = False
    returns_out: bool = False


@dataclass(slots=True)
class Call:
    """A call that is ready to go: checked, decided, with its memory.

    Attributes
    ----------
    prepared : PreparedCall
        Its decision.
    send, recv : View or None
        Arrays: flat on the host; on a device as they are. None without an array.
    result : object
        The call's result: an array, None, or a pair of that and the counts.
    keep : tuple
        Objects that must live until it is done. The first is an array.
    queue : tuple of int and object, or None
        For arrays in device memory, the stream on which they are ready and the result will be, where
        the user gave one; else it is the current one of the arrays' framework when the call is issued.
    tags : tuple of int or None
        Of a planned message on host arrays, the transport's tags of the sent and the received one.
    packing : Packing or None
        The copies before and after it.
    """

    prepared: PreparedCall
    send: View | None
    recv: View | None
    result: Any
    keep: tuple[Any, ...]
    queue: Queue | None = None
    tags: tuple[int | None, int | None] = (None, None)
    packing: Any = None

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """Receiver of the sent message, and sender of the received one; None for a collective."""
        values = self.prepared.label.values
        to: Any = values.get("dst")
        origin: Any = values.get("src")
        return to, origin


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

    def decide(self, request: CallRequest, resolved: Resolved) -> PreparedCall:
        """Decide how calls are carried out that ask for this. Local; the same on all ranks.

        Raises
        ------
        UsageError
            If the algorithm does not apply, or the reduction takes arrays in host memory only.
        """
        op = resolved.call.op
        if self.memory != "host" and isinstance(op, ReduceOp) and op in LOCATING:
            raise UnsupportedDtype(
                f"op is {op!r}, which takes host arrays only; reduce the values and indices on the host"
            )
        call, deterministic = resolved.call, request.deterministic
        if self.memory != "host" and call.exclusive and op is not None:
            identity(op, call.dtype)
        if self.memory != "host" and deterministic == ANY_RANKS:
            raise UsageError(
                f"deterministic is {ANY_RANKS!r}, which takes host arrays; copy the array to the host, or give "
                "deterministic=True, which has the same bits on the same number of ranks"
            )
        route = self.dispatch.decide(call, request.algorithm, deterministic)  # type: ignore[arg-type]  # refused above
        choice = route.choice

        def label(async_op: bool) -> CallFingerprint:
            more: dict[str, object] = {"path": choice.path, "async_op": async_op}
            more |= resolved.shape_in_common()
            more |= {"axis": request.lists.axis} if request.lists.axis else {}
            if choice.schedule:
                more["schedule"] = choice.schedule
            label = of_call(call, choice.algorithm, deterministic, **more)
            # Hosts that wait for each other would cost more than time.
            if getattr(route, "launch", None) is not None:
                label = label._replace(agreed_bytes=0)
            return label

        return self._prepare(label(False), label(True), route, True, resolved)

    def _prepare(
        self,
        label: CallFingerprint,
        async_label: CallFingerprint,
        route: Any,
        ordered: bool,
        resolved: Resolved | None = None,
    ) -> PreparedCall:
        tally, check = self._calls.reports.tally(label.name, label.nbytes), self._check
        prepared = PreparedCall(self, label, async_label, route, ordered, tally, resolved)
        prepared.arguments = self._arguments(route)
        prepared.issue = bare = self._carrying(prepared, route)
        if resolved is not None and resolved.recv != "new":
            prepared.direct = resolved.direct(prepared.arguments)
            prepared.returns_x, prepared.returns_out = resolved.recv == "x", resolved.recv == "out"

        def agreeing() -> Callable[..., None]:
            return self._carrying(prepared, self._agreeing(route, label))

        def first(*arguments: Any) -> None:
            if not check.known(label) or check.always(label):
                agreeing()(*arguments)
            else:  # what the ranks have agreed on since this call was prepared counts
                bare(*arguments)
            if check.known(label):
                prepared.issue = bare

        if ordered and check.always(label):
            prepared.issue = agreeing()
        elif ordered and not check.known(label):
            prepared.issue = first
        return prepared

    def named(self, of: PreparedCall, label: CallFingerprint | None) -> PreparedCall:
        """Return a prepared call anew, of another identity unless that is None."""
        labels = label or of.label, label or of.async_label
        return self._prepare(*labels, of.route, of.ordered, of.resolved)

    @abstractmethod
    def _carrying(self, prepared: PreparedCall, route: Any) -> Callable[..., None]:
        """Return the function that carries out calls on a route."""

    def _arguments(self, route: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
        """Return the function for the arguments of a route's calls on host arrays."""
        return both

    @abstractmethod
    def _agreeing(self, route: Any, label: CallFingerprint) -> Any:
        """Return the route with an agreement of the ranks before data moves."""

    def willing(self, call: Call) -> object:
        """Return whether this rank may take the way that plans take where all ranks may. Local.

        A true value, equal on all ranks, in JSON. A false value is not compared.
        """
        return False

    def agreed(self, call: Call, async_op: bool, *, willing: object) -> Call:
        """Return an agreed call of a plan, and note the agreement.

        `willing` is what all of them are, or false. Collective; it may block.
        """
        prepared, check = call.prepared, self._check
        label = prepared.async_label if async_op else prepared.label
        check.learn(label)
        if not async_op and check.known(label) and not check.always(label):
            prepared.issue = self._carrying(prepared, prepared.route)
        return call

    def _on_route(self, call: Call, route: Any) -> Call:
        """Return a call of a plan on an agreed route."""
        prepared, label = call.prepared, call.prepared.label
        own = replace(prepared, route=route, arguments=self._arguments(route))
        taken = self._agreeing(route, label) if self._check.always(label) else route
        own.issue = self._carrying(own, taken)
        return replace(call, prepared=own)

    def bind(self, prepared: PreparedCall, arrays: Arrays, stream: object) -> Call:
        """Return a call on arrays.

        Raises
        ------
        UsageError
            If the memory does not fit.
        """
        queue = None if stream is None else self.queue_of(stream)
        send, recv, result = self._memory(prepared, arrays, queue)
        return Call(prepared, send, recv, result, (arrays[0], result), queue)

    def _memory(
        self, prepared: PreparedCall, arrays: Arrays, queue: Queue | None
    ) -> tuple[Any, Any, Any]:
        """Return the array to send, the array to receive into, and the call's result."""
        x, out, send, b = arrays
        resolved = prepared.resolved
        assert resolved is not None
        if send is not None and (resolved.send == "x" or resolved.recv == "x"):
            send = self.checked_array(send, "x", resolved.written)
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
        self, prepared: PreparedCall, arrays: Arrays, stream: object, limit: float
    ) -> Any:
        """Carry a call out, and return its result: `bind` and `run` in one."""
        return self.run(self.bind(prepared, arrays, stream), limit)

    @abstractmethod
    def message(self, message: MessageRequest) -> Call:
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
        """Return the user's `stream`.

        Raises
        ------
        UsageError
            If it is not a stream, or these arrays do not take one.
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
        """Carry a call out, within a time, and return its result."""

    @abstractmethod
    def start(self, call: Call, limit: float) -> Work:
        """Start a call that goes on by itself."""

    def plan(
        self, call: Call, limit: float, sink: Diversion, otherwise: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return the shortest way to carry a call out again and again.

        Nothing is looked up that can be known before. `otherwise` does the same, step by step: it is called
        when calls are taken elsewhere, or refused.
        """
        carry = partial(self.issuing(call), limit)
        return carried(self._calls, carry, call.result, sink, otherwise)

    @abstractmethod
    def issuing(self, call: Call) -> Callable[[float], None]:
        """Return the function that carries out a planned call, repeatedly, within a time."""

    def prepare_plan(self, call: Call) -> None:  # noqa: B027 (most calls need nothing more)
        """Make what a planned call needs. Collective; blocks."""

    def check_plan(self, call: Call) -> None:  # noqa: B027 (likewise)
        """Raise unless a call can be planned. Local.

        Raises
        ------
        UsageError
            If this rank sends to itself without a receive, for which a stream would wait for ever.
        """

    def messages(self, call: Call) -> Sequence[Call]:
        """Return what a planned call sends and receives as messages: a message alone."""
        return () if call.prepared.ordered else (call,)

    @abstractmethod
    def planned(
        self, call: Call, messages: Sequence[Call], transport: Transport | None, parts: Parts
    ) -> Call:
        """Return a call to be carried out again and again by its messages, where it has such. Local.

        `transport` has the messages of host arrays, if there are such. The messages of a halo have `parts`, and are
        one call.
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

    def of_empty(self, _x: View | None, _out: View | None) -> tuple[str, ...]:
        """Return the names of the arrays whose memory counts as registered in every call."""
        return ()

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
        """Carry out polled operations, at the same time."""
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
