"""`Work`: the result of an asynchronous call, the task behind it, and the warnings if it is dropped.

The engine and the generated calls make both; `device_work` is the form for device arrays.
"""

import sys
import warnings
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, CommunicatorAborted, UsageError, untied
from hpccomm.foreign_names import Hinting
from hpccomm.runtime.failure import harmless_error
from hpccomm.runtime.operation import Operation
from hpccomm.runtime.progress import ProgressEngine, Task
from hpccomm.runtime.recorder import (
    BEGIN,
    ERROR,
    LABEL,
    SITE,
    TIMEOUT,
    CallRecord,
    Site,
    described,
    line_of,
    program_site,
)
from hpccomm.runtime.reports import Tally
from hpccomm.settings import check_seconds

SMALL_BYTES = 64 << 10
"""Bytes of a collective up to which the thread that starts it usually ends it."""


class Work(Hinting, Task):
    """An operation under way, which keeps its arrays alive until it is done.

    It goes on by itself. `wait`, `done` and `exception` may be called from any thread, any number
    of times. A call over NCCL gives a `DeviceWork`. A `Work` dropped before any of these calls
    gives a `ResourceWarning` once it is over; an error that was never raised or returned is logged when
    the communicator is finalized.
    """

    # It is its own task: for a message, a second object would take as long as the message itself.

    __slots__ = (
        "_asked", "_calls", "_entry", "_given_up", "_keep", "_ordered", "_result", "_start", "_tally",
    )  # fmt: skip

    def __init__(
        self, calls: Any, entry: CallRecord, tally: Tally, keep: object, result: Any
    ) -> None:
        # As `Task.__init__`, which would take as long as all of this.
        self.gate, self.timeout, self.started = calls.gate, entry[TIMEOUT], entry[BEGIN]
        self.queue = self.steps = self.error = None
        self.over = self.awaited = self.seen = self._asked = self._ordered = False
        self.small, self.then = True, []
        self._given_up: CommunicationError | None = None
        self._start: Callable[[], Steps] | None = None
        self._calls = calls
        self._entry = entry
        self._tally = tally
        self._keep = keep
        self._result = result

    def operated(self, operation: Operation) -> "Work":
        """Return it as that of an operation that has not begun."""
        self._start, self._ordered = operation.start, operation.ordered
        self.small = not operation.ordered or operation.label.nbytes <= SMALL_BYTES
        return self

    def wait(self, timeout: float | None = None, block: bool | None = None) -> Any:
        """Wait until the operation is done and return its result. Blocks the host.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None is the call's.
        block : bool, optional
            For device arrays; a host array's result is complete in any case when this returns.

        Returns
        -------
        object
            What the synchronous call returns.

        Raises
        ------
        CollectiveTimeout
            If the deadline passes. The communicator has failed then.
        HpccommError
            The failure of the operation.
        """
        self._asked = True
        if block is not None:
            check_block(block)
        limit = self.timeout if timeout is None else check_seconds("timeout", timeout)
        trace = self._calls.reports.trace
        asked = 0.0 if trace is None else perf_counter()
        if not (self.over or self._calls.progress.spun(self)):
            try:
                self._calls.progress.wait(self, limit)
            except CommunicationError:
                until = perf_counter() + 1.0  # the thread that moves it learns of it a moment later
                while not self.done() and perf_counter() < until:
                    sleep(0)
                raise
        if trace is not None:
            trace.waited(self._entry, asked)
        if self.error is not None:
            self.seen = True
            if self.gate.error is None:  # nothing has failed, and its arrays may go
                raise untied(self.error)
            raise self.error
        result = self._result
        return result() if result.__class__ is Later else result

    def done(self) -> bool:
        """Return whether the operation is over, for good or ill. Does not block."""
        self._asked = True
        if not self.over:
            self._calls.progress.turn()
        return self.over

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation, or None so far. Does not block."""
        if not self.done():
            return None
        self.seen = True
        return self.error

    def add_done_callback(self, call: Callable[[], object]) -> None:
        """Have ``call()`` called once the operation is over, for good or ill.

        It is called in the thread that advances operations, and so must not block or communicate;
        or at once, if the operation is over. Without a waiting thread, and with ``comm.background``
        False, nothing is called.

        Parameters
        ----------
        call : callable
            Without arguments.
        """
        self._asked = True
        self.then.append(call)
        if self.over:
            self.tell()
        else:
            self._calls.progress.hurry(self)

    def __del__(self) -> None:
        if not self._asked:
            dropped(self._entry)

    def __repr__(self) -> str:
        state = "under way" if not self.over else "failed" if self.error else "done"
        return f"<hpccomm.Work {state}>"

    # For the progress engine.

    @property
    def progress(self) -> ProgressEngine:
        """What moves it on."""
        engine: ProgressEngine = self._calls.progress
        return engine

    def begin(self) -> Steps:
        """Return its steps."""
        assert self._start is not None
        return self._start()

    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of its deadline."""
        error: CommunicationError | None = self._calls.at_deadline(self._entry, elapsed)
        return error

    def gave_up(self, limit: float) -> CommunicationError | None:
        """Return the error of a wait of `limit` seconds; None waits on."""
        self._entry[TIMEOUT] = limit
        error = self._given_up = self.expired(perf_counter() - self.started)
        if error is not None:
            self._calls.failure.note(error, (self._keep, self.steps))
        return error

    def ended(self, error: BaseException | None) -> BaseException | None:
        """Count and report the call."""
        calls = self._calls
        calls.under_way.pop(self, None)
        calls.progress.messages.pop(self, None)
        held = self._keep
        if error is None:
            self._keep = self._start = None
        else:
            error = self._raised(error)
        calls.ended(self._entry, self._tally, error, perf_counter() - self.started, held)
        return error

    def _raised(self, error: BaseException) -> BaseException:
        """Note a failure, and return it as an error of the tree."""
        calls, given_up = self._calls, self._given_up
        if given_up is not None and error is calls.gate.error:
            error = given_up  # the waiter has raised it, which shut the gate
        harmless = harmless_error(error, self._ordered)
        if harmless:
            self._keep = self._start = None
        else:
            calls.failure.note(error, (self._keep, self.steps))
        elapsed = perf_counter() - self.started
        raised: BaseException = calls.failure.raised(error, self._entry, elapsed, harmless=harmless)
        if raised is not given_up and not isinstance(raised, CommunicatorAborted):
            calls.failure.unseen.append((self, self._entry))
        return raised


class Later:
    """A result that is not known before the operation is over.

    Parameters
    ----------
    make : callable
        Returns it, or raises. Called by each wait, when the operation has ended well.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> Any:
        """Return it."""
        return self._make()


def check_block(block: object) -> None:
    """Raise unless an argument `block` is one."""
    if block is not None and not isinstance(block, bool):
        raise UsageError(f"block is {block!r}; give True, False or None")


# The words on a dropped `Work` without a wait, or on a dropped communicator. These functions are
# local and never block: objects are collected in any thread, at any time.

_warned: dict[str | tuple[str, type[Warning], int], int] = {}
"""What was said, as the filters of `warnings` have it: by default once for each place in the program."""


def dropped(entry: CallRecord) -> None:
    """Warn that the `Work` of a call is collected that was never waited for or asked.

    It is a `ResourceWarning`, which Python shows with ``-X dev`` or ``-W default``.
    """
    if sys.is_finalizing():
        return
    site = program_site(entry[SITE], entry[BEGIN])
    where = described(site)
    failed = f"; the call has failed: {entry[ERROR]}" if entry[ERROR] else ""
    message = (
        f"the Work of an asynchronous {entry[LABEL].name}{f' at {where}' if where else ''} was dropped, and "
        f"nobody waited for it: whether its result was there is not known{failed}; keep it and call wait()"
    )
    _warn(message, site)


def dropped_communicator(name: str, site: Site) -> None:
    """Warn, likewise, about a collected communicator that was not finalized or aborted."""
    if not sys.is_finalizing():
        _warn(
            f"communicator {name!r}, made at {described(site)}, was dropped without finalize(): what it has of the MPI "
            "library is kept until its ranks make another communicator; use it in a with statement, or finalize it",
            site,
        )


def _warn(message: str, site: Site | None) -> None:
    file, line = ("<unknown>", 1) if site is None else (site[0].co_filename, line_of(site))
    warnings.warn_explicit(message, ResourceWarning, file, line, registry=_warned)
