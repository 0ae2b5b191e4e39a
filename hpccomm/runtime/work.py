"""`Work`: the result of an asynchronous call, the task behind it, and the warnings if it is dropped.

The engine and `callpath` make both, and what puts calls on a device's streams.
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
"""Bytes of a collective up to which the thread that starts it usually ends it."""


class Work(Hinting, Task):
    """An operation under way, which keeps its arrays alive until it is done.

    It goes on by itself. `wait`, `done` and `exception` may be called from any thread, any number
    of times. A `Work` dropped before any of these calls gives a `ResourceWarning` once it is over; an
    error that was never raised or returned is logged when the communicator is finalized.

    A call over NCCL is on the communicator's own stream of the device. `wait` then orders the current stream behind
    it, and the host goes on at once, unless it is to wait.
    """

    # It is its own task: for a message, a second object would take as long as the message itself.

    __slots__ = (
        "_asked", "_calls", "_entry", "_keep", "_result", "_stream", "_tally", "start",
    )  # fmt: skip

    def __init__(
        self, calls: Any, entry: CallRecord, tally: Tally, keep: object, result: Any
    ) -> None:
        # As `Task.__init__`, which would take as long as all of this.
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
        """Return it as that of a call that was put on a stream, and counted."""
        self._stream = call
        return self

    def wait(self, timeout: float | None = None, block: bool | None = None) -> Any:
        """Wait until the operation is done and return its result. Blocks the host, or orders a stream.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the host waits at most; 0 asks once. None sets no limit but the deadline of the call, and of
            a call on a stream it does not make the host wait.
        block : bool, optional
            Of a call on a stream, True has the host wait until the operation is done; None does where `timeout` is
            given. Otherwise the result is filled once the current stream is past this. That is the stream of the
            array's own framework, in the thread that calls. A host array's result is complete in any case.

        Returns
        -------
        object
            What the synchronous call returns.

        Raises
        ------
        WaitTimeout
            If `timeout` passes, as Python's ``TimeoutError``. The operation and its communicator go on, and a later wait may succeed.
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
            if self.gate.error is None:  # nothing has failed, and its arrays may go
                raise untied(self.error)
            calls.failure.unraised = calls.failure.told = None
            raise self.error
        if stream is not None:
            stream.order()
        result = self._result
        return result() if result.__class__ is Later else result

    def done(self) -> bool:
        """Return whether the operation is over, for good or ill. Does not block.

        Raises
        ------
        UsageError
            If it was recorded into a CUDA graph, and so is not under way.
        """
        self._asked = True
        if self._stream is None and not self.over:
            self._calls.progress.turn()
        return self.looked()

    def exception(self) -> BaseException | None:
        """Return the error that ended the operation, or None so far. Does not block; raises what `done` does."""
        if not self.done():
            return None
        self.seen = True
        return self.error

    def add_done_callback(self, call: Callable[[], object]) -> None:
        """Have ``call()`` called once the operation is over, for good or ill.

        It is called in the thread that advances operations, or that looks after a device ten times a second, and so
        must not block or communicate; or at once, if the operation is over. Without a waiting thread, and with
        ``comm.background`` False, nothing is called for an operation that no device carries out.

        Parameters
        ----------
        call : callable
            Without arguments.

        Raises
        ------
        UsageError
            If it was recorded into a CUDA graph, and so is not under way.
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
        """The engine that moves it on; None where a device does."""
        return self._calls.progress if self._stream is None else None

    def looked(self, *, ask: bool = True) -> bool:
        """Return whether it is over. The device of a call on a stream is asked, unless `ask` is False."""
        stream = self._stream
        # What the ranks find out when they agree on the call may come after its end.
        if stream is not None and self.error is None:
            error = stream.failure(self.gate)
            if error is not None or (ask and not self.over and stream.done()):
                self.error, self.over = error, True
                self.tell()
        return self.over

    def described(self) -> str:
        """Return the call, since when it is under way, and its own deadline, in words."""
        entry, own = self._entry, self._entry[TIMEOUT]
        deadline = "has no deadline" if own == inf else f"has a deadline of {own:g} s"
        what = self._calls.reports.described(entry)
        return f"{what} began {waited(entry):.3g} s ago and {deadline}"

    def attribute(self, error: CommunicationError) -> None:
        """Give an error the facts of the call."""
        self._calls.reports.attribute(error, self._entry, waited(self._entry))

    def begin(self) -> Steps:
        """Return its steps."""
        assert self.start is not None  # else it has begun
        return self.start()

    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of its deadline."""
        error: CommunicationError | None = self._calls.at_deadline(self._entry, elapsed)
        return error

    def fail(self, error: CommunicationError) -> None:
        """End all operations of its communicator."""
        self._calls.fail(error)

    def ended(self, error: BaseException | None) -> BaseException | None:
        """Count and report the call."""
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
        """Note a failure, and return it as an error of the tree."""
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
    """Return the error of a wait that has ended before the works have."""
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
        Returns it, or raises. Called by each wait, when the operation has ended well.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> Any:
        """Return it."""
        return self._make()


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
        f"it was never waited for: its result may be incomplete{failed}; keep it and call wait()"
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


Works = Iterable[Work | None]


def wait_all(works: Works, timeout: float | None = None) -> list[Any]:
    """Wait until all works are over, as MPI's Waitall, and return their results.

    Parameters
    ----------
    works : iterable of Work or None
        Of any communicators, calls and kinds of memory. None has no result, and is not waited for.
    timeout : float, optional
        Seconds for all of them; 0 asks each once. None leaves each its own deadline.

    Returns
    -------
    list of object
        What `Work.wait` returns, in the order of the works.

    Raises
    ------
    WaitTimeout
        If `timeout` passes before all are over. The works and their communicators go on.
    HpccommError
        The first failure in the order of the works, once all others are over as well. A note says which work it is.
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
            if work.over:  # it is what has ended the call, such as a hook's error
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
    """Wait until one of several works is over, as MPI's Waitany.

    Parameters
    ----------
    works : iterable of Work or None
        Of any communicators, calls and kinds of memory. Put None in the place of a work that is done with.
    timeout : float, optional
        Seconds; 0 asks each once. None leaves each work its own deadline.

    Returns
    -------
    tuple of int and object
        The place of the first work in the order of `works` that is over, and its result. Of a work on a device,
        the current stream is ordered behind it. None for both without works.

    Raises
    ------
    WaitTimeout
        If `timeout` passes. The works and their communicators go on.
    HpccommError
        The failure of that work. A note says which one it is.
    """
    each = _checked(works)
    for index in _over(each, timeout):
        return index, _result(each, index)
    return None, None


def wait_some(works: Works, timeout: float | None = None) -> list[tuple[int, Any]]:
    """Wait until at least one of several works is over, as MPI's Waitsome.

    Parameters and errors are as of `wait_any`.

    Returns
    -------
    list of tuple of int and object
        The places and the results of all works that are over. Empty without works.
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
    """Wait for the first works that are over, and return their places."""
    limit = inf if timeout is None else check_seconds("timeout", timeout, zero=True)
    under_way = [(index, work) for index, work in enumerate(each) if work is not None]
    engines = {engine for _, work in under_way if (engine := work.progress) is not None}
    places = list[int]()

    def poll() -> bool:
        for engine in engines:
            engine.turn()
        for _, work in under_way:
            work.keep_deadline()
        # They are not asked by `done`: what is dropped without a wait is warned of.
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
    """Return an error with a note of its work's place."""
    error.add_note(f"It is the failure of works[{index}], of {len(each)}.")
    return error
