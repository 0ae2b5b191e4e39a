"""What is reported of one communicator's calls: to hooks, statistics and the log, and in errors."""

import logging
from collections.abc import Callable

from hpccomm.errors import CollectiveTimeout, CommunicationError
from hpccomm.runtime.hooks import CallInfo, Hook, Hooks
from hpccomm.runtime.operation import Label
from hpccomm.runtime.stats import Stats

logger = logging.getLogger("hpccomm")


class Reports:
    """Describes the calls of one communicator, and counts them.

    Parameters
    ----------
    name : str
        Name of the communicator.
    rank, size : int
        This rank, and the number of ranks.
    slow_call : float
        Seconds; a call that takes longer is logged.

    Attributes
    ----------
    stats : Stats
        Counts of the calls.
    pre_hooks, post_hooks : Hooks
        The user's functions that are called before and after each call.
    """

    def __init__(self, name: str, rank: int, size: int, slow_call: float) -> None:
        self.name = name
        self.rank = rank
        self.slow_call = slow_call
        self.stats = Stats()
        self.pre_hooks: Hooks[Hook] = Hooks()
        self.post_hooks: Hooks[Hook] = Hooks()
        self._size = size

    def info(
        self,
        label: Label,
        sequence: int,
        elapsed: float | None = None,
        error: BaseException | None = None,
    ) -> CallInfo:
        """Return a call as hooks see it."""
        return CallInfo(self.name, self.rank, sequence, *label, elapsed, error)

    def ended(
        self, label: Label, sequence: int, error: BaseException | None, elapsed: float
    ) -> None:
        """Count a call that has ended, and report it."""
        tally = self.stats.tally(*label)
        tally.calls += 1
        tally.nbytes += label[1]
        tally.seconds += elapsed
        if elapsed > self.slow_call or self.post_hooks.registered:
            self.report(label, sequence, elapsed, error)

    def report(
        self, label: Label, sequence: int, elapsed: float, error: BaseException | None = None
    ) -> None:
        """Log a call that was slow, and call the hooks."""
        if elapsed > self.slow_call:
            logger.warning("slow call: %s took %.3f s", self.described(label, sequence), elapsed)
        self.post_hooks(self.info(label, sequence, elapsed, error))

    def described(self, label: Label, sequence: int) -> str:
        """Return a call in words."""
        name, nbytes = label
        return (
            f"{name} (call {sequence} of communicator {self.name!r}, "
            f"rank {self.rank} of {self._size}, {nbytes} bytes)"
        )

    def overdue(
        self,
        label: Label,
        sequence: int,
        timeout: float,
        elapsed: float,
        causes: str = "A rank did not take part or is late",
    ) -> CommunicationError:
        """Return the error of a call whose deadline has passed, with its possible causes."""
        return CollectiveTimeout(
            f"{self.described(label, sequence)} was not done after {elapsed:.3g} s; "
            f"its deadline is {timeout:g} s. {causes}",
            communicator=self.name,
            rank=self.rank,
            sequence=sequence,
            operation=label[0],
            nbytes=label[1],
            elapsed=elapsed,
        )

    def expired(
        self, label: Label, sequence: int, timeout: float
    ) -> Callable[[float], CommunicationError]:
        """Return what makes that error from the elapsed seconds."""
        return lambda elapsed: self.overdue(label, sequence, timeout, elapsed)
