"""`Work`: the result of an asynchronous call, the task behind it, and the warnings if it is dropped.

The engine and the generated calls make both; `device_work` is the form for device arrays.
"""

import sys
import warnings
from collections.abc import Callable
from math import inf
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, CommunicatorAborted, UsageError, untied
from hpccomm.runtime.failure import harmless_error
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


class Work:
    """An operation under way, which keeps its arrays alive until it is done.

    It goes on by itself. `wait`, `done` and `exception` may be called from any thread, any number
    of times. A call over NCCL gives a `DeviceWork`. A `Work` dropped before any of these calls
    gives a `ResourceWarning`; an error that was never raised or returned is logged when the
    communicator is finalized.
    """

    _asked = False

    def __init__(
        self,
        engine: ProgressEngine,
        task: Task,
        result: Any,
        keep: tuple[object, ...],
        entry: CallRecord,
    ) -> None:
        self._engine = engine
        self._task = task
        self._result = result
        self._keep = keep
        self._entry = entry

    if not TYPE_CHECKING:  # which is to know every name

        def __getattr__(self, name: str) -> Any:
            from hpccomm.foreign_names import unknown

            raise unknown(self, name)

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
        task = self._task
        limit = task.timeout if timeout is None else check_seconds("timeout", timeout)
        if not task.over:
            try:
                self._engine.wait(task, limit)
            except CommunicationError:
                until = perf_counter() + 1.0  # the thread that moves it learns of it a moment later
                while not self.done() and perf_counter() < until:
                    sleep(0)
                raise
        if task.error is not None:
            task.seen = True
            if task.gate.error is None:  # nothing has failed, and its arrays may go
                raise untied(task.error)
            raise task.error
        self._keep = ()
        result = self._result
        return result() if result.__class__ is Later else result

    def done(self) -> bool:
        """Return whether the operation is over, for good or ill. Does not block."""
        self._asked = True
        if not self._task.over:
            self._engine.turn()
        return self._task.over

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation, or None so far. Does not block."""
        if not self.done():
            return None
        self._task.seen = True
        return self._task.error

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
        vars(self._task).setdefault("then", []).append(call)
        if self._task.over:
            self._task.tell()
        else:
            self._engine.hurry(self._task)

    def __del__(self) -> None:
        if not self._asked:
            dropped(self._entry)

    def __repr__(self) -> str:
        state = "under way" if not self._task.over else "failed" if self._task.error else "done"
        return f"<hpccomm.Work {state}>"


SMALL_BYTES = 64 << 10
"""Bytes of a collective up to which the thread that starts it usually ends it."""


class Started(Task):
    """An asynchronous call under way.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    entry : list
        The record of the call, with its deadline.
    tally : Tally
        Where it is counted.
    keep : tuple
        Objects that must live until it is done.
    start : callable, optional
        Returns its steps, unless it has them.
    ordered : bool
        As in `Operation`.
    """

    _given_up: CommunicationError | None = None

    def __init__(
        self,
        calls: Any,
        entry: CallRecord,
        tally: Tally,
        keep: tuple[object, ...],
        start: Callable[[], Steps] | None = None,
        ordered: bool = False,
    ) -> None:
        self.gate = calls.gate
        self.timeout = entry[TIMEOUT]
        self.started = entry[BEGIN]
        if ordered and entry[LABEL].nbytes > SMALL_BYTES:
            self.small = False
        self.entry = entry
        self._calls = calls
        self._tally = tally
        self.keep = keep
        self._start = start
        self.ordered = ordered

    def begin(self) -> Steps:
        """Return its steps."""
        assert self._start is not None
        return self._start()

    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of its deadline."""
        error: CommunicationError | None = self._calls.at_deadline(self.entry, elapsed)
        return error

    def gave_up(self, limit: float) -> CommunicationError | None:
        """Return the error of a wait of `limit` seconds; None waits on."""
        self.entry[TIMEOUT] = limit
        error = self._given_up = self.expired(perf_counter() - self.started)
        if error is not None:
            self._calls.failure.note(error, self)
        return error

    def ended(self, error: BaseException | None, elapsed: float) -> BaseException | None:
        """Count and report the call."""
        calls, entry = self._calls, self.entry
        calls.under_way.pop(self, None)
        raised = error
        if error is not None:
            raised = self._raised(error, elapsed)
        calls.ended(entry, self._tally, raised, elapsed)
        return raised

    def _raised(self, error: BaseException, elapsed: float) -> BaseException:
        """Note a failure, and return it as an error of the tree."""
        calls, given_up = self._calls, self._given_up
        if given_up is not None and error is calls.gate.error:
            error = given_up  # the waiter has raised it, which shut the gate
        harmless = harmless_error(error, self.ordered)
        if harmless:
            self.forget()
        else:
            calls.failure.note(error, self)
        raised: BaseException = calls.failure.raised(error, self.entry, elapsed, harmless=harmless)
        if raised is not given_up and not isinstance(raised, CommunicatorAborted):
            calls.failure.unseen.append((self, self.entry))
        return raised

    def forget(self) -> None:
        """Drop its arrays."""
        self.keep, self._start = (), None


OVER = Started.__new__(Started)
"""The task of works that were done as soon as they were begun."""
OVER.over, OVER.timeout = True, inf


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
