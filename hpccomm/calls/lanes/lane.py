"""The common part of both lanes: calls, and how they are prepared."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.calls.host import HostDispatch
from hpccomm.calls.lanes.check import Check
from hpccomm.calls.lanes.message import MessageRequest, Parts
from hpccomm.calls.resolving import CallKind
from hpccomm.contracts.device import DeviceDispatch
from hpccomm.contracts.fingerprint import CallFingerprint, of_kind, of_sizes
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.contracts.transport import Transport
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View, view
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.callpath import PreparedCall
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.operation import Operation, as_one
from hpccomm.runtime.work import Work

logger = logging.getLogger("hpccomm")

SELF_CHECK = Signature("all_reduce", np.dtype(np.float64), (4,), op=ReduceOp.SUM, in_place=True)
"""The operations of the self-check, on each path of a new communicator."""


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

    def prepared(self, kind: CallKind, call: Signature, shape: tuple[int, ...]) -> PreparedCall:
        """Decide how a call is carried out. Local; the same on all ranks.

        Raises
        ------
        UsageError
            If the algorithm does not apply, or the reduction takes arrays in host memory only.
        """
        choice, found = self.decide(kind, call)
        label = self._label(kind, call, choice, shape)
        return self._prepared(label, choice, found, kind=kind, call=call, shape=shape)

    @abstractmethod
    def decide(self, kind: CallKind, call: Signature) -> tuple[Choice, Any]:
        """Return which algorithm carries a call out, and its implementation. Local; the same on all ranks."""

    @abstractmethod
    def _prepared(
        self, label: CallFingerprint, choice: Choice, found: Any, **more: Any
    ) -> PreparedCall:
        """Return the prepared call of an implementation."""

    def _label(
        self,
        kind: CallKind,
        call: Signature,
        choice: Choice,
        shape: tuple[int, ...],
        async_op: bool = False,
    ) -> CallFingerprint:
        """Return the identity of a call. Asynchronous ones do not fit others."""
        which = choice.algorithm, call.registered, async_op
        alike = kind.labels.get(which)
        if alike is None:
            more = {"path": choice.path, "async_op": async_op}
            more |= {"axis": kind.axis} if kind.axis else {}
            alike = kind.labels[which] = of_kind(call, choice.algorithm, **more)
        sizes = kind.shape_in_common(call, shape)
        if choice.schedule:
            sizes["schedule"] = choice.schedule
        values, code = alike
        return of_sizes(call, values, code, sizes)

    def async_label(self, prepared: PreparedCall) -> CallFingerprint:
        """Return the identity of the asynchronous form of a call."""
        if prepared.kind is None or prepared.call is None or prepared.choice is None:
            return prepared.label
        named = prepared.apart
        if named is None:
            made = prepared.kind, prepared.call, prepared.choice, prepared.shape
            named = prepared.apart = self._label(*made, async_op=True)
        return named

    def named(self, of: PreparedCall, label: CallFingerprint) -> PreparedCall:
        """Return a prepared call of another identity."""
        return replace(of, label=label, apart=label, agreed=0)

    def carried_by(self, of: PreparedCall, choice: Choice, found: Any) -> PreparedCall:
        """Return a prepared call that is carried out by another implementation."""
        more = {"ordered": of.ordered, "kind": of.kind, "call": of.call, "shape": of.shape}
        own = self._prepared(of.label, choice, found, **more)
        own.agreed, own.apart = of.agreed, of.apart
        return own

    def willing(self, call: Call) -> object:
        """Return whether this rank may take the way that plans take where all ranks may. Local.

        A true value, equal on all ranks, in JSON. A false value is not compared.
        """
        return False

    def agreed(self, call: Call, async_op: bool, *, willing: object) -> Call:
        """Return an agreed call of a plan, and note the agreement.

        `willing` is what all of them are, or false. Collective; it may block.
        """
        prepared = call.prepared
        self._check.learn(prepared, self.async_label(prepared) if async_op else prepared.label)
        return call

    def bind(self, prepared: PreparedCall, arrays: tuple[Any, ...], stream: object) -> Call:
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
        self, prepared: PreparedCall, arrays: tuple[Any, ...], queue: Queue | None
    ) -> tuple[Any, Any, Any]:
        """Return the array to send, the array to receive into, and the call's result."""
        x, out, send, b = arrays
        kind = prepared.kind
        if send is not None and (kind.send == "x" or kind.recv == "x"):
            send = self.checked_array(send, "x", kind.written)
        recv: View | None
        if kind.recv == "x":
            result, recv = x, send
        elif kind.recv is None:
            result = recv = None
        else:
            if kind.recv == "new":
                result = self.new_like(x, prepared.shape, kind.call.dtype, queue)
                b = result if result.__class__ is np.ndarray else view(result, "out")
                if kind.zeroed:
                    self.clear(b, x, queue)
            else:
                result = out
            assert b is not None
            recv = self.checked_array(b, "out", True)
        if kind.send != "x":
            send = None
        return send, recv, result

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

    def registered_names(self, _x: View | None, _out: View | None) -> tuple[str, ...]:
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
