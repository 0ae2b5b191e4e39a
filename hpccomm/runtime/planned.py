"""Planned calls: the functions that carry them out.

A plan costs about a microsecond, and each function that it calls a tenth of one. So what is the same in all of
these, and in `issue`, is written out in each: a call takes its turn, is numbered and recorded, and is counted.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from hpccomm.contracts.transport import Bound
from hpccomm.runtime.operation import COMPARED, DIGEST, Label
from hpccomm.runtime.recorder import BLOCKING, ENDED, POLLED, Site, caller
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.traffic import Repeated
from hpccomm.runtime.waiting import SPINS, drive

if TYPE_CHECKING:
    from hpccomm.runtime.engine import CallEngine


class Diversion(Protocol):
    """Where calls go.

    Attributes
    ----------
    diverted : bool
        Whether something takes calls instead of their being issued: a batch, say.
    """

    diverted: bool


def carrying(
    calls: "CallEngine",
    carry: Callable[[], object],
    result: Any,
    intake: Diversion,
    otherwise: Callable[[], Any],
) -> Callable[[], Any]:
    """Return what carries out a plan of any call by `carry`, which numbers and records it.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    carry : callable
        Carries the call out and waits for it.
    result : object
        What the call returns.
    intake : Diversion
        Where calls go.
    otherwise : callable
        Is called instead when calls are taken elsewhere, or refused.
    """
    take, give, gate = calls.turn.pop, calls.turn.append, calls.gate

    def carried() -> Any:
        try:
            take()
        except IndexError:
            free = False
        else:
            free = True
        if not free:
            return otherwise()
        if intake.diverted or calls.closed or gate.error is not None:
            give(None)
            return otherwise()
        try:  # `called_from`, written out: a call less
            frame = caller(1)
            calls.site = (frame.f_code, frame.f_lasti)
        except ValueError:
            calls.site = None
        try:
            carry()
        finally:
            give(None)
        return result

    return carried


def blocked(
    calls: "CallEngine",
    label: Label,
    tally: Tally,
    run: Callable[..., object],
    arguments: tuple[Any, ...],
    keep: object,
    timeout: float,
    result: Any,
    intake: Diversion,
    otherwise: Callable[[], Any],
) -> Callable[[], Any]:
    """Return what carries out a plan of one call that blocks in the backend's library.

    It takes its turn, and does what `issue.blocking` does.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    label : Label
        Of the call.
    tally : Tally
        Where it is counted.
    run : callable
        Blocks in the library.
    arguments : tuple
        What it is called with.
    keep : object
        What must live meanwhile.
    timeout : float
        Seconds each time.
    result : object
        What the call returns.
    intake : Diversion
        Where calls go.
    otherwise : callable
        Is called instead when calls are taken elsewhere, or refused.
    """
    nbytes, reports, origin = label.nbytes, calls.reports, calls.origin
    pre, post, slow_call = reports.pre_hooks, reports.post_hooks, reports.slow_call
    queue, gate, record = calls.queue, calls.gate, calls.record
    take, give = calls.turn.pop, calls.turn.append
    fingerprint = label.fingerprint & DIGEST

    def issue() -> Any:
        try:
            take()
        except IndexError:
            free = False
        else:
            free = True
        if not free:
            return otherwise()
        if intake.diverted or calls.closed or gate.error is not None:
            give(None)
            return otherwise()
        try:
            try:  # `called_from`, written out: a call less
                frame = caller(1)
                site: Site | None = (frame.f_code, frame.f_lasti)
            except ValueError:
                site = None
            calls.site = site
            if queue:
                calls.drain(timeout, queue)
            calls.sequence = sequence = calls.sequence + 1
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ fingerprint) & 0x3FFFFFF
            begin = perf_counter()
            calls.current = entry = [
                origin, sequence, number, label, BLOCKING, site, begin, timeout, None, None,
            ]  # fmt: skip
            record(entry)
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
            if elapsed > slow_call or post.registered:
                reports.report(entry, elapsed)
        finally:
            give(None)
        return result

    return issue


def exchanging(
    calls: "CallEngine",
    label: Label,
    tally: Tally,
    exchange: Bound,
    sources: Sequence[int],
    targets: Sequence[int],
    result: Any,
    keep: object,
    limit: float,
    intake: Diversion,
    otherwise: Callable[[], Any],
) -> Callable[[], Any]:
    """Return what carries out a plan of one exchange.

    It takes its turn, does what `issue.polling` does, and waits without steps.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    label : Label
        Of the call.
    tally : Tally
        Where it is counted.
    exchange : Bound
        The messages.
    sources, targets : sequence of int
        The ranks from which and to which they are, each as often as it has one.
    result : object
        What the call returns.
    keep : object
        What must live meanwhile.
    limit : float
        Seconds each time.
    intake : Diversion
        Where calls go.
    otherwise : callable
        Is called instead when calls are taken elsewhere, or refused.
    """
    nbytes, reports, origin = label.nbytes, calls.reports, calls.origin
    pre, post, slow_call = reports.pre_hooks, reports.post_hooks, reports.slow_call
    gate, record = calls.gate, calls.record
    take, give = calls.turn.pop, calls.turn.append
    begin_all, test = exchange
    repeated = Repeated(sources, targets)

    def exchanged() -> Any:
        try:
            take()
        except IndexError:
            free = False
        else:
            free = True
        if not free:
            return otherwise()
        if intake.diverted or calls.closed or gate.error is not None:
            give(None)
            return otherwise()
        try:
            frame = caller(1)
            site = (frame.f_code, frame.f_lasti)
        except ValueError:
            site = None
        try:
            calls.sequence = sequence = calls.sequence + 1
            begin = perf_counter()
            calls.current = entry = [
                origin, sequence, 0, label, POLLED, site, begin, limit, None, None,
            ]  # fmt: skip
            record(entry)
            try:
                if pre.registered:
                    pre(reports.info(entry))
                repeated.times += 1
                begin_all()
                for _ in repeat(None, SPINS):
                    if test():
                        break
                else:
                    steps = iter(test, True)
                    drive(steps, timeout=limit, gate=gate, expired=calls.expired(entry))
            except BaseException as error:  # noqa: BLE001 (raised again)
                calls.failed(error, entry, (exchange, keep))
            calls.current = None
            entry[ENDED] = elapsed = perf_counter() - begin
            tally.calls += 1
            tally.nbytes += nbytes
            tally.seconds += elapsed
            if elapsed > slow_call or post.registered:
                reports.report(entry, elapsed)
        finally:
            give(None)
        return result

    calls.traffic.repeated(repeated, exchanged)
    return exchanged
