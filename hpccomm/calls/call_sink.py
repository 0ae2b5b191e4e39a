"""Call sinks: a batch, a plan or an explanation that takes calls instead of issuing them.

`core` hands each call to the open sink, if any.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from hpccomm.calls.lanes import Call
from hpccomm.errors import UsageError
from hpccomm.runtime.engine import CallEngine


class Capture:
    """Takes the one call of a thread, for a plan or an explanation.

    Attributes
    ----------
    thread : int
        Whose call; another thread's are issued, or refused.
    call : Call or None
        The call, once it is there.
    """

    __slots__ = ("call", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.call: Call | None = None


class CallSink:
    """Where the calls of one communicator go.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.

    Attributes
    ----------
    batch : list of Call or None
        What the batch that is open has taken.
    capture : Capture or None
        What takes the next call.
    diverted : bool
        Whether one of them is there, which every call asks.
    """

    __slots__ = ("_calls", "batch", "capture", "diverted")

    def __init__(self, calls: CallEngine) -> None:
        self._calls = calls
        self.batch: list[Call] | None = None
        self.capture: Capture | None = None
        self.diverted = False

    def open_batch(self) -> None:
        """Have a batch take calls from now on.

        Raises
        ------
        UsageError
            If one is open.
        """
        if self.batch is not None:
            raise UsageError("batch() within a batch; end the outer one first")
        self.batch = []
        self.diverted = True

    def close_batch(self) -> tuple[Call, ...]:
        """Close the batch; return its calls."""
        taken, self.batch = tuple(self.batch or ()), None
        self.diverted = self.capture is not None
        return taken

    @contextmanager
    def capturing(self) -> Iterator[Capture]:
        """Have the block's call taken instead of issued.

        Raises
        ------
        UsageError
            If another thread is at it.
        """
        if self.capture is not None:
            raise UsageError(f"communicator {self._calls.name!r} is in use by another thread")
        self.capture = capture = Capture()
        self.diverted = True
        try:
            yield capture
        finally:
            self.capture = None
            self.diverted = self.batch is not None

    def takes(self, call: Call, async_op: bool) -> bool:
        """Have a call taken, if something takes calls of this thread; return whether that is so.

        Raises
        ------
        UsageError
            If the call cannot be taken.
        """
        if self.capture is not None and self.capture.thread == get_ident():
            self.capture.call = call
            return True
        if self.batch is None:  # another thread's call is captured
            return False
        if async_op:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        lane = call.prepared.lane
        if self.batch and lane is not self.batch[0].prepared.lane:
            raise UsageError(
                "a batch has calls on host arrays and on device arrays; make one for each kind"
            )
        self.batch.append(lane.admitted(call))
        return True

    def refuse_capture(self, what: str, remedy: str) -> None:
        """Raise if a plan or an explanation of this thread waits for a call, which `what` cannot be.

        Raises
        ------
        UsageError
            With the remedy.
        """
        if self.capture is not None and self.capture.thread == get_ident():
            raise UsageError(f"{what} cannot be planned or explained; {remedy}")

    def refuse_batch(self, name: str, remedy: str) -> None:
        """Raise if a batch is open, which the call of that name does not go into.

        Raises
        ------
        UsageError
            With the remedy.
        """
        if self.batch is not None:
            raise UsageError(f"{name} does not go into a batch{remedy}")
