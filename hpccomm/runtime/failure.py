"""The failure of one communicator: who hears of it, and which errors its calls raise."""

import logging
import threading
from collections.abc import Callable
from typing import NoReturn

from hpccomm.contracts.backend import Backend
from hpccomm.errors import (
    BufferMismatch,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    RankMismatch,
)
from hpccomm.runtime import dump, lifetime
from hpccomm.runtime.hooks import AbortHook, Hooks
from hpccomm.runtime.recorder import SEQUENCE, Entry
from hpccomm.runtime.reports import Reports
from hpccomm.runtime.waiting import Gate

logger = logging.getLogger("hpccomm")

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
    """

    def __init__(self, reports: Reports, backend: Backend) -> None:
        self.gate = Gate(crowded=backend.crowded)
        self.translators: list[Translate] = [backend.translate]
        self.releases: list[Release] = [backend.abandon]
        self.hooks: Hooks[AbortHook] = Hooks()
        self.unraised: BaseException | None = None
        self._reports = reports
        self._lock = threading.Lock()

    def refuse(self) -> NoReturn:
        """Raise what a call on the failed communicator raises."""
        failure = self.gate.error
        assert failure is not None
        self.unraised = None
        raise self._aborted(failure.__cause__ or failure) from failure.__cause__

    def note(self, error: BaseException, keep: object) -> None:
        """Mark the communicator as failed by a call under way, whose arrays are kept for ever."""
        lifetime.keep(keep)
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local."""
        with self._lock:  # the watchdog may call this at the same time
            if self.gate.error is not None:
                return
            aborted = self._aborted(error)
            aborted.__cause__ = error
            self.gate.shut(aborted)
        for release in self.releases:
            try:
                release()
            except Exception:  # the others must still be released
                logger.exception("communicator %r could not be ended cleanly", self._reports.name)
        for hook in self.hooks:
            try:
                hook(error)
            except Exception:  # the other hooks must still be called
                logger.exception("an abort hook of communicator %r failed", self._reports.name)
        dump.write(f"{type(error).__name__}: {error}")

    def disown(self) -> CommunicatorAborted:
        """Refuse all use in a fork of the process, and return the error: MPI is lost there.

        No hook is called, since nothing has happened to the communicator where it belongs.
        """
        cause = RuntimeError("it belongs to the process that this one was forked from")
        aborted = self._aborted(cause)
        aborted.__cause__ = cause
        self.gate.error = aborted  # also where it had failed before: this is the reason now
        return aborted

    def raised(
        self, error: BaseException, entry: Entry, elapsed: float, *, harmless: bool = False
    ) -> BaseException:
        """Return an error of a call as its caller gets it: of the tree, with the call's facts."""
        raised: BaseException | None
        if error is self.gate.error:  # another thread, or another call, ended this one
            cause = error.__cause__
            raised = cause if self._concerns(cause, entry) else self._aborted(cause or error)
        elif isinstance(error, BufferMismatch) and not harmless:
            raised = RankMismatch(
                f"{self._reports.described(entry)}: {error}. "
                "The calls of the ranks do not fit each other",
                ranks=error.ranks,
            )
        elif isinstance(error, CommunicationError) and error.operation is None:
            error.args = (f"{self._reports.described(entry)}: {error}",)
            raised = error
        elif isinstance(error, Exception):
            translated = (translate(error) for translate in self.translators)
            raised = next((each for each in translated if each is not None), None)
        else:
            raised = None
        if raised is None:
            return error
        if isinstance(raised, CommunicationError):
            self._reports.attribute(raised, entry, elapsed)
        return raised

    def _concerns(self, error: BaseException | None, entry: Entry) -> bool:
        """Whether an error that another thread found is that of this very call."""
        return isinstance(error, CommunicationError) and error.sequence == entry[SEQUENCE]

    def _aborted(self, error: BaseException) -> CommunicatorAborted:
        return CommunicatorAborted(
            f"communicator {self._reports.name!r} has failed and takes no more calls "
            f"({type(error).__name__}: {error}); make a new one",
            communicator=self._reports.name,
            rank=self._reports.rank,
        )
