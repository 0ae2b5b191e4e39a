"""Synchronous calls: the functions that carry them out.

What is the same for all calls of one kind is bound once: the functions that are returned look nothing up.
"""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.backend import Start
from hpccomm.runtime.operation import COMPARED, DIGEST, Label
from hpccomm.runtime.recorder import BLOCKING, ENDED, POLLED
from hpccomm.runtime.starting import harmless_error
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.waiting import drive, spun

if TYPE_CHECKING:
    from hpccomm.contracts.transport import Steps
    from hpccomm.runtime.engine import CallEngine

Issue = Callable[[tuple[Any, ...], object, float], None]
"""``issue(arguments, keep, timeout)`` carries a call out and waits for it: what it is called with, what must
live meanwhile, and seconds."""


def blocking(calls: "CallEngine", label: Label, tally: Tally, run: Callable[..., object]) -> Issue:
    """Return what runs a call that blocks in the backend's library, beside the watchdog.

    This is the shortest way through the library; every statement counts.
    """
    nbytes, reports, origin = label.nbytes, calls.reports, calls.origin
    pre, post, slow_call = reports.pre_hooks, reports.post_hooks, reports.slow_call
    queue, record = calls.queue, calls.record
    fingerprint = label.fingerprint & DIGEST

    def issue(arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        if queue:
            calls.drain(timeout, queue)
        calls.sequence = sequence = calls.sequence + 1
        calls.number = number = calls.number + 1
        calls.digest = (calls.digest * 9 ^ fingerprint) & 0x3FFFFFF
        begin = perf_counter()
        calls.current = entry = [
            origin, sequence, number, label, BLOCKING, calls.site, begin, timeout, None, None,
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

    return issue


def polling(
    calls: "CallEngine", label: Label, tally: Tally, start: Start, *, ordered: bool = True
) -> Issue:
    """Return what runs the polled ``start(send, recv)`` and waits for it.

    Small arrays come this way: what only a call that waits long needs is made only then.
    """
    nbytes, reports, origin = label.nbytes, calls.reports, calls.origin
    pre, post, slow_call = reports.pre_hooks, reports.post_hooks, reports.slow_call
    queue, gate, record = calls.queue, calls.gate, calls.record
    fingerprint = label.fingerprint & DIGEST
    begin_steps = (
        start if calls.progress.threaded else lambda *arguments: calls.together(start(*arguments))
    )

    def issue(arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        number = 0
        if ordered:
            if queue:
                calls.drain(timeout, queue)
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ fingerprint) & 0x3FFFFFF
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        calls.current = entry = [
            origin, sequence, number, label, POLLED, calls.site, begin, timeout, None, None,
        ]  # fmt: skip
        record(entry)
        steps: Steps | None = None
        try:
            if pre.registered:
                pre(reports.info(entry))
            if number & COMPARED == COMPARED:
                calls.compare(label, entry)
            steps = begin_steps(*arguments)
            if not spun(steps):
                drive(steps, timeout=timeout, gate=gate, expired=calls.expired(entry))
        except BaseException as error:  # noqa: BLE001 (raised again)
            held = (start, arguments, keep, steps)
            calls.failed(error, entry, held, harmless=harmless_error(error, ordered))
        calls.current = None
        entry[ENDED] = elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > slow_call or post.registered:
            reports.report(entry, elapsed)

    return issue
