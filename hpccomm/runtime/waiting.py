"""The one place where the library waits: everything that polls calls it.

A waiter gives a function to poll, a deadline and a gate. The loop spins first, since most waits are
microseconds; then it yields the processor at each turn, since there may be more ranks than cores;
after long without progress it naps, so that a rank that waits for a late peer does not take a core
from it.
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
"""Makes the error of a deadline that has passed, from the elapsed seconds; None goes on waiting, without one."""


@dataclass(slots=True)
class Gate:
    """Lets another thread end waits.

    Attributes
    ----------
    error : CommunicationError or None
        Once set, every wait on this gate raises it at its next poll.
    shares_process : bool
        Whether ranks share the process: one that polls keeps the others from the interpreter, so
        it naps early.
    """

    error: CommunicationError | None = None
    shares_process: bool = False

    def patience(self) -> "Patience":
        """Return the patience of a wait behind this gate."""
        return Patience(CROWDED_YIELD_SECONDS if self.shares_process else YIELD_SECONDS)

    def shut(self, error: CommunicationError) -> None:
        """Make waits raise `error`. The first error stays."""
        if self.error is None:
            self.error = error


@dataclass(slots=True)
class Patience:
    """The pauses between polls that find nothing: first spins, then yields for some seconds, then naps."""

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
        """Begin anew: something moved."""
        self.turns = 0
        self.napping = False
        self.since = time.perf_counter()


def wait(poll: Callable[[], bool], *, timeout: float, gate: Gate, expired: Expired) -> None:
    """Poll until `poll` gives True.

    Parameters
    ----------
    poll : callable
        Returns whether the wait is over. It may raise.
    timeout : float
        Seconds; ``math.inf`` for no limit.
    gate : Gate
        Lets other threads end the wait.
    expired : callable
        Makes the error of a passed deadline, from the elapsed seconds; None waits on.

    Raises
    ------
    CommunicationError
        The gate's, or what `expired` makes.
    """
    drive(iter(poll, True), timeout=timeout, gate=gate, expired=expired)


def over_within(seconds: float, poll: Callable[[], bool]) -> bool:
    """Poll until `poll` gives True, for so many seconds at most; return whether it did. It polls at least once."""
    until, over = time.perf_counter() + seconds, False

    def ended() -> bool:
        nonlocal over
        over = poll()
        return over or time.perf_counter() >= until

    wait(ended, timeout=math.inf, gate=Gate(), expired=lambda _: None)
    return over


def spun(steps: Steps) -> bool:
    """Move a polled operation on for as long as a wait spins; return whether it is done.

    `drive` continues the unfinished ones, and checks the deadline: steps with progress may take
    long.
    """
    left = SPINS
    for moved in steps:
        left -= MOVED_SPINS if moved else 1
        if left <= 0:
            return False
    return True


def drive(steps: Steps, *, timeout: float, gate: Gate, expired: Expired) -> None:
    """Move a polled operation on until it is done.

    Parameters and errors are as of `wait`.
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
        if late:  # and it has not come while the deadline passed
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
    """Return `Transport.receiving` for a transport whose `irecv` is as short."""

    def receive(data: NDArray[Any], beside: Request | None = None, /) -> Steps:
        request = irecv(data, src, tag)
        return iter(request, True) if beside is None else completed([request, beside])

    return receive


def completed(requests: list[Request]) -> Steps:
    """Wait, polled, until all `requests` are complete.

    If a message has another size than its array, the others are completed before the error is
    raised: a request left behind would take later messages.
    """
    return at_once([iter(request, True) for request in requests])


def no_steps(*_: object) -> Steps:
    """Return no steps, for a call that has none."""
    return iter(())


def polled(steps: Steps) -> Request:
    """Return a polled operation as a request."""
    return lambda: next(steps, None) is None


def at_once(operations: Iterable[Steps]) -> Steps:
    """Move several polled operations on at the same time, until all are done.

    Where a message has another size than its array, the others are completed before that is raised.
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
        raise lost.pop(0)  # this frame holds it no more
