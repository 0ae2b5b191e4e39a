"""`DeviceWork`: the result of an asynchronous call on device arrays."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from hpccomm.errors import CommunicationError, CommunicatorAborted, PeerLost, UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.runtime.pending import PendingCall, PendingCalls
from hpccomm.runtime.recorder import TIMEOUT
from hpccomm.runtime.reports import trace, traces
from hpccomm.runtime.waiting import Gate, wait
from hpccomm.runtime.work import Work, check_block
from hpccomm.settings import check_seconds


class DeviceWork(Work):
    """An operation under way on a device's stream, which keeps its arrays alive until it is done.

    `wait`, `done` and `exception` may be called from any thread, any number of times.
    """

    __slots__ = ("_call", "_current", "_expired", "_gate", "_on_raise", "_pending")

    def __init__(
        self,
        calls: PendingCalls,
        call: PendingCall,
        *,
        result: Any,
        gate: Gate,
        current: Callable[[], Queue],
        expired: Callable[[PendingCall, float], CommunicationError | None],
        raised: Callable[[], None],
    ) -> None:
        self._asked = False
        self._entry = call.entry
        self._pending = calls
        self._call = call
        self._result = result
        self._gate = gate
        self._current = current
        self._expired = expired
        self._on_raise = raised

    def wait(self, timeout: float | None = None, block: bool | None = None) -> Any:
        """Order what comes on the current stream behind the operation, and return its result.

        The current stream is that of the array's own framework, in the thread that calls. The host
        goes on at once, unless it is to wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the host waits at most; None is the call's, and does not make it wait.
        block : bool, optional
            True has the host wait until the operation is done; None does where `timeout` is given.

        Returns
        -------
        object
            What the synchronous call returns. It is filled once the stream, or the host, is past this.

        Raises
        ------
        CollectiveTimeout
            If the host waits and the deadline passes. The communicator has failed then.
        HpccommError
            The known failure of the operation.
        UsageError
            If the host is to wait for an operation that was recorded into a graph.
        """
        self._asked = True
        check_block(block)
        call, asked = self._call, perf_counter() if traces else 0.0
        limit = call.entry[TIMEOUT] if timeout is None else check_seconds("timeout", timeout)
        self._raise()
        if block or (block is None and timeout is not None):
            self._refuse_captured("wait for the graph that was launched instead")
            try:
                wait(
                    lambda: self._pending.done(call),
                    timeout=limit,
                    gate=self._gate,
                    expired=lambda elapsed: self._expired(call, elapsed),
                )
            except CommunicatorAborted:
                self._raise()
                raise
            self._raise()
        if not call.over or call.captured:
            with streams.on_device(
                self._pending.device
            ):  # whose default stream is meant, if it is that
                streams.order(call.event, self._current()[0])
        if asked and (recording := trace()) is not None:
            recording.waited(call.entry, asked)
        return self._result

    def done(self) -> bool:
        """Return whether the operation is over, for good or ill. Does not block.

        Raises
        ------
        UsageError
            If it was recorded into a graph, and so is not under way.
        """
        self._asked = True
        if self._call.error is not None or self._gate.error is not None:
            return True
        self._refuse_captured("ask the stream on which the graph was launched")
        return self._pending.done(self._call)

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation, or None so far. Does not block."""
        self._asked = True
        return self._error()

    def _error(self) -> BaseException | None:
        failure = self._gate.error
        if failure is not None and isinstance(failure.__cause__, PeerLost):
            failure = failure.__cause__  # which this operation waits for as well
        return self._call.error or (None if self._call.over else failure)

    def _raise(self) -> None:
        error = self.exception()
        if error is not None:
            self._on_raise()
            raise error

    def _refuse_captured(self, remedy: str) -> None:
        if self._call.captured:
            raise UsageError(
                f"this operation was recorded into a CUDA graph and is not under way; {remedy}"
            )

    def __repr__(self) -> str:
        call = self._call
        state = "failed" if self._error() else "done" if call.over else "under way"
        where = " (recorded into a graph)" if call.captured else ""
        return f"<hpccomm.Work on a device, {state}{where}>"
