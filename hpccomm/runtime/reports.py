"""What is reported of one communicator's calls: to hooks, statistics and the log, and in errors."""

import logging
from collections.abc import Sequence

from hpccomm.errors import CollectiveTimeout, CommunicationError
from hpccomm.runtime.hooks import CallInfo, Hook, Hooks
from hpccomm.runtime.recorder import (
    ENDED,
    ERROR,
    LABEL,
    NUMBER,
    SEQUENCE,
    TIMEOUT,
    CallRecord,
    in_words,
)
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
        self.size = size

    def info(
        self, entry: CallRecord, elapsed: float | None = None, error: BaseException | None = None
    ) -> CallInfo:
        """Return a call as hooks see it."""
        name, nbytes, *_ = entry[LABEL]
        return CallInfo(self.name, self.rank, entry[SEQUENCE], name, nbytes, elapsed, error)

    def ended(self, entry: CallRecord, error: BaseException | None, elapsed: float) -> None:
        """Count a call that has ended, and report it."""
        entry[ENDED] = elapsed
        name, nbytes, *_ = entry[LABEL]
        if error is not None:
            entry[ERROR] = in_words(error)
        tally = self.stats.tally(name, nbytes)
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > self.slow_call or self.post_hooks.registered:
            self.report(entry, elapsed, error)

    def report(self, entry: CallRecord, elapsed: float, error: BaseException | None = None) -> None:
        """Log a call that was slow, and call the hooks."""
        if elapsed > self.slow_call:
            logger.warning("slow call: %s took %.3f s", self.described(entry), elapsed)
        self.post_hooks(self.info(entry, elapsed, error))

    def described(self, entry: CallRecord) -> str:
        """Return a call in words."""
        name, nbytes, *_ = entry[LABEL]
        number = f" #{entry[NUMBER]}" if entry[NUMBER] > 0 else ""
        call = f"call {entry[SEQUENCE]}" if entry[SEQUENCE] > 0 else "the making"
        return (
            f"{name}{number} ({call} of communicator {self.name!r}, "
            f"rank {self.rank} of {self.size}, {nbytes} bytes)"
        )

    def overdue(
        self, entry: CallRecord, elapsed: float, causes: str, ranks: Sequence[int] = ()
    ) -> CollectiveTimeout:
        """Return the error of a call whose deadline has passed, with its possible causes."""
        error = CollectiveTimeout(
            f"{self.described(entry)} was not done after {elapsed:.3g} s; "
            f"its deadline is {entry[TIMEOUT]:g} s. {causes}",
            ranks=ranks,
        )
        self.attribute(error, entry, elapsed)
        return error

    def attribute(self, error: CommunicationError, entry: CallRecord, elapsed: float) -> None:
        """Give an error the facts of its call."""
        error.communicator, error.rank = self.name, self.rank
        error.sequence, error.elapsed = entry[SEQUENCE], elapsed
        error.operation, error.nbytes, *_ = entry[LABEL]
