"""Who takes calls instead of their being issued: a batch, a plan or an explanation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from hpccomm.communicator.lanes import Call
from hpccomm.errors import UsageError

if TYPE_CHECKING:
    from hpccomm.communicator.planning import Batch, Planning
    from hpccomm.communicator.steps import PlanStep


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

    Attributes
    ----------
    batch : Batch or None
        The batch that is open.
    capture : Capture or None
        What takes the next call.
    planning : Planning or None
        The block that plans a sequence.
    diverted : bool
        Whether one of them is there, which every call asks.
    """

    __slots__ = ("batch", "capture", "diverted", "planning")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.capture: Capture | None = None
        self.planning: Planning | None = None
        self.diverted = False

    @property
    def within(self) -> str:
        """The block that takes calls, as a program writes it; empty if there is none."""
        if self.batch is not None:
            return "batch()"
        return "" if self.planning is None else "planning()"

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
        self.diverted = self.capture is not None or self.planning is not None

    def begin_planning(self, planning: "Planning") -> None:
        """Have a plan of a sequence take calls from now on.

        Raises
        ------
        UsageError
            If another block takes them.
        """
        if self.within:
            raise UsageError(f"planning() within {self.within}; end the outer one first")
        self.planning = planning
        self.diverted = True

    def end_planning(self) -> None:
        """Have the plan of a sequence take no more calls, nor a batch in it that was left open."""
        self.planning = self.batch = None
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
            self.diverted = bool(self.within)

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
        if not self.within:
            return False
        if async_op and self.batch is not None:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        if async_op:
            raise UsageError(
                "async_op is True within planning(), whose plan blocks; plan the call alone, by plan()"
            )
        if self.batch is not None:
            self.batch.add(call)
        elif self.planning is not None:
            self.planning.add((call,))
        return True

    def takes_plan(self, steps: "Sequence[PlanStep]") -> bool:
        """Have the calls of a plan taken, if something takes calls; return whether that is so.

        Raises
        ------
        UsageError
            If they cannot be taken.
        """
        if self.batch is not None:
            if len(steps) > 1:
                raise UsageError(
                    f"a plan of {len(steps)} steps is called within a batch, which carries all out at the "
                    "same time; call it before or after"
                )
            for step in steps:
                for call in step.calls:
                    self.batch.add(call)
        elif self.planning is not None:
            for step in steps:
                self.planning.add(step.calls, batched=step.batched)
        return bool(self.within)

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
        """Raise if a block takes calls that the call of that name does not go into.

        Raises
        ------
        UsageError
            With the remedy.
        """
        if self.within:
            where = "a batch" if self.batch is not None else "planning()"
            raise UsageError(f"{name} does not go into {where}{remedy}")
