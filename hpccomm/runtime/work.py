"""`Work`: the result of an asynchronous call, and the warnings if it is dropped.

The lanes return it to the user; `device_work` is its form for device arrays.
"""

import sys
import warnings
from collections.abc import Callable
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from hpccomm.errors import CommunicationError, UsageError, untied
from hpccomm.runtime.progress import ProgressEngine, Task
from hpccomm.runtime.recorder import (
    BEGIN,
    ERROR,
    LABEL,
    SITE,
    CallRecord,
    Site,
    described,
    line_of,
    program_site,
)
from hpccomm.runtime.waiting import Expired
from hpccomm.settings import check_seconds


class Work:
    """An operation under way, which keeps its arrays alive until it is done.

    It goes on by itself. `wait`, `done` and `exception` may be called from any thread, any number
    of times. A call over NCCL gives a `DeviceWork`. A `Work` dropped before any of these calls
    gives a `ResourceWarning`; an error that was never raised or returned is logged when the
    communicator is finalized.
    """

    __slots__ = ("_asked", "_engine", "_entry", "_gave_up", "_keep", "_result", "_task")

    def __init__(
        self,
        engine: ProgressEngine,
        task: Task,
        result: Any,
        keep: tuple[object, ...],
        entry: CallRecord,
        gave_up: Expired,
    ) -> None:
        self._asked = False
        self._entry = entry
        self._engine = engine
        self._task = task
        self._result = result
        self._keep: tuple[object, ...] = keep
        self._gave_up = gave_up

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
        check_block(block)
        limit = self._task.timeout if timeout is None else check_seconds("timeout", timeout)
        if not self._task.over:
            try:
                self._engine.wait(self._task, limit, lambda _: self._gave_up(limit))
            except CommunicationError:
                until = perf_counter() + 1.0  # the thread that moves it learns of it a moment later
                while not self.done() and perf_counter() < until:
                    sleep(0)
                raise
        if self._task.error is not None:
            self._task.seen = True
            if self._task.gate.error is None:  # nothing has failed, and its arrays may go
                raise untied(self._task.error)
            raise self._task.error
        self._keep = ()
        return self._result

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
        self._task.then.append(call)
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
