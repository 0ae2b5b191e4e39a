"""The loops in which the library waits, by polling.

A waiter gives a function to poll, a deadline and a gate. The loop spins first, since most waits take
microseconds. Then it yields the processor at each turn, since there may be more ranks than cores.
After long without progress it naps, so that it does not take a core from the late rank that it waits for.

The engine of calls, `hpccomm.calls`, `hpccomm.communicator`, the backends and `hpccomm.testing` use it.
"""

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hpccomm.contracts.transport import Receiving, Request, Steps
from hpccomm.errors import BufferMismatch, CommunicationError

SPINS = 200
MOVED_SPINS = 50
YIELD_SECONDS = 0.5
CROWDED_YIELD_SECONDS = 0.001
NAP_SECONDS = 0.0002


Expired = Callable[[float], CommunicationError | None]
"""Takes the elapsed seconds and returns the error of the passed deadline. If it returns None, the wait goes on without
a deadline."""


@dataclass(slots=True)
class Gate:
    """Lets another thread end waits.

    Attributes
    ----------
    error : CommunicationError or None
        Once set, every wait on this gate raises it at its next poll.
    shares_process : bool
        Whether ranks share the process. Then a rank that polls keeps the others from the interpreter, so
        it naps early.
    """

    error: CommunicationError | None = None
    shares_process: bool = False

    def patience(self) -> "Patience":
        """Return the `Patience` of a wait that this gate can end."""
        return Patience(CROWDED_YIELD_SECONDS if self.shares_process else YIELD_SECONDS)

    def shut(self, error: CommunicationError) -> None:
        """Make waits raise `error`. The first error stays."""
        if self.error is None:
            self.error = error


@dataclass(slots=True)
class Patience:
    """The pauses between polls that find nothing: first spins, then yields for `yields` seconds, then naps."""

    yields: float = YIELD_SECONDS
    turns: int = 0
    napping: bool = False
    since: float = field(default_factory=time.perf_counter)

    def pause(self) -> None:
        """Back off once: spin, yield or nap."""
        self.turns += 1
        if self.napping:
            time.sleep(NAP_SECONDS)
        elif self.turns > SPINS:
            time.sleep(0)  # lets this process's other threads run
            os.sched_yield()  # lets other processes run
            self.napping = time.perf_counter() - self.since > self.yields

    def reset(self) -> None:
        """Start over with spins, after something moved."""
        self.turns = 0
        self.napping = False
        self.since = time.perf_counter()


def wait(poll: Callable[[], bool], *, timeout: float, gate: Gate, expired: Expired) -> None:
    """Poll until `poll` returns True. Blocks.

    Parameters
    ----------
    poll : callable
        Returns whether the wait is over. It may raise.
    timeout : float
        Seconds; ``math.inf`` for no limit.
    gate : Gate
        Lets other threads end the wait.
    expired : callable
        Takes the elapsed seconds and returns the error of the passed deadline, or None to wait on without one.

    Raises
    ------
    CommunicationError
        The error of the gate or of `expired`.
    """
    drive(iter(poll, True), timeout=timeout, gate=gate, expired=expired)


def over_within(seconds: float, poll: Callable[[], bool]) -> bool:
    """Poll until `poll` returns True, for at most `seconds` but at least once; return whether it did."""
    until, over = time.perf_counter() + seconds, False

    def ended() -> bool:
        nonlocal over
        over = poll()
        return over or time.perf_counter() >= until

    wait(ended, timeout=math.inf, gate=Gate(), expired=lambda _: None)
    return over


def spun(steps: Steps) -> bool:
    """Move a polled operation on for as long as a wait spins; return whether it is done.

    `drive` continues an unfinished operation and checks the deadline.
    """
    left = SPINS
    for moved in steps:
        left -= MOVED_SPINS if moved else 1
        if left <= 0:
            return False
    return True


def drive(steps: Steps, *, timeout: float, gate: Gate, expired: Expired) -> None:
    """Move a polled operation on until it is done.

    The other parameters and the errors are those of `wait`.
    """
    patience: Patience | None = None
    began, late = 0.0, False
    for moved in steps:
        if patience is None:
            patience = gate.patience()
            began = patience.since
            continue
        if gate.error is not None:
            raise gate.error
        if late:  # and the operation did not end in the poll after the deadline
            error = expired(time.perf_counter() - began)
            if error is not None:
                raise error
            timeout = math.inf
        if moved:
            patience.reset()
        else:
            patience.pause()
        late = timeout != math.inf and time.perf_counter() - began > timeout


def received(irecv: Callable[[NDArray[Any], int, int], Request], src: int, tag: int) -> Receiving:
    """Return `Transport.receiving` for a transport that has nothing faster than its `irecv` for it."""

    def receive(data: NDArray[Any], beside: Request | None = None, /) -> Steps:
        request = irecv(data, src, tag)
        return iter(request, True) if beside is None else completed([request, beside])

    return receive


def completed(requests: list[Request]) -> Steps:
    """Return the steps that wait until all `requests` are complete.

    If a message has another size than its array, the other requests are completed before the error is
    raised: a request left behind would receive later messages.
    """
    return at_once([iter(request, True) for request in requests])


def no_steps(*_: object) -> Steps:
    """Return an empty sequence of steps, for a call that is done at once."""
    return iter(())


def polled(steps: Steps) -> Request:
    """Return a polled operation as a request."""
    return lambda: next(steps, None) is None


def at_once(operations: Iterable[Steps]) -> Steps:
    """Return the steps that move several polled operations on at the same time, until all are done.

    If a message has another size than its array, the other operations are completed before that error is raised.
    """
    under_way, lost = list(operations), list[BufferMismatch]()
    while under_way:
        moved, left = False, []
        for steps in under_way:
            try:
                step = next(steps, None)
            except BufferMismatch as error:
                step = None
                lost.append(error)
            if step is not None:
                left.append(steps)
            moved |= step is not False
        under_way = left
        if under_way:
            yield moved
    if lost:
        raise lost.pop(0)  # popped, so that this frame does not hold the error
