"""Things that outlive a call: kept memory, steps at the exit, and safety after a fork.

It also holds the statuses of the process's exit, and its last words. Everything that must run at
the exit, or stay alive until then, is registered here.
"""

import atexit
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from operator import itemgetter

logger = logging.getLogger("hpccomm")

Step = Callable[[], None]

STACK_BYTES = 1 << 20
"""Stack of the threads that look after others: the usual one, of the size of a program's, is for more."""

_kept: dict[int, object] = {}  # by identity
_exit_steps: "dict[tuple[ExitStep, Step], None]" = {}  # in the order of registration
_child_steps: list[Step] = []
_last_steps: list[Step] = []
_leaving = False
_ending: int | None = None
_blocked_before: dict[int, set[signal.Signals | int]] = {}  # of threads that are forking

LAST_SECONDS = 2.0
"""Seconds for the last writes if hpccomm ends the process."""

PATIENCE_SECONDS = LAST_SECONDS + 2.0
"""How long an end may take in all: those writes, and the launcher."""


class Status(IntEnum):
    """Why a process has ended. ``sys.exit(n)`` of the program stays n."""

    DONE = 0
    """Done."""
    RAISED = 1
    """An exception was not caught. At the command line: done, and a result was wrong."""
    REFUSED = 2
    """At the command line: not done. Misuse, configuration, results file, communication, full output."""
    ENDED = 3
    """hpccomm ended the job, because its ranks could not go on: a deadline, a mismatch or a lost rank in a
    call that cannot be left, or a creation or finalisation that outlived its deadline."""
    UNDECIDED = 4
    """At the command line: done, and other processes kept nodes so busy that nothing is decided."""
    INTERRUPTED = 130
    """SIGINT: interrupted from the keyboard."""
    UNREAD = 141
    """At the command line: what reads standard output has ended (``hpccomm show FILE | head``)."""
    TERMINATED = 143
    """SIGTERM."""


def status_of(error: BaseException) -> int:
    """Return the status of a process that an exception ends, as Python and this module have it."""
    if isinstance(error, SystemExit):
        code = error.code
        return 0 if code is None else code & 0xFF if isinstance(code, int) else 1
    return Status.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Status.RAISED


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector from running, such as in the middle of a measurement, as timeit does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep(*objects: object) -> None:
    """Keep objects for the life of the process, or until `let_go`. From any thread.

    For arrays and requests of a call that failed under way: a late peer may still write to that
    memory, also after the communicator's end. The objects also outlive the interpreter, by
    `ServiceThread`: MPI may write until the process has ended, and destructors may block.
    """
    _kept.update((id(each), each) for each in objects)


def let_go(kept: object) -> None:
    """Give up what `keep` was called with: nothing can touch it any more. From any thread."""
    _kept.pop(id(kept), None)


class ExitStep(IntEnum):
    """The steps of the process's exit, in the order in which they run.

    Registered at any time and in any order.
    """

    CALLERS = 0
    """End hpccomm's own threads that make calls, while what carries the calls out is still there."""
    DEVICES = 1
    """Wait for devices and free NCCL's communicators, while peers and their threads exist."""
    THREADS = 2
    """End the threads that move operations on, and keep others from MPI, which is to be finalised."""
    MPI = 3
    """Finalise MPI under a deadline, or leave it where a communicator has failed."""


def at_exit(which: ExitStep, step: Step) -> None:
    """Run `step` when the process ends, in its place among the others. Once, if registered again.

    All of them run before any exit function that was registered earlier, such as one of a library
    that this step uses.
    """
    _exit_steps[which, step] = None
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    global _leaving
    _leaving = True
    interrupted = None
    for which, step in sorted(_exit_steps, key=itemgetter(0)):
        try:
            step()
        except KeyboardInterrupt as error:  # without the steps that follow the process may crash
            interrupted = error
        except Exception:  # the steps that follow must still run
            logger.exception("a step of the exit failed: %s", which.name)
    if interrupted is not None:
        raise interrupted


def run_exit_steps(which: ExitStep) -> None:
    """Run some of the steps early. They run at the exit again."""
    for each, step in tuple(_exit_steps):
        if each is which:
            step()


def leaving() -> bool:
    """Whether the program has ended and the steps of the exit run."""
    return _leaving


class ServiceThread(threading.Thread):
    """A thread that runs hpccomm's code alone, so that it calls no communicator for the program."""

    kept = _kept
    """The interpreter empties modules at its end, and leaves daemon threads with all that they have."""


def start_thread(name: str, run: Callable[..., None], *arguments: object) -> bool:
    """Start a daemon thread; return whether there is one: a process may have too little address space.

    A step that fails is logged and skipped. A correct program must not depend on it.
    """
    usual = threading.stack_size(STACK_BYTES)
    try:
        ServiceThread(target=run, args=arguments, name=name, daemon=True).start()
    except RuntimeError as error:
        logger.warning("no thread %r, whose help will be missing: %s", name, error)
        return False
    finally:
        threading.stack_size(usual)
    return True


def before_end(step: Step, *, first: bool = False) -> Step:
    """Run `step` where hpccomm ends the process at once, which runs no exit function; a decorator.

    Such as at a deadline, or at SIGTERM. It runs in a thread of its own, while the main thread may be
    anywhere, and should write down at once what would be lost. With `first` it runs before the others:
    some launchers leave a quarter of a second after SIGTERM.
    """
    _last_steps.insert(0 if first else len(_last_steps), step)
    return step


def ending() -> int | None:
    """Return the status with which hpccomm ends the process, for the steps of `before_end`."""
    return _ending


def write_last(with_status: int) -> None:
    """Run what was registered by `before_end`; takes at most `LAST_SECONDS`. From any thread."""
    global _ending
    _ending = with_status

    def run() -> None:
        for step in _last_steps:
            try:
                step()
            except Exception:  # the others must still run
                logger.exception("something could not be written before the end")

    if _last_steps:
        # The main thread may hold any lock, so none may be waited for here.
        thread = threading.Thread(target=run, name="hpccomm-last", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too late for threads
            run()
        else:
            thread.join(LAST_SECONDS)


def after_fork(step: Step) -> Step:
    """Run `step` in each child that the process forks; a decorator. No step relies on another.

    A child lacks its parent's threads, its locks may be held by one of them, and MPI is lost.
    """
    if not _child_steps:
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_let_signals, after_in_child=_forked
        )
    _child_steps.append(step)
    return step


def _forked() -> None:
    for step in _child_steps:
        step()
    _let_signals()


def _hold_signals() -> None:
    """Hold signals back until the child's steps are done: its handlers still wake threads of its parent."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
    _blocked_before[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, held)


def _let_signals() -> None:
    blocked = _blocked_before.pop(threading.get_ident(), None)
    if blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# Last words, to standard error, in any state of the process.

STDERR = 2
"""The process's own standard error, independent of ``sys.stderr``."""


class Voice:
    """How ranks that have the same to say take turns: none knows of others, unless they can be asked.

    Attributes
    ----------
    before : callable
        ``before(what)`` returns how many ranks have said something before this one says it. It may ask
        them, which takes up to half a second.
    leaves : callable
        ``leaves(error)`` tells the other ranks, and who reads, of an exception that leaves the block of
        a communicator. It may take half a second.
    """

    before: Callable[[str], int] = staticmethod(lambda _: 0)
    leaves: Callable[[BaseException], None] = staticmethod(lambda _: None)


def write_stderr(text: str) -> None:
    """Write a line to standard error. Never raises.

    It may be closed, its reader gone, or a signal have come while a stream was being flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be an object of the program's
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{text}\n".encode(errors="backslashreplace"))


def guard_logging() -> None:
    """Keep exceptions of the program's logging handlers from ending a call or thread. Idempotent.

    A thread that watches calls, or the end of the job, may be what logs. The record is printed instead.
    """
    if "callHandlers" in vars(logger):
        return
    handle = logger.callHandlers

    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 (any exception)
            write_stderr(
                f"hpccomm: {record.getMessage()}\nhpccomm: a logging handler failed on it: {error!r}"
            )

    logger.callHandlers = guarded  # type: ignore[method-assign]
