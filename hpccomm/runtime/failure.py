"""The failure of one communicator: its error, and how other threads and ranks learn of it.

`engine` and its parts raise through it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from hpccomm.contracts.backend import Backend
from hpccomm.errors import (
    BufferMismatch,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    PeerLost,
    RankMismatch,
    WaitTimeout,
)
from hpccomm.runtime import dump
from hpccomm.runtime import service as lifetime
from hpccomm.runtime.recorder import ERROR, SEQUENCE, CallRecord, in_words, place
from hpccomm.runtime.reports import AbortHook, Hooks, Reports
from hpccomm.runtime.service import service
from hpccomm.runtime.waiting import Gate

if TYPE_CHECKING:
    from hpccomm.runtime.progress import Task

logger = logging.getLogger("hpccomm")

UNSEEN = 256
"""Failed asynchronous calls that are kept until the communicator is finalized."""

Translate = Callable[[Exception], HpccommError | None]
Release = Callable[[], None]


class Failure:
    """Whether one communicator has failed, and what follows from that.

    Parameters
    ----------
    reports : Reports
        Describes its calls.
    backend : Backend
        Its ranks.

    Attributes
    ----------
    gate : Gate
        Has the error once the communicator has failed. Always the same object.
    translators : list of callable
        Each returns a library's error as one of hpccomm's, or None if it is not that library's.
    releases : list of callable
        Called once, when the communicator fails: each releases what would wait for a peer.
    hooks : Hooks
        The user's functions that are called then.
    unraised : BaseException or None
        A failure that the watchdog found, as long as no call has raised it.
    unseen : deque of tuple of Task and list
        Asynchronous calls that have failed, and their records, until the error is delivered. The
        last ones.
    late : bool
        Whether another rank has stopped waiting for this one.
    told : BaseException or None
        What another rank or the watchdog found while this one was in no call: the next call raises it.
    unfit : callable
        ``unfit(entry, why, ranks)`` returns the mismatch of a call whose messages do not fit, and tells the other ranks.
    ask_sender : callable
        ``ask_sender(error, entry)`` has the error of a message that does not fit say where it was sent.
    """

    def __init__(self, reports: Reports, backend: Backend) -> None:
        self.gate = Gate(shares_process=backend.shares_process)
        self.translators: list[Translate] = [backend.translate]
        self.releases: list[Release] = [backend.abandon]
        self.hooks: Hooks[AbortHook] = Hooks()
        self.unraised: BaseException | None = None
        self.unseen: deque[tuple[Task, CallRecord]] = deque(maxlen=UNSEEN)
        self.late = False
        self.told: BaseException | None = None
        self.unfit: Callable[[CallRecord, str, Sequence[int]], RankMismatch]
        self.ask_sender: Callable[[BufferMismatch, CallRecord], None]
        self._reports = reports
        self._backend = backend
        self._disowned = False
        self._lock = threading.Lock()
        # The last translated error, and its translation.
        self._known: tuple[Exception, HpccommError | None] | None = None

    @property
    def recoverable(self) -> bool:
        """Whether ranks of the failed communicator can still agree on who is left of it."""
        return not self._disowned

    def refuse(self) -> NoReturn:
        """Raise what a call on the failed communicator raises."""
        failure = self.gate.error
        assert failure is not None
        self.unraised = None
        told, self.told = self.told, None
        if told is not None:
            raise told
        raise self._aborted(failure.__cause__ or failure) from failure.__cause__

    def note(self, error: BaseException, entry: CallRecord, keep: object) -> BaseException:
        """Mark the communicator as failed by a call under way, whose arrays are kept for ever; return the error."""
        lifetime.keep(keep)
        error = self.mismatched(error, entry)
        self.fail(error)
        return error

    def mismatched(self, error: BaseException, entry: CallRecord) -> BaseException:
        """Return an error of a call; as a mismatch, which fails the communicator, if messages do not fit."""
        unfit = self._translated(error) or error
        if self.gate.error is not None or not isinstance(unfit, BufferMismatch):
            return error
        error = self.unfit(entry, str(unfit), unfit.ranks)
        self.fail(error)
        return error

    def fail(self, error: BaseException, *, tell: bool = False) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local.

        With `tell`, the next call raises the error itself, unless a call under way does.
        """
        if self.gate.error is not None:
            return
        error = self._translated(error) or error
        with self._lock:  # the watchdog may call this at the same time
            if self.gate.error is not None:
                return
            aborted = self._aborted(error)
            aborted.__cause__ = error
            if tell:  # before the gate is shut: a call that it ends takes it back
                self.told = error
            self.gate.shut(aborted)
        if isinstance(error, PeerLost) and self._backend.survival is not None:
            self._backend.survival.release()  # no other rank may wait for this one
        service.aside(partial(self._end, error))

    def _end(self, error: BaseException) -> None:
        """Release what the communicator has, call the hooks, and write the dump."""
        for release in self.releases:
            try:
                release()
            except Exception:  # the others must still be released
                logger.exception(
                    "communicator %r could not be ended cleanly", self._reports.origin.name
                )
        for hook in self.hooks:
            try:
                hook(error)
            except Exception:  # the other hooks must still be called
                logger.exception(
                    "an abort hook of communicator %r failed", self._reports.origin.name
                )
        dump.write(in_words(error))

    def tell_unseen(self) -> None:
        """Log the errors of asynchronous calls that no `Work` has raised or returned. Local; idempotent."""
        while self.unseen:
            task, entry = self.unseen.popleft()
            if not task.seen:
                where = place(entry)
                logger.error(
                    "%s%s failed, and neither wait() nor exception() of its Work was called: %s",
                    self._reports.described(entry),
                    f", made at {where}," if where else "",
                    entry[ERROR],
                )

    def disown(self) -> CommunicatorAborted:
        """Refuse all use in a fork of the process, and return the error: MPI is lost there.

        No hook is called, since nothing has happened to the communicator where it belongs.
        """
        cause = RuntimeError("it belongs to the process that this one was forked from")
        self._disowned = True
        aborted = self._aborted(cause)
        aborted.__cause__ = cause
        self.gate.error = aborted  # also where it had failed before: this is the reason now
        return aborted

    def raised(self, error: BaseException, entry: CallRecord, elapsed: float) -> BaseException:
        """Return an error of a call as its caller gets it: of the tree, with the call's facts."""
        raised: BaseException | None
        if error is self.gate.error:  # another thread, or another call, ended this one
            raised = self._ended_by(error.__cause__ or error, entry)
        elif (found := self._found(entry)) is not None:
            raised = found
        elif isinstance(error, CommunicationError) and error.operation is None:
            if not isinstance(error, PeerLost):  # which tells of its call below
                error.args = (f"{self._reports.described(entry)}: {error}",)
            raised = error
        else:
            raised = self._translated(error)
        if raised is None:
            if isinstance(error, BufferMismatch):
                self.ask_sender(error, entry)
            return error
        if isinstance(raised, PeerLost):
            self._tell_of_loss(raised, entry)
        if isinstance(raised, CommunicationError):
            self.told = None
            self._reports.attribute(raised, entry, elapsed)
        return raised

    def _translated(self, error: BaseException) -> HpccommError | None:
        """Return a library's error as one of hpccomm's: for the same error the same one."""
        if not isinstance(error, Exception) or isinstance(error, HpccommError):
            return None
        known = self._known
        if known is None or known[0] is not error:
            translated = (translate(error) for translate in self.translators)
            known = error, next((each for each in translated if each is not None), None)
            self._known = known
        return known[1]

    def _found(self, entry: CallRecord) -> BaseException | None:
        """Return another thread's finding about this call, for which the library ended it."""
        failure = self.gate.error
        cause = None if failure is None else failure.__cause__
        return cause if self._concerns(cause, entry) else None

    def _ended_by(self, cause: BaseException, entry: CallRecord) -> BaseException:
        """Return the error of a call that ended since the communicator has failed, by that cause."""
        if self._concerns(cause, entry) or (cause is self.told and isinstance(cause, RankMismatch)):
            return cause
        if isinstance(cause, PeerLost):  # which this call waited for as well
            whom = ", ".join(map(str, cause.ranks)) or "that is unknown"
            return PeerLost(
                f"ended, since the communicator has lost rank {whom}", ranks=cause.ranks
            )
        return self._aborted(cause)

    def _concerns(self, error: BaseException | None, entry: CallRecord) -> bool:
        """Whether an error that another thread found is that of this very call."""
        found = isinstance(error, CommunicationError) and not isinstance(error, WaitTimeout)
        return found and error.sequence == entry[SEQUENCE]  # type: ignore[union-attr]

    def _tell_of_loss(self, error: PeerLost, entry: CallRecord) -> None:
        """Fail the communicator with a lost rank, the call that found it, and how to continue."""
        survival = self._backend.survival
        if not error.ranks and survival is not None:
            error.ranks = survival.lost()
        of_call = "" if error.operation else f"{self._reports.described(entry)}: "
        recovery = "" if error.advised else self._backend.recovery
        error.args = (f"{of_call}{error}{recovery and f'; {recovery}'}",)
        error.advised = True
        self.fail(error)

    def _aborted(self, error: BaseException) -> CommunicatorAborted:
        recovery = self._backend.recovery if isinstance(error, PeerLost) else "make a new one"
        if self._disowned:  # which a forked child cannot
            recovery = "communicate there, and pass this process what it needs"
        if getattr(error, "advised", False):
            recovery = ""
        return CommunicatorAborted(
            f"communicator {self._reports.origin.name!r} has failed and takes no more calls "
            f"({in_words(error)}){recovery and f'; {recovery}'}",
            communicator=self._reports.origin.name,
            rank=self._reports.origin.rank,
            ranks=getattr(error, "ranks", ()),
            advised=True,
        )


def harmless_error(error: BaseException, ordered: bool) -> bool:
    """Whether the communicator can go on: a message of another size was taken, and that is all."""
    return isinstance(error, BufferMismatch) and not ordered
