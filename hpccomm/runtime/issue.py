"""Synchronous calls: the functions that carry them out.

What is the same for all calls of one kind is bound once: the functions that are returned look nothing up.

Some calls are faster on arrays that are registered on all ranks. To find out, the ranks of the node meet, as a call
on registered arrays does anyway; on others that is for nothing. So the calls of one signature meet as long as that
pays. Where it does not, they meet in the 2nd, 4th, 8th and 16th call, and then in one of `LONGEST`: what was called
before does not decide how fast a call is.
"""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.backend import Blocking, Buffer, Start
from hpccomm.runtime.operation import COMPARED, DIGEST, Label
from hpccomm.runtime.recorder import BLOCKING, ENDED, MODE, POLLED
from hpccomm.runtime.starting import harmless_error
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.waiting import drive, spun

if TYPE_CHECKING:
    from hpccomm.contracts.transport import Steps
    from hpccomm.runtime.engine import CallEngine

LONGEST = 17
"""So many calls follow each other at most in which ranks do not meet, or meet for nothing. A prime: a program
that takes a few arrays in turn meets with each of them."""

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


class Habit:
    """Whether the calls of one signature meet. All ranks change it in the same calls, to the same.

    Attributes
    ----------
    registered : bool
        Whether they meet in each call, since they have lately found that it pays.
    left : int
        Calls until that changes, unless one finds registered arrays.
    """

    __slots__ = ("_pause", "left", "registered")

    def __init__(self) -> None:
        self.registered = False
        self.left = self._pause = 1

    def met(self, registered: bool) -> None:
        """Take note of what a call has found."""
        if registered:
            self.registered, self.left, self._pause = True, LONGEST, 1
            return
        if self.registered:
            self.left -= 1
            if self.left:
                return
        self.registered, self.left = False, self._pause
        self._pause = min(2 * self._pause, LONGEST)


def meeting(
    calls: "CallEngine",
    meet: Callable[[Buffer, Buffer], Any],
    start: Start,
    run: Blocking | None,
    habit: Habit,
) -> Start:
    """Return what gives the steps of a call in which the ranks meet.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    meet : callable
        ``meet(send, recv)`` gives steps that carry the call out if the arrays of all ranks are registered, and
        return whether they are.
    start, run : callable and Blocking or None
        Carry it out otherwise, `run` where it is there.
    habit : Habit
        Takes note of it.
    """

    def steps(send: Buffer, recv: Buffer) -> "Steps":
        found = yield from meet(send, recv)
        habit.met(found)
        if found:
            return
        if run is None:
            yield from start(send, recv)
            return
        if calls.gate.error is not None:  # the library's call would not see it
            raise calls.gate.error
        entry = calls.current
        assert entry is not None  # of this very call
        entry[MODE] = BLOCKING
        try:
            run.call(*run.arguments(send, recv))
        finally:
            entry[MODE] = POLLED

    return steps


def either(habit: Habit, meets: Issue, plain: Issue) -> Issue:
    """Return what carries out calls by `meets` where that is their habit or due, else by `plain`."""

    def issue(arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        if not habit.registered:
            habit.left -= 1
            if habit.left:
                plain(arguments, keep, timeout)
                return
        meets(arguments, keep, timeout)

    return issue
