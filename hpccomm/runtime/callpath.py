"""The path of a synchronous call, written out for each form of a call.

A call takes its turn, gets a number and a record, runs, and is counted. That costs a microsecond, and each function
that a call enters costs a tenth of one. So each form of a call is one function, from top to bottom, and what the
forms share stands in each of them. `tests/runtime/test_callpath.py` holds that it is the same.

What is equal for calls with the same arguments, sizes included, stands in their `PreparedCall`, which is made once.
`hpccomm.communicator` makes and keeps them.

What is shared:

- A turn holds the communicator for one call: one thread at a time. It is taken and given back by statements that
  call nothing, as ``pop`` would: a signal's handler that raises, such as Ctrl-C's, runs after calls, and nothing
  would give the turn back. Nor has a call room where recursion is at its limit. What was under way then is not
  known to be done, or told of, so the communicator takes no more calls.
- Nothing is called between where others see the record and the ``try``, for the same reason: the record would stay.
- Messages, unlike collectives, have no number that all ranks count.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from time import perf_counter
from typing import Any, Protocol, TypeVar, cast

from hpccomm.contracts.backend import both
from hpccomm.contracts.signature import CallFingerprint, Choice, Signature
from hpccomm.contracts.transport import Steps
from hpccomm.runtime.progress import COMPARED, DIGEST
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
from hpccomm.runtime.state import harmless_error
from hpccomm.runtime.waiting import drive, spun
from hpccomm.runtime.work import SMALL_BYTES, Work

F = TypeVar("F", bound=Callable[..., Any])

LEFT = "was left by a RecursionError or MemoryError in the midst of a call"
"""Why no call is taken after that."""


@dataclass(slots=True, eq=False)
class PreparedCall:
    """A call that is decided once and carried out many times: `issue` does it, on the arguments of the single call.

    Attributes
    ----------
    calls : CallEngine
        The communicator's.
    label : CallFingerprint
        Its identity, for records, messages and the other ranks.
    start : callable
        ``start(*arguments)`` returns its polled steps.
    run : callable or None
        ``run(*arguments)`` blocks in a library; `issue` takes it if it is not None.
    arguments : callable
        ``arguments(send, recv)`` returns the arguments for arrays in host memory.
    ordered : bool
        Whether it is a collective, which all ranks issue in one order.
    choice : Choice or None
        Which algorithm, and why; None for what no user asks about.
    lane : Lane or None
        The lane of its arrays.
    kind : CallKind or None
        What its arguments mean, without their sizes; None for messages.
    call : Signature or None
        What the backend is asked for; None for messages.
    shape : tuple of int
        Of the result of a collective.
    more : Implementation or DeviceImplementation or None
        What plans, groups and captured graphs need besides.
    agreed : int
        When the ranks have agreed on it: `CallEngine.agreement` at that time.
    apart : CallFingerprint or None
        The identity of its asynchronous form, once that is asked for.
    tally : Tally
        Where it is counted.
    nbytes, mark : int
        Of the label: its bytes, and its part of the digest.
    """

    calls: Any
    label: CallFingerprint
    start: Callable[..., Steps]
    run: Callable[..., object] | None = None
    arguments: Callable[[Any, Any], tuple[Any, ...]] = both
    ordered: bool = True
    choice: Choice | None = None
    lane: Any = None
    kind: Any = None
    call: Signature | None = None
    shape: tuple[int, ...] = ()
    more: Any = None
    agreed: int = 0
    apart: CallFingerprint | None = None
    tally: Tally = field(init=False)
    nbytes: int = field(init=False)
    mark: int = field(init=False)

    def __post_init__(self) -> None:
        name, self.nbytes, _, fingerprint, *_ = self.label
        self.tally = self.calls.reports.tally(name, self.nbytes)
        self.mark = fingerprint & DIGEST

    def issue(self, arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        """Carry the call out and wait for it: within seconds, with what must live meanwhile.

        What only a call that waits long needs is made only then: small arrays come this way.
        """
        calls, label, tally, run = self.calls, self.label, self.tally, self.run
        reports, ordered = calls.reports, self.ordered
        number, mode = 0, POLLED if run is None else BLOCKING
        if ordered:
            if calls.queue:
                calls.drain(timeout, calls.queue)
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ self.mark) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [
            calls.origin,
            sequence,
            number,
            label,
            mode,
            calls.site,
            begin,
            timeout,
            None,
            None,
        ]
        calls.record(entry)
        steps = None
        calls.current = entry
        try:
            if reports.pre_hooks.registered:
                reports.pre_hooks(reports.info(entry))
            if ordered and (self.agreed != calls.agreement or number & COMPARED == COMPARED):
                calls.agree_on(self, entry, arguments)
            if run is not None:
                run(*arguments)
            else:
                steps = self.start(*arguments)
                if not spun(steps):
                    again, expired = calls.together(steps), calls.expired(entry)
                    drive(again, timeout=timeout, gate=calls.gate, expired=expired)
        except BaseException as error:  # noqa: BLE001 (raised again)
            harmless = run is None and harmless_error(error, ordered)
            calls.failed(error, entry, (self, arguments, keep, steps), harmless=harmless)
        calls.current = None
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += self.nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            reports.report(entry, elapsed, None, keep)

    def begin(self, arguments: tuple[Any, ...], keep: object, timeout: float, result: Any) -> Work:
        """Begin it here and now, so that nothing that is sent later overtakes it; it goes on by itself if it is not done.

        Collectives begin one after the other.
        """
        calls, tally, ordered, number = self.calls, self.tally, self.ordered, 0
        label = self.label if self.apart is None else self.apart
        reports, progress = calls.reports, calls.progress
        if ordered:
            mark = label.fingerprint & DIGEST
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ mark) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [
            calls.origin,
            sequence,
            number,
            label,
            ASYNC,
            calls.site,
            begin,
            timeout,
            None,
            None,
        ]
        calls.record(entry)
        steps, moved = None, cast("bool | None", False)
        try:
            if reports.pre_hooks.registered:
                reports.pre_hooks(reports.info(entry))
            work = Work(calls, entry, tally, (arguments, keep), result)
            if not (ordered and calls.queue):
                try:
                    work.steps = steps = self.start(*arguments)
                    moved = next(steps, None)
                except Exception as error:  # noqa: BLE001 (kept for who waits)
                    work.end(error)
                    return work
            if moved is not None:
                calls.under_way[work] = entry
                if ordered:
                    work.small = self.nbytes <= SMALL_BYTES
                    if steps is None:
                        work.start = partial(self.start, *arguments)
                    progress.submit(calls.queue, work)
                    return work
                progress.messages[work] = entry
                if progress.parked:
                    progress.wake()
                return work
        except BaseException as error:  # noqa: BLE001 (raised again)
            calls.failed(error, entry, (arguments, keep, steps))
        work.over, work.steps = True, None
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += self.nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            try:
                reports.report(entry, elapsed, None, keep)
            except Exception as error:  # noqa: BLE001 (a hook's, kept for who waits)
                work.error = error
        return work


KEPT_CALLS = 1024
"""Prepared calls that are kept. The next one takes the place of the oldest, which is prepared anew where it comes again."""


class Kept(OrderedDict[Any, Any]):
    """The last `KEPT_CALLS` values that were kept."""

    def keep(self, key: object, value: Any) -> None:
        """Keep a value, in place of the oldest if there are many."""
        if len(self) >= KEPT_CALLS:
            self.popitem(last=False)
        self[key] = value


# Plans: the program calls the function itself, which takes its turn.


class Diversion(Protocol):
    """The place where calls go: to their issue, or to a batch that takes them.

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

    The first argument has the `CallEngine` as ``calls``. The place of the call is the line that called the method
    which calls the function, two frames up.
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
    number, mark = 0, label.fingerprint & DIGEST
    if ordered:
        calls.number = number = calls.number + 1
        calls.digest = (calls.digest * 9 ^ mark) & DIGEST
    calls.sequence = sequence = calls.sequence + 1
    begin = perf_counter()
    entry = [calls.origin, sequence, number, label, mode, calls.site, begin, timeout, None, None]
    calls.record(entry)
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
