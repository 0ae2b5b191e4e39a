"""The path of a synchronous call, written out for each form of a call.

A call takes its turn, gets a number and a record, runs, and is counted. That costs a microsecond, and each function
that a call enters costs a tenth of one. So each form of a call is one function, from top to bottom, and the common
statements are repeated in each. `tests/runtime/test_callpath.py` checks that they are the same.

Calls with the same arguments, sizes included, share a `PreparedCall`, which is made once. `hpccomm.calls` makes and
keeps them. `engine`, `hpccomm.calls`, `hpccomm.communicator` and `hpccomm.gradients` use the decorators and plans.

The common statements:

- A turn holds the communicator for one call: one thread at a time. The turn is taken and given back by statements
  without a function call, unlike ``pop``. A signal handler that raises, such as Ctrl-C's, runs after function calls,
  and nothing would give the turn back. At the recursion limit, a function call would fail.
- After a `RecursionError` or `MemoryError` it is not known whether the call under way was done. So the communicator
  takes no more calls.
- For the same reason no function is called between the statement that makes the record visible and the ``try``: a
  handler that raises there would leave the record in place.
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
"""Why the communicator takes no more calls after such an error; see `CallState.closed`."""


@dataclass(slots=True, eq=False)
class PreparedCall:
    """A call that is decided once and carried out many times. `issue` and `begin` take the arguments of each call.

    Attributes
    ----------
    calls : CallEngine
        The engine of the communicator.
    label : CallFingerprint
        The call's identity, for records, messages and the other ranks.
    start : callable
        ``start(*arguments)`` returns the call's polled steps.
    run : callable or None
        ``run(*arguments)`` blocks in a library. If it is not None, `issue` uses it in place of `start`.
    arguments : callable
        ``arguments(send, recv)`` returns the arguments for arrays in host memory.
    ordered : bool
        Whether it is a collective, which all ranks issue in one order.
    choice : Choice or None
        The algorithm, and the reason for it; None for calls that no user asks about.
    lane : Lane or None
        The lane of the call's arrays.
    kind : CallKind or None
        The meaning of the call's arguments, without their sizes; None for messages.
    call : Signature or None
        The request to the backend; None for messages.
    shape : tuple of int
        Shape of the result of a collective.
    more : Implementation or DeviceImplementation or None
        Further parts for plans, groups and captured graphs.
    agreed : int
        `CallEngine.agreement` at the time when the ranks agreed on the call.
    apart : CallFingerprint or None
        The identity of the asynchronous form, once a program has asked for that form.
    tally : Tally
        The sums that the call is counted in.
    nbytes, mark : int
        The bytes of the label, and its part of the digest.
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
        """Carry the call out and wait for it.

        Objects for a long wait are made only when the call waits long, since small arrays use this function too.

        Parameters
        ----------
        arguments : tuple
            The arguments of `run` or `start`.
        keep : object
            Kept alive until the call is done; for the life of the process if it fails.
        timeout : float
            Seconds to the deadline.
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
        """Begin the call asynchronously and return its `Work`.

        A message begins at once, so that no later message overtakes it. Collectives begin one after the other.
        The parameters are those of `issue`; `result` is what the `Work` returns.
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
                except Exception as error:  # noqa: BLE001 (kept for the waiter)
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
            except Exception as error:  # noqa: BLE001 (of a hook, kept for the waiter)
                work.error = error
        return work


KEPT_CALLS = 1024
"""Most prepared calls that are kept. One more replaces the oldest, which is prepared anew if it is made again."""


class Kept(OrderedDict[Any, Any]):
    """A cache of the last `KEPT_CALLS` values."""

    def keep(self, key: object, value: Any) -> None:
        """Keep a value, in place of the oldest if `KEPT_CALLS` are kept already."""
        if len(self) >= KEPT_CALLS:
            self.popitem(last=False)
        self[key] = value


# Plans: the program calls the function itself, which takes its turn.


class Diversion(Protocol):
    """The destination of calls: they are issued, or a batch collects them.

    Attributes
    ----------
    diverted : bool
        Whether something, such as a batch, collects calls in place of issuing them.
    """

    diverted: bool


Plan = Callable[[], Any]
"""Carries a call out again, and returns its result."""


def carried(
    calls: Any, carry: Callable[[], object], result: Any, sink: Diversion, otherwise: Plan
) -> Plan:
    """Return the plan of a call. ``carry()`` numbers, records and carries out the call.

    ``otherwise()`` is called instead where a batch collects calls, or where the communicator takes none.
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


# Calls that are separate functions.


def in_turn(method: F, *, of_all: bool = False) -> F:
    """Run a function in its communicator's turn; a decorator.

    The first argument has the `CallEngine` as ``calls``. The recorded place of the call is two frames up: the line
    that called the method which calls the function. `of_all` says that it is a call of all ranks: then the next
    such call asks the other ranks about a refused one.
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
    """Run a call of all ranks in its communicator's turn, as `in_turn` does with ``of_all=True``; a decorator."""
    return in_turn(method, of_all=True)


@contextmanager
def one_call(calls: Any, also_failed: bool = False) -> Iterator[None]:
    """Hold the communicator of a `CallEngine` for the block, which is one call.

    With `also_failed`, a failed communicator whose ranks can still agree takes the call as well.
    """
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
    """Number a call that begins, record it, and return the record."""
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
    """Count and report a call that has ended, with an error or None. `held` are the objects that it kept alive."""
    reports, nbytes, entry[ENDED] = calls.reports, entry[LABEL].nbytes, elapsed
    if error is not None:
        entry[ERROR] = in_words(error)
    tally.calls += 1
    tally.nbytes += nbytes
    tally.seconds += elapsed
    if elapsed > reports.quiet:
        reports.report(entry, elapsed, error, held)
