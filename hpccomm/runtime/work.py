"""`Work`: the result of an asynchronous call, the task behind it, and the warnings if it is dropped.

`engine`, `callpath` and the device lane (`hpccomm.calls.lanes.streams`) make works. The calls of
`hpccomm.communicator`, `hpccomm.gradients` and `hpccomm.torch` return them or wait for them.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.transport import Steps
from hpccomm.errors import (
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    UsageError,
    WaitTimeout,
    untied,
)
from hpccomm.runtime.progress import ANY_OF, NOBODY, ProgressEngine, Task, awaiting
from hpccomm.runtime.recorder import (
    BEGIN,
    ERROR,
    LABEL,
    NUMBER,
    SITE,
    TIMEOUT,
    CallRecord,
    Site,
    described,
    line_of,
    program_site,
    waited,
)
from hpccomm.runtime.reports import Tally
from hpccomm.runtime.state import harmless_error
from hpccomm.runtime.waiting import over_within
from hpccomm.settings import check_bool, check_seconds
from hpccomm.spelling import Hinting
from hpccomm.units import counted

if TYPE_CHECKING:
    from hpccomm.runtime.pending import StreamCall


SMALL_BYTES = 64 << 10
"""Most bytes of a collective that usually ends in the thread that started it."""


class Work(Hinting, Task):
    """An operation under way, which keeps its arrays alive until it is done.

    The operation goes on by itself. `wait`, `done` and `exception` may be called from any thread, any number
    of times. A `Work` dropped before any of these calls gives a `ResourceWarning` once it is over; an
    error that was never raised or returned is logged when the communicator is finalized.

    A call over NCCL runs on a stream of the communicator. `wait` then orders the current stream behind the call,
    and the host goes on at once, unless `block` or `timeout` asks it to wait.
    """

    # A `Work` is also the task: for a message, a second object would take as long as the message itself.

    __slots__ = (
        "_asked", "_calls", "_entry", "_keep", "_result", "_stream", "_tally", "start",
    )  # fmt: skip

    def __init__(
        self, calls: Any, entry: CallRecord, tally: Tally, keep: object, result: Any
    ) -> None:
        # Sets what `Task.__init__` would set: calling that would double the time.
        self.gate, self.timeout, self.started = calls.gate, entry[TIMEOUT], entry[BEGIN]
        self.queue = self.steps = self.error = None
        self.over = self.seen = self._asked = False
        self.awaited = NOBODY
        self.small, self.then = True, []
        self._stream: StreamCall | None = None
        self.start: Callable[[], Steps] | None = None
        self._calls = calls
        self._entry = entry
        self._tally = tally
        self._keep = keep
        self._result = result

    def on_stream(self, call: "StreamCall") -> "Work":
        """Attach the call that was put on a stream, and return the work. The call has been counted."""
        self._stream = call
        return self

    def wait(self, timeout: float | None = None, block: bool | None = None) -> Any:
        """Wait until the operation is done and return its result. Blocks the host, or orders a stream.

        Parameters
        ----------
        timeout : float, optional
            Most seconds that the host waits; 0 asks once. None sets no limit but the deadline of the call. For a call
            on a stream, None does not make the host wait.
        block : bool, optional
            For a call on a stream: True makes the host wait until the operation is done, and None does so if `timeout`
            is given. Otherwise the result is filled once the current stream has passed this point. The current stream
            is that of the array's framework, in the calling thread. A host array's result is complete in any case.

        Returns
        -------
        object
            What the synchronous call returns.

        Raises
        ------
        WaitTimeout
            If `timeout` passes; it is also a ``TimeoutError``. The operation and its communicator go on, and a later
            wait may succeed.
        CollectiveTimeout
            If the deadline of the call passes. The communicator has failed then.
        HpccommError
            The failure of the operation.
        UsageError
            If the host is to wait for an operation that was recorded into a CUDA graph.
        """
        self._asked = True
        if block is not None:
            check_bool("block", block, " or None")
        limit = inf if timeout is None else check_seconds("timeout", timeout, zero=True)
        calls, stream = self._calls, self._stream
        trace = calls.reports.trace
        asked = 0.0 if trace is None else perf_counter()
        if stream is None:
            over = self.over or (limit and calls.progress.spun(self))
            over = over or calls.progress.wait(self, limit)
        elif block or (block is None and timeout is not None):
            over = over_within(limit, self.looked)
        else:  # the stream waits, unless the call is known to have failed
            over = True
            self.looked(ask=False)
        if not over:
            raise still_under_way([self], limit)
        if trace is not None:
            trace.waited(self._entry, asked)
        if self.error is not None:
            self.seen = True
            # The communicator has not failed: a copy of the error lets the arrays be freed.
            if self.gate.error is None:
                raise untied(self.error)
            calls.failure.unraised = calls.failure.told = None
            raise self.error
        if stream is not None:
            stream.order()
        result = self._result
        return result() if result.__class__ is Later else result

    def done(self) -> bool:
        """Return whether the operation is over, successful or failed. Does not block.

        Raises
        ------
        UsageError
            If the operation was recorded into a CUDA graph, and so is not under way.
        """
        self._asked = True
        if self._stream is None and not self.over:
            self._calls.progress.turn()
        return self.looked()

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation; None without one, and while it is under way.

        Does not block. It raises what `done` raises.
        """
        if not self.done():
            return None
        self.seen = True
        return self.error

    def add_done_callback(self, call: Callable[[], object]) -> None:
        """Call ``call()`` once the operation is over, successful or failed; at once if it is over already.

        The thread that advances operations, or that checks a device ten times a second, calls it. So it must not
        block or communicate. If ``comm.background`` is False, an operation that no device carries out, and so also
        its callback, needs a waiting thread.

        Parameters
        ----------
        call : callable
            A function without arguments.

        Raises
        ------
        UsageError
            If the operation was recorded into a CUDA graph, and so is not under way.
        """
        self.done()
        self.then.append(call)
        if self.over:
            self.tell()
        elif self._stream is None:
            self._calls.progress.hurry(self)
        else:
            self._stream.pending.looks[self.looked] = None

    def __del__(self) -> None:
        if not self._asked:
            dropped(self._entry)

    def __repr__(self) -> str:
        state = "under way" if not self.over else "failed" if self.error else "done"
        return f"<hpccomm.Work {'' if self._stream is None else 'on a device '}{state}>"

    # For the progress engine, and for waits for several.

    @property
    def progress(self) -> ProgressEngine | None:
        """The engine that moves the operation on; None if a device does."""
        return self._calls.progress if self._stream is None else None

    def looked(self, *, ask: bool = True) -> bool:
        """Return whether the operation is over. The device of a call on a stream is asked, unless `ask` is False."""
        stream = self._stream
        # The agreement of the ranks on a call may fail after the call has ended.
        if stream is not None and self.error is None:
            error = stream.failure(self.gate)
            if error is not None or (ask and not self.over and stream.done()):
                self.error, self.over = error, True
                self.tell()
        return self.over

    def described(self) -> str:
        """Return in words the call, how long it has been under way, and its deadline."""
        entry, own = self._entry, self._entry[TIMEOUT]
        deadline = "has no deadline" if own == inf else f"has a deadline of {own:g} s"
        what = self._calls.reports.described(entry)
        return f"{what} began {waited(entry):.3g} s ago and {deadline}"

    def attribute(self, error: CommunicationError) -> None:
        """Give an error the facts of the call."""
        self._calls.reports.attribute(error, self._entry, waited(self._entry))

    def begin(self) -> Steps:
        """Begin the operation and return its steps."""
        assert self.start is not None  # else it has begun
        return self.start()

    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of the passed deadline, or None to go on without one."""
        error: CommunicationError | None = self._calls.at_deadline(self._entry, elapsed)
        return error

    def fail(self, error: CommunicationError) -> None:
        """End all operations of the communicator with `error`."""
        self._calls.fail(error)

    def ended(self, error: BaseException | None) -> BaseException | None:
        """Count and report the call; drop its arrays, or return the error in the form that waiters raise."""
        calls, held = self._calls, self._keep
        calls.under_way.pop(self, None)
        if self.queue is None:
            calls.progress.messages.pop(self, None)
        if error is None:
            self._keep = self.start = None
        else:
            error = self._raised(error)
        calls.ended(self._entry, self._tally, error, perf_counter() - self.started, held)
        return error

    def _raised(self, error: BaseException) -> BaseException:
        """Note a failure, and return it as an error of `hpccomm.errors`."""
        calls, self._result = self._calls, None
        if harmless_error(error, self._entry[NUMBER] != 0):
            self._keep = self.start = None
        else:
            error = calls.failure.note(error, self._entry, (self._keep, self.steps))
        elapsed = perf_counter() - self.started
        raised: BaseException = calls.failure.raised(error, self._entry, elapsed)
        if not isinstance(raised, CommunicatorAborted):
            calls.failure.unseen.append((self, self._entry))
        return raised


def still_under_way(works: Sequence[Work], seconds: float) -> WaitTimeout:
    """Return the error of a wait of `seconds` that ended before the works were over."""
    others = f", and {counted(len(works) - 1, 'other work')}" if len(works) > 1 else ""
    error = WaitTimeout(
        f"not done after a wait of {seconds:g} s, and going on: {works[0].described()}{others}; wait again, for longer "
        "or without timeout, or do something else meanwhile"
    )
    works[0].attribute(error)
    error.deadline = seconds
    return error


class Later:
    """A result that is not known before the operation is over.

    Parameters
    ----------
    make : callable
        Returns the result, or raises. Each wait calls it, once the operation has succeeded.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> Any:
        """Return the result."""
        return self._make()


# Warnings of a `Work` that was dropped without a wait, and of a dropped communicator. These functions are
# local and never block: objects are collected in any thread, at any time.

_warned: dict[str | tuple[str, type[Warning], int], int] = {}
"""The registry by which the filters of `warnings` know what was said: by default once for each place in the program."""


def dropped(entry: CallRecord) -> None:
    """Warn that the `Work` of a call was collected, and was never waited for or asked.

    The warning is a `ResourceWarning`, which Python shows with ``-X dev`` or ``-W default``.
    """
    if sys.is_finalizing():
        return
    site = program_site(entry[SITE], entry[BEGIN])
    where = described(site)
    failed = f"; the call has failed: {entry[ERROR]}" if entry[ERROR] else ""
    message = (
        f"the Work of an asynchronous {entry[LABEL].name}{f' at {where}' if where else ''} was dropped, and "
        f"it was never waited for: its result may be incomplete{failed}; keep it and call wait()"
    )
    _warn(message, site)


def dropped_communicator(name: str, site: Site) -> None:
    """Warn, by a `ResourceWarning`, that a communicator was collected without being finalized or aborted."""
    if not sys.is_finalizing():
        _warn(
            f"communicator {name!r}, made at {described(site)}, was dropped without finalize(): what it has of the MPI "
            "library is kept until its ranks make another communicator; use it in a with statement, or finalize it",
            site,
        )


def _warn(message: str, site: Site | None) -> None:
    file, line = ("<unknown>", 1) if site is None else (site[0].co_filename, line_of(site))
    warnings.warn_explicit(message, ResourceWarning, file, line, registry=_warned)


Works = Iterable[Work | None]


def wait_all(works: Works, timeout: float | None = None) -> list[Any]:
    """Wait until all works are over, like MPI's Waitall, and return their results. Blocks.

    Parameters
    ----------
    works : iterable of Work or None
        Works of any communicators, calls and kinds of memory. A None is skipped; its result is None.
    timeout : float, optional
        Seconds for all works together; 0 asks each once. None leaves each work its own deadline.

    Returns
    -------
    list of object
        The results of `Work.wait`, in the order of the works.

    Raises
    ------
    WaitTimeout
        If `timeout` passes before all are over. The works and their communicators go on.
    HpccommError
        The first failure in the order of the works, once all works are over. A note says which work it is.
    """
    each, results, left = _checked(works), list[Any](), list[Work]()
    limit = None if timeout is None else check_seconds("timeout", timeout, zero=True)
    begun, first = perf_counter(), None
    for index, work in enumerate(each):
        if work is None:
            results.append(None)
            continue
        try:
            seconds = None if limit is None else max(0.0, limit - (perf_counter() - begun))
            results.append(work.wait(seconds))
        except WaitTimeout:
            if work.over:  # a `WaitTimeout` is the call's own failure, such as a hook's
                raise
            left.append(work)
        except HpccommError as error:
            first = first or _named(error, index, each)
    if left and limit is not None:
        raise still_under_way(left, limit)
    if first is not None:
        raise untied(first)
    return results


def wait_any(works: Works, timeout: float | None = None) -> tuple[int | None, Any]:
    """Wait until one of several works is over, like MPI's Waitany. Blocks.

    Parameters
    ----------
    works : iterable of Work or None
        Works of any communicators, calls and kinds of memory. Put None in the place of a work that is dealt with.
    timeout : float, optional
        Seconds; 0 asks each once. None leaves each work its own deadline.

    Returns
    -------
    tuple of int and object
        The index of the first work in `works` that is over, and its result. For a work on a device,
        the current stream is ordered behind it. Both are None if there are no works.

    Raises
    ------
    WaitTimeout
        If `timeout` passes. The works and their communicators go on.
    HpccommError
        The failure of that work. A note says which work it is.
    """
    each = _checked(works)
    for index in _over(each, timeout):
        return index, _result(each, index)
    return None, None


def wait_some(works: Works, timeout: float | None = None) -> list[tuple[int, Any]]:
    """Wait until at least one of several works is over, like MPI's Waitsome. Blocks.

    Parameters and errors are those of `wait_any`.

    Returns
    -------
    list of tuple of int and object
        The index and the result of each work that is over. Empty if there are no works.
    """
    each = _checked(works)
    return [(index, _result(each, index)) for index in _over(each, timeout)]


def _checked(works: Works) -> list[Work | None]:
    each = list(works)
    for index, work in enumerate(each):
        if work is not None and not isinstance(work, Work):
            raise UsageError(
                f"works[{index}] is {work!r}; give what calls with async_op=True return, or None"
            )
    return each


def _over(each: list[Work | None], timeout: float | None) -> list[int]:
    """Wait until at least one work is over, and return the indices of all that are."""
    limit = inf if timeout is None else check_seconds("timeout", timeout, zero=True)
    under_way = [(index, work) for index, work in enumerate(each) if work is not None]
    engines = {engine for _, work in under_way if (engine := work.progress) is not None}
    places = list[int]()

    def poll() -> bool:
        for engine in engines:
            engine.turn()
        for _, work in under_way:
            work.keep_deadline()
        # Not by `done`, which counts as asking: a work that is dropped without a wait is warned of.
        places[:] = [index for index, work in under_way if work.looked()]
        return bool(places)

    if under_way and not poll():
        with ExitStack() as stack:
            for engine in engines:
                stack.enter_context(engine.attended())
            if limit == inf and all(work.progress is not None for _, work in under_way):
                stack.enter_context(awaiting([work for _, work in under_way], ANY_OF))
            if not over_within(limit, poll):
                raise still_under_way([work for _, work in under_way], limit)
    return places


def _result(each: list[Work | None], index: int) -> Any:
    work = each[index]
    assert work is not None
    try:
        return work.wait()
    except HpccommError as error:
        _named(error, index, each)
        raise


def _named(error: HpccommError, index: int, each: list[Work | None]) -> HpccommError:
    """Add to an error a note with the index of its work, and return the error."""
    error.add_note(f"It is the failure of works[{index}], of {len(each)}.")
    return error
