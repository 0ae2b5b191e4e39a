"""Call sinks: a batch, a plan or an explanation that takes calls instead of issuing them.

`core` hands each call to the open sink, if any.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import NamedTuple

from hpccomm.communicator.lanes import Call
from hpccomm.communicator.lanes.message import Parts
from hpccomm.errors import UsageError
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.recorder import Site


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


class PlanStep(NamedTuple):
    """A step of a plan: a call, or the calls of a batch.

    Attributes
    ----------
    calls : tuple of Call
        The calls, at least one.
    batched : bool
        Whether they are a batch.
    site : Site or None
        Where in the program they were made.
    parts : tuple of HaloPart or None
        The parts of a halo.
    """

    calls: tuple[Call, ...]
    batched: bool
    site: Site | None
    parts: Parts = None


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
    planned : list of PlanStep or None
        What the block that plans a sequence has taken.
    capture : Capture or None
        What takes the next call.
    diverted : bool
        Whether one of them is there, which every call asks.
    """

    __slots__ = ("_calls", "batch", "capture", "diverted", "planned")

    def __init__(self, calls: CallEngine) -> None:
        self._calls = calls
        self.batch: list[Call] | None = None
        self.planned: list[PlanStep] | None = None
        self.capture: Capture | None = None
        self.diverted = False

    @property
    def within(self) -> str:
        """The open block, as a program writes it; empty without one."""
        if self.batch is not None:
            return "batch()"
        return "" if self.planned is None else "planning()"

    def open(self, block: str) -> None:
        """Have a block take calls from now on, ``"batch()"`` or ``"planning()"``.

        Raises
        ------
        UsageError
            If one does that it cannot stand in: a batch may stand in planning.
        """
        if self.batch is not None or (block != "batch()" and self.within):
            where = "a batch" if block == self.within == "batch()" else self.within
            raise UsageError(f"{block} within {where}; end the outer one first")
        if block == "batch()":
            self.batch = []
        else:
            self.planned = []
        self.diverted = True

    def close_batch(self) -> tuple[Call, ...]:
        """Close the batch; return its calls."""
        taken, self.batch = tuple(self.batch or ()), None
        self.diverted = self.capture is not None or self.planned is not None
        return taken

    def close_planning(self) -> tuple[PlanStep, ...]:
        """Have the plan of a sequence take no more calls, nor a batch in it that was left open."""
        taken, self.planned, self.batch = tuple(self.planned or ()), None, None
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
        if async_op and self.batch is not None:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        if async_op and self.planned is not None:
            raise UsageError(
                "async_op is True within planning(), whose plan blocks; plan the call alone, by plan()"
            )
        self._add((call,), batched=False)
        return bool(self.within)

    def takes_plan(self, steps: Sequence[PlanStep]) -> bool:
        """Have the calls of a plan taken, if something takes calls; return whether that is so.

        Raises
        ------
        UsageError
            If they cannot be taken.
        """
        if self.batch is not None and len(steps) > 1:
            raise UsageError(
                f"a plan of {len(steps)} steps is called within a batch, which carries all out at the "
                "same time; call it before or after"
            )
        for step in steps:
            if step.parts is not None:
                self.refuse_batch("a halo", "; call it before or after")
            self._add(step.calls, batched=step.batched)
        return bool(self.within)

    def add_batch(self, calls: tuple[Call, ...]) -> None:
        """Have the calls of a batch taken as one step of the plan."""
        self._add(calls, batched=True)

    def _add(self, calls: tuple[Call, ...], *, batched: bool) -> None:
        if self.batch is None:
            if self.planned is not None:
                self.planned.append(PlanStep(calls, batched, self._calls.site))
            return
        for call in calls:
            lane = call.prepared.lane
            if self.batch and lane is not self.batch[0].prepared.lane:
                raise UsageError(
                    "a batch has calls on host arrays and on device arrays; make one for each kind"
                )
            # A planned call goes on the stream that is current when the plan is called.
            self.batch.append(call if self.planned is not None else lane.admitted(call))

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
