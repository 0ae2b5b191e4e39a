"""The end of a communicator's calls on a device: closed, aborted, or left at the exit.

The device lane ends by it.
"""

import logging
import math
import os
from time import perf_counter

from hpccomm.calls.lanes.issuing import StreamIssuer
from hpccomm.contracts.device import DeviceDispatch
from hpccomm.contracts.fingerprint import CallFingerprint
from hpccomm.errors import CommunicationError
from hpccomm.memory.cuda import streams
from hpccomm.runtime.lifetime import ExitStep, at_exit, keep
from hpccomm.runtime.recorder import DEVICE
from hpccomm.runtime.waiting import Gate, wait

logger = logging.getLogger("hpccomm")

DRAIN_SECONDS = 10.0
"""All that is under way at exit may take so long; then it is aborted, since freeing it could block."""

ABORT_SECONDS = 2.0
"""The part of them for the abort."""

LET_GO_SECONDS = 10.0
"""Seconds for the library to release aborted calls."""

GRAPH_SECONDS = 1.0
"""The same, for a finalized communicator with captured calls, which waits for graphs."""


class DeviceEnd:
    """Ends the device side of one communicator, once.

    Parameters
    ----------
    issuer : StreamIssuer
        Has the calls that are under way.
    dispatch : DeviceDispatch
        Is closed at the end.
    """

    def __init__(self, issuer: StreamIssuer, dispatch: DeviceDispatch) -> None:
        self._issuer = issuer
        self._calls = issuer.calls
        self._pending = issuer.pending
        self._backend = backend = issuer.backend
        self._dispatch = dispatch
        self._process = os.getpid()
        self._until = math.inf  # when the process wants to be gone
        self._closed = False
        if backend is not None:
            self._calls.failure.translators.append(backend.translate)
            self._calls.failure.releases.append(self.abandon)
            _everyone.add(self)
            at_exit(ExitStep.DEVICES, _leave_all)

    def close(self) -> None:
        """Wait for all calls under way, and free the library's communicators. Blocks.

        Raises
        ------
        CollectiveTimeout
            If the deadline of the communicator passes.
        """
        if self._closed or self._process != os.getpid():
            return
        self._drain(self._calls.timeout, self._calls.gate)
        self._closed = True
        _everyone.discard(self)
        captured = self._pending.captured
        self._pending.end()
        with streams.on_device(self._issuer.device):
            if captured and self._backend is not None and not self._backend.release(GRAPH_SECONDS):
                logger.warning(
                    "%s: NCCL keeps its communicators as long as there are CUDA graphs with their calls, "
                    "and frees them in a thread; drop the graphs before finalize",
                    self._calls.name,
                )
            self._dispatch.close()

    def leave(self, until: float) -> None:
        """At the process's exit: free what can be freed soon, and abort the rest.

        Starts no thread: at exit Python may refuse to.

        Parameters
        ----------
        until : float
            When it is over, as ``time.perf_counter`` counts.
        """
        if self._closed or self._process != os.getpid() or self._calls.gate.error is not None:
            return
        self._until = until
        try:
            self._drain(max(0.0, self._left() - ABORT_SECONDS), Gate())
        except Exception as error:  # noqa: BLE001 (in any case, nothing may stay under way)
            self._calls.fail(error)
            return
        self._closed = True
        _everyone.discard(self)
        # Captured graphs are there still, as a rule, and NCCL would wait for them: it ends with the
        # process, and they before it.
        if self._backend is not None and not self._pending.captured:
            self._pending.end()
            if not self._backend.release(self._left(), leaving=True):
                logger.warning("%s: NCCL has not ended before the exit", self._calls.name)

    def _drain(self, timeout: float, gate: Gate) -> None:
        """Wait until nothing is under way."""

        def expired(elapsed: float) -> CommunicationError:
            calls = self._calls
            entry = calls.start_record(
                CallFingerprint("finalize", 0), DEVICE, timeout, ordered=False
            )
            error = calls.overdue(entry, elapsed)
            calls.fail(error)
            return error

        try:
            with streams.on_device(self._issuer.device):
                wait(self._pending.idle, timeout=timeout, gate=gate, expired=expired)
        except CommunicationError:
            self._issuer.calls.failure.unraised = None
            raise

    def abandon(self) -> None:
        """Release the device: the communicator has failed. From any thread; idempotent."""
        if self._backend is None or self._closed or self._process != os.getpid():
            return
        keep(*self._pending.abandon())
        _everyone.discard(self)
        patience = GRAPH_SECONDS if self._pending.captured else LET_GO_SECONDS
        pending = self._pending
        self._backend.abort(min(patience, self._left()), lambda: pending.entered is not None)

    def _left(self) -> float:
        """Return the seconds that are left to this process."""
        return max(0.0, self._until - perf_counter())


_everyone: set[DeviceEnd] = set()
"""The open ones, also of collected communicators: the
device still uses their memory."""


def _leave_all() -> None:
    until = perf_counter() + DRAIN_SECONDS
    for each in list(_everyone):
        try:
            each.leave(until)
        except Exception:  # the others must still be looked after
            logger.exception("a communicator failed at exit")
