"""The path of a synchronous call, written out for each form of a call.

A call takes its turn, gets a number and a record, runs, and is counted. That costs a microsecond, and each function
that a call enters costs a tenth of one. So each form of a call is one function, from top to bottom, and what the
forms share stands in each of them. `tests/test_callpath.py` holds that it is the same.

Values that are equal for all calls of one kind are bound once, by the function around it: the inner one looks
nothing up. `hpccomm.communicator.lanes` and plans make their calls by it.

What is shared:

- A turn holds the communicator for one call: one thread at a time. It is taken and given back by statements that
  call nothing, as ``pop`` would: a signal's handler that raises, such as Ctrl-C's, runs after calls, and nothing
  would give the turn back. Nor has a call room where recursion is at its limit. What was under way then is not
  known to be done, or told of, so the communicator takes no more calls.
- Nothing is called between where others see the record and the ``try``, for the same reason: the record would stay.
- Messages, unlike collectives, have no number that all ranks count.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import repeat
from time import perf_counter
from typing import Any, Protocol, TypeVar, cast

from hpccomm.contracts.backend import Start
from hpccomm.contracts.fingerprint import CallFingerprint
from hpccomm.runtime.failure import harmless_error
from hpccomm.runtime.operation import COMPARED, DIGEST
from hpccomm.runtime.recorder import (
    ASYNC,
    BLOCKING,
    ENDED,
    ERROR,
    LABEL,
    POLLED,
    CallRecord,
    caller,
    in_words,
    user_site,
)
from hpccomm.runtime.reports import Tally
from hpccomm.runtime.waiting import SPINS, drive, spun
from hpccomm.runtime.work import SMALL_BYTES, Work

F = TypeVar("F", bound=Callable[..., Any])

Issue = Callable[[tuple[Any, ...], object, float], None]
"""``issue(arguments, keep, timeout)`` carries a call out and waits for it: what it is called with, what must
live meanwhile, and seconds."""

LEFT = "was left by a RecursionError or MemoryError in the midst of a call"
"""Why no call is taken after that."""

# Calls on arrays in host memory. That on a device's stream is beside its streams.


def blocked(calls: Any, label: CallFingerprint, tally: Tally, run: Callable[..., object]) -> Issue:
    """Return the function that carries calls of one kind out by ``run(*arguments)``, which blocks in a library."""
    reports, origin, record, queue = calls.reports, calls.origin, calls.record, calls.queue
    pre, nbytes, fingerprint = reports.pre_hooks, label.nbytes, label.fingerprint & DIGEST

    def blocked(arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        if queue:
            calls.drain(timeout, queue)
        calls.number = number = calls.number + 1
        calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [origin, sequence, number, label, BLOCKING, calls.site, begin, timeout, None, None]
        record(entry)
        calls.current = entry
        try:
            if pre.registered:
                pre(reports.info(entry))
            if number & COMPARED == COMPARED:
                calls.compare(label, entry)
            run(*arguments)
        except BaseException as error:  # noqa: BLE001 (raised again)
            calls.failed(error, entry, (arguments, keep))
        calls.current = None
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            reports.report(entry, elapsed, None, keep)

    return blocked


def polled(
    calls: Any, label: CallFingerprint, tally: Tally, start: Start, ordered: bool = True
) -> Issue:
    """Return the function that carries calls of one kind out by the steps of ``start(*arguments)``.

    Small arrays come this way: what only a call that waits long needs is made only then.
    """
    gate, reports, origin, record = calls.gate, calls.reports, calls.origin, calls.record
    queue, pre = calls.queue, reports.pre_hooks
    nbytes, fingerprint = label.nbytes, label.fingerprint & DIGEST

    def polled(arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        number = 0
        if ordered:
            if queue:
                calls.drain(timeout, queue)
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [origin, sequence, number, label, POLLED, calls.site, begin, timeout, None, None]
        record(entry)
        steps = None
        calls.current = entry
        try:
            if pre.registered:
                pre(reports.info(entry))
            if number & COMPARED == COMPARED:
                calls.compare(label, entry)
            steps = start(*arguments)
            if not spun(steps):
                drive(
                    calls.together(steps), timeout=timeout, gate=gate, expired=calls.expired(entry)
                )
        except BaseException as error:  # noqa: BLE001 (raised again)
            held = (start, arguments, keep, steps)
            calls.failed(error, entry, held, harmless=harmless_error(error, ordered))
        calls.current = None
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            reports.report(entry, elapsed, None, keep)

    return polled


def started(
    calls: Any, label: CallFingerprint, tally: Tally, start: Start, ordered: bool = False
) -> Callable[[tuple[Any, ...], object, float, Any], Work]:
    """Return the function that begins calls of one kind, which go on by themselves if they are not done at once.

    They begin here and now, so that nothing that is sent later overtakes them; but collectives one after the other.
    """
    reports, origin, record = calls.reports, calls.origin, calls.record
    queue, progress, pre = calls.queue, calls.progress, reports.pre_hooks
    under_way, messages = calls.under_way, progress.messages
    nbytes, fingerprint = label.nbytes, label.fingerprint & DIGEST
    small = not ordered or nbytes <= SMALL_BYTES

    def started(arguments: tuple[Any, ...], keep: object, timeout: float, result: Any) -> Work:
        number = 0
        if ordered:
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [origin, sequence, number, label, ASYNC, calls.site, begin, timeout, None, None]
        record(entry)
        begun, steps = False, None
        moved: bool | None = False
        try:
            if pre.registered:
                pre(reports.info(entry))
            begun = True
            if not (ordered and queue):
                steps = start(*arguments)
                moved = next(steps, None)
        except BaseException as error:  # noqa: BLE001 (kept for who waits)
            if not begun or not isinstance(error, Exception):
                calls.failed(error, entry, (arguments, keep, steps))
            work = Work(calls, entry, tally, (arguments, keep, steps), None)
            work.end(error)
            return work
        work = Work(calls, entry, tally, keep, result)
        if moved is not None:
            work.steps, under_way[work] = steps, entry
            if ordered:
                work.small = small
                if steps is None:
                    work.start = partial(start, *arguments)
                progress.submit(queue, work)
            else:
                messages[work] = entry
                if progress.parked:
                    progress.wake()
            return work
        work.over = True
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            reports.report(entry, elapsed, None, keep)
        return work

    return started


def exchanged(
    calls: Any,
    label: CallFingerprint,
    tally: Tally,
    phases: Sequence[Any],
    repeated: Any,
    keep: object,
    timeout: float,
    ordered: bool,
) -> Callable[[], None]:
    """Return the function that carries out messages which the library repeats.

    Each phase of them has a function that begins all of its messages, and one that tests them.
    """
    gate, reports, origin, record = calls.gate, calls.reports, calls.origin, calls.record
    queue, pre = calls.queue, reports.pre_hooks
    nbytes, fingerprint = label.nbytes, label.fingerprint & DIGEST

    def exchanged() -> None:
        number = 0
        if ordered:
            if queue:
                calls.drain(timeout, queue)
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [origin, sequence, number, label, POLLED, calls.site, begin, timeout, None, None]
        record(entry)
        calls.current = entry
        try:
            if pre.registered:
                pre(reports.info(entry))
            if number & COMPARED == COMPARED:
                calls.compare(label, entry)
            repeated.times += 1
            for begin_all, test in phases:
                begin_all()
                for _ in repeat(None, SPINS):
                    if test():
                        break
                else:
                    again, expired = iter(test, True), calls.expired(entry)
                    drive(again, timeout=timeout, gate=gate, expired=expired)
        except BaseException as error:  # noqa: BLE001 (raised again)
            calls.failed(error, entry, (phases, keep))
        calls.current = None
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            reports.report(entry, elapsed, None, keep)

    return exchanged


# Plans: the program calls the function itself, which takes its turn.


class Diversion(Protocol):
    """Where calls go.

    Attributes
    ----------
    diverted : bool
        Whether something takes calls instead of their being issued: a batch, say.
    """

    diverted: bool


Plan = Callable[[], Any]
"""Carries a call out again, and returns its result."""


def carried(
    calls: Any, carry: Callable[[], object], result: Any, sink: Diversion, otherwise: Plan
) -> Plan:
    """Return the plan of a call that ``carry()`` carries out, which numbers and records it.

    ``otherwise()`` is called instead where calls are taken elsewhere, or refused.
    """
    gate, turn = calls.gate, calls.turn

    def carried() -> Any:
        free = False
        try:
            del turn[0]
            free = True
        except KeyError:
            pass
        try:
            if free and not (sink.diverted or calls.closed or gate.error is not None):
                try:
                    frame = caller(1)
                    calls.site = frame.f_code, frame.f_lasti
                except ValueError:
                    calls.site = None
                carry()
                return result
        except (RecursionError, MemoryError) as error:
            # A call may refuse memory before it is made.
            if gate.error is None and (
                calls.current is not None or error.__class__ is RecursionError
            ):
                calls.closed, calls.current = LEFT, None
            raise
        finally:
            if free:
                turn[0] = True
        return otherwise()

    return carried


# Calls that are functions of their own.


def in_turn(method: F, *, of_all: bool = False) -> F:
    """Have a function carried out in its communicator's turn; a decorator.

    The first argument has the `CallEngine` as ``calls``. A method of the communicator calls the function, and the
    program calls that, unless a ``site`` is given, by keyword.
    """

    @wraps(method)
    def taking_turn(*arguments: Any, **named: Any) -> Any:
        calls = arguments[0].calls
        gate, turn = calls.gate, calls.turn
        free = False
        try:
            del turn[0]
            free = True
        except KeyError:
            pass
        try:
            if free and not (calls.closed or gate.error is not None):
                if named and named.get("site") is not None:
                    calls.site = named["site"]
                else:
                    try:
                        frame = caller(2)
                        calls.site = frame.f_code, frame.f_lasti
                    except ValueError:
                        calls.site = None
                return method(*arguments, **named)
        except (RecursionError, MemoryError) as error:
            # A call may refuse memory before it is made.
            if gate.error is None and (
                calls.current is not None or error.__class__ is RecursionError
            ):
                calls.closed, calls.current = LEFT, None
            raise
        except BaseException as error:
            calls.refused(error, of_all)
            raise
        finally:
            if free:
                turn[0] = True
        return calls.refuse(not free)

    return cast("F", taking_turn)


def all_in_turn(method: F) -> F:
    """Have a call of all ranks carried out in its communicator's turn, as `in_turn`; a refused one is remembered."""
    return in_turn(method, of_all=True)


@contextmanager
def one_call(calls: Any, also_failed: bool = False) -> Iterator[None]:
    """Hold the communicator of a `CallEngine` for one call, the block; with `also_failed` also a failed one."""
    gate, turn = calls.gate, calls.turn
    free = False
    try:
        del turn[0]
        free = True
    except KeyError:
        pass
    try:
        failed = gate.error is not None and not (also_failed and calls.failure.recoverable)
        if free and not (calls.closed or failed):
            calls.site = user_site()
            yield
            return
    except (RecursionError, MemoryError) as error:
        # A call may refuse memory before it is made.
        if gate.error is None and (calls.current is not None or error.__class__ is RecursionError):
            calls.closed, calls.current = LEFT, None
        raise
    except BaseException as error:
        calls.refused(error, False)
        raise
    finally:
        if free:
            turn[0] = True
    calls.refuse(not free, also_failed)


# Parts of calls that the engine carries out.


def start_record(
    calls: Any, label: CallFingerprint, mode: str, timeout: float, ordered: bool = True
) -> CallRecord:
    """Number and record a call that begins, and return the record."""
    origin, record, fingerprint = calls.origin, calls.record, label.fingerprint & DIGEST
    number = 0
    if ordered:
        calls.number = number = calls.number + 1
        calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST
    calls.sequence = sequence = calls.sequence + 1
    begin = perf_counter()
    entry = [origin, sequence, number, label, mode, calls.site, begin, timeout, None, None]
    record(entry)
    return entry


def ended(
    calls: Any,
    entry: CallRecord,
    tally: Tally,
    error: BaseException | None,
    elapsed: float,
    held: object,
) -> None:
    """Count and report a call that has ended, by an error or None."""
    reports, nbytes, entry[ENDED] = calls.reports, entry[LABEL].nbytes, elapsed
    if error is not None:
        entry[ERROR] = in_words(error)
    tally.calls += 1
    tally.nbytes += nbytes
    tally.seconds += elapsed
    if elapsed > reports.quiet:
        reports.report(entry, elapsed, error, held)
