"""Who takes calls instead of their being issued: a batch, a plan or an explanation."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from hpccomm.communicator.lanes import Call
from hpccomm.errors import UsageError

if TYPE_CHECKING:
    from hpccomm.communicator.planning import Batch


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


class Intake:
    """Where the calls of one communicator go.

    Attributes
    ----------
    batch : Batch or None
        The batch that is open.
    capture : Capture or None
        What takes the next call.
    diverted : bool
        Whether one of them is there, which every call asks.
    """

    __slots__ = ("batch", "capture", "diverted")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.capture: Capture | None = None
        self.diverted = False

    def open(self, batch: "Batch") -> None:
        """Have a batch take calls from now on.

        Raises
        ------
        UsageError
            If another one does.
        """
        if self.batch is not None:
            raise UsageError("batch() within a batch; end the outer one first")
        self.batch = batch
        self.diverted = True

    def close(self) -> None:
        """Have the batch take no more calls."""
        self.batch = None
        self.diverted = self.capture is not None

    @contextmanager
    def capturing(self, communicator: str) -> Iterator[Capture]:
        """Have the block's call taken instead of issued.

        Raises
        ------
        UsageError
            If another thread is at it.
        """
        if self.capture is not None:
            raise UsageError(f"communicator {communicator!r} is in use by another thread")
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
        if self.batch is None:
            return False
        if async_op:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        self.batch.add(call)
        return True

    def refuse_batch(self, name: str, remedy: str) -> None:
        """Raise if a batch is open, which the call of that name does not go into.

        Raises
        ------
        UsageError
            With the remedy.
        """
        if self.batch is not None:
            raise UsageError(f"{name} does not go into a batch{remedy}")
